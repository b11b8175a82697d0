package shim

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// salloc runs a command beside an allocation, a shell if none is named.
func salloc(dir string, args []string) response {
	a, err := parse("salloc", sallocOptions(), args, true)
	if err != nil {
		return fail("salloc", 1, err)
	}
	config, err := readConfig(dir)
	if err != nil {
		return fail("salloc", 1, err)
	}
	if config.Engine != "" {
		return config.real("salloc", args)
	}
	return allocate("salloc", dir, a)
}

// ofStep are options of srun that are not of its allocation.
var ofStep = []string{"label", "output", "error", "input", "kill-on-bad-exit", "wait", "exact", "overlap", "overcommit", "quiet", "open-mode", "mpi", "jobid", "export", "exclusive", "chdir", "job-name"}

// batchArguments returns the arguments of sbatch for an allocation of srun or salloc.
func batchArguments(program string, a *arguments) (args []string) {
	known := sbatchOptions()
	for _, g := range a.list {
		if slices.Contains(ofStep, g.name) || !slices.ContainsFunc(known, func(o option) bool { return o.name == g.name && o.use != moot }) {
			continue
		}
		if g.arg == none || g.arg == optional && g.value == "" {
			args = append(args, "--"+g.name)
		} else {
			args = append(args, "--"+g.name+"="+g.value)
		}
	}
	name := a.get("job-name", "interactive")
	if program == "srun" && !a.has("job-name") {
		name = filepath.Base(a.rest[0])
	}
	if a.has("exclusive") && program == "salloc" {
		args = append(args, "--exclusive")
	}
	return append(args, "--job-name="+name, "--output=/dev/null", "--no-requeue", "--parsable")
}

// allocate gets an allocation, runs the step of srun in it or the command of salloc beside it,
// and gives it back.
func allocate(program, dir string, a *arguments) response {
	name := program + "-" + rand.Text()
	l, remove, err := listenAt(dir, name)
	if err != nil {
		return fail(program, 1, err)
	}
	defer remove()
	defer l.Close()
	exe, err := os.Executable()
	if err != nil {
		return fail(program, 1, err)
	}
	cwd, err := os.Getwd()
	if err != nil {
		return fail(program, 1, err)
	}
	script := fmt.Sprintf("#!/bin/sh\nexec %s %s %s %s\n", shellQuote(exe), HolderArg, shellQuote(dir), name)
	r := &request{Format: wireFormat, ID: rand.Text(), Program: "sbatch", Args: toBytes(batchArguments(program, a)), Env: toBytes(os.Environ()), Dir: []byte(cwd), Script: []byte(script), Interactive: true}
	answer, err := ask(dir, r)
	if err != nil {
		return fail(program, 1, err)
	}
	if answer.Exit != 0 {
		answer.Stderr = []byte(strings.ReplaceAll(string(answer.Stderr), "sbatch: ", program+": "))
		return *answer
	}
	id := strings.TrimSpace(string(answer.Stdout))
	cancel := func() {
		// On an error the job ends by itself, because nothing listens at its socket.
		_, _ = ask(dir, &request{Format: wireFormat, Program: "scancel", Args: toBytes([]string{"-Q", id}), Dir: []byte(cwd)})
	}
	say := func(format string, v ...any) {
		if !a.has("quiet") {
			fmt.Fprintf(os.Stderr, program+": "+format+"\n", v...)
		}
	}
	conn, g, err := awaitGrant(dir, l, id, say, program)
	if err != nil {
		cancel()
		return fail(program, 1, err)
	}
	var result response
	if program == "srun" {
		result = stepOfAllocation(dir, id, a)
	} else {
		result = besideAllocation(conn, g, a, say, cancel)
	}
	conn.Close()
	waitFor(dir, id) // sacct has the job's end from now on
	return result
}

