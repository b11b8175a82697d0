package collect

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxOutput bounds the bytes that are kept of standard output, and of standard error. A
// program that prints more is not interrupted; the rest is discarded.
const maxOutput = 1 << 20

// mark is a variable in the environment of all programs that collectors execute, and of
// their descendants. It identifies those that left their process group.
const mark = "PREMIX_WATCH_PROGRAM"

var programs atomic.Int64 // number executed so far, for marks

// killWait is the time after SIGKILL for which remaining processes of a program are
// searched.
const killWait = 2 * time.Second

// limited keeps the first bytes that are written to it.
type limited struct {
	bytes.Buffer
	cut bool
}

func (l *limited) Write(p []byte) (int, error) {
	keep := p
	if room := maxOutput - l.Len(); len(p) > room {
		keep, l.cut = p[:room], true
	}
	l.Buffer.Write(keep) // a bytes.Buffer returns no error
	return len(p), nil
}

// hungError is returned for a program that was killed because it did not end in time.
type hungError struct {
	program string
	after   time.Duration
}

func (e *hungError) Error() string {
	return fmt.Sprintf("%s did not end within %.3g s and was killed", e.program, e.after.Seconds())
}

// runProgram executes a program and returns its standard output. When the context ends, the
// program and all processes that it has started are killed: its process group, and those
// that left it. After a program that ends in time, the processes left in its process group
// are killed, too: they would hold the output open, and pile up over the turns.
func runProgram(ctx context.Context, stdin, program string, args ...string) (string, error) {
	began := time.Now()
	cmd := exec.Command(program, args...)
	name := filepath.Base(program)
	tag := fmt.Sprintf("%s=%d.%d", mark, os.Getpid(), programs.Add(1))
	cmd.Env = append(os.Environ(), tag, "LC_ALL=C")
	cmd.Stdin = strings.NewReader(stdin)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	cmd.WaitDelay = time.Second
	var out, errs limited
	cmd.Stdout, cmd.Stderr = &out, &errs
	finished := make(chan error, 1)
	started := make(chan error, 1)
	go func() {
		// The kernel sends Pdeathsig when the thread that started the program ends
		// (prctl(2)): keep this thread until the program has ended.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			finished <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return "", fmt.Errorf("execute %s: %w", name, err)
	}
	var err error
	select {
	case err = <-finished:
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) // usually the group is empty
	case <-ctx.Done():
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		killMarked(tag)
		<-finished
		return out.String(), &hungError{name, time.Since(began)}
	}
	if err != nil {
		text := firstLine(errs.String())
		if text == "" {
			return out.String(), fmt.Errorf("%s: %w", name, err)
		}
		return out.String(), fmt.Errorf("%s: %w: %s", name, err, text)
	}
	return out.String(), nil
}

// firstLine returns the first line with text, shortened to fit into a message.
func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	if len(line) > 200 {
		line = line[:200] + "..."
	}
	return strings.ToValidUTF8(line, "?")
}

// killMarked kills the processes with the mark in their environment, until none are left. A
// process that is forking may be missed in one round.
func killMarked(tag string) {
	for end := time.Now().Add(killWait); time.Now().Before(end); {
		found := false
		dirs, err := os.ReadDir("/proc")
		if err != nil {
			return
		}
		for _, d := range dirs {
			pid, err := strconv.Atoi(d.Name())
			if err != nil || pid == os.Getpid() {
				continue
			}
			// It cannot be read for other users' processes, and is empty for ended ones.
			environ, err := os.ReadFile(filepath.Join("/proc", d.Name(), "environ"))
			if err == nil && bytes.Contains(append([]byte{0}, environ...), []byte("\x00"+tag+"\x00")) {
				found = true
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		if !found {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}
