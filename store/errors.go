package store

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"

	"premix/internal/exit"
	"premix/internal/owner"
)

// UseError tells that what was asked for cannot be: there is no such store, tag,
// tree, directory or key, or a name is malformed.
type UseError struct {
	Reason string
	Way    string
	Err    error // what was found out; may be nil
}

func (e *UseError) Error() string { return e.Reason }

// ExitCode implements exit.Coded.
func (*UseError) ExitCode() exit.Code { return exit.Usage }
func (e *UseError) Unwrap() error     { return e.Err }

// Hint names the way out.
func (e *UseError) Hint() string { return e.Way }

// SourceError tells that the directory to be published could not be read as it
// is: a file changes all the time, may not be read, or holds something that a
// tree cannot.
type SourceError struct {
	Path   string // below the directory, "." for itself
	Reason string
	Way    string
	Err    error // what the system said; may be nil
}

func (e *SourceError) Error() string { return fmt.Sprintf("%s: %s", printable(e.Path), e.Reason) }

// ExitCode implements exit.Coded.
func (*SourceError) ExitCode() exit.Code { return exit.Failed }
func (e *SourceError) Unwrap() error     { return e.Err }

// Hint names the way out.
func (e *SourceError) Hint() string { return e.Way }

// printable is a path as it can be shown on a terminal and pasted into a shell.
func printable(path string) string {
	if q := fmt.Sprintf("%q", path); q != `"`+path+`"` || strings.ContainsAny(path, " ") {
		return q
	}
	return path
}

// sourceError makes one of what the system said about a path, unless it is the store
// that could not take what was read there.
func sourceError(path string, err error) error {
	var (
		known  *SourceError
		access *AccessError
	)
	if errors.As(err, &known) {
		return err
	}
	if errors.As(err, &access) {
		return access // one of them: all files in flight met the same
	}
	e := &SourceError{Path: path, Reason: err.Error(), Err: err}
	var errno unix.Errno
	if errors.As(err, &errno) {
		e.Reason = errno.Error()
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		e.Way = "publish as a user who may read everything in the directory"
	case errors.Is(err, unix.EIO):
		e.Way = "the disk, or the server behind it, could not read it: see dmesg"
	}
	return e
}

// AccessError tells that a store's directory cannot be used: it may not be
// written, or its disk is full.
type AccessError struct {
	Dir    string
	Reason string
	Way    string
	Err    error
}

func (e *AccessError) Error() string { return fmt.Sprintf("store %s: %s", e.Dir, e.Reason) }

// ExitCode implements exit.Coded.
func (*AccessError) ExitCode() exit.Code { return exit.Directory }
func (e *AccessError) Unwrap() error     { return e.Err }

// Hint names the way out.
func (e *AccessError) Hint() string { return e.Way }

// accessError makes one of what the system said about a store's directory, where
// somebody can do something about it. Other errors stay as they are.
func accessError(dir string, err error) error {
	var known *AccessError
	if err == nil || errors.As(err, &known) {
		return err
	}
	e := &AccessError{Dir: dir, Reason: err.Error(), Err: err}
	var foreign *owner.Error
	switch {
	case errors.As(err, &foreign):
		e.Way = cmp.Or(foreign.Way, "use it as the user whose store it is")
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		e.Way = "make room on its disk, for instance with premix store gc; what was published is safe"
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EROFS):
		e.Way = "use it as a user who may write there"
	default:
		return err
	}
	return e
}

// DamageError tells that something in a store is not what its name, its digest
// or its signature says, or is missing.
type DamageError struct {
	What   string // "tree 0123456789ab", "tags/refs/bacteria/2026.json"
	Reason string
	Way    string // "" for the usual one
	Err    error
}

func (e *DamageError) Error() string { return fmt.Sprintf("%s is damaged: %s", e.What, e.Reason) }

// ExitCode implements exit.Coded.
func (*DamageError) ExitCode() exit.Code { return exit.Failed }
func (e *DamageError) Unwrap() error     { return e.Err }

// Hint names the way out.
func (e *DamageError) Hint() string {
	if e.Way != "" {
		return e.Way
	}
	return "premix store verify lists all damage; published again, a tree gets back what it misses"
}

// damage wraps what was found out about a part of the store.
func damage(what string, err error) error {
	return &DamageError{What: what, Reason: err.Error(), Err: err}
}
