package programs

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"premix/internal/kit/owner"
)

// limit bounds a program of a batch system. Those wait for a controller that is busy.
const limit = 2 * time.Minute

// Run runs a program and returns its output. The error has the program's message.
func Run(ctx context.Context, stdin string, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	// An interrupt from the terminal is for premix, which decides whether to end the program.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Env = owner.Environ()
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		text := strings.TrimSpace(errs.String())
		switch {
		case text != "":
		case errors.Is(ctx.Err(), context.DeadlineExceeded):
			text = "no answer in time"
		default:
			text = err.Error()
		}
		return out.String(), &Error{name, text}
	}
	return out.String(), nil
}

// Error is the message of a program that failed.
type Error struct{ Name, Text string }

func (e *Error) Error() string { return e.Name + ": " + strings.ReplaceAll(e.Text, "\n", "; ") }

// Message returns the message of a program that failed, without the program's own name.
func Message(err error) string {
	var p *Error
	if !errors.As(err, &p) {
		return err.Error()
	}
	var lines []string
	for _, l := range strings.Split(p.Text, "\n") {
		l = strings.TrimPrefix(strings.TrimPrefix(strings.TrimSpace(l), p.Name+": "), "error: ")
		if l != "" {
			lines = append(lines, l)
		}
	}
	return strings.Join(lines, "; ")
}