// awaitGrant waits until the holder of the allocation connects. A signal, or the end of the job,
// ends it. Without an allocation, signals stay caught: a second one, as timeout(1) sends it to its
// group, would end the program before it has cancelled the job.
func awaitGrant(dir string, l *net.UnixListener, id string, say func(string, ...any), program string) (net.Conn, *granted, error) {
	type accepted struct {
		conn net.Conn
		err  error
	}
	arrived := make(chan accepted, 1)
	go func() {
		conn, err := l.Accept()
		arrived <- accepted{conn, err}
	}()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	queued := false
	pending := time.After(300 * time.Millisecond)
	finished := make(chan string, 1)
	go func() { finished <- waitFor(dir, id) }()
	for {
		select {
		case r := <-arrived:
			if r.err != nil {
				return nil, nil, r.err
			}
			g := &granted{}
			if !mine(r.conn) || receive(r.conn, g) != nil {
				r.conn.Close()
				return nil, nil, errors.New("the job of the allocation ended at once")
			}
			signal.Stop(signals)
			if queued {
				say("job %s has been allocated resources", id)
			}
			if program == "salloc" {
				say("Granted job allocation %s", id)
			}
			return r.conn, g, nil
		case <-pending:
			say("job %s queued and waiting for resources", id)
			queued = true
		case state := <-finished:
			return nil, nil, &optionError{fmt.Sprintf("Job allocation %s has been revoked: %s", id, state), "sacct shows the job"}
		case <-signals:
			return nil, nil, &optionError{fmt.Sprintf("Job allocation %s has been revoked", id), ""}
		}
	}
}

// waitFor waits until a job has ended, and returns its state.
func waitFor(dir, id string) string {
	answer, err := ask(dir, &request{Format: wireFormat, Program: awaitEnd, Args: toBytes([]string{id})})
	if err != nil {
		return err.Error()
	}
	return string(answer.Stdout)
}

// stepOfAllocation runs the step of srun in an allocation of its own.
func stepOfAllocation(dir, id string, a *arguments) response {
	c, err := dialAt(dir, holderSocket(id))
	if err != nil {
		return fail("srun", 1, err)
	}
	defer c.Close()
	var args []string
	for _, g := range a.list {
		switch {
		case !slices.Contains(ofStep, g.name) && !slices.Contains([]string{"ntasks", "cpus-per-task", "nodes", "ntasks-per-node", "gpus-per-task", tresPerTask}, g.name) || g.name == "exclusive":
		case g.arg == none || g.arg == optional && g.value == "":
			args = append(args, "--"+g.name)
		default:
			args = append(args, "--"+g.name+"="+g.value)
		}
	}
	return stepAt(dir, id, c, append(append(args, "--"), a.rest...))
}

// besideAllocation runs the command of salloc.
func besideAllocation(conn net.Conn, g *granted, a *arguments, say func(string, ...any), cancel func()) response {
	command := a.rest
	if len(command) == 0 {
		if command = []string{os.Getenv("SHELL")}; command[0] == "" {
			command[0] = "/bin/sh"
		}
	}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Dir = os.Stdin, os.Stdout, os.Stderr, a.get("chdir", "")
	cmd.Env = append(os.Environ(), g.Env...)
	signal.Notify(make(chan os.Signal, 1), unix.SIGINT, unix.SIGQUIT) // they are for the command, which must not inherit that they are ignored
	if err := cmd.Start(); err != nil {
		cancel()
		return fail("salloc", 1, err)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGTERM, unix.SIGHUP)
	revoked := make(chan struct{})
	go func() {
		_, _ = conn.Read(make([]byte, 1)) // until the job ends
		close(revoked)
	}()
	finished := make(chan struct{})
	go func() {
		_ = cmd.Wait() // ProcessState has the result
		close(finished)
	}()
	for done := false; !done; {
		select {
		case <-revoked:
			say("Job allocation %d has been revoked.", g.Job)
			_ = cmd.Process.Signal(unix.SIGHUP) // it may have ended
			revoked = nil
		case sig := <-signals:
			_ = cmd.Process.Signal(sig)
		case <-finished:
			done = true
		}
	}
	if revoked != nil {
		say("Relinquishing job allocation %d", g.Job)
	}
	status := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return response{Exit: 128 + int(status.Signal())}
	}
	return response{Exit: status.ExitStatus()}
}
