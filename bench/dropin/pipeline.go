package main

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/quantile"
	"premix/internal/testkit/figures"
	"premix/internal/testkit/workbench"
)

// pipeline is a process over samples, as Nextflow runs it: each task has a directory of its
// own, with links to its reads and to the index, and its script runs by bash.
type pipeline struct {
	name, index string
	script      string // SAMPLE stands for the name of the sample
	reads       int    // pairs of a sample
	genome      int    // bases
}

// pipelines are processes in which loading is half of the work, all of it, or nothing. STAR makes
// processes before it loads its index.
var pipelines = []pipeline{
	{"loading is half", "minimap2 -t 2 -x sr -d ref/genome.mmi ref/genome.fa", `minimap2 -t 1 -ax sr -R '@RG\tID:SAMPLE\tSM:SAMPLE' ref/genome.mmi SAMPLE_1.fq SAMPLE_2.fq | samtools view -O sam --no-PG -o SAMPLE.sam -`, 20_000, 200_000_000},
	{"loading is all", "minimap2 -t 2 -x sr -d ref/genome.mmi ref/genome.fa", `minimap2 -t 1 -ax sr -o SAMPLE.sam ref/genome.mmi SAMPLE_1.fq SAMPLE_2.fq`, 10, 200_000_000},
	{"STAR", "STAR --runMode genomeGenerate --runThreadN 2 --genomeSAindexNbases 11 --genomeDir ref/star --genomeFastaFiles ref/genome.fa --outFileNamePrefix ref/", `STAR --runThreadN 1 --genomeDir ref/star --readFilesIn SAMPLE_1.fq SAMPLE_2.fq --readFilesCommand cat --outSAMtype BAM Unsorted --outFileNamePrefix SAMPLE. >SAMPLE.txt; rm SAMPLE.Log.* SAMPLE.txt`, 5_000, 60_000_000},
	{"a small index", "bwa index ref/genome.fa", `bwa mem -t 1 -R '@RG\tID:SAMPLE\tSM:SAMPLE' -o SAMPLE.sam ref/genome.fa SAMPLE_1.fq SAMPLE_2.fq`, 20_000, 12_000_000},
	{"no index", "true", `samtools import -O sam --no-PG -r ID:SAMPLE -1 SAMPLE_1.fq -2 SAMPLE_2.fq -o SAMPLE.sam`, 50_000, 1_000_000},
}

// slots is the number of tasks at the same time.
const slots = 2

// runPipelines measures all pipelines over some samples in turns: plainly, and through links that
// know nothing at first.
func (b *benchmark) runPipelines(samples int, only string) error {
	// Preparations, whose parents end before them, become children of this process.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	rows := [][]string{{"pipeline", "plain", "links", "times", "CPU plain", "CPU links", "with preparation", "hot", "equal"}}
	for _, w := range pipelines {
		if only != "" && !slices.Contains(strings.Split(only, ","), w.name) {
			continue
		}
		dir := filepath.Join(b.work, fmt.Sprintf("%d-%d", w.genome, w.reads))
		if err := w.prepare(dir, samples); err != nil {
			return err
		}
		var plain, links []cost
		var hot []string
		equal := true
		for range b.reps {
			if err := os.RemoveAll(filepath.Join(b.work, "home")); err != nil {
				return err
			}
			one, err := b.slowly(w, dir, "plain", "", samples)
			if err != nil {
				return err
			}
			other, err := b.slowly(w, dir, "links", b.links, samples)
			if err != nil {
				return err
			}
			n, err := b.hotStarts()
			if err != nil {
				return err
			}
			plain, links, hot = append(plain, one), append(links, other), append(hot, fmt.Sprint(n))
			equal = equal && exec.Command("diff", "-r", "--exclude=.command.err", filepath.Join(dir, "plain"), filepath.Join(dir, "links")).Run() == nil
		}
		p, l := medians(plain), medians(links)
		f := figures.Figure{Name: "dropin/pipeline/" + strings.ReplaceAll(w.name, " ", "-"), Value: l.wall, Unit: "s", Peer: "plain", Ratio: figures.Lower(l.wall, p.wall),
			Note: fmt.Sprintf("%s hot starts; %.1f s of CPU time, plain %.1f s", strings.Join(hot, " "), l.all, p.all)}
		if !equal {
			f.Note += "; the outputs differ"
		}
		if err := b.results.Add(f); err != nil {
			return err
		}
		rows = append(rows, []string{w.name, figures.Seconds(p.wall), figures.Seconds(l.wall), figures.Times(f.Ratio),
			figures.Seconds(p.tasks), figures.Seconds(l.tasks), figures.Seconds(l.all), strings.Join(hot, " "), fmt.Sprint(equal)})
	}
	load, err := os.ReadFile("/proc/loadavg")
	b.results.Table(fmt.Sprintf("Pipelines of %d samples, %d tasks at a time, storage of %d MB/s (0: unchanged), median of %d, load average %.4s", samples, slots, b.storage/1e6, b.reps, load), rows)
	return err
}

