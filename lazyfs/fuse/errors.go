package fuse

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// MountError tells that a file system could not be mounted, or not be unmounted.
type MountError struct {
	Op  string // "mount" or "unmount"
	Dir string
	Err error
	Way string // the way out; may be empty
}

func (e *MountError) Error() string { return fmt.Sprintf("%s %s: %v", e.Op, e.Dir, e.Err) }
func (e *MountError) Unwrap() error { return e.Err }

// Hint names the way out.
func (e *MountError) Hint() string { return e.Way }

// ErrNoHelper says that this user may not mount, and that fusermount3, which
// mounts for ordinary users, is not installed.
var ErrNoHelper = errors.New("fusermount3 is not on PATH")

// ErrGone says that a connection has ended: its mount is gone, or the kernel was
// told to abort it.
var ErrGone = errors.New("the FUSE connection has ended")

// ErrKernel says that the kernel lacks what is needed.
var ErrKernel = errors.New("this kernel's FUSE is too old")

// StateError tells that a connection cannot be resumed with what was given.
type StateError struct{ Reason string }

func (e *StateError) Error() string { return "resume a FUSE connection: " + e.Reason }

// errnoOf gives the number with which a request is answered. What it does not
// know is EIO: a reader is to see that, never other bytes.
func errnoOf(err error) unix.Errno {
	var no unix.Errno
	switch {
	case err == nil:
		return 0
	case errors.Is(err, context.Canceled): // only the death of the reader and the end cancel
		return unix.EINTR
	case errors.Is(err, context.DeadlineExceeded):
		return unix.EIO
	case errors.As(err, &no) && no > 0 && no < maxErrno:
		return no
	}
	return unix.EIO
}

// maxErrno is the first number that the kernel does not take for an error of
// a request (fuse_dev_do_write).
const maxErrno = 512
