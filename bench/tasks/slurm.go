package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"premix/internal/figures"
	"premix/internal/slurmbox"
)

// askEvery is how often an array is looked for that has no other way to tell that it has
// ended. What that costs the controller is counted, too.
const askEvery = 2 * time.Second

// slurm runs /bin/true in a private Slurm of four nodes: packed by premix, and as one
// array of as many jobs.
func (b *benchmark) slurm(results *figures.Results) (err error) {
	if list := slurmbox.Missing(b.accounting); len(list) > 0 {
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
	box, err := slurmbox.Start(dir, slurmbox.Options{Accounting: b.accounting})
	if err != nil {
		return err
	}
	defer func() {
		if serr := box.Stop(); err == nil {
			err = serr
		}
	}()
	contenders := []struct {
		name string
		run  func() error
	}{
		{"premix", func() error { return b.onSlurm(box, premix) }},
		{"array", func() error { return b.array(box) }},
	}
	wall, cpu := make(map[string][]float64), make(map[string][]float64)
	for range min(b.reps, 2) {
		for _, c := range contenders {
			before, err := cpuSeconds(box.PID("slurmctld"))
			if err != nil {
				return err
			}
			begun := time.Now()
			if err := c.run(); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			wall[c.name] = append(wall[c.name], time.Since(begun).Seconds())
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
	n := float64(b.slurmTasks)
	peer := n / figures.Median(wall["array"])
	rows := [][]string{{"", "time", "a second", "CPU time of slurmctld"}}
	for _, c := range contenders {
		rate := figures.Figure{Name: name + "/" + c.name, Value: n / figures.Median(wall[c.name]), Unit: "1/s"}
		ctld := figures.Figure{Name: name + "/" + c.name + "/slurmctld", Value: figures.Median(cpu[c.name]), Unit: "s"}
		if c.name == "premix" {
			rate.Peer, rate.Ratio = name+"/array", figures.Higher(rate.Value, peer)
			ctld.Peer, ctld.Ratio = name+"/array/slurmctld", figures.Lower(ctld.Value, figures.Median(cpu["array"]))
		}
		for _, f := range []figures.Figure{rate, ctld} {
			if err := results.Add(f); err != nil {
				return err
			}
		}
		rows = append(rows, []string{c.name, figures.Seconds(figures.Median(wall[c.name])), fmt.Sprintf("%.0f", rate.Value), figures.Seconds(ctld.Value)})
	}
	results.Table(fmt.Sprintf("%s: %d times true on 4 nodes of 2 cores, all on this machine", name, b.slurmTasks), rows)
	return nil
}

// onSlurm runs the tasks through premix.
func (b *benchmark) onSlurm(box *slurmbox.Box, premix string) error {
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

// array runs the tasks as one array.
func (b *benchmark) array(box *slurmbox.Box) error {
	out, err := box.Run("sbatch", "--parsable", fmt.Sprintf("--array=1-%d", b.slurmTasks), "--output=/dev/null", "--wrap", "true")
	if err != nil {
		return err
	}
	id := strings.TrimSpace(out)
	for {
		left, err := box.Run("squeue", "--noheader", "--states=PENDING,RUNNING,COMPLETING", "--jobs="+id, "--format=%i")
		if err == nil && left == "" {
			return nil
		}
		select {
		case <-b.ctx.Done():
			return b.ctx.Err()
		case <-time.After(askEvery):
		}
	}
}

// cpuSeconds is the CPU time of a process, with all threads.
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
