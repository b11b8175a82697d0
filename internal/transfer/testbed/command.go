package testbed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/transfer"
	"premix/internal/transfer/peer"
)

// Mark is a variable in the environment of all processes that a command starts.
const Mark = "PREMIX_COPY"

// Execution is the result of a command.
type Execution struct {
	Begin   time.Time
	Seconds float64
	CPU     float64 // user and system time of it and its children
	Exit    int     // -1: by a signal
	Cause   string  // as in transfer.Copy; empty: it succeeded
	Error   string
	Stderr  string // the end of its output
}

// grace is the time that a command may take to end after SIGTERM.
const grace = time.Second

// Limits are the limits of a command. When one is reached, the command is killed with all
// its descendants.
type Limits struct {
	Time time.Duration // from its start to its end
	// Stall is the time for which it may neither read, nor write, nor compute. 0 sets no
	// limit.
	Stall time.Duration
}

// Run executes a script of sh. When the script has ended, when a limit is reached, or when
// ctx is done, it kills all processes that the script has started. If the cause of ctx is a
// *[peer.UnreachableError], the result has it as the cause. id must be unique: see [Mark].
// dir is the working directory; empty: the directory of this process.
func Run(ctx context.Context, script, id, dir string, limits Limits, while func(pid int)) *Execution {
	var out tail
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), Mark+"="+id, "LC_ALL=C")
	cmd.Stdout, cmd.Stderr = &out, &out
	// If premix is killed, it cannot clean up: its copy must end with it.
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	// Do not wait for files that a remaining daemon keeps open.
	cmd.WaitDelay = grace
	r := &Execution{Begin: time.Now()}
	started, finished := make(chan error, 1), make(chan error, 1)
	go func() {
		// The kernel sends Pdeathsig when the thread that started the process ends, so this
		// thread must stay until the process has ended.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		if started <- err; err == nil {
			finished <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		r.Exit, r.Cause, r.Error = -1, transfer.CauseExit, err.Error()
		return r
	}
	if while != nil {
		stop := make(chan struct{})
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			t := time.NewTicker(100 * time.Millisecond)
			defer t.Stop()
			for {
				select {
				case <-t.C:
					while(cmd.Process.Pid)
				case <-stop:
					return
				}
			}
		}()
		defer func() { close(stop); <-gone }()
	}
	clock := time.NewTimer(limits.Time)
	defer clock.Stop()
	var look <-chan time.Time
	var going *progress
	if limits.Stall > 0 {
		t := time.NewTicker(max(limits.Stall/20, 50*time.Millisecond))
		defer t.Stop()
		look, going = t.C, newProgress(cmd.Process.Pid, limits.Stall)
	}
	var err error
	for over := false; !over; {
		over = true
		select {
		case err = <-finished:
		case <-clock.C:
			r.Cause, r.Error = transfer.CauseTimeout, fmt.Sprintf("it had not ended after %s, and was killed with all its children", limits.Time)
		case <-look:
			if over = going.stalled(); over {
				r.Cause, r.Error = transfer.CauseStall, fmt.Sprintf("it had made no progress for %s, and was killed with all its children", limits.Stall)
			}
		case <-ctx.Done():
			r.Cause, r.Error = transfer.CauseInterrupt, "interrupted"
			var gone *peer.UnreachableError
			if errors.As(context.Cause(ctx), &gone) {
				r.Cause, r.Error = transfer.CausePeer, gone.Error()
			}
		}
	}
	r.Seconds = time.Since(r.Begin).Seconds()
	if r.Cause != "" {
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGTERM) // the group may be gone by now
		select {
		case err = <-finished:
		case <-time.After(grace):
			_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
			sweep(id)
			err = <-finished
		}
	}
	_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
	sweep(id)
	r.Stderr = out.String()
	if p := cmd.ProcessState; p != nil {
		r.CPU, r.Exit = (p.UserTime() + p.SystemTime()).Seconds(), p.ExitCode()
	}
	if r.Cause == "" && err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		r.Cause, r.Error = transfer.CauseExit, err.Error()
		if r.Stderr != "" {
			r.Error += ": " + lastLine(r.Stderr)
		}
	}
	return r
}

// sweep kills all processes with the mark of a copy.
func sweep(id string) {
	want := []byte(Mark + "=" + id)
	for range 20 { // a process may have started another one in between
		found := false
		dirs, _ := filepath.Glob("/proc/[0-9]*/environ") // the pattern is well-formed
		for _, d := range dirs {
			env, err := os.ReadFile(d)
			if err != nil {
				continue // it belongs to another user, or is gone
			}
			for v := range bytes.SplitSeq(env, []byte{0}) {
				if bytes.Equal(v, want) {
					if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(d))); err == nil && unix.Kill(pid, unix.SIGKILL) == nil {
						found = true
					}
				}
			}
		}
		if !found {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// tail keeps the end of an output.
type tail struct{ b []byte }

const tailSize = 4 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	if len(t.b) > 2*tailSize {
		t.b = append(t.b[:0], t.b[len(t.b)-tailSize:]...)
	}
	return len(p), nil
}

func (t *tail) String() string { return strings.ToValidUTF8(strings.TrimSpace(string(t.b)), "?") }

// lastLine returns the last line of an output that is not a hint.
func lastLine(s string) string {
	last := ""
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "hint: ") {
			last = line
		}
	}
	return last
}
