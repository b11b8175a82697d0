package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/unixpeer"
)

// HolderArg is the first argument of a holder: premix HolderArg DIR NAME. A holder is the job
// of an allocation of srun or salloc. It connects to the socket NAME of the program that asked
// for the allocation, starts steps, which thereby run in the job and within its limits, and
// ends when the connection does.
const HolderArg = "slurm-holder"

// granted is what a holder sends when the allocation begins.
type granted struct {
	Job int      `json:"job"`
	Env []string `json:"env"` // of the job
}

// stepRequest asks a holder for a step. The descriptors of its standard streams and of its
// working directory come with it.
type stepRequest struct {
	Args []string `json:"args"` // of srun
	Env  []string `json:"env"`
}

// stepAnswer is the end of a step.
type stepAnswer struct {
	Exit int `json:"exit"`
}

// holderSocket is the name of the socket at which the holder of a job takes steps.
func holderSocket(job string) string { return "step-" + job }

// HolderMain is the main function of a holder. args follow HolderArg.
func HolderMain(args []string) int {
	if len(args) != 2 {
		fmt.Fprintln(os.Stderr, "error: this is for the programs that premix slurm-shim makes")
		return 2
	}
	exit, err := hold(args[0], args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		return 1
	}
	return exit
}

// hold sends the allocation to the program that asked for it, runs the steps of that program
// until it gives the allocation back, and returns the exit code of the job: for srun, the exit
// code of its step.
func hold(dir, name string) (exit int, err error) {
	l, remove, err := listenAt(dir, holderSocket(os.Getenv("SLURM_JOB_ID")))
	if err != nil {
		return 1, err
	}
	defer remove()
	defer l.Close()
	conn, err := dialAt(dir, name)
	if err != nil {
		return 1, err
	}
	defer conn.Close()
	job, err := strconv.Atoi(os.Getenv("SLURM_JOB_ID"))
	if err != nil {
		return 1, err
	}
	g := granted{Job: job}
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); ofJob(name) {
			g.Env = append(g.Env, kv)
		}
	}
	if err := send(conn, &g); err != nil {
		return 1, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer cancel()
		_, _ = conn.Read(make([]byte, 1)) // until the allocation is given back
		l.Close()
	}()
	var steps sync.WaitGroup
	var mu sync.Mutex
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			break
		}
		steps.Go(func() {
			defer c.Close()
			if !mine(c) {
				return
			}
			code := holdStep(ctx, dir, c)
			mu.Lock()
			exit = max(exit, code)
			mu.Unlock()
			_ = send(c, &stepAnswer{Exit: code}) // a client that is gone does not need it
		})
	}
	steps.Wait()
	if !strings.HasPrefix(name, "srun-") {
		exit = 0 // salloc's job has succeeded when the allocation was given back
	}
	return exit, nil
}

// holdStep runs one step, and returns its exit code.
func holdStep(ctx context.Context, dir string, c *net.UnixConn) int {
	r, files, err := receiveStep(c)
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	if err != nil || len(files) != 4 {
		return 1
	}
	exe, err := os.Executable()
	if err != nil {
		return 1
	}
	cmd := exec.Command(exe, append([]string{ClientArg, dir, "srun"}, r.Args...)...)
	cmd.Dir = fmt.Sprintf("/proc/self/fd/%d", files[3].Fd())
	cmd.Stdin, cmd.Stdout, cmd.Stderr = files[0], files[1], files[2]
	cmd.Env = slices.DeleteFunc(slices.Clone(r.Env), func(kv string) bool { return strings.HasPrefix(kv, heldVariable+"=") })
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if ofJob(name) {
			cmd.Env = append(cmd.Env, kv) // the last one counts
		}
	}
	cmd.Env = append(cmd.Env, heldVariable+"=1")
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(files[2], "srun: error:", err)
		return 1
	}
	finished := make(chan struct{})
	defer close(finished)
	go func() {
		// Each byte is a signal; the end of the connection, or of the allocation, ends the step.
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			for b := make([]byte, 1); ; {
				if _, err := c.Read(b); err != nil {
					return
				}
				signalStep(cmd.Process.Pid, syscall.Signal(b[0]))
			}
		}()
		select {
		case <-gone:
		case <-ctx.Done():
		case <-finished:
			return
		}
		_ = cmd.Process.Signal(unix.SIGTERM)
		select {
		case <-time.After(Grace):
			_ = cmd.Process.Kill()
		case <-finished:
		}
	}()
	_ = cmd.Wait() // ProcessState has the result
	status := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

