package fuse

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// MountError reports that a file system could not be mounted or unmounted.
type MountError struct {
	Op       string // "mount" or "unmount"
	Dir      string
	Err      error
	HintText string // the hint; may be empty
}

func (e *MountError) Error() string { return fmt.Sprintf("%s %s: %v", e.Op, e.Dir, e.Err) }
func (e *MountError) Unwrap() error { return e.Err }

// Hint returns the hint for the user.
func (e *MountError) Hint() string { return e.HintText }

// ErrNoHelper means that this user may not mount, and that fusermount3, which mounts
// for unprivileged users, is not installed.
var ErrNoHelper = errors.New("fusermount3 is not on PATH")

// ErrGone means that a connection has ended: its mount is gone, or it was aborted.
var ErrGone = errors.New("the FUSE connection has ended")

// ErrKernel means that the kernel lacks a necessary feature.
var ErrKernel = errors.New("this kernel's FUSE is too old")

// StateError reports that a connection cannot be resumed with the given state or image.
type StateError struct{ Reason string }

func (e *StateError) Error() string { return "resume a FUSE connection: " + e.Reason }

// errnoOf returns the number with which a request is answered. Unknown errors become
// EIO, so that a reader sees an error and never wrong bytes.
func errnoOf(err error) unix.Errno {
	var no unix.Errno
	switch {
	case err == nil:
		return 0
	case errors.Is(err, context.Canceled): // only the reader's death and the server's end cancel
		return unix.EINTR
	case errors.Is(err, context.DeadlineExceeded):
		return unix.EIO
	case errors.As(err, &no) && no > 0 && no < maxErrno:
		return no
	}
	return unix.EIO
}

// maxErrno is the first number that the kernel does not accept as an error of a request
// (fuse_dev_do_write).
const maxErrno = 512
