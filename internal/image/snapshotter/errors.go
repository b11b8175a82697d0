package snapshotter

import "premix/internal/kit/exit"

// Kind is the class of an [Error], on which a caller can decide.
type Kind int

// The kinds of errors.
const (
	Usage       Kind = iota // a directory or address cannot be used
	Unavailable             // this machine or user does not support it
	Busy                    // another snapshotter is running
)

// Error reports why a snapshotter cannot run.
type Error struct {
	Kind     Kind
	Reason   string
	HintText string
	Err      error // may be nil
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

// Hint returns the hint for the user.
func (e *Error) Hint() string { return e.HintText }
