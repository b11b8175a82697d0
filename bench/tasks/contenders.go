package main

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

//go:embed peers/loop.c
var loopSource []byte

//go:embed peers/hq.py
var hqSource []byte

// contender runs a command many times.
type contender struct {
	name  string
	slow  bool // it is left out where the count is large
	most  int  // it runs no more than that, and its rate is that of so many; 0: all
	begin func(b *benchmark, job job) (*exec.Cmd, error)
}

// job is a command and how often.
type job struct {
	program string // as the shell finds it
	args    []string
	path    string // the same, absolute
	count   int
}

func (j *job) line() string { return strings.Join(append([]string{j.program}, j.args...), " ") }

// benchmark is one run of this program.
type benchmark struct {
	options
	ctx  context.Context
	work string // absolute
	runs int
}

func (b *benchmark) path(name string) string { return filepath.Join(b.work, name) }

func (b *benchmark) command(name string, args ...string) *exec.Cmd {
	return exec.CommandContext(b.ctx, name, args...)
}

// input is a file with lines, one a command.
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

// contenders are those that can be had here.
func (b *benchmark) contenders() ([]contender, error) {
	var list []contender
	add := func(name string, err error, begin func(b *benchmark, j job) (*exec.Cmd, error)) {
		if b.wanted != "" && !strings.Contains(","+b.wanted+",", ","+name+",") {
			return
		}
		if err != nil {
			fmt.Printf("%s is left out: %v\n", name, err)
			return
		}
		list = append(list, contender{name: name, slow: name == "parallel" || name == "hq", begin: begin})
	}
	cores := strconv.Itoa(b.cores)
	add("loop", b.buildLoop(), func(b *benchmark, j job) (*exec.Cmd, error) {
		return b.command(b.path("loop"), append([]string{strconv.Itoa(j.count), cores, j.path}, j.args...)...), nil
	})
	premix, err := filepath.Abs(b.premix)
	if err == nil {
		_, err = os.Stat(premix)
	}
	add("premix", err, func(b *benchmark, j job) (*exec.Cmd, error) {
		b.runs++
		dir := b.path("out-" + strconv.Itoa(b.runs))
		if err := os.RemoveAll(dir); err != nil {
			return nil, err
		}
		cmd := b.command(premix, "task", "run", "--quiet", "--out", dir, "-j", cores, "-")
		return cmd, b.input(cmd, j.count, func(int) string { return j.line() })
	})
	has := func(name string) error {
		_, err := exec.LookPath(name)
		return err
	}
	add("xargs", has("xargs"), func(b *benchmark, j job) (*exec.Cmd, error) {
		cmd := b.command("xargs", "-P", cores, "-n", strconv.Itoa(max(1, len(j.args))), j.path)
		arg := "1"
		if len(j.args) > 0 {
			arg = strings.Join(j.args, " ")
		}
		return cmd, b.input(cmd, j.count, func(int) string { return arg })
	})
	add("make", has("make"), func(b *benchmark, j job) (*exec.Cmd, error) {
		text := fmt.Sprintf("T := $(shell seq %d)\nall: $(T)\n$(T):\n\t@%s %s\n.PHONY: all $(T)\n", j.count, j.path, strings.Join(j.args, " "))
		return b.command("make", "-s", "-j", cores, "-f", b.path("makefile"), "all"), os.WriteFile(b.path("makefile"), []byte(text), 0o666)
	})
	add("parallel", has("parallel"), func(b *benchmark, j job) (*exec.Cmd, error) {
		cmd := b.command("parallel", "--will-cite", "-j", cores)
		return cmd, b.input(cmd, j.count, func(int) string { return j.line() })
	})
	add("hq", b.installHQ(), func(b *benchmark, j job) (*exec.Cmd, error) {
		cmd := b.command("python3", append([]string{b.path("hq.py"), strconv.Itoa(j.count), cores, j.path}, j.args...)...)
		cmd.Env = append(os.Environ(), "PYTHONPATH="+b.path("hq"))
		cmd.Dir = b.work
		return cmd, nil
	})
	const managed = 1000 // tasks are enough to know the rate of a workflow manager
	manager := func(name string, begin func(program string, j job) (*exec.Cmd, error)) {
		program, err := ecosystem(name)
		before := len(list)
		add(name, err, func(_ *benchmark, j job) (*exec.Cmd, error) { return begin(program, j) })
		if len(list) > before {
			list[before].slow, list[before].most = true, managed
		}
	}
	manager("snakemake", func(program string, j job) (*exec.Cmd, error) { return b.snakemake(program, j.line(), j.count) })
	manager("nextflow", func(program string, j job) (*exec.Cmd, error) {
		return b.nextflow(program, "local", eager, j.line(), j.count)
	})
	return list, nil
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

// hqVersion is what is measured.
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
