package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/quantile"
	"premix/internal/kit/units"
	"premix/internal/testkit/figures"
)

func main() {
	if err := benchMain(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

type options struct {
	dir, premix, parts, wanted, counts string

	reps, cores, sleeps, submitted, tasks, large, pods int

	bound      time.Duration
	slurmTasks int
	plain      int
	accounting bool
	workflows  string
	scheduler  string

	submissionsInARow int
	snakemakeJobs     int
}

func benchMain() error {
	var o options
	flag.StringVar(&o.dir, "work", "bench-work/tasks", "`directory` for peers and results")
	flag.StringVar(&o.premix, "premix", "bin/premix", "the premix to measure")
	flag.StringVar(&o.parts, "parts", "true,sleep,submit", "parts to measure; slurm, sbatch, workflow, snakemake and kubernetes too")
	flag.StringVar(&o.wanted, "contenders", "", "only these; empty: all that are available")
	flag.StringVar(&o.counts, "counts", "10000,100000", "number of executions of /bin/true")
	flag.IntVar(&o.large, "large", 50000, "number from which there are at most 2 repetitions")
	flag.DurationVar(&o.bound, "bound", 30*time.Second, "approximate time of a contender for a repetition; a slower one runs fewer commands, and its rate is compared; 0: no limit")
	flag.IntVar(&o.sleeps, "sleeps", 2000, "number of sleeps of a tenth of a second")
	flag.IntVar(&o.submitted, "submit", 500000, "tasks to submit at once")
	flag.IntVar(&o.submissionsInARow, "sbatch", 200, "number of calls of sbatch in a row")
	flag.IntVar(&o.pods, "pods", 5000, "tasks on Kubernetes")
	flag.IntVar(&o.tasks, "tasks", 500, "tasks of the workflow")
	flag.IntVar(&o.snakemakeJobs, "snakemake", 1000, "jobs of the workflow of Snakemake")
	flag.StringVar(&o.workflows, "workflows", "default,eager,array", "configurations of Nextflow")
	flag.StringVar(&o.scheduler, "scheduler", "sched_interval=60", "SchedulerParameters of the workflow's Slurm; the given one is Slurm's default; empty: jobs start at once")
	flag.IntVar(&o.slurmTasks, "slurm", 10000, "number of executions of true on Slurm")
	flag.IntVar(&o.plain, "plain", 0, "tasks of the plain array on Slurm, compared by the cost of each; 0: as many as -slurm")
	flag.BoolVar(&o.accounting, "accounting", false, "give Slurm a slurmdbd")
	flag.IntVar(&o.reps, "reps", 3, "repetitions; of sleep at most 1, on Slurm at most 2")
	flag.IntVar(&o.cores, "cores", 2, "cores to use")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	b := &benchmark{options: o, ctx: ctx, cut: make(map[string]measured)}
	var err error
	if b.work, err = filepath.Abs(o.dir); err != nil {
		return err
	}
	if err := os.MkdirAll(b.work, 0o777); err != nil {
		return err
	}
	results, err := figures.Open(b.path("results.jsonl"), os.Stdout)
	if err != nil {
		return err
	}
	defer results.Close()
	fmt.Println(figures.Machine(b.work))
	var list []contender
	if strings.Contains(o.parts, "true") || strings.Contains(o.parts, "sleep") {
		var end func()
		list, end, err = b.contenders()
		defer end()
		if err != nil {
			return err
		}
	}
	for _, part := range strings.Split(o.parts, ",") {
		switch part {
		case "true":
			for _, text := range strings.Split(o.counts, ",") {
				count, err := strconv.Atoi(text)
				if err != nil {
					return fmt.Errorf("-counts: %w", err)
				}
				reps := o.reps
				if count >= o.large {
					reps = min(reps, 2)
				}
				if err := b.measure(results, fmt.Sprintf("true/%d", count), job{program: "true", path: "/bin/true", args: []string{"1"}, count: count}, list, reps); err != nil {
					return err
				}
			}
		case "sleep":
			if err := b.measure(results, fmt.Sprintf("sleep/%d", o.sleeps), job{program: "sleep", path: "/bin/sleep", args: []string{"0.1"}, count: o.sleeps}, list, min(o.reps, 1)); err != nil {
				return err
			}
		case "kubernetes":
			if err := b.kubernetes(results); err != nil {
				return err
			}
		case "workflow":
			if err := b.workflow(results); err != nil {
				return err
			}
		case "snakemake":
			if err := b.throughSnakemake(results); err != nil {
				return err
			}
		case "submit":
			if err := b.submit(results); err != nil {
				return err
			}
		case "sbatch":
			if err := b.sbatch(results); err != nil {
				return err
			}
		case "slurm":
			if err := b.slurm(results); err != nil {
				return err
			}
		default:
			return fmt.Errorf("-parts: there is no part %q", part)
		}
	}
	return nil
}

// measured has the times of a contender for count commands: one entry a repetition.
type measured struct {
	count     int
	wall, cpu []float64
}

func (m *measured) rate() float64 { return float64(m.count) / quantile.Median(m.wall) }

// slack is the factor by which a contender may exceed the bound to run all commands.
const slack = 1.5

// sampled is the maximum number of commands in a contender's first run.
const sampled = 200

// first runs as many commands of a job as a contender can within the bound; premix runs
// all. It begins with a few commands, and repeats with more until a run takes more than
// half of the bound, so that the startup time counts little.
func (b *benchmark) first(c contender, j job) (measured, error) {
	of := j
	if c.name != "premix" && b.bound > 0 {
		of.count = min(sampled, max(1, j.count/50))
	}
	for {
		wall, cpu, err := b.once(c, of)
		if err != nil {
			return measured{}, fmt.Errorf("%s: %w", c.name, err)
		}
		fitting := float64(of.count) / wall * b.bound.Seconds()
		if of.count == j.count || wall > b.bound.Seconds()/2 {
			return measured{of.count, []float64{wall}, []float64{cpu}}, nil
		}
		if fitting*slack >= float64(j.count) {
			fitting = float64(j.count)
		}
		of.count = int(fitting)
	}
}

// measure runs a job with each contender in turn, reps times. A contender that needs more
// than half of the bound runs it once, except for premix and the loop. A contender that
// cannot run all commands within the bound runs fewer, and the comparison is between
// rates.
func (b *benchmark) measure(results *figures.Results, name string, j job, list []contender, reps int) error {
	all := make([]measured, len(list))
	for rep := range reps {
		for i, c := range list {
			m, key := &all[i], c.name+" "+j.program
			if rep == 0 {
				if old, ok := b.cut[key]; ok { // it would run the same number again
					*m = old
					continue
				}
				var err error
				if *m, err = b.first(c, j); err != nil {
					return err
				}
				if m.count < j.count {
					b.cut[key] = *m
				}
				continue
			}
			if m.count < j.count || c.name != "premix" && c.name != "loop" && b.bound > 0 && m.wall[0] > b.bound.Seconds()/2 {
				continue
			}
			w, p, err := b.once(c, j)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			m.wall, m.cpu = append(m.wall, w), append(m.cpu, p)
		}
	}
	var limit *measured
	if i := slices.IndexFunc(list, func(c contender) bool { return c.name == "loop" }); i >= 0 {
		limit = &all[i]
	}
	rows := [][]string{{"", "commands", "repetitions", "time", "a second", "time of a core each", "CPU time each", "against the loop"}}
	for i, c := range list {
		m := &all[i]
		f := figures.Figure{Name: name + "/" + c.name, Value: m.rate(), Unit: "1/s"}
		if m.count < j.count {
			f.Note = fmt.Sprintf("of %d", m.count)
		}
		each := figures.Figure{Name: f.Name + "/cpu", Value: quantile.Median(m.cpu) / float64(m.count), Unit: "s", Note: f.Note}
		if limit != nil && c.name != "loop" {
			f.Peer, f.Ratio = name+"/loop", figures.Higher(f.Value, limit.rate())
			each.Peer, each.Ratio = name+"/loop/cpu", figures.Lower(each.Value, quantile.Median(limit.cpu)/float64(limit.count))
		}
		if err := results.Add(f); err != nil {
			return err
		}
		spent := ""
		if each.Value > 0 {
			if err := results.Add(each); err != nil {
				return err
			}
			spent = figures.Seconds(each.Value)
		}
		rows = append(rows, []string{c.name, strconv.Itoa(m.count), strconv.Itoa(len(m.wall)), figures.Seconds(quantile.Median(m.wall)),
			fmt.Sprintf("%.0f", f.Value), figures.Seconds(float64(b.cores) / f.Value), spent, figures.Times(f.Ratio)})
	}
	results.Table(fmt.Sprintf("%s: %d times %s, %d cores, medians; about %v a contender, which may run fewer commands", name, j.count, j.line(), b.cores, b.bound), rows)
	return nil
}

// once runs a job with a contender and returns the elapsed time and the CPU time.
func (b *benchmark) once(c contender, j job) (wall, cpu float64, err error) {
	started := time.Now()
	cpu, err = c.run(j)
	wall = time.Since(started).Seconds()
	if b.runs > 0 {
		_ = os.RemoveAll(b.path("out-" + strconv.Itoa(b.runs))) // the next run makes a new one
	}
	return wall, cpu, err
}

// submit measures the submission of half a million tasks.
func (b *benchmark) submit(results *figures.Results) error {
	dir := b.path("out-submit")
	premix, err := filepath.Abs(b.premix)
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var times, memory []float64
	for range min(b.reps, 3) {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
		cmd := b.command(premix, "task", "submit", "--out", dir, "-")
		if err := b.input(cmd, b.submitted, func(i int) string { return "true " + strconv.Itoa(i) }); err != nil {
			return err
		}
		started := time.Now()
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("submit: %w\n%s", err, out)
		}
		times = append(times, time.Since(started).Seconds())
		memory = append(memory, peak(cmd))
	}
	run := b.command(premix, "task", "run", "--quiet", "--out", dir, "-j", strconv.Itoa(b.cores))
	var out bytes.Buffer
	run.Stderr = &out
	if err := run.Start(); err != nil {
		return err
	}
	ls, lsErr := b.ask(premix, "task", "ls", dir)
	why, whyErr := b.ask(premix, "task", "why", dir, strconv.Itoa(b.submitted-1))
	if err := run.Process.Signal(unix.SIGINT); err != nil {
		return fmt.Errorf("the run ended too early: %w\n%s", err, &out)
	}
	var exit *exec.ExitError
	if err := run.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 128+int(unix.SIGINT) {
		return fmt.Errorf("the run ended with %v\n%s", err, &out)
	}
	if err := errors.Join(lsErr, whyErr); err != nil {
		return err
	}
	rows := [][]string{{"", "", "goal"}}
	for _, of := range []struct {
		name, unit  string
		value, goal float64
	}{
		{"time", "s", quantile.Median(times), 5},
		{"memory", "B", quantile.Median(memory), 300e6},
		{"run/memory", "B", peak(run), 0},
		{"ls", "s", quantile.Median(ls), 0.1},
		{"ls/slowest", "s", slices.Max(ls), 0.1},
		{"why", "s", quantile.Median(why), 0.1},
		{"why/slowest", "s", slices.Max(why), 0.1},
	} {
		f := figures.Figure{Name: "submit/" + of.name, Value: of.value, Unit: of.unit}
		text := figures.Seconds
		if of.unit == "B" {
			text = func(v float64) string { return units.Size(int64(v)) }
		}
		goal := ""
		if of.goal > 0 {
			f.Peer, f.Ratio, goal = "goal", figures.Lower(of.value, of.goal), text(of.goal)
		}
		if err := results.Add(f); err != nil {
			return err
		}
		rows = append(rows, []string{f.Name, text(of.value), goal})
	}
	results.Table(fmt.Sprintf("%d tasks submitted at once; ls and why while they run; medians, except for the slowest", b.submitted), rows)
	return nil
}

// ask runs a command several times while others run, with pauses, and returns the times
// that it took.
func (b *benchmark) ask(name string, args ...string) ([]float64, error) {
	var list []float64
	for range 21 {
		time.Sleep(100 * time.Millisecond)
		started := time.Now()
		if out, err := b.command(name, args...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%v: %w\n%s", args, err, out)
		}
		list = append(list, time.Since(started).Seconds())
	}
	return list, nil
}

// peak returns the largest resident set size of an ended process, in bytes.
func peak(cmd *exec.Cmd) float64 {
	ru, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		return 0
	}
	return float64(ru.Maxrss) * 1024
}
