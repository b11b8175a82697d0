package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"premix/internal/kit/quantile"
	"premix/internal/testkit/figures"
	"premix/internal/testkit/slurmtest"
)

// askEvery is the interval between queries for an array, which does not report its end.
// The cost of the queries for the controller is counted, too.
const askEvery = 2 * time.Second

// slurm runs /bin/true in a private Slurm of four nodes: packed by premix, and as one
// array of the same number of jobs.
func (b *benchmark) slurm(results *figures.Results) (err error) {
	if list := slurmtest.Missing(b.accounting); len(list) > 0 {
		fmt.Printf("slurm is left out: there is no %s\n", strings.Join(list, ", "))
		return nil
	}
	premix, err := filepath.Abs(b.premix)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "box")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	box, err := slurmtest.Start(dir, slurmtest.Options{Accounting: b.accounting})
	if err != nil {
		return err
	}
	defer func() {
		if serr := box.Stop(); err == nil {
			err = serr
		}
	}()
	plain := b.slurmTasks
	if b.plain > 0 {
		plain = min(plain, b.plain)
	}
	contenders := []struct {
		name  string
		count int
		run   func() error
	}{
		{"premix", b.slurmTasks, func() error { return b.onSlurm(box, premix) }},
		{"array", plain, func() error { return b.array(box, plain, "true") }},
	}
	wall, cpu := make(map[string][]float64), make(map[string][]float64)
	for range min(b.reps, 2) {
		for _, c := range contenders {
			before, err := cpuSeconds(box.PID("slurmctld"))
			if err != nil {
				return err
			}
			started := time.Now()
			if err := c.run(); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			wall[c.name] = append(wall[c.name], time.Since(started).Seconds())
			after, err := cpuSeconds(box.PID("slurmctld"))
			if err != nil {
				return err
			}
			cpu[c.name] = append(cpu[c.name], after-before)
		}
	}
	name := fmt.Sprintf("slurm/%d", b.slurmTasks)
	if b.accounting {
		name += "/accounting"
	}
	// Compare the cost of a task, as the plain array may have fewer tasks.
	peer, peerCPU := float64(plain)/quantile.Median(wall["array"]), quantile.Median(cpu["array"])/float64(plain)
	var title string
	rows := [][]string{{"", "tasks", "time", "a second", "CPU time of slurmctld", "a task"}}
	for _, c := range contenders {
		n := float64(c.count)
		rate := figures.Figure{Name: name + "/" + c.name, Value: n / quantile.Median(wall[c.name]), Unit: "1/s"}
		ctld := figures.Figure{Name: name + "/" + c.name + "/slurmctld", Value: quantile.Median(cpu[c.name]) / n, Unit: "s"}
		if c.count < b.slurmTasks {
			rate.Note = fmt.Sprintf("of %d", c.count)
			ctld.Note = rate.Note
		}
		if c.name == "premix" {
			rate.Peer, rate.Ratio = name+"/array", figures.Higher(rate.Value, peer)
			ctld.Peer, ctld.Ratio = name+"/array/slurmctld", figures.Lower(ctld.Value, peerCPU)
		}
		for _, f := range []figures.Figure{rate, ctld} {
			if err := results.Add(f); err != nil {
				return err
			}
		}
		rows = append(rows, []string{c.name, strconv.Itoa(c.count), figures.Seconds(quantile.Median(wall[c.name])), fmt.Sprintf("%.0f", rate.Value),
			figures.Seconds(quantile.Median(cpu[c.name])), figures.Seconds(ctld.Value)})
		if c.name == "premix" {
			title = fmt.Sprintf("premix makes %s as many a second, with %s less CPU time of slurmctld a task", figures.Times(rate.Ratio), figures.Times(ctld.Ratio))
		}
	}
	results.Table(fmt.Sprintf("%s: true on 4 nodes of 2 cores, all on this machine; %s; medians of %d", name, title, len(wall["array"])), rows)
	return nil
}

// onSlurm runs the tasks through premix.
func (b *benchmark) onSlurm(box *slurmtest.Box, premix string) error {
	dir := b.path("out-slurm")
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	cmd := box.Command(b.ctx, premix, "task", "run", "--quiet", "--out", dir, "--engine", "slurm", "--engine-opt", "jobs=4", "--engine-opt", "cores=2", "-")
	cmd.Env = append(cmd.Env, "PREMIX_HOME="+b.path("home"))
	cmd.Stdin = strings.NewReader(strings.Repeat("true\n", b.slurmTasks))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// array runs a command as one array of count elements.
func (b *benchmark) array(box *slurmtest.Box, count int, command string) error {
	out, err := box.Run("sbatch", "--parsable", fmt.Sprintf("--array=1-%d", count), "--output=/dev/null", "--wrap", command)
	if err != nil {
		return err
	}
	id := strings.TrimSpace(out)
	for {
		left, err := box.Run("squeue", "--noheader", "--states=PENDING,RUNNING,COMPLETING", "--jobs="+id, "--format=%i")
		if err == nil && left == "" {
			return completed(box, id)
		}
		select {
		case <-b.ctx.Done():
			return b.ctx.Err()
		case <-time.After(askEvery):
		}
	}
}

// completed returns an error unless all jobs of an ended array have succeeded.
func completed(box *slurmtest.Box, id string) error {
	other, err := box.Run("squeue", "--noheader", "--states=BOOT_FAIL,CANCELLED,DEADLINE,FAILED,NODE_FAIL,OUT_OF_MEMORY,PREEMPTED,TIMEOUT", "--jobs="+id, "--format=%i %T")
	if err == nil && other != "" {
		err = fmt.Errorf("not all jobs succeeded:\n%.1000s", other)
	}
	return err
}

// cpuSeconds returns the CPU time of a process, with all threads.
func cpuSeconds(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(f) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(f))
	}
	var ticks float64
	for _, s := range f[11:13] { // utime and stime, in ticks of a hundredth of a second
		v, err := strconv.ParseFloat(s, 64)
		if err != nil {
			return 0, err
		}
		ticks += v
	}
	return ticks / 100, nil
}
