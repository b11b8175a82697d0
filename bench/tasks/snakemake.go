package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"premix/internal/kit/quantile"
	"premix/internal/testkit/figures"
)

// throughSnakemake measures a Snakemake workflow of one-line rules: with Snakemake's local
// executor, and with the executor plugin of premix. The same workflow with one job shows the cost
// of a start of Snakemake, which other executors have for each job.
func (b *benchmark) throughSnakemake(results *figures.Results) error {
	program, err := ecosystem("snakemake")
	if err != nil {
		fmt.Printf("snakemake is left out: %v\n", err)
		return nil
	}
	plugin, err := filepath.Abs("dist/snakemake-executor-plugin-premix")
	if err != nil {
		return err
	}
	premix, err := filepath.Abs(b.premix)
	if err != nil {
		return err
	}
	executors := []struct {
		name, what string
		args       []string
	}{
		{"local", "Snakemake's local executor", nil},
		{"premix", "--executor premix", []string{"--executor", "premix", "--jobs", fmt.Sprint(b.snakemakeJobs)}},
	}
	walls, own := make(map[string][]float64), make(map[string][]float64)
	run := func(name string, args []string, count int) error {
		cmd, err := b.snakemake(program, "echo {wildcards.i}", count)
		if err != nil {
			return err
		}
		cmd.Args = append(cmd.Args, args...)
		cmd.Env = append(os.Environ(), "PYTHONPATH="+plugin, "PYTHONDONTWRITEBYTECODE=1", "PATH="+filepath.Dir(premix)+":"+os.Getenv("PATH"))
		key := fmt.Sprintf("%s/%d", name, count)
		started := time.Now()
		cpu, err := b.finish(cmd)
		if err != nil {
			return err
		}
		walls[key], own[key] = append(walls[key], time.Since(started).Seconds()), append(own[key], cpu)
		done, err := filepath.Glob(filepath.Join(cmd.Dir, "o", "*"))
		if err == nil && len(done) != count {
			err = fmt.Errorf("%s: %d of %d jobs have an output", key, len(done), count)
		}
		return err
	}
	for range b.reps {
		for _, e := range executors {
			for _, count := range []int{1, b.snakemakeJobs} {
				if err := run(e.name, e.args, count); err != nil {
					return err
				}
			}
		}
	}
	name := fmt.Sprintf("snakemake/%d", b.snakemakeJobs)
	most := fmt.Sprintf("/%d", b.snakemakeJobs)
	start := quantile.Median(own["local/1"])
	rows := [][]string{{"", "time", "against the local executor", "CPU time", "of each further job", "of a start of Snakemake"}}
	for _, e := range executors {
		f := figures.Figure{Name: name + "/" + e.name, Value: quantile.Median(walls[e.name+most]), Unit: "s"}
		g := figures.Figure{Name: f.Name + "/cpu", Value: quantile.Median(own[e.name+most]), Unit: "s"}
		h := figures.Figure{Name: f.Name + "/cpu-of-a-job", Value: (g.Value - quantile.Median(own[e.name+"/1"])) / float64(max(1, b.snakemakeJobs-1)), Unit: "s"}
		against := ""
		if e.name != "local" {
			f.Peer, f.Ratio = name+"/local", figures.Lower(f.Value, quantile.Median(walls["local"+most]))
			against = figures.Times(f.Ratio)
		}
		for _, f := range []figures.Figure{f, g, h} {
			if err := results.Add(f); err != nil {
				return err
			}
		}
		rows = append(rows, []string{e.what, figures.Seconds(f.Value), against, figures.Seconds(g.Value), figures.Seconds(h.Value), fmt.Sprintf("%.3f", h.Value/start)})
	}
	if err := results.Add(figures.Figure{Name: name + "/start/cpu", Value: start, Unit: "s"}); err != nil {
		return err
	}
	results.Table(fmt.Sprintf("%s: a Snakemake workflow of %d rules `echo`, %d cores; a start of Snakemake takes %s of CPU time; medians of %d",
		name, b.snakemakeJobs, b.cores, figures.Seconds(start), b.reps), rows)
	return nil
}
