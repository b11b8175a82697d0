package inplace

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"premix/internal/hotstart"
	"premix/internal/hotstart/tracer"
)

// RunTraced runs a call unchanged and waits for its end, as Run does. If the call or one of
// its descendants executes a program for which instead returns a command, RunTraced executes
// this command in place of the program. The command's first word is the path of its
// program. So a script runs unchanged, and a tool that it executes can start hot.
func RunTraced(c Call, instead func(exe string, argv []string) []string) (hotstart.Exit, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	lost := hotstart.Exit{Code: -1}
	state := c.inherited()
	signals := newSignals(state.Ignored)
	defer signals.end()
	p, err := tracer.SpawnPlain(c.Exe, c.Argv, &os.ProcAttr{Dir: c.Dir, Env: c.Env, Files: inherited(&c, state.Extra),
		Sys: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}})
	if err != nil {
		return lost, err
	}
	t := &tracedRun{watch: tracer.NewWatch(), pid: p.Pid, instead: instead}
	if err = setActions(p, state); err == nil {
		err = t.watch.Begin(p)
	}
	if err != nil {
		p.Kill()
		reap(p.Pid)
		return lost, err
	}
	signals.to(p.Pid)
	return wait(p.Pid, signals, t)
}

// inherited returns the descriptors that the program of a call inherits.
func inherited(c *Call, extra []int) []*os.File {
	files := []*os.File{c.Stdin, c.Stdout, c.Stderr}
	for _, fd := range extra {
		for len(files) <= fd {
			files = append(files, nil)
		}
		files[fd] = os.NewFile(uintptr(fd), "inherited")
	}
	return files
}

// tracedRun handles the stops of a call that runs unchanged, and of its descendants.
type tracedRun struct {
	watch    *tracer.Watch
	pid      int
	finished bool
	instead  func(exe string, argv []string) []string
}

// Handle handles a stop. When the call has ended, its remaining processes continue without
// their tracer.
func (t *tracedRun) Handle(tid int, st unix.WaitStatus) error {
	switch {
	case t.finished:
		return t.watch.Leave(tid, st)
	case tid == t.pid && !st.Stopped():
		t.finished = true
		t.watch.Detach()
	case st.Stopped() && int(st)>>16 == unix.PTRACE_EVENT_EXEC:
		if command := t.executed(tid); command != nil {
			err := t.watch.Instead(tid, command[0], command[1:])
			if err == nil || errors.Is(err, tracer.ErrGone) {
				return err
			}
			return t.watch.Continue(tid)
		}
	}
	_, err := t.watch.Handle(tid, st)
	return err
}

// executed returns the command to execute in place of the program that a process has
// executed. It returns nil if the program itself must run.
func (t *tracedRun) executed(pid int) []string {
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return nil
	}
	words, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || len(words) == 0 {
		return nil
	}
	return t.instead(exe, strings.Split(string(bytes.TrimSuffix(words, []byte{0})), "\x00"))
}
