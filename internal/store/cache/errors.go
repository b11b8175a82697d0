package cache

import (
	"errors"
	"fmt"

	"premix/internal/store/object"
)

// InUseError reports that another process has the cache open.
type InUseError struct {
	Dir string
	PID int // 0 if unknown
}

func (e *InUseError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("the cache %s is in use by another process", e.Dir)
	}
	return fmt.Sprintf("the cache %s is in use by process %d", e.Dir, e.PID)
}

// Hint returns the hint for the user.
func (e *InUseError) Hint() string {
	return "a cache belongs to one daemon: use that daemon, or name another directory"
}

// FormatError reports that a directory is not a cache that this premix can use.
type FormatError struct {
	Dir    string
	Reason string
}

func (e *FormatError) Error() string { return fmt.Sprintf("the cache %s: %s", e.Dir, e.Reason) }

// Hint returns the hint for the user.
func (e *FormatError) Hint() string {
	return "name another directory, or remove this one: everything in a cache can be fetched again"
}

// ReadError reports that a part of a tree is not cached and could not be fetched.
type ReadError struct {
	Tree   object.Digest
	What   string        // "chunk 12", "page 3", "manifest"
	Object object.Digest // the object that could not be fetched
	Err    error
}

func (e *ReadError) Error() string {
	return fmt.Sprintf("tree %s: %s (object %s): %v", e.Tree.Short(), e.What, e.Object.Short(), e.Err)
}

func (e *ReadError) Unwrap() error { return e.Err }

// ErrNoOrigin is wrapped by a [ReadError] if the tree was opened without a Fetcher.
var ErrNoOrigin = errors.New("it is not in the cache, and there is no origin to fetch it from")

// ErrClosed means that the tree or the cache was closed.
var ErrClosed = errors.New("the tree or the cache was closed")

// NotCachedError reports that a tree is not in the cache.
type NotCachedError struct{ Tree object.Digest }

func (e *NotCachedError) Error() string {
	return fmt.Sprintf("tree %s is not in the cache", e.Tree.Short())
}

// Hint returns the hint for the user.
func (e *NotCachedError) Hint() string {
	return "`premix cache status` lists the trees in the cache"
}

// BusyError reports that a tree cannot be dropped or moved because it is in use.
type BusyError struct {
	Tree     object.Digest
	Reason   string
	HintText string
}

func (e *BusyError) Error() string { return fmt.Sprintf("tree %s %s", e.Tree.Short(), e.Reason) }

// Hint returns the hint for the user.
func (e *BusyError) Hint() string { return e.HintText }

// NoRoomError reports that there is no space to keep a whole tree.
type NoRoomError struct {
	Tree  object.Digest
	Where string // "cache", "memory"
	Need  int64  // bytes
	Have  int64  // bytes that could be freed or are free; negative if unknown
	Quota int64  // bytes; 0 if there is none
}

func (e *NoRoomError) Error() string {
	s := fmt.Sprintf("tree %s does not fit into the %s: it needs %d bytes more", e.Tree.Short(), e.Where, e.Need)
	if e.Have >= 0 {
		s += fmt.Sprintf(", %d are available", e.Have)
	}
	if e.Quota > 0 {
		s += fmt.Sprintf(" of a quota of %d", e.Quota)
	}
	return s
}

// Hint returns the hint for the user.
func (e *NoRoomError) Hint() string {
	return "raise the quota, or unpin or drop other trees (`premix cache status` lists them)"
}
