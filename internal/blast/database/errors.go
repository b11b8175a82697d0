package database

import (
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"premix/internal/kit/exit"
	"strings"

	"golang.org/x/sys/unix"
)

// Kind is the kind of an error, as far as callers distinguish them.
type Kind int

const (
	Use      Kind = iota + 1 // the request is not possible
	NotThere                 // the database does not exist
	Tool                     // a program is missing
	Failed                   // a program failed
	Damaged                  // files have changed
	NoRoom                   // not enough memory
	Access                   // a directory cannot be written, or its disk is full
)

// Error is an error with a hint for the user.
type Error struct {
	Kind     Kind
	Message  string
	HintText string
	Err      error // the cause; may be nil
}

func (e *Error) Error() string { return e.Message }

// ExitCode implements exit.Coded.
func (e *Error) ExitCode() exit.Code {
	switch e.Kind {
	case Use, NotThere, Tool, NoRoom:
		return exit.Usage
	case Failed, Damaged:
		return exit.Failed
	case Access:
		return exit.Directory
	}
	return exit.Internal
}
func (e *Error) Unwrap() error { return e.Err }

// Hint returns the way to resolve the error.
func (e *Error) Hint() string { return e.HintText }

func damagedError(name string, err error) error {
	return &Error{Kind: Damaged, Message: fmt.Sprintf("the database %s is damaged: %v", name, err), HintText: "add it again: premix blast db rm " + name + ", then premix blast db add", Err: err}
}

// accessError converts an error of the system about a directory to an [Error], if the user
// can resolve it.
func accessError(dir string, err error) error {
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return &Error{Kind: Access, Message: fmt.Sprintf("%s: %v", dir, err), HintText: "free some space on its disk, or set PREMIX_HOME to a directory on another", Err: err}
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EROFS):
		return &Error{Kind: Access, Message: fmt.Sprintf("%s: %v", dir, err), HintText: "do it as the user who owns the databases, or set PREMIX_HOME", Err: err}
	}
	return err
}

// toolError returns the error of a failed program.
func toolError(program string, said []byte, err error) error {
	if errors.Is(err, exec.ErrNotFound) {
		if program == "diamond" {
			return &Error{Kind: Tool, Message: "diamond is not on PATH", HintText: "install it: apt-get install diamond-aligner", Err: err}
		}
		return &Error{Kind: Tool, Message: fmt.Sprintf("%s is not on PATH", program), HintText: "install BLAST+: apt-get install ncbi-blast+", Err: err}
	}
	text := strings.TrimSpace(string(said))
	if text == "" {
		text = err.Error()
	}
	return &Error{Kind: Failed, Message: fmt.Sprintf("%s: %s", program, text), Err: err}
}
