package cvmfs

import (
	"fmt"

	"premix/internal/kit/exit"
)

// Kind is the class of an [Error].
type Kind int

// The kinds of errors.
const (
	Usage   Kind = iota // the URL, a path, a key or the configuration is wrong
	Origin              // no server gave the data
	Trust               // what the servers gave is not signed, or not what was signed
	Missing             // the repository has no such path
	Cannot              // the repository has something that is not read here
)

// Error reports a failure to read a repository.
type Error struct {
	Kind     Kind
	Reason   string
	HintText string // the hint; may be empty
	Err      error  // may be nil
}

func (e *Error) Error() string { return e.Reason }

func (e *Error) Unwrap() error { return e.Err }

// Hint returns the hint for the user.
func (e *Error) Hint() string { return e.HintText }

// ExitCode implements exit.Coded.
func (e *Error) ExitCode() exit.Code {
	switch e.Kind {
	case Origin:
		return exit.Origin
	case Trust:
		return exit.Trust
	case Cannot:
		return exit.Unavailable
	}
	return exit.Usage
}

func distrust(hint, format string, args ...any) error {
	return &Error{Kind: Trust, Reason: fmt.Sprintf(format, args...), HintText: hint}
}
