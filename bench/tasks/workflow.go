package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"premix/internal/figures"
	"premix/internal/slurmbox"
)

// ecosystem is a workflow manager that scripts/setup.sh ecosystem has installed.
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

// eager is a configuration of Nextflow with which its own waiting is not what is
// measured: it asks often, and hands over all that it has.
const eager = "executor.queueSize = 10000\nexecutor.pollInterval = '200ms'\nexecutor.queueStatInterval = '1s'\n"

// nextflow is a workflow of count tasks. config is its own, but for the executor.
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

// snakemake is a workflow of count tasks.
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

// configurations of Nextflow that are measured, the same for all.
var configurations = []struct{ name, what, text string }{
	{"eager", "asking often and submitting all at once", eager},
	{"default", "with Nextflow's defaults", ""},
	{"array", "asking often, 100 tasks an array", eager + "process.array = 100\n"},
}

// workflow measures a Nextflow workflow of short tasks on a Slurm of its own: directly,
// with premix slurm-shim before it, and through premix slurm-shim on this machine.
func (b *benchmark) workflow(results *figures.Results) error {
	program, err := ecosystem("nextflow")
	if err != nil {
		fmt.Printf("workflow is left out: %v\n", err)
		return nil
	}
	if list := slurmbox.Missing(false); len(list) > 0 {
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
	box, err := slurmbox.Start(dir, slurmbox.Options{Nodes: 4, Scheduler: b.scheduler})
	if err != nil {
		return err
	}
	defer box.Stop()
	for _, c := range configurations {
		if !strings.Contains(","+b.workflows+",", ","+c.name+",") {
			continue
		}
		wall, cpu := make(map[string][]float64), make(map[string][]float64)
		for range min(b.reps, 3) {
			for _, on := range []string{"slurm", "shim-slurm", "shim"} {
				w, p, err := b.throughWorkflow(program, premix, box, on, c.text)
				if err != nil {
					return err
				}
				wall[on], cpu[on] = append(wall[on], w), append(cpu[on], p)
			}
		}
		name := fmt.Sprintf("workflow/%d/%s", b.tasks, c.name)
		peer, peerCPU := figures.Median(wall["slurm"]), figures.Median(cpu["slurm"])
		rows := [][]string{{"", "time", "against Slurm", "CPU time of slurmctld"}}
		for _, on := range []struct{ name, what string }{
			{"slurm", "on Slurm, 4 nodes of 2 cores"}, {"shim-slurm", "on the same, premix slurm-shim before it"}, {"shim", "through premix slurm-shim, on this machine"},
		} {
			f := figures.Figure{Name: name + "/" + on.name, Value: figures.Median(wall[on.name]), Unit: "s"}
			g := figures.Figure{Name: f.Name + "/slurmctld", Value: figures.Median(cpu[on.name]), Unit: "s"}
			against, spent := "", figures.Seconds(g.Value)
			if on.name != "slurm" {
				f.Peer, f.Ratio = name+"/slurm", figures.Lower(f.Value, peer)
				g.Peer, g.Ratio = f.Peer+"/slurmctld", figures.Lower(g.Value, peerCPU)
				against = figures.Times(f.Ratio)
			}
			list := []figures.Figure{f, g}
			if on.name == "shim" {
				list, spent = list[:1], ""
			}
			for _, f := range list {
				if err := results.Add(f); err != nil {
					return err
				}
			}
			rows = append(rows, []string{on.what, figures.Seconds(f.Value), against, spent})
		}
		results.Table(fmt.Sprintf("%s: a Nextflow workflow of %d tasks `true`, %s; medians of %d", name, b.tasks, c.what, len(wall["shim"])), rows)
	}
	return nil
}

// throughWorkflow runs the workflow once, and tells how long it took, and slurmctld's CPU
// time.
func (b *benchmark) throughWorkflow(program, premix string, box *slurmbox.Box, on, config string) (wall, cpu float64, err error) {
	cmd, err := b.nextflow(program, "slurm", config, "true", b.tasks)
	if err != nil {
		return 0, 0, err
	}
	cmd.Env = append(cmd.Env, "SLURM_CONF="+box.Conf())
	if on != "slurm" {
		b.runs++
		dir := b.path(fmt.Sprintf("%s-%d", on, b.runs))
		if err := os.RemoveAll(dir); err != nil {
			return 0, 0, err
		}
		defer os.RemoveAll(dir)
		args := []string{"slurm-shim", "--dir", dir, "--idle", "5s", "-j", fmt.Sprint(b.cores)}
		if on == "shim-slurm" {
			args = []string{"slurm-shim", "--dir", dir, "--idle", "5s", "--engine", "slurm", "--engine-opt", "jobs=4", "--engine-opt", "cores=2"}
		}
		make := b.command(premix, args...)
		make.Env = append(os.Environ(), "SLURM_CONF="+box.Conf(), "PREMIX_HOME="+b.path("home"))
		out, err := make.Output()
		if err != nil {
			return 0, 0, err
		}
		cmd.Env = append(cmd.Env, "PATH="+strings.TrimSpace(string(out))+":"+os.Getenv("PATH"))
		defer b.awaitEnd(dir)
	}
	before, err := cpuSeconds(box.PID("slurmctld"))
	if err != nil {
		return 0, 0, err
	}
	begun := time.Now()
	if text, err := cmd.CombinedOutput(); err != nil {
		return 0, 0, fmt.Errorf("%v: %w\n%.4000s", cmd.Args, err, text)
	}
	wall = time.Since(begun).Seconds()
	after, err := cpuSeconds(box.PID("slurmctld"))
	return wall, after - before, err
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
