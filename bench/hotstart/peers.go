package main

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/testkit/figures"
)

//go:embed fork/fork.c
var forkSource string

// A peer is another way to start the synthetic process after its initialisation: a
// checkpoint of CRIU, or a fork of a process that is kept. Both wait in the open of their
// input, a FIFO, and repeat the open when they start: then the open of the writing end
// succeeds.
type peer interface {
	// begin begins a process; wait waits for its end.
	begin() (wait func() error, err error)
	close() error
}

// peerTask runs a task of a peer over startSample.
func (b *bench) peerTask(p peer, fifo string) (m measured, err error) {
	started := time.Now()
	wait, err := p.begin()
	if err != nil {
		return m, err
	}
	input, err := openWriter(fifo)
	if err != nil {
		return m, err
	}
	defer input.Close()
	m.opened = time.Since(started)
	keys, err := os.ReadFile(b.samples[startSample]["keys"])
	if err != nil {
		return m, err
	}
	if _, err := input.Write(keys); err != nil {
		return m, err
	}
	if err := input.Close(); err != nil {
		return m, err
	}
	err = wait()
	m.whole = time.Since(started)
	return m, err
}

// openWriter waits until a FIFO has a reader, and opens it for writing.
func openWriter(fifo string) (*os.File, error) {
	const patience = time.Minute
	for started := time.Now(); time.Since(started) < patience; {
		fd, err := unix.Open(fifo, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err == nil {
			return os.NewFile(uintptr(fd), fifo), nil
		}
		if err != unix.ENXIO {
			return nil, &os.PathError{Op: "open", Path: fifo, Err: err}
		}
		time.Sleep(50 * time.Microsecond)
	}
	return nil, fmt.Errorf("no process has opened %s within %v", fifo, patience)
}

// compareOutput compares the output of a peer's process with the output of cold starts.
func (b *bench) compareOutput(out []byte) error {
	path := filepath.Join(b.dir, "peer.out")
	if err := os.WriteFile(path, out, 0o600); err != nil {
		return err
	}
	defer os.Remove(path)
	return b.sameOutput(startSample, path)
}

// forker is the peer that forks a kept process.
type forker struct {
	*bench
	cmd      *exec.Cmd
	in       io.WriteCloser
	out, err *bufio.Reader
}

// newForker executes the tool and waits until it is at its input.
func (b *bench) newForker(fifo string) (*forker, error) {
	program := filepath.Join(b.dir, "fork")
	if err := compile(program, forkSource); err != nil {
		return nil, err
	}
	f := &forker{bench: b, cmd: exec.Command(program, b.spec.Argv[0], strconv.Itoa(b.synth), fifo)}
	f.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	stdout, err1 := f.cmd.StdoutPipe()
	stderr, err2 := f.cmd.StderrPipe()
	in, err3 := f.cmd.StdinPipe()
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	f.in, f.out, f.err = in, bufio.NewReader(stdout), bufio.NewReader(stderr)
	if err := f.cmd.Start(); err != nil {
		return nil, err
	}
	if line, err := f.err.ReadString('\n'); err != nil || line != "ready\n" {
		return nil, errors.Join(fmt.Errorf("the forking peer printed %q: %w", line, err), f.close())
	}
	return f, nil
}

func (f *forker) begin() (func() error, error) {
	_, err := f.in.Write([]byte{'\n'})
	return func() error {
		sum, err := f.out.ReadBytes('\n')
		if err != nil {
			return err
		}
		for {
			line, err := f.err.ReadString('\n') // the lines of synth, and the exit status
			if err != nil {
				return err
			}
			if status, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && status != 0 {
				return fmt.Errorf("a fork ended with exit status %d", status)
			} else if err == nil {
				break
			}
		}
		return f.compareOutput(sum)
	}, err
}

func (f *forker) close() error {
	f.in.Close()
	return f.cmd.Wait()
}

// checkpoint is the peer that CRIU restores.
type checkpoint struct {
	*bench
	dir string
	pid int
}

// newCheckpoint executes the tool, and has CRIU write it to a directory.
func (b *bench) newCheckpoint(fifo string) (*checkpoint, error) {
	// A process that CRIU restores is orphaned, and has its old process id.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, err
	}
	c := &checkpoint{bench: b, dir: filepath.Join(b.dir, "criu")}
	if err := errors.Join(os.RemoveAll(c.dir), os.MkdirAll(filepath.Join(c.dir, "images"), 0o700)); err != nil {
		return nil, err
	}
	out, err := os.Create(filepath.Join(c.dir, "out"))
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd := exec.Command(b.spec.Argv[0], strconv.Itoa(b.synth), fifo)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c.pid = cmd.Process.Pid
	atInput := func() bool {
		call, _ := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", c.pid))
		return bytes.HasPrefix(call, []byte(strconv.Itoa(unix.SYS_OPENAT)+" "))
	}
	for seen := 0; seen < 2; { // twice in a row, because the tool also opens other files for a moment
		if atInput() {
			seen++
		} else {
			seen = 0
		}
		if cmd.Process.Signal(unix.Signal(0)) != nil {
			return nil, errors.New("the tool has ended")
		}
		time.Sleep(time.Millisecond)
	}
	err = c.criu("dump", "-t", strconv.Itoa(c.pid))
	cmd.Process.Kill()
	cmd.Wait()
	return c, err
}