// prepare makes the genome, the index and the samples.
func (w *pipeline) prepare(dir string, samples int) error {
	ready := filepath.Join(dir, "ready")
	if _, err := os.Stat(ready); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Join(dir, "ref"), 0o777); err != nil {
		return err
	}
	if err := writeGenome(filepath.Join(dir, "ref/genome.fa"), w.genome); err != nil {
		return err
	}
	script := fmt.Sprintf(`%s; mkdir -p reads; for i in $(seq 11 %d); do wgsim -S $i -N %d -1 100 -2 100 ref/genome.fa reads/S${i}_1.fq reads/S${i}_2.fq; done; touch ready`, w.index, 10+samples, w.reads)
	cmd := exec.Command("sh", "-euc", script)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("prepare %s: %w\n%.2000s", w.name, err, out)
	}
	return nil
}

// writeGenome writes random chromosomes of ten million bases.
func writeGenome(path string, bases int) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	out := bufio.NewWriterSize(f, 1<<20)
	random := rand.New(rand.NewPCG(1, 2))
	line := make([]byte, 100)
	for i := 0; i < bases; i += len(line) {
		if i%10_000_000 == 0 {
			fmt.Fprintf(out, ">chr%d\n", 1+i/10_000_000)
		}
		for k := range line {
			line[k] = "ACGT"[random.Uint32()>>30]
		}
		fmt.Fprintf(out, "%s\n", line)
	}
	return errors.Join(out.Flush(), f.Close())
}

// slowly runs a pipeline with an empty page cache on slow storage, if the benchmark has one.
func (b *benchmark) slowly(w pipeline, dir, name, links string, samples int) (c cost, err error) {
	if b.storage > 0 {
		if err = workbench.DropCaches(); err != nil {
			return c, err
		}
		var undo func() error
		if undo, err = workbench.Throttle(dir, b.storage); err != nil {
			return c, err
		}
		defer func() { err = errors.Join(err, undo()) }()
	}
	return b.pipeline(w, dir, name, links, samples)
}

// cost is the time of a pipeline, the CPU time of its tasks, and the CPU time of its tasks and
// preparations, in seconds.
type cost struct{ wall, tasks, all float64 }

// medians returns the median of each time.
func medians(list []cost) cost {
	of := func(time func(cost) float64) float64 {
		var all []float64
		for _, c := range list {
			all = append(all, time(c))
		}
		return quantile.Median(all)
	}
	return cost{of(func(c cost) float64 { return c.wall }), of(func(c cost) float64 { return c.tasks }), of(func(c cost) float64 { return c.all })}
}

// children returns the CPU time of all processes below this one that have ended.
func children() (float64, error) {
	var u unix.Rusage
	err := unix.Getrusage(unix.RUSAGE_CHILDREN, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds(), os.NewSyscallError("getrusage", err)
}

// pipeline runs all tasks of a pipeline below a directory.
func (b *benchmark) pipeline(w pipeline, dir, name, links string, samples int) (cost, error) {
	work := filepath.Join(dir, name)
	if err := os.RemoveAll(work); err != nil {
		return cost{}, err
	}
	var all sync.WaitGroup
	var mu sync.Mutex // guards what follows
	var failed error
	var used time.Duration
	next := make(chan int)
	before, err := children()
	if err != nil {
		return cost{}, err
	}
	begun := time.Now()
	for range slots {
		all.Go(func() {
			for n := range next {
				cpu, err := b.task(w, dir, filepath.Join(work, fmt.Sprintf("%02d", n)), links, fmt.Sprintf("S%d", n))
				mu.Lock()
				used += cpu
				failed = errors.Join(failed, err)
				mu.Unlock()
			}
		})
	}
	for n := range samples {
		next <- 11 + n
	}
	close(next)
	all.Wait()
	took := time.Since(begun)
	for { // the preparation may still be at work
		if _, err := unix.Wait4(-1, nil, 0, nil); err != nil && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	after, err := children()
	return cost{took.Seconds(), used.Seconds(), after - before}, errors.Join(failed, err)
}

// task runs the script of one sample.
func (b *benchmark) task(w pipeline, dir, at, links, sample string) (time.Duration, error) {
	if err := os.MkdirAll(at, 0o777); err != nil {
		return 0, err
	}
	for _, name := range []string{"ref", "reads/" + sample + "_1.fq", "reads/" + sample + "_2.fq"} {
		if err := os.Symlink(filepath.Join(dir, name), filepath.Join(at, filepath.Base(name))); err != nil {
			return 0, err
		}
	}
	script := "#!/bin/bash -ue\n" + strings.ReplaceAll(w.script, "SAMPLE", sample) + "\n"
	if err := os.WriteFile(filepath.Join(at, ".command.sh"), []byte(script), 0o666); err != nil {
		return 0, err
	}
	cmd := exec.Command("bash", "-c", "bash -ue .command.sh 2>.command.err")
	cmd.Dir, cmd.Env = at, b.env(links)
	if err := cmd.Run(); err != nil {
		return 0, fmt.Errorf("%s: %w (see %s)", at, err, filepath.Join(at, ".command.err"))
	}
	usage := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), nil
}

// hotStarts returns the number of hot starts in the records.
func (b *benchmark) hotStarts() (int, error) {
	text, err := os.ReadFile(filepath.Join(b.work, "home/calls/starts.jsonl"))
	if errors.Is(err, os.ErrNotExist) {
		err = nil // no tool of the catalogue was called
	}
	return strings.Count(string(text), `"start":"hot"`), err
}
