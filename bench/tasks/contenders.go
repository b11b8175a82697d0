package main

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"premix/internal/testkit/slurmtest"
)

//go:embed peers/loop.c
var loopSource []byte

//go:embed peers/hq.py
var hqSource []byte

// contender runs a command many times. cpu is the CPU time of all the processes that it
// ran; 0 if it is not known.
type contender struct {
	name string
	run  func(j job) (cpu float64, err error)
}

// job is a command and the number of its runs.
type job struct {
	program string // name, which the shell looks up
	args    []string
	path    string // absolute path of program
	count   int
}

func (j *job) line() string { return strings.Join(append([]string{j.program}, j.args...), " ") }

// benchmark is one run of this program.
type benchmark struct {
	options
	ctx  context.Context
	work string // absolute
	runs int
	cut  map[string]measured // contenders that ran only a part of a smaller count, by name and program
}

func (b *benchmark) path(name string) string { return filepath.Join(b.work, name) }

func (b *benchmark) command(name string, args ...string) *exec.Cmd {
	return exec.CommandContext(b.ctx, name, args...)
}

// input writes a file with one command a line, and makes it the command's standard input.
func (b *benchmark) input(cmd *exec.Cmd, count int, line func(i int) string) error {
	path := b.path("input")
	var text strings.Builder
	for i := 1; i <= count; i++ {
		text.WriteString(line(i))
		text.WriteByte('\n')
	}
	if err := os.WriteFile(path, []byte(text.String()), 0o666); err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	cmd.Stdin = f
	return nil
}