func (c *checkpoint) criu(args ...string) error {
	out, err := exec.Command("criu", append(args, "-D", filepath.Join(c.dir, "images"), "-v1", "-o", "log")...).CombinedOutput()
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(c.dir, "images", "log"))
		return fmt.Errorf("criu %s: %w\n%s%s", args[0], err, out, log)
	}
	return nil
}

func (c *checkpoint) begin() (func() error, error) {
	out := filepath.Join(c.dir, "out")
	if err := os.Truncate(out, 0); err != nil {
		return nil, err
	}
	// CRIU returns once the process runs.
	restored := make(chan error, 1)
	go func() { restored <- c.criu("restore", "-d") }()
	return func() error {
		if err := <-restored; err != nil {
			return err
		}
		var st unix.WaitStatus
		if _, err := unix.Wait4(c.pid, &st, 0, nil); err != nil || st.ExitStatus() != 0 {
			return fmt.Errorf("the restored process ended with status %#x, %v", st, err)
		}
		text, err := os.ReadFile(out)
		if err != nil {
			return err
		}
		last := bytes.LastIndexByte(bytes.TrimSuffix(text, []byte("\n")), '\n')
		return c.compareOutput(text[last+1:])
	}, nil
}

func (c *checkpoint) close() error { return os.RemoveAll(c.dir) }

// peers measures the starts of the synthetic process beside the starts by peers. It
// measures one after another: some machines lack the memory for two.
func (b *benchmark) peers(ctx context.Context, cases []*benchCase) error {
	rows := [][]string{{"case", "cold", "CRIU", "fork", "hot"}}
	for _, c := range cases {
		if c.synth == 0 {
			continue
		}
		row, err := b.peersOf(ctx, c)
		if err != nil {
			return err
		}
		rows = append(rows, row)
	}
	b.Table("Time until the input is opened, beside peers", rows)
	return nil
}

func (b *benchmark) peersOf(ctx context.Context, c *benchCase) ([]string, error) {
	x := b.lab.open(c)
	defer x.close()
	can, err := x.prepareAll(ctx, cold, hot)
	if err != nil {
		return nil, err
	}
	got, err := x.alternate(ctx, can, startSample, b.repetitions(c))
	if err != nil {
		return nil, err
	}
	row, err := b.compare(c, "opened", got, opened)
	if err != nil {
		return nil, err
	}
	x.drop(hot)
	if err := os.RemoveAll(x.store(hot)); err != nil {
		return nil, err
	}
	texts := []string{row[1]}
	for _, kind := range []string{"criu", "fork"} {
		text, err := b.peerOf(x, kind, opened(got[cold]))
		if err != nil {
			return nil, fmt.Errorf("%s of %s: %w", kind, c.name, err)
		}
		texts = append(texts, text)
	}
	return append(append([]string{c.name}, texts...), row[2]), nil
}

// peerOf measures one peer.
func (b *benchmark) peerOf(x *bench, kind string, coldOpened float64) (text string, err error) {
	if kind == "criu" {
		if _, err := exec.LookPath("criu"); err != nil || os.Geteuid() != 0 {
			return "-", nil
		}
	}
	fifo := filepath.Join(b.lab.dir, "peer.fifo")
	if err := os.Remove(fifo); err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		return "", &os.PathError{Op: "mkfifo", Path: fifo, Err: err}
	}
	defer os.Remove(fifo)
	var p peer
	if kind == "criu" {
		p, err = x.newCheckpoint(fifo)
	} else {
		p, err = x.newForker(fifo)
	}
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	var all []measured
	for i := range b.repetitions(x.benchCase) + 1 {
		m, err := x.peerTask(p, fifo)
		if err != nil {
			return "", err
		}
		if i > 0 {
			all = append(all, m)
		}
	}
	mine := opened(all)
	return figures.Seconds(mine), b.Add(figures.Figure{Name: x.name + "/opened/" + kind, Value: mine, Unit: "s", Peer: string(cold), Ratio: figures.Lower(mine, coldOpened)})
}
