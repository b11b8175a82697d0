package exit

import "syscall"

// Code is an exit code of premix.
type Code int

const (
	OK          Code = 0
	Failed      Code = 1   // a task failed, or data are damaged
	Usage       Code = 2   // the command line or an input is wrong
	Unavailable Code = 3   // this machine or user cannot do it
	Directory   Code = 4   // a directory or file is in use, exists, or cannot be written
	Origin      Code = 5   // a remote end did not give the data
	Trust       Code = 6   // the data of a remote end are not to be trusted
	Internal    Code = 10  // any other failure
	signalled   Code = 128 // plus the number of the signal that interrupted premix
)

// Signal returns the code of a command that a signal interrupted.
func Signal(s syscall.Signal) Code { return signalled + Code(s) }

// Coded is an error that has an exit code.
type Coded interface {
	error
	ExitCode() Code
}

// Of returns the code of an error. The outermost error of its tree that has a code decides
// (see errors.As), but an interruption anywhere in the tree comes first.
func Of(err error) Code {
	if err == nil {
		return OK
	}
	first := Internal
	found := false
	var visit func(error)
	visit = func(err error) {
		if c, ok := err.(Coded); ok {
			code := c.ExitCode()
			if !found || code > signalled && first <= signalled {
				first, found = code, true
			}
		}
		switch e := err.(type) {
		case interface{ Unwrap() error }:
			if next := e.Unwrap(); next != nil {
				visit(next)
			}
		case interface{ Unwrap() []error }:
			for _, next := range e.Unwrap() {
				visit(next)
			}
		}
	}
	visit(err)
	return first
}
