package search

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"premix/internal/blast/part"
	"premix/internal/kit/exit"
	"slices"
	"strings"
	"syscall"
	"time"
)

// MissingError is returned if a program of BLAST+ is not installed.
type MissingError struct{ Program string }

func (e *MissingError) Error() string { return e.Program + " is not on PATH" }

// ExitCode implements exit.Coded.
func (*MissingError) ExitCode() exit.Code { return exit.Usage }

// Hint returns the command to install BLAST+.
func (e *MissingError) Hint() string { return "install BLAST+: apt-get install ncbi-blast+" }

// program is a running program of BLAST+.
type program struct {
	cmd    *exec.Cmd
	stderr bytes.Buffer
}

// environment returns the environment of premix with changed variables.
func environment(set map[string]string) []string {
	env := slices.DeleteFunc(os.Environ(), func(s string) bool {
		name, _, _ := strings.Cut(s, "=")
		_, ok := set[name]
		return ok
	})
	for name, value := range set {
		if value != "" {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// prepare prepares a program whose working directory is dir, and for which dir is the first
// place to look for databases, since BLAST+ searches the working directory before all
// others.
func prepare(ctx context.Context, dir, name string, batch int, apart bool, args ...string) (*program, error) {
	path, err := findProgram(name)
	if err != nil {
		return nil, err
	}
	p := newProgram(ctx, path, name, args)
	p.cmd.Dir = dir
	set := places(dir, apart)
	set["PWD"] = dir
	if batch > 0 {
		set["BATCH_SIZE"] = fmt.Sprint(batch)
	}
	p.cmd.Env = environment(set)
	p.cmd.Stderr = &p.stderr
	p.cmd.WaitDelay = pipesClose
	return p, nil
}

// pipesClose is the time after the end of a program in which its pipes are closed. Programs of
// BLAST+ have no children, but a process that is just being started has copies of the pipes until
// it executes its program. On a machine with a hundred busy programs that took more than 5 s.
const pipesClose = 5 * time.Minute

// newProgram returns a program that ends when premix does.
func newProgram(ctx context.Context, path, name string, args []string) *program {
	p := &program{cmd: exec.CommandContext(ctx, path, args...)}
	p.cmd.Args[0] = name
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return p
}

// places returns the variables with the search paths of BLAST+. If apart is true, they
// contain only dir, and the size of batches is the default of BLAST+.
func places(dir string, apart bool) map[string]string {
	if apart {
		return map[string]string{"BLASTDB": dir, "NCBI": dir, "BATCH_SIZE": ""}
	}
	return map[string]string{"BLASTDB": databases(dir)}
}

// databases returns BLASTDB with dir in front, so that the taxonomy database is still
// found.
func databases(dir string) string {
	if more := os.Getenv("BLASTDB"); more != "" {
		return dir + ":" + more
	}
	return dir
}

// wait waits for the end of the program.
func (p *program) wait() error {
	return p.end(p.cmd.Wait())
}

func (p *program) end(err error) error {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return err
	}
	code := exit.ExitCode()
	if code < 0 {
		code = 255 // killed by a signal
	}
	return &part.ExitError{Program: p.cmd.Args[0], Code: code, Stderr: p.stderr.Bytes()}
}

// held keeps written data until there is more than fits, so that a search that fails early
// can still be repeated in another mode.
type held struct {
	w     io.Writer
	ready func() error // waits until it is certain that this mode works; may be nil
	kept  []byte
	gone  bool // data has been written to w
}

const holds = 1 << 20

func (h *held) Write(b []byte) (int, error) {
	if !h.gone && len(h.kept)+len(b) <= holds {
		h.kept = append(h.kept, b...)
		return len(b), nil
	}
	if err := h.release(); err != nil {
		return 0, err
	}
	return h.w.Write(b)
}

// release writes the kept data; after that, writes go through at once.
func (h *held) release() error {
	if err := h.wait(); err != nil {
		return err
	}
	h.gone = true
	if len(h.kept) == 0 {
		return nil
	}
	_, err := h.w.Write(h.kept)
	h.kept = nil
	return err
}

func (h *held) wait() error {
	if h.ready == nil {
		return nil
	}
	return h.ready()
}
