package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/netrelay"
)

// daemon is a process that stays while its contender is measured.
type daemon struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Reader
}

// startDaemon starts a command on a host; nil: here. It is in a process group of
// its own: an interrupt of the benchmark must not end it before its mount is gone.
func startDaemon(h *netrelay.Host, cmd *exec.Cmd) (*daemon, error) {
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	d := &daemon{cmd: cmd}
	var err error
	if d.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	d.lines = bufio.NewReader(out)
	if err := start(h, cmd); err != nil {
		return nil, err
	}
	return d, nil
}

// says waits for a line of output.
func (d *daemon) says(want string) error {
	line, err := d.lines.ReadString('\n')
	if err != nil {
		return fmt.Errorf("%s ended: %w\n%s", d.cmd.Path, err, d.cmd.Stderr)
	}
	if line = strings.TrimSpace(line); line != want {
		return fmt.Errorf("%s says %q, not %q", d.cmd.Path, line, want)
	}
	return nil
}

// stop asks the daemon to end, and kills it where it does not.
func (d *daemon) stop() error {
	if err := d.cmd.Process.Signal(unix.SIGTERM); err != nil {
		return nil // it has ended
	}
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, d.lines)
		_ = d.cmd.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(5 * time.Second):
		// nydusd stays while its prefetch waits for something.
		if err := unix.Kill(-d.cmd.Process.Pid, unix.SIGKILL); err != nil {
			return os.NewSyscallError("kill", err)
		}
		<-ended
	}
	return nil
}

// mounted waits until something is mounted at dir.
func mounted(ctx context.Context, dir string) error {
	var before, now unix.Stat_t
	if err := unix.Stat(dir+"/..", &before); err != nil {
		return err
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		if err := unix.Stat(dir, &now); err == nil && now.Dev != before.Dev {
			return nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return fmt.Errorf("nothing is mounted at %s", dir)
		}
	}
}
