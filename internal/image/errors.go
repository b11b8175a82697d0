package image

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"premix/internal/image/layer"
	"premix/internal/kit/exit"
)

// Kind is the class of an [Error], on which a caller can decide.
type Kind int

// The kinds of errors.
const (
	Usage       Kind = iota // the image or file does not exist, or a name is malformed
	Unavailable             // this user or machine does not support it
	Damaged                 // the image does not match its digests, or cannot be unpacked
	Unreachable             // a registry did not answer as needed
	Disk                    // there is no space on the disk
)

// Error reports a failure to add, find or run an image.
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
	case Damaged:
		return exit.Failed
	case Unreachable:
		return exit.Origin
	case Disk:
		return exit.Directory
	}
	return exit.Usage
}
func (e *Error) Unwrap() error { return e.Err }

// Hint returns the hint for the user.
func (e *Error) Hint() string { return e.HintText }

// explain converts an error about a part of an image.
func explain(what string, err error) error {
	var known *Error
	var bad *layer.Error
	var limit *layer.LimitError
	switch {
	case err == nil || errors.As(err, &known):
		return err
	case errors.As(err, &limit):
		return &Error{Damaged, fmt.Sprintf("%s: %v", what, limit), limit.Hint(), err}
	case errors.As(err, &bad):
		return &Error{Damaged, fmt.Sprintf("%s cannot be unpacked: %v", what, bad), "nothing was added; build or fetch the image again", err}
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return &Error{Disk, fmt.Sprintf("%s: %v", what, err), "free space on the disk of the store: each layer is temporarily unpacked twice there", err}
	case errors.Is(err, os.ErrNotExist):
		return &Error{Damaged, fmt.Sprintf("%s is missing: %v", what, err), "build or fetch the image again", err}
	}
	return fmt.Errorf("%s: %w", what, err)
}
