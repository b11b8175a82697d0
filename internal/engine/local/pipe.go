package local

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/recipe"
)

// The outer shell joins the task's cgroups, which are its arguments after the
// text, and waits for the inner one. With a PID namespace of its own it is PID 1
// and takes all processes of the pipe with it when it ends; the inner shell has a
// number above 1 because signals to PID 1 do nothing by default
// (pid_namespaces(7)). Without a namespace, a guard reads from descriptor 3, whose other
// end only premix has: when premix is gone, the guard reads the end and kills the group.
// The outer shell survives the SIGTERM that its group gets, so that the inner
// one has its grace.
const (
	joinText  = `text=$1; shift; for g do echo 0 >"$g/cgroup.procs" || exit 125; done; `
	guardText = `{ read -r _ <&3; kill -KILL 0; } >/dev/null 2>&1 & guard=$!; trap : TERM; `
	endText   = ` 3<&-; status=$?; [ -z "$guard" ] || kill "$guard"; exit $status`
)

// lifeline is a pipe that guards watch: the writing end is open as long as premix lives.
type lifeline struct{ read, write *os.File }

var life = sync.OnceValues(func() (lifeline, error) {
	r, w, err := os.Pipe()
	return lifeline{r, w}, err
})

// pipe is the shell that a recipe's pipe runs in.
type pipe struct {
	cmd      *exec.Cmd
	finished chan struct{} // closed when it has ended
	code     int           // exit status; -1 if killed
	sig      syscall.Signal
}

// startPipe starts a pipe on the tool's standard output. Its own standard output
// and standard error are files in the work directory. It is its own process
// group, ends with premix, and, where premix may make PID namespaces, has its own.
func startPipe(text, work string, env, cgroups []string, stdin *os.File) (*pipe, error) {
	// The reading end of a FIFO was opened without waiting; programs wait.
	if err := unix.SetNonblock(int(stdin.Fd()), false); err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	stdout, err := os.Create(filepath.Join(work, recipe.PipeStdoutName))
	if err != nil {
		return nil, err
	}
	defer stdout.Close()
	stderr, err := os.Create(filepath.Join(work, pipeStderrName))
	if err != nil {
		return nil, err
	}
	defer stderr.Close()
	cmd, err := startShell(text, env, cgroups, os.Geteuid() == 0, func(cmd *exec.Cmd) {
		cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = work, stdin, stdout, stderr
	})
	if err != nil {
		return nil, fmt.Errorf("start the pipe: %w", err)
	}
	p := &pipe{cmd: cmd, finished: make(chan struct{})}
	go p.wait()
	return p, nil
}

// startShell starts the shells of a pipe. place sets their files and directory.
func startShell(text string, env, cgroups []string, namespace bool, place func(*exec.Cmd)) (*exec.Cmd, error) {
	shell, inner := "bash", `bash -o pipefail -c "$text"`
	if _, err := exec.LookPath(shell); errors.Is(err, exec.ErrNotFound) {
		shell, inner = "sh", `sh -c "$text"`
	}
	guard := guardText
	if namespace {
		guard = "guard=; "
	}
	cmd := exec.Command(shell, append([]string{"-c", joinText + guard + inner + endText, "premix", text}, cgroups...)...)
	place(cmd)
	cmd.Env = env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	if namespace {
		cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWPID
	} else {
		line, err := life()
		if err != nil {
			return nil, err
		}
		cmd.ExtraFiles = []*os.File{line.read}
	}
	err := startTied(cmd)
	if namespace && errors.Is(err, unix.EPERM) {
		// Root without CAP_SYS_ADMIN, as in most containers.
		return startShell(text, env, cgroups, false, place)
	}
	return cmd, err
}

// shellSignal is the offset that a shell adds to a signal's number to make a status.
const shellSignal = 128

func (p *pipe) wait() {
	defer close(p.finished)
	// How it ended is in ProcessState.
	_ = p.cmd.Wait()
	// The rest of its group, where it has no namespace of its own.
	_ = unix.Kill(-p.cmd.Process.Pid, unix.SIGKILL)
	st, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	switch {
	case !ok:
		p.code = -1
	case st.Signaled():
		p.code, p.sig = -1, st.Signal()
	case st.ExitStatus() > shellSignal && unix.SignalName(syscall.Signal(st.ExitStatus()-shellSignal)) != "":
		p.code, p.sig = -1, syscall.Signal(st.ExitStatus()-shellSignal)
	default:
		p.code = st.ExitStatus()
	}
}

// ok reports whether a pipe that has ended succeeded.
func (p *pipe) ok() bool { return p.code == 0 && p.sig == 0 }

// signal sends a signal to all processes of the pipe. They may be gone already.
func (p *pipe) signal(sig syscall.Signal) {
	select {
	case <-p.finished: // the number may be another's by now
	default:
		_ = unix.Kill(-p.cmd.Process.Pid, sig)
	}
}

// usage is the resources that the processes of a pipe took.
type usage struct {
	user, system  time.Duration
	maxRSS        int64 // bytes, of the largest process
	read, written int64 // bytes from and to storage
}

// blockSize is the unit of ru_inblock and ru_oublock (getrusage(2)), in bytes.
const blockSize = 512

// usage returns the resources that the pipe took; it has ended.
func (p *pipe) usage() usage {
	u := usage{user: p.cmd.ProcessState.UserTime(), system: p.cmd.ProcessState.SystemTime()}
	if ru, ok := p.cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		u.maxRSS = ru.Maxrss * 1024
		u.read, u.written = ru.Inblock*blockSize, ru.Oublock*blockSize
	}
	return u
}
