package store

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"

	"premix/internal/kit/exit"
	"premix/internal/kit/owner"
)

// UsageError reports a request that cannot be met: the store, tag, tree, directory or key
// does not exist, or a name is malformed.
type UsageError struct {
	Reason   string
	HintText string
	Err      error // the cause; may be nil
}

func (e *UsageError) Error() string { return e.Reason }

// ExitCode implements exit.Coded.
func (*UsageError) ExitCode() exit.Code { return exit.Usage }
func (e *UsageError) Unwrap() error     { return e.Err }

// Hint returns the hint for the user.
func (e *UsageError) Hint() string { return e.HintText }

// SourceError reports that the directory to be published cannot be read as it is: a
// file keeps changing, may not be read, or has a property that a tree cannot hold.
type SourceError struct {
	Path     string // below the directory, "." for itself
	Reason   string
	HintText string
	Err      error // the error of the system; may be nil
}

func (e *SourceError) Error() string { return fmt.Sprintf("%s: %s", printable(e.Path), e.Reason) }

// ExitCode implements exit.Coded.
func (*SourceError) ExitCode() exit.Code { return exit.Failed }
func (e *SourceError) Unwrap() error     { return e.Err }

// Hint returns the hint for the user.
func (e *SourceError) Hint() string { return e.HintText }

// printable returns a path in a form that can be printed to a terminal and pasted into
// a shell.
func printable(path string) string {
	if q := fmt.Sprintf("%q", path); q != `"`+path+`"` || strings.ContainsAny(path, " ") {
		return q
	}
	return path
}

// sourceError converts an error of the system about a path to a SourceError, unless the
// error comes from writing to the store.
func sourceError(path string, err error) error {
	var (
		known  *SourceError
		access *AccessError
	)
	if errors.As(err, &known) {
		return err
	}
	if errors.As(err, &access) {
		return access // return only one: all files being read met the same error
	}
	e := &SourceError{Path: path, Reason: err.Error(), Err: err}
	var errno unix.Errno
	if errors.As(err, &errno) {
		e.Reason = errno.Error()
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		e.HintText = "publish as a user with the right to read everything in the directory"
	case errors.Is(err, unix.EIO):
		e.HintText = "the disk, or the file server, could not read it: see dmesg"
	}
	return e
}

// AccessError reports that a store's directory cannot be used: it may not be written
// to, or its disk is full.
type AccessError struct {
	Dir      string
	Reason   string
	HintText string
	Err      error
}

func (e *AccessError) Error() string { return fmt.Sprintf("store %s: %s", e.Dir, e.Reason) }

// ExitCode implements exit.Coded.
func (*AccessError) ExitCode() exit.Code { return exit.Directory }
func (e *AccessError) Unwrap() error     { return e.Err }

// Hint returns the hint for the user.
func (e *AccessError) Hint() string { return e.HintText }

// accessError converts an error of the system about a store's directory to an
// AccessError if the user can remedy it. Other errors are returned unchanged.
func accessError(dir string, err error) error {
	var known *AccessError
	if err == nil || errors.As(err, &known) {
		return err
	}
	e := &AccessError{Dir: dir, Reason: err.Error(), Err: err}
	var foreign *owner.Error
	switch {
	case errors.As(err, &foreign):
		e.HintText = cmp.Or(foreign.HintText, "run the command as the owner of the store")
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		e.HintText = "free space on its disk, for instance with premix store gc; published trees are safe"
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EROFS):
		e.HintText = "run the command as a user with the right to write there"
	default:
		return err
	}
	return e
}

// DamageError reports that a part of a store is missing, or does not match its name,
// digest or signature.
type DamageError struct {
	What     string // "tree 0123456789ab", "tags/refs/bacteria/2026.json"
	Reason   string
	HintText string // "" for the default
	Err      error
}

func (e *DamageError) Error() string { return fmt.Sprintf("%s is damaged: %s", e.What, e.Reason) }

// ExitCode implements exit.Coded.
func (*DamageError) ExitCode() exit.Code { return exit.Failed }
func (e *DamageError) Unwrap() error     { return e.Err }

// Hint returns the hint for the user.
func (e *DamageError) Hint() string {
	if e.HintText != "" {
		return e.HintText
	}
	return "premix store verify lists all damage; publishing a tree again restores its missing objects"
}

// damage returns a DamageError about a part of the store.
func damage(what string, err error) error {
	return &DamageError{What: what, Reason: err.Error(), Err: err}
}
