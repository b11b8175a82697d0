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

// nextflow is a workflow of count tasks. What it asks of its executor, and how often,
// is set so that its own waiting is not what is measured.
func (b *benchmark) nextflow(program, executor, command string, count int) (*exec.Cmd, error) {
	dir := b.path("nextflow")
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	for name, text := range map[string]string{
		"main.nf":         fmt.Sprintf("process T {\n  input: val x\n  script: %q\n}\nworkflow { T(Channel.of(1..%d)) }\n", command, count),
		"nextflow.config": fmt.Sprintf("process.executor = '%s'\nexecutor.cpus = %d\nexecutor.queueSize = %d\nexecutor.pollInterval = '200ms'\nexecutor.queueStatInterval = '1s'\n", executor, b.cores, count),
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

// workflow measures a Nextflow workflow of short tasks through premix slurm-shim against
// the same one on a Slurm of its own.
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
	box, err := slurmbox.Start(dir, slurmbox.Options{Nodes: 4})
	if err != nil {
		return err
	}
	defer box.Stop()
	var shim, slurm []float64
	for range min(b.reps, 3) {
		if err := os.RemoveAll(b.path("shim")); err != nil {
			return err
		}
		out, err := b.command(premix, "slurm-shim", "--dir", b.path("shim"), "--idle", "5s", "-j", fmt.Sprint(b.cores)).Output()
		if err != nil {
			return err
		}
		for _, c := range []struct {
			env  []string
			list *[]float64
		}{
			{[]string{"PATH=" + strings.TrimSpace(string(out)) + ":" + os.Getenv("PATH")}, &shim},
			{[]string{"SLURM_CONF=" + box.Conf()}, &slurm},
		} {
			cmd, err := b.nextflow(program, "slurm", "true", b.tasks)
			if err != nil {
				return err
			}
			cmd.Env = append(cmd.Env, c.env...)
			begun := time.Now()
			if text, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("%v: %w\n%.4000s", cmd.Args, err, text)
			}
			*c.list = append(*c.list, time.Since(begun).Seconds())
		}
	}
	a, s := figures.Median(shim), figures.Median(slurm)
	name := fmt.Sprintf("workflow/%d", b.tasks)
	for _, f := range []figures.Figure{
		{Name: name + "/slurm", Value: s, Unit: "s"},
		{Name: name + "/shim", Value: a, Unit: "s", Peer: name + "/slurm", Ratio: figures.Lower(a, s)},
	} {
		if err := results.Add(f); err != nil {
			return err
		}
	}
	results.Table(fmt.Sprintf("a Nextflow workflow of %d tasks `true`, medians of %d", b.tasks, len(shim)), [][]string{
		{"", "time", "against Slurm"}, {"on Slurm, 4 nodes of 2 cores", figures.Seconds(s), ""}, {"through premix slurm-shim", figures.Seconds(a), figures.Times(figures.Lower(a, s))},
	})
	return nil
}