// signalStep passes a signal on to the srun of a step, which has its tasks end, or, for a signal
// of the user's own, to the tasks themselves.
func signalStep(pid int, sig syscall.Signal) {
	list := []int{pid}
	if sig == unix.SIGUSR1 || sig == unix.SIGUSR2 {
		list = descendants(pid)
	}
	for _, pid := range list {
		_ = unix.Kill(pid, sig) // it may have ended
	}
}

// ofJob reports whether a variable describes the job, and its steps have it as it is there.
func ofJob(name string) bool {
	return strings.HasPrefix(name, "SLURM") || strings.HasPrefix(name, resourcePrefix) || name == gpuVariable || name == shimVariable
}

// sendStep sends a request for a step, with the streams and the directory of this process.
func sendStep(c *net.UnixConn, r *stepRequest) error {
	cwd, err := os.Open(".")
	if err != nil {
		return err
	}
	defer cwd.Close()
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	rights := unix.UnixRights(0, 1, 2, int(cwd.Fd()))
	if _, _, err := c.WriteMsgUnix([]byte{'{'}, rights, nil); err != nil {
		return err
	}
	_, err = c.Write(append(text[1:], '\n'))
	return err
}

// receiveStep receives a request, and the files with it, which the caller closes.
func receiveStep(c *net.UnixConn) (*stepRequest, []*os.File, error) {
	first, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(4*4))
	n, oobn, _, _, err := c.ReadMsgUnix(first, oob)
	if err != nil {
		return nil, nil, err
	}
	var files []*os.File
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	if err != nil {
		return nil, files, err
	}
	// The client sends single bytes later. The decoder must not read them.
	text := append([]byte(nil), first[:n]...)
	for b := make([]byte, 1); text[len(text)-1] != '\n'; {
		if _, err := c.Read(b); err != nil {
			return nil, files, err
		}
		if text = append(text, b[0]); len(text) > askMost {
			return nil, files, errors.New("the request is too long")
		}
	}
	r := &stepRequest{}
	return r, files, json.Unmarshal(text, r)
}

// throughHolder runs srun's step in the allocation of salloc, if that is where this process is.
func throughHolder(dir string, args []string) (response, bool) {
	c, err := dialAt(dir, holderSocket(os.Getenv("SLURM_JOB_ID")))
	if err != nil {
		return response{}, false // a job of sbatch
	}
	defer c.Close()
	return stepAt(dir, os.Getenv("SLURM_JOB_ID"), c, args), true
}

// stepAt runs a step at a holder, and passes on the signals of this process.
func stepAt(dir, job string, c *net.UnixConn, args []string) response {
	if err := sendStep(c, &stepRequest{Args: args, Env: os.Environ()}); err != nil {
		return fail("srun", 1, err)
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGUSR1, unix.SIGUSR2)
	defer signal.Stop(signals)
	go func() {
		for sig := range signals {
			_, _ = c.Write([]byte{byte(sig.(syscall.Signal))}) // the step may have ended
		}
	}()
	var a stepAnswer
	if err := receive(c, &a); err != nil {
		return fail("srun", 1, fmt.Errorf("job %s ended before the step did: %s", job, waitFor(dir, job)))
	}
	return response{Exit: a.Exit}
}

// listenAt listens at a socket of a shim directory. remove removes the socket.
func listenAt(dir, name string) (l *net.UnixListener, remove func(), err error) {
	if err := belongs(dir); err != nil {
		return nil, nil, err
	}
	folder, err := os.Open(statePath(dir, ""))
	if err != nil {
		return nil, nil, err
	}
	defer folder.Close()
	path := statePath(dir, name)
	_ = os.Remove(path) // of an earlier try of the job
	l, err = net.ListenUnix("unix", &net.UnixAddr{Name: fmt.Sprintf("/proc/self/fd/%d/%s", folder.Fd(), name), Net: "unix"})
	if err != nil {
		return nil, nil, err
	}
	l.SetUnlinkOnClose(false)
	remove = func() { _ = os.Remove(path) }
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		remove()
		return nil, nil, err
	}
	return l, remove, nil
}

// dialAt connects to a socket of a shim directory, of this user.
func dialAt(dir, name string) (*net.UnixConn, error) {
	folder, err := os.Open(statePath(dir, ""))
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	conn, err := net.Dial("unix", fmt.Sprintf("/proc/self/fd/%d/%s", folder.Fd(), filepath.Base(name)))
	if err != nil {
		return nil, err
	}
	if err := unixpeer.Check(conn); err != nil {
		conn.Close()
		return nil, err
	}
	return conn.(*net.UnixConn), nil
}
