package search

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"premix/internal/exit"
	"slices"
	"strings"
	"syscall"
	"time"
)

// ExitError is the end of a program of BLAST+, other than with 0. The program has said
// why.
type ExitError struct {
	Program string
	Code    int
	Said    []byte
}

func (e *ExitError) Error() string {
	if said := bytes.TrimSpace(e.Said); len(said) > 0 {
		return fmt.Sprintf("%s ended with status %d: %s", e.Program, e.Code, said)
	}
	return fmt.Sprintf("%s ended with status %d", e.Program, e.Code)
}

// MissingError tells that a program of BLAST+ is not there.
type MissingError struct{ Program string }

func (e *MissingError) Error() string { return e.Program + " is not on PATH" }

// ExitCode implements exit.Coded.
func (*MissingError) ExitCode() exit.Code { return exit.Usage }

// Hint names the way out.
func (e *MissingError) Hint() string { return "install BLAST+: apt-get install ncbi-blast+" }

// program is a running program of BLAST+.
type program struct {
	cmd    *exec.Cmd
	stderr bytes.Buffer
}

// environment is that of premix with other values for some variables.
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

// prepare makes ready a program that finds databases in dir first, and works there, since
// BLAST+ looks for databases in the working directory before anywhere else.
func prepare(ctx context.Context, dir, name string, batch int, apart bool, args ...string) (*program, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return nil, &MissingError{name}
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
	p.cmd.WaitDelay = 5 * time.Second
	return p, nil
}

// newProgram is a program that does not outlive premix.
func newProgram(ctx context.Context, path, name string, args []string) *program {
	p := &program{cmd: exec.CommandContext(ctx, path, args...)}
	p.cmd.Args[0] = name
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return p
}

// places are the variables that tell BLAST+ where to look. Where the search is to be apart,
// it sees nothing but dir.
func places(dir string, apart bool) map[string]string {
	if apart {
		return map[string]string{"BLASTDB": dir, "NCBI": dir}
	}
	return map[string]string{"BLASTDB": databases(dir)}
}

// databases is BLASTDB with dir in front; taxonomy is found where it was found before.
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
	return &ExitError{Program: p.cmd.Args[0], Code: code, Said: p.stderr.Bytes()}
}

// held keeps what is written until there is more than fits, so that a search that fails
// early can still be done in another way.
type held struct {
	w     io.Writer
	ready func() error // waits until it is known that this way goes; may be nil
	kept  []byte
	gone  bool // something has been written to w
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

// release writes what was kept; from now on nothing is.
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
