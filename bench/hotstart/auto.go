package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"premix/internal/kit/quantile"
	"premix/internal/testkit/figures"
)

// autoSizes are the numbers of samples of the sheets of the part auto.
var autoSizes = []int{3, 12, 48}

// wrapped is a tool that cannot start hot: a script of two shells and an interpreter, each of
// which is another process than the one before.
const wrapped = `#!/bin/sh
sh -c 'python3 -c "import json, sys; print(len(open(sys.argv[1]).read()))" "$1"; exit $?' sh "$1"
exit $?
`

// sheet is a recipe with a sample sheet, for premix run.
type sheet struct{ name, recipe, samples string }

// auto measures a whole run with premix's own choice of starts, beside one with cold starts
// alone. Each run knows nothing of earlier ones.
func (b *benchmark) auto(ctx context.Context, cases []*benchCase) error {
	rows := [][]string{{"run", "samples", "auto", "cold", "times", "CPU auto", "CPU cold", "times", "equal"}}
	for _, n := range autoSizes {
		sheets, err := b.sheets(cases, n)
		if err != nil {
			return err
		}
		for _, s := range sheets {
			kinds := []string{"auto", "cold"}
			wall, cpu := map[string][]float64{}, map[string][]float64{}
			var outputs [2]map[string][]byte
			for range b.reps {
				for i, kind := range kinds {
					used, err := b.run(ctx, s, kind)
					if err != nil {
						return fmt.Errorf("%s, %d samples, %s: %w", s.name, n, kind, err)
					}
					wall[kind], cpu[kind] = append(wall[kind], used[0]), append(cpu[kind], used[1])
					if outputs[i], err = outputsOf(b.outOf(kind)); err != nil {
						return err
					}
				}
			}
			equal := len(outputs[0]) == n && equalOutputs(outputs[0], outputs[1])
			row := []string{s.name, fmt.Sprint(n)}
			for _, of := range []struct {
				name  string
				times map[string][]float64
			}{{"wall", wall}, {"cpu", cpu}} {
				auto, cold := quantile.Median(of.times["auto"]), quantile.Median(of.times["cold"])
				f := figures.Figure{Name: fmt.Sprintf("auto/%s/%d/%s", s.name, n, of.name), Value: auto, Unit: "s", Peer: "cold", Ratio: figures.Lower(auto, cold)}
				if !equal {
					f.Note = "the outputs differ"
				}
				if err := b.Add(f); err != nil {
					return err
				}
				row = append(row, figures.Seconds(auto), figures.Seconds(cold), figures.Times(f.Ratio))
			}
			rows = append(rows, append(row, fmt.Sprint(equal)))
		}
	}
	load, err := os.ReadFile("/proc/loadavg")
	b.Table(fmt.Sprintf("Runs with --start auto and cold, two tasks at a time, load average %.4s", load), rows)
	return err
}

func (b *benchmark) outOf(kind string) string { return filepath.Join(b.lab.dir, "auto", "out-"+kind) }

// sheets writes the recipes and sample sheets: of all cases, and of a tool that cannot start
// hot.
func (b *benchmark) sheets(cases []*benchCase, n int) ([]sheet, error) {
	dir := filepath.Join(b.lab.dir, "auto")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	var all []sheet
	write := func(name, recipe string, columns []string, files map[string]string) error {
		text := "sample," + strings.Join(columns, ",") + "\n"
		for i := range n {
			text += fmt.Sprintf("S%02d", i)
			for _, c := range columns {
				text += "," + files[c]
			}
			text += "\n"
		}
		s := sheet{name, recipe, filepath.Join(dir, name+".csv")}
		all = append(all, s)
		return os.WriteFile(s.samples, []byte(text), 0o666)
	}
	for _, c := range cases {
		files := c.samples[startSample]
		if err := write(c.name, filepath.Join(b.lab.dir, "data", "recipes", c.name+".yaml"), slices.Sorted(maps.Keys(files)), files); err != nil {
			return nil, err
		}
	}
	script, input, recipe := filepath.Join(dir, "wrapped.sh"), filepath.Join(dir, "input.txt"), filepath.Join(dir, "wrapped.yaml")
	for path, text := range map[string]string{script: wrapped, input: "input\n",
		recipe: fmt.Sprintf("name: wrapped\ncommand: %s ${text}\ninputs: [text]\noutputs: {stdout: \"${sample}.txt\"}\n", script)} {
		if err := os.WriteFile(path, []byte(text), 0o777); err != nil {
			return nil, err
		}
	}
	return all, write("wrapped", recipe, []string{"text"}, map[string]string{"text": input})
}

// run makes one run, and returns its elapsed and its CPU time, in seconds.
func (b *benchmark) run(ctx context.Context, s sheet, kind string) (used [2]float64, err error) {
	home := filepath.Join(b.lab.dir, "auto", "home")
	for _, dir := range []string{home, b.outOf(kind)} {
		if err := os.RemoveAll(dir); err != nil {
			return used, err
		}
	}
	cmd := exec.CommandContext(ctx, b.premix, "run", s.recipe, s.samples, "--out", b.outOf(kind), "--start", kind, "--jobs", "2", "--quiet")
	cmd.Env = append(os.Environ(), "PREMIX_HOME="+home)
	begun := time.Now()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return used, fmt.Errorf("%w\n%.2000s", err, out)
	}
	usage := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	return [2]float64{time.Since(begun).Seconds(), (time.Duration(usage.Utime.Nano()) + time.Duration(usage.Stime.Nano())).Seconds()}, nil
}

// outputsOf returns the contents of the outputs of all samples, by name.
func outputsOf(dir string) (map[string][]byte, error) {
	all := map[string][]byte{}
	paths, err := filepath.Glob(filepath.Join(dir, "S[0-9][0-9].*"))
	for _, path := range paths {
		var b []byte
		if b, err = os.ReadFile(path); err != nil {
			break
		}
		all[filepath.Base(path)] = b
	}
	return all, err
}

func equalOutputs(a, b map[string][]byte) bool {
	for name, text := range a {
		if other, ok := b[name]; !ok || !bytes.Equal(text, other) {
			return false
		}
	}
	return len(a) == len(b)
}
