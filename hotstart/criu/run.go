package criu

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Error is a failure of the program criu. Log holds the lines that it marked
// as errors.
type Error struct {
	Op  string // "dump" or "restore"
	Log []string
	Err error
}

func (e *Error) Error() string {
	if len(e.Log) == 0 {
		return fmt.Sprintf("criu %s: %v", e.Op, e.Err)
	}
	return fmt.Sprintf("criu %s: %s", e.Op, strings.Join(e.Log, "; "))
}

func (e *Error) Unwrap() error { return e.Err }

// ErrNotFound is returned by Find.
var ErrNotFound = errors.New("criu is not installed")

// Find returns the path of the program: $PREMIX_CRIU, else the first on PATH or
// in the directories for system programs, which an ordinary PATH leaves out.
func Find() (string, error) {
	if p := os.Getenv("PREMIX_CRIU"); p != "" {
		return p, nil
	}
	if p, err := exec.LookPath("criu"); err == nil {
		return p, nil
	}
	for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} {
		p := filepath.Join(dir, "criu")
		if st, err := os.Stat(p); err == nil && st.Mode()&0o111 != 0 {
			return p, nil
		}
	}
	return "", ErrNotFound
}

// Check asks CRIU whether the kernel has what it needs (`criu check`).
func Check(ctx context.Context, path string) error {
	out, err := exec.CommandContext(ctx, path, "check").CombinedOutput()
	if err != nil {
		return &Error{Op: "check", Log: errorLines(strings.NewReader(string(out))), Err: err}
	}
	return nil
}

// Program is CRIU, and where it is executed.
type Program struct {
	Path string
	// Enter calls a function on a thread that is in the namespaces of a container,
	// where CRIU has to be to find the files of processes there. nil: no container.
	Enter func(func() error) error
}

// Dump writes the images of the process tree under pid to dir, an existing
// directory, and ends the processes.
func (p Program) Dump(pid int, dir string) error {
	return p.run("dump", dir, dir, "dump.log", "--tree", strconv.Itoa(pid),
		"-v2", "--file-locks", "--network-lock", "skip",
		"--manage-cgroups=ignore", "--ghost-limit", "1G")
}

// Restore brings back the tree in images as a child of the calling process,
// whose id it returns. work takes the log. No instruction of the program is
// executed until its processes get SIGCONT.
func (p Program) Restore(images, work string) (pid int, err error) {
	const pidFile = "restore.pid" // in work, CRIU's working directory
	err = p.run("restore", images, work, "restore.log",
		"-v1", "--restore-detached", "--restore-sibling",
		"--file-locks", "--network-lock", "skip", "--manage-cgroups=ignore", "--pidfile", pidFile,
		"--leave-stopped")
	if err != nil {
		return 0, err
	}
	b, err := os.ReadFile(filepath.Join(work, pidFile))
	if err != nil {
		return 0, fmt.Errorf("criu restore: %w", err)
	}
	pid, err = strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 0, fmt.Errorf("criu restore: pid file: %w", err)
	}
	return pid, nil
}

// run runs criu so that it dies with the calling thread, and turns a failure into
// an Error with what the log in work says.
func (p Program) run(op, images, work, log string, args ...string) error {
	cmd, logFile := exec.Command(p.Path), filepath.Join(work, log)
	if p.Enter != nil {
		close, err := carry(cmd, &images, &work)
		defer close()
		if err != nil {
			return err
		}
	}
	cmd.Args = append(cmd.Args, append([]string{op, "--images-dir", images, "--work-dir", work, "--log-file", log}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	enter := p.Enter
	if enter == nil {
		enter = func(f func() error) error { return f() }
	}
	err := enter(cmd.Run)
	if err == nil {
		return nil
	}
	e := &Error{Op: op, Err: err}
	if f, ferr := os.Open(logFile); ferr == nil {
		defer f.Close()
		e.Log = errorLines(f)
	}
	return e
}

// errorLines keeps what CRIU's log marks with "Error", without its prefix of
// time and process, at most eight lines.
func errorLines(r io.Reader) []string {
	var lines []string
	for s := bufio.NewScanner(r); s.Scan() && len(lines) < 8; {
		_, text, ok := strings.Cut(s.Text(), "Error ")
		if !ok || strings.Contains(text, "RLIMIT_NOFILE") { // asked for, not needed
			continue
		}
		// The source position in brackets is of no use to the user.
		if _, after, ok := strings.Cut(text, "): "); ok {
			text = after
		}
		lines = append(lines, strings.TrimSpace(text))
	}
	return lines
}