// contenders returns the contenders that are available, and a function that ends them.
func (b *benchmark) contenders() (list []contender, end func(), err error) {
	end = func() {}
	add := func(name string, have func() error, run func(j job) (float64, error)) {
		if b.wanted != "" && !strings.Contains(","+b.wanted+",", ","+name+",") {
			return
		}
		if err := have(); err != nil {
			fmt.Printf("%s is left out: %v\n", name, err)
			return
		}
		list = append(list, contender{name, run})
	}
	program := func(name string) func() error {
		return func() error { _, err := exec.LookPath(name); return err }
	}
	cores := strconv.Itoa(b.cores)
	add("loop", b.buildLoop, func(j job) (float64, error) {
		return b.finish(b.command(b.path("loop"), append([]string{strconv.Itoa(j.count), cores, j.path}, j.args...)...))
	})
	premix, err := filepath.Abs(b.premix)
	if err != nil {
		return nil, end, err
	}
	add("premix", func() error { _, err := os.Stat(premix); return err }, func(j job) (float64, error) {
		b.runs++
		dir := b.path("out-" + strconv.Itoa(b.runs))
		if err := os.RemoveAll(dir); err != nil {
			return 0, err
		}
		cmd := b.command(premix, "task", "run", "--quiet", "--out", dir, "-j", cores, "-")
		if err := b.input(cmd, j.count, func(int) string { return j.line() }); err != nil {
			return 0, err
		}
		return b.finish(cmd)
	})
	add("xargs", program("xargs"), func(j job) (float64, error) {
		cmd := b.command("xargs", "-P", cores, "-n", strconv.Itoa(max(1, len(j.args))), j.path)
		arg := "1"
		if len(j.args) > 0 {
			arg = strings.Join(j.args, " ")
		}
		if err := b.input(cmd, j.count, func(int) string { return arg }); err != nil {
			return 0, err
		}
		return b.finish(cmd)
	})
	add("make", program("make"), func(j job) (float64, error) {
		text := fmt.Sprintf("T := $(shell seq %d)\nall: $(T)\n$(T):\n\t@%s %s\n.PHONY: all $(T)\n", j.count, j.path, strings.Join(j.args, " "))
		if err := os.WriteFile(b.path("makefile"), []byte(text), 0o666); err != nil {
			return 0, err
		}
		return b.finish(b.command("make", "-s", "-j", cores, "-f", b.path("makefile"), "all"))
	})
	add("parallel", program("parallel"), func(j job) (float64, error) {
		cmd := b.command("parallel", "--will-cite", "-j", cores)
		if err := b.input(cmd, j.count, func(int) string { return j.line() }); err != nil {
			return 0, err
		}
		return b.finish(cmd)
	})
	add("hq", b.installHQ, func(j job) (float64, error) {
		temp, err := os.MkdirTemp("", "hq")
		if err != nil {
			return 0, err
		}
		defer os.RemoveAll(temp) // the server leaves the directories of its workers there
		cmd := b.command("python3", append([]string{b.path("hq.py"), strconv.Itoa(j.count), cores, j.path}, j.args...)...)
		cmd.Env = append(os.Environ(), "PYTHONPATH="+b.path("hq"), "TMPDIR="+temp)
		cmd.Dir = b.work
		return b.finish(cmd)
	})
	var box *slurmtest.Box
	add("slurm", func() error {
		if list := slurmtest.Missing(false); len(list) > 0 {
			return fmt.Errorf("there is no %s", strings.Join(list, ", "))
		}
		dir, err := os.MkdirTemp("", "box")
		if err != nil {
			return err
		}
		end = func() { _ = os.RemoveAll(dir) }
		box, err = slurmtest.Start(dir, slurmtest.Options{Nodes: 1, CPUs: b.cores})
		if err == nil {
			end = func() {
				if err := box.Stop(); err != nil {
					fmt.Fprintln(os.Stderr, "slurm:", err)
				}
				_ = os.RemoveAll(dir)
			}
		}
		return err
	}, func(j job) (float64, error) { return 0, b.array(box, j.count, j.line()) })
	manager := func(name string, run func(program string, j job) (float64, error)) {
		var program string
		add(name, func() (err error) {
			program, err = ecosystem(name)
			return err
		}, func(j job) (float64, error) { return run(program, j) })
	}
	manager("snakemake", func(program string, j job) (float64, error) {
		cmd, err := b.snakemake(program, j.line(), j.count)
		if err != nil {
			return 0, err
		}
		return b.finish(cmd)
	})
	manager("nextflow", func(program string, j job) (float64, error) {
		cmd, err := b.nextflow(program, "local", eager, j.line(), j.count)
		if err != nil {
			return 0, err
		}
		return b.finish(cmd)
	})
	return list, end, nil
}

// finish runs a command to its end, and returns the CPU time of it and its child
// processes.
func (b *benchmark) finish(cmd *exec.Cmd) (cpu float64, err error) {
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	if f, ok := cmd.Stdin.(*os.File); ok {
		f.Close()
	}
	if err != nil {
		return 0, fmt.Errorf("%v: %w\n%s", cmd.Args, err, &out)
	}
	st := cmd.ProcessState
	return (st.UserTime() + st.SystemTime()).Seconds(), nil
}

func (b *benchmark) buildLoop() error {
	source := b.path("loop.c")
	if err := os.WriteFile(source, loopSource, 0o666); err != nil {
		return err
	}
	if out, err := b.command("cc", "-O2", "-o", b.path("loop"), source, "-lpthread").CombinedOutput(); err != nil {
		return fmt.Errorf("cc: %w\n%s", err, out)
	}
	return nil
}

// hqVersion is the measured version of HyperQueue.
const hqVersion = "hyperqueue==0.27.0"

func (b *benchmark) installHQ() error {
	if err := os.WriteFile(b.path("hq.py"), hqSource, 0o666); err != nil {
		return err
	}
	if _, err := os.Stat(b.path("hq/hyperqueue")); err == nil {
		return nil
	}
	if out, err := b.command("python3", "-m", "pip", "install", "-q", "--target", b.path("hq"), hqVersion).CombinedOutput(); err != nil {
		return fmt.Errorf("pip: %w\n%s", err, out)
	}
	return nil
}
