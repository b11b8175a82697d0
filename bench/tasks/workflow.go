package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"premix/internal/kit/quantile"
	"premix/internal/testkit/figures"
	"premix/internal/testkit/slurmtest"
)

// ecosystem returns the path of a workflow manager that scripts/setup.sh ecosystem has
// installed.
func ecosystem(name string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	for _, pattern := range []string{name, filepath.Join("bin", name)} {
		found, err := filepath.Glob(filepath.Join(cache, "premix", name, "*", pattern))
		if err == nil && len(found) > 0 {
			return found[len(found)-1], nil
		}
	}
	return "", errors.New("it is not installed: scripts/setup.sh ecosystem")
}

// eager is a configuration of Nextflow that keeps its own waiting out of the measurement:
// it polls often, and submits all tasks at once.
const eager = "executor.queueSize = 10000\nexecutor.pollInterval = '200ms'\nexecutor.queueStatInterval = '1s'\n"

// nextflow returns the command that runs a workflow of count tasks. config is added to
// its configuration of the executor.
func (b *benchmark) nextflow(program, executor, config, command string, count int) (*exec.Cmd, error) {
	dir := b.path("nextflow")
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	for name, text := range map[string]string{
		"main.nf":         fmt.Sprintf("process T {\n  input: val x\n  script: %q\n}\nworkflow { T(Channel.of(1..%d)) }\n", command, count),
		"nextflow.config": fmt.Sprintf("process.executor = '%s'\nexecutor.cpus = %d\n%s", executor, b.cores, config),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
			return nil, err
		}
	}
	cmd := b.command(program, "run", "main.nf")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "NXF_HOME="+b.path("nxf"))
	return cmd, nil
}

// snakemake returns the command that runs a workflow of count tasks.
func (b *benchmark) snakemake(program, command string, count int) (*exec.Cmd, error) {
	dir := b.path("snakemake")
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	text := fmt.Sprintf("rule all:\n    input: expand('o/{i}', i=range(%d))\nrule t:\n    output: touch('o/{i}')\n    shell: %q\n", count, command)
	if err := os.WriteFile(filepath.Join(dir, "Snakefile"), []byte(text), 0o666); err != nil {
		return nil, err
	}
	cmd := b.command(program, "--cores", fmt.Sprint(b.cores), "--quiet")
	cmd.Dir = dir
	return cmd, nil
}

// configurations are the measured configurations of Nextflow, the same for all
// contenders.
var configurations = []struct{ name, what, text string }{
	{"eager", "asking often and submitting all at once", eager},
	{"default", "with Nextflow's defaults", ""},
	{"array", "asking often, 100 tasks an array", eager + "process.array = 100\n"},
}

