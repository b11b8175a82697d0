package engine

import (
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"premix/internal/kit/exit"
	"premix/internal/kit/owner"
)

// DirError reports that a run directory cannot be used: it is locked by another
// premix, it is not empty, it holds another run, or this user cannot read or
// write it.
type DirError struct {
	Dir      string
	Reason   string
	HintText string
	Err      error // error of the system; nil if there was no system call
}

func (e *DirError) Error() string { return fmt.Sprintf("run directory %s %s", e.Dir, e.Reason) }

// ExitCode implements exit.Coded.
func (*DirError) ExitCode() exit.Code { return exit.Directory }

func (e *DirError) Unwrap() error { return e.Err }

// Hint returns the hint for the user.
func (e *DirError) Hint() string { return e.HintText }

// MakeDir makes a run directory if it is missing. It refuses one whose owner is not trusted.
// It refuses one to root also if another user could lead root elsewhere by changing names; see
// [owner.Trusted].
func MakeDir(dir string) error {
	if err := owner.MkdirAll(dir, 0o775); err != nil {
		return err
	}
	if err := owner.CheckNamed(dir); err != nil {
		return err
	}
	return owner.Trusted(filepath.Join(dir, StateDir))
}

// mendable are the answers of the system that a user can do something about:
// another directory helps, or room in this one.
var mendable = []struct {
	errno unix.Errno
	hint  string
}{
	{unix.EACCES, hintOtherDir},
	{unix.EPERM, hintOtherDir},
	{unix.EROFS, hintOtherDir},
	{unix.ENOTDIR, hintOtherDir},
	{unix.ENOENT, hintOtherDir}, // of mkdir in /proc, or below a directory that is gone
	{unix.EEXIST, hintOtherDir},
	{unix.ENAMETOOLONG, hintOtherDir},
	{unix.ENOSPC, hintFreeSpace},
	{unix.EDQUOT, hintFreeSpace},
}

const (
	hintOtherDir  = "give a directory in which you may write"
	hintOwner     = "work in a directory of your own, or as the user whose directory it is (root in a container: start it with --user UID:GID)"
	hintFreeSpace = "make room on its disk, or give a directory on another one"
)

// dirError turns an error of the system about a run directory into a *DirError, where
// a user can do something about it. It returns other errors unchanged.
func dirError(dir string, err error) error {
	var known *DirError
	if errors.As(err, &known) {
		return err
	}
	var foreign *owner.Error
	if errors.As(err, &foreign) {
		return &DirError{Dir: dir, Reason: fmt.Sprintf("is not for this user: %v", foreign), HintText: hintOwner, Err: err}
	}
	for _, m := range mendable {
		if errors.Is(err, m.errno) {
			return &DirError{Dir: dir, Reason: fmt.Sprintf("cannot be used: %v", err), HintText: m.hint, Err: err}
		}
	}
	return err
}

// OutputError reports that a declared output is not valid.
type OutputError struct {
	Name     string // the output's name in the recipe
	Reason   string
	HintText string
}

func (e *OutputError) Error() string { return fmt.Sprintf("output %s: %s", e.Name, e.Reason) }

// Hint returns the hint for the user.
func (e *OutputError) Hint() string { return e.HintText }

// DirectoryError returns err as a *DirError if a user can do something about it, for example
// grant a missing right. It returns other errors unchanged.
func DirectoryError(dir string, err error) error { return dirError(dir, err) }
