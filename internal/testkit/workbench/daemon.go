package workbench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/mountinfo"
	"premix/internal/testkit/netrelay"
)

// Daemon is a process that runs during a measurement.
type Daemon struct {
	cmd   *exec.Cmd
	In    io.WriteCloser
	lines *bufio.Reader
}

// StartDaemon starts a command on a host; nil means this machine. It has a process
// group of its own: an interrupt of the benchmark must not end it before its file
// system was unmounted.
func StartDaemon(h *netrelay.Host, cmd *exec.Cmd) (*Daemon, error) {
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	d := &Daemon{cmd: cmd}
	var err error
	if d.In, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	d.lines = bufio.NewReader(out)
	if err := Start(h, cmd); err != nil {
		return nil, err
	}
	return d, nil
}

// Says waits for a line of output.
func (d *Daemon) Says(want string) error {
	line, err := d.lines.ReadString('\n')
	if err != nil {
		return fmt.Errorf("%s ended: %w\n%s", d.cmd.Path, err, d.cmd.Stderr)
	}
	if line = strings.TrimSpace(line); line != want {
		return fmt.Errorf("%s says %q, not %q", d.cmd.Path, line, want)
	}
	return nil
}

// Stop sends SIGTERM to the daemon, and kills it if it does not end.
func (d *Daemon) Stop() error {
	if err := d.cmd.Process.Signal(unix.SIGTERM); err != nil {
		return nil // it has ended
	}
	finished := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, d.lines)
		_ = d.cmd.Wait()
		close(finished)
	}()
	select {
	case <-finished:
	case <-time.After(5 * time.Second):
		// nydusd does not end while its prefetch waits.
		if err := unix.Kill(-d.cmd.Process.Pid, unix.SIGKILL); err != nil {
			return os.NewSyscallError("kill", err)
		}
		<-finished
	}
	return nil
}

// Mounted waits until a file system is mounted at dir.
func Mounted(ctx context.Context, dir string) error {
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

// UnmountBelow unmounts all file systems below a directory that a repetition has left,
// also if their server has ended.
func UnmountBelow(dir string) error {
	list, err := mountinfo.Read()
	if err != nil {
		return err
	}
	var errs []error
	for _, m := range mountinfo.Under(list, dir) {
		if m.Path == dir {
			continue
		}
		if err := unix.Unmount(m.Path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			errs = append(errs, &os.PathError{Op: "unmount", Path: m.Path, Err: err})
		}
	}
	return errors.Join(errs...)
}