// workflow measures a Nextflow workflow of short tasks on a private Slurm: directly, with
// premix slurm-shim before it, and through premix slurm-shim on this machine. A run with
// Nextflow's own executor on this machine shows the time that Nextflow itself needs.
func (b *benchmark) workflow(results *figures.Results) error {
	program, err := ecosystem("nextflow")
	if err != nil {
		fmt.Printf("workflow is left out: %v\n", err)
		return nil
	}
	if list := slurmtest.Missing(false); len(list) > 0 {
		fmt.Printf("workflow is left out: there is no %s\n", strings.Join(list, ", "))
		return nil
	}
	premix, err := filepath.Abs(b.premix)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "box") // paths of sockets must be short
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	box, err := slurmtest.Start(dir, slurmtest.Options{Nodes: 4, Scheduler: b.scheduler})
	if err != nil {
		return err
	}
	defer box.Stop()
	for _, c := range configurations {
		if !strings.Contains(","+b.workflows+",", ","+c.name+",") {
			continue
		}
		costs := make(map[string][]cost)
		for range min(b.reps, 3) {
			for _, on := range []string{"slurm", "shim-slurm", "shim", "local"} {
				one, err := b.throughWorkflow(program, premix, box, on, c.text)
				if err != nil {
					return err
				}
				costs[on] = append(costs[on], one)
			}
		}
		median := func(on string, of func(c cost) float64) float64 {
			var list []float64
			for _, c := range costs[on] {
				list = append(list, of(c))
			}
			return quantile.Median(list)
		}
		wall, ctld, own := func(c cost) float64 { return c.wall }, func(c cost) float64 { return c.ctld }, func(c cost) float64 { return c.own }
		name := fmt.Sprintf("workflow/%d/%s", b.tasks, c.name)
		rows := [][]string{{"", "time", "against Slurm", "CPU time of Nextflow and its children", "of slurmctld"}}
		for _, on := range []struct{ name, what string }{
			{"slurm", "on Slurm, 4 nodes of 2 cores"}, {"shim-slurm", "on the same, premix slurm-shim before it"}, {"shim", "through premix slurm-shim, on this machine"},
			{"local", "Nextflow's executor local, on this machine, its tasks in the CPU time"},
		} {
			f := figures.Figure{Name: name + "/" + on.name, Value: median(on.name, wall), Unit: "s"}
			g := figures.Figure{Name: f.Name + "/nextflow", Value: median(on.name, own), Unit: "s"}
			h := figures.Figure{Name: f.Name + "/slurmctld", Value: median(on.name, ctld), Unit: "s"}
			against, spent := "", figures.Seconds(h.Value)
			if on.name != "slurm" {
				f.Peer, f.Ratio = name+"/slurm", figures.Lower(f.Value, median("slurm", wall))
				g.Peer, g.Ratio = f.Peer+"/nextflow", figures.Lower(g.Value, median("slurm", own))
				h.Peer, h.Ratio = f.Peer+"/slurmctld", figures.Lower(h.Value, median("slurm", ctld))
				against = figures.Times(f.Ratio)
			}
			list := []figures.Figure{f, g, h}
			if on.name == "shim" || on.name == "local" {
				list, spent = list[:2], ""
			}
			for _, f := range list {
				if err := results.Add(f); err != nil {
					return err
				}
			}
			rows = append(rows, []string{on.what, figures.Seconds(f.Value), against, figures.Seconds(g.Value), spent})
		}
		results.Table(fmt.Sprintf("%s: a Nextflow workflow of %d tasks `true`, %s; Slurm with SchedulerParameters=%s; medians of %d",
			name, b.tasks, c.what, b.scheduler, len(costs["shim"])), rows)
	}
	return nil
}

// cost is the cost of a workflow, in seconds: elapsed time, CPU time of Nextflow with the
// programs that it calls, and CPU time of slurmctld.
type cost struct{ wall, own, ctld float64 }

// throughWorkflow runs the workflow once.
func (b *benchmark) throughWorkflow(program, premix string, box *slurmtest.Box, on, config string) (c cost, err error) {
	executor := "slurm"
	if on == "local" {
		executor = on
	}
	cmd, err := b.nextflow(program, executor, config, "true", b.tasks)
	if err != nil {
		return c, err
	}
	cmd.Env = append(cmd.Env, "SLURM_CONF="+box.Conf())
	if strings.HasPrefix(on, "shim") {
		b.runs++
		dir := b.path(fmt.Sprintf("%s-%d", on, b.runs))
		if err := os.RemoveAll(dir); err != nil {
			return c, err
		}
		defer os.RemoveAll(dir)
		args := []string{"slurm-shim", "--dir", dir, "--idle", "5s", "--cores", fmt.Sprint(b.cores)}
		if on == "shim-slurm" {
			args = []string{"slurm-shim", "--dir", dir, "--idle", "5s", "--engine", "slurm", "--engine-opt", "jobs=4", "--engine-opt", "cores=2"}
		}
		make := b.command(premix, args...)
		make.Env = append(os.Environ(), "SLURM_CONF="+box.Conf(), "PREMIX_HOME="+b.path("home"))
		out, err := make.Output()
		if err != nil {
			return c, err
		}
		cmd.Env = append(cmd.Env, "PATH="+strings.TrimSpace(string(out))+":"+os.Getenv("PATH"))
		defer b.awaitEnd(dir)
	}
	before, err := cpuSeconds(box.PID("slurmctld"))
	if err != nil {
		return c, err
	}
	started := time.Now()
	if c.own, err = b.finish(cmd); err != nil {
		return c, err
	}
	c.wall = time.Since(started).Seconds()
	after, err := cpuSeconds(box.PID("slurmctld"))
	c.ctld = after - before
	return c, err
}

// awaitEnd waits until the worker of a shim directory has ended, which removes its
// socket.
func (b *benchmark) awaitEnd(dir string) {
	for end := time.Now().Add(time.Minute); time.Now().Before(end) && b.ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
		if _, err := os.Lstat(filepath.Join(dir, ".premix/slurm/socket")); err != nil {
			return
		}
	}
}
