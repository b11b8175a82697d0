package exit

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
)

type coded struct {
	code Code
	err  error
}

func (e *coded) Error() string  { return "coded" }
func (e *coded) Unwrap() error  { return e.err }
func (e *coded) ExitCode() Code { return e.code }

// other has a method with the same name, as *os/exec.ExitError does.
type other struct{}

func (other) Error() string { return "other" }
func (other) ExitCode() int { return 77 }

func TestOf(t *testing.T) {
	plain := errors.New("plain")
	usage, trust := &coded{Usage, nil}, &coded{Trust, nil}
	killed := &coded{Signal(syscall.SIGTERM), nil}
	for _, c := range []struct {
		name string
		err  error
		want Code
	}{
		{"none", nil, OK},
		{"plain", plain, Internal},
		{"another program's code", other{}, Internal},
		{"coded", usage, Usage},
		{"wrapped", fmt.Errorf("while: %w", usage), Usage},
		{"the outer one counts", &coded{Directory, trust}, Directory},
		{"the first of several", errors.Join(plain, trust, usage), Trust},
		{"several in one text", fmt.Errorf("%w and %w", plain, usage), Usage},
		{"an interruption within", errors.Join(usage, fmt.Errorf("while: %w", killed)), 128 + 15},
		{"an interruption before", &coded{Signal(syscall.SIGINT), usage}, 130},
		{"a command's own status", &coded{OK, usage}, OK},
	} {
		if got := Of(c.err); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

func TestErrorf(t *testing.T) {
	inner := &coded{Trust, nil}
	err := fmt.Errorf("while: %w", Errorf(Usage, "do this", "%s: %w", "file", inner))
	var e *Error
	if !errors.As(err, &e) || e.Hint() != "do this" || e.Error() != "file: coded" || Of(err) != Usage || !errors.Is(err, inner) {
		t.Errorf("%v", err)
	}
}
