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

	"premix/internal/figures"
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

	slurmTasks int
	accounting bool
	workflows  string
	scheduler  string
}

func benchMain() error {
	var o options
	flag.StringVar(&o.dir, "work", "bench-work/tasks", "`directory` for peers and results")
	flag.StringVar(&o.premix, "premix", "bin/premix", "the premix to measure")
	flag.StringVar(&o.parts, "parts", "true,sleep,submit,slurm", "what to measure; kubernetes and workflow too")
	flag.StringVar(&o.wanted, "contenders", "", "only these; empty: all that can be had")
	flag.StringVar(&o.counts, "counts", "10000,100000", "how often /bin/true is run")
	flag.IntVar(&o.large, "large", 50000, "from this count on, slow contenders are left out and there are at most 3 repetitions")
	flag.IntVar(&o.sleeps, "sleeps", 2000, "how often a tenth of a second is slept")
	flag.IntVar(&o.submitted, "submit", 500000, "tasks to submit at once")
	flag.IntVar(&o.pods, "pods", 5000, "tasks on Kubernetes")
	flag.IntVar(&o.tasks, "tasks", 500, "tasks of the workflow")
	flag.StringVar(&o.workflows, "workflows", "eager,default,array", "configurations of Nextflow")
	flag.StringVar(&o.scheduler, "scheduler", "", "SchedulerParameters of the workflow's Slurm, as in sched_interval=60, its default; empty: jobs start at once")
	flag.IntVar(&o.slurmTasks, "slurm", 10000, "how often true is run on Slurm")
	flag.BoolVar(&o.accounting, "accounting", false, "give Slurm a slurmdbd")
	flag.IntVar(&o.reps, "reps", 5, "repetitions; of sleep at most 1, on Slurm at most 2")
	flag.IntVar(&o.cores, "cores", 2, "cores to use")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	b := &benchmark{options: o, ctx: ctx}
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
	list, err := b.contenders()
	if err != nil {
		return err
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
				these := list
				if count >= o.large {
					reps = min(reps, 3)
					these = slices.DeleteFunc(slices.Clone(list), func(c contender) bool { return c.slow })
				}
				if err := b.measure(results, fmt.Sprintf("true/%d", count), job{program: "true", path: "/bin/true", args: []string{"1"}, count: count}, these, reps); err != nil {
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
		case "submit":
			if err := b.submit(results); err != nil {
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

// measure runs a job with each contender in turn, and again.
func (b *benchmark) measure(results *figures.Results, name string, j job, list []contender, reps int) error {
	wall, cpu := make(map[string][]float64), make(map[string][]float64)
	count := func(c contender) int {
		if c.most > 0 {
			return min(c.most, j.count)
		}
		return j.count
	}
	for rep := range reps {
		for _, c := range list {
			if c.most > 0 && rep > 0 {
				continue // it takes minutes
			}
			of := j
			of.count = count(c)
			w, p, err := b.once(c, of)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			wall[c.name], cpu[c.name] = append(wall[c.name], w), append(cpu[c.name], p)
		}
	}
	rows := [][]string{{"", "time", "a second", "CPU time a task", "against the loop"}}
	for _, c := range list {
		rate := float64(count(c)) / figures.Median(wall[c.name])
		f := figures.Figure{Name: name + "/" + c.name, Value: rate, Unit: "1/s"}
		each := figures.Figure{Name: name + "/" + c.name + "/cpu", Value: figures.Median(cpu[c.name]) / float64(count(c)), Unit: "s"}
		if limit := wall["loop"]; limit != nil && c.name != "loop" {
			f.Peer, f.Ratio = name+"/loop", figures.Higher(rate, float64(j.count)/figures.Median(limit))
			each.Peer, each.Ratio = name+"/loop/cpu", figures.Lower(each.Value, figures.Median(cpu["loop"])/float64(j.count))
		}
		for _, f := range []figures.Figure{f, each} {
			if err := results.Add(f); err != nil {
				return err
			}
		}
		called := c.name
		if count(c) < j.count {
			called = fmt.Sprintf("%s (of %d, once)", c.name, count(c))
		}
		rows = append(rows, []string{called, figures.Seconds(figures.Median(wall[c.name])), fmt.Sprintf("%.0f", rate), figures.Seconds(each.Value), figures.Times(f.Ratio)})
	}
	results.Table(fmt.Sprintf("%s: %d times %s, %d cores, medians of %d", name, j.count, j.line(), b.cores, reps), rows)
	return nil
}

// once runs a job with a contender and tells the time on the clock and that of CPUs.
func (b *benchmark) once(c contender, j job) (wall, cpu float64, err error) {
	cmd, err := c.begin(b, j)
	if err != nil {
		return 0, 0, err
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	begun := time.Now()
	err = cmd.Run()
	wall = time.Since(begun).Seconds()
	if f, ok := cmd.Stdin.(*os.File); ok {
		f.Close()
	}
	if b.runs > 0 {
		_ = os.RemoveAll(b.path("out-" + strconv.Itoa(b.runs))) // the next one makes its own
	}
	if err != nil {
		return 0, 0, fmt.Errorf("%v: %w\n%s", cmd.Args, err, &out)
	}
	st := cmd.ProcessState
	return wall, (st.UserTime() + st.SystemTime()).Seconds(), nil
}

// submit measures half a million tasks.
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
		begun := time.Now()
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("submit: %w\n%s", err, out)
		}
		times = append(times, time.Since(begun).Seconds())
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
		return fmt.Errorf("the run ended so: %v\n%s", err, &out)
	}
	if err := errors.Join(lsErr, whyErr); err != nil {
		return err
	}
	rows := [][]string{{"", "median"}}
	for _, f := range []figures.Figure{
		{Name: "submit/time", Value: figures.Median(times), Unit: "s"},
		{Name: "submit/memory", Value: figures.Median(memory), Unit: "B"},
		{Name: "submit/run/memory", Value: peak(run), Unit: "B"},
		{Name: "submit/ls", Value: figures.Median(ls), Unit: "s"},
		{Name: "submit/why", Value: figures.Median(why), Unit: "s"},
	} {
		if err := results.Add(f); err != nil {
			return err
		}
		text := figures.Seconds(f.Value)
		if f.Unit == "B" {
			text = figures.Size(f.Value)
		}
		rows = append(rows, []string{f.Name, text})
	}
	results.Table(fmt.Sprintf("%d tasks submitted at once; ls and why while they run", b.submitted), rows)
	return nil
}

// ask runs a command some times while others run, with pauses, and tells how long it
// took.
func (b *benchmark) ask(name string, args ...string) ([]float64, error) {
	var list []float64
	for range 21 {
		time.Sleep(100 * time.Millisecond)
		begun := time.Now()
		if out, err := b.command(name, args...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%v: %w\n%s", args, err, out)
		}
		list = append(list, time.Since(begun).Seconds())
	}
	return list, nil
}

// peak is the largest resident set of a process that has ended, in bytes.
func peak(cmd *exec.Cmd) float64 {
	ru, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		return 0
	}
	return float64(ru.Maxrss) * 1024
}
