package snapshotter

import "premix/internal/exit"

// Kind says what a caller can do about an [Error].
type Kind int

// The kinds of errors.
const (
	Usage       Kind = iota // a directory or address cannot be used
	Unavailable             // this machine or user cannot do it
	Busy                    // another snapshotter is there
)

// Error tells why there can be no snapshotter.
type Error struct {
	Kind   Kind
	Reason string
	Way    string
	Err    error // may be nil
}

func (e *Error) Error() string { return e.Reason }

// ExitCode implements exit.Coded.
func (e *Error) ExitCode() exit.Code {
	switch e.Kind {
	case Unavailable:
		return exit.Unavailable
	case Busy:
		return exit.Directory
	}
	return exit.Usage
}
func (e *Error) Unwrap() error { return e.Err }

// Hint names the way out.
func (e *Error) Hint() string { return e.Way }
