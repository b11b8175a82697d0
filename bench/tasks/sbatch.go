package main

import (
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

// sbatch measures how long one sbatch takes, of many in a row: Slurm's own, and premix
// slurm-shim's before the same Slurm and alone. The jobs are held: another part measures
// their execution. The first sbatch of each row is reported separately, as it starts the
// worker.
func (b *benchmark) sbatch(results *figures.Results) (err error) {
	if list := slurmtest.Missing(false); len(list) > 0 {
		fmt.Printf("sbatch is left out: there is no %s\n", strings.Join(list, ", "))
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
	box, err := slurmtest.Start(dir, slurmtest.Options{})
	if err != nil {
		return err
	}
	defer func() {
		if serr := box.Stop(); err == nil {
			err = serr
		}
	}()
	contenders := []struct{ name, what string }{
		{"slurm", "Slurm"}, {"shim-slurm", "premix slurm-shim before it"}, {"shim", "premix slurm-shim alone"},
	}
	first, all := make(map[string][]float64), make(map[string][]float64)
	for range b.reps {
		for _, c := range contenders {
			took, err := b.submissions(box, premix, c.name)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			first[c.name] = append(first[c.name], took[0])
			all[c.name] = append(all[c.name], took[1:]...)
		}
	}
	name := fmt.Sprintf("sbatch/%d", b.submissionsInARow)
	rows := [][]string{{"", "median", "against Slurm", "the first"}}
	for _, c := range contenders {
		f := figures.Figure{Name: name + "/" + c.name, Value: quantile.Median(all[c.name]), Unit: "s"}
		g := figures.Figure{Name: f.Name + "/first", Value: quantile.Median(first[c.name]), Unit: "s"}
		against := ""
		if c.name != "slurm" {
			f.Peer, f.Ratio = name+"/slurm", figures.Lower(f.Value, quantile.Median(all["slurm"]))
			against = figures.Times(f.Ratio)
		}
		for _, f := range []figures.Figure{f, g} {
			if err := results.Add(f); err != nil {
				return err
			}
		}
		rows = append(rows, []string{c.what, figures.Seconds(f.Value), against, figures.Seconds(g.Value)})
	}
	results.Table(fmt.Sprintf("%s: an sbatch, of %d in a row; medians of %d such rows", name, b.submissionsInARow, b.reps), rows)
	return nil
}

// submissions returns the time of each sbatch of a row.
func (b *benchmark) submissions(box *slurmtest.Box, premix, on string) ([]float64, error) {
	program, err := exec.LookPath("sbatch")
	if err != nil {
		return nil, err
	}
	if on != "slurm" {
		b.runs++
		dir := b.path(fmt.Sprintf("%s-%d", on, b.runs))
		if err := os.RemoveAll(dir); err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir)
		defer b.awaitEnd(dir)
		args := []string{"slurm-shim", "--dir", dir, "--idle", "1s"}
		if on == "shim-slurm" {
			args = append(args, "--engine", "slurm")
		}
		make := b.command(premix, args...)
		make.Env = append(box.Env(), "PREMIX_HOME="+b.path("home"))
		out, err := make.Output()
		if err != nil {
			return nil, err
		}
		program = filepath.Join(strings.TrimSpace(string(out)), "sbatch")
	}
	var took []float64
	for range b.submissionsInARow {
		cmd := b.command(program, "--parsable", "--hold", "--output=/dev/null", "--wrap", "true")
		cmd.Env = box.Env()
		started := time.Now()
		out, err := cmd.CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("%w\n%s", err, out)
		}
		took = append(took, time.Since(started).Seconds())
	}
	if on == "slurm" {
		_, err = box.Run("scancel", "--state=PENDING")
	}
	return took, err
}
