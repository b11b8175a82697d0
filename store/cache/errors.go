package cache

import (
	"errors"
	"fmt"

	"premix/store/object"
)

// InUseError tells that another process has the cache open.
type InUseError struct {
	Dir string
	PID int // 0 where it is not known
}

func (e *InUseError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("the cache %s is in use by another process", e.Dir)
	}
	return fmt.Sprintf("the cache %s is in use by process %d", e.Dir, e.PID)
}

// Hint names the way out.
func (e *InUseError) Hint() string {
	return "a node has one cache and one daemon: use that one, or name another directory"
}

// FormatError tells that a directory is not a cache that this premix can use.
type FormatError struct {
	Dir    string
	Reason string
}

func (e *FormatError) Error() string { return fmt.Sprintf("the cache %s: %s", e.Dir, e.Reason) }

// Hint names the way out.
func (e *FormatError) Hint() string {
	return "name another directory, or remove this one: everything in a cache can be fetched again"
}

// ReadError tells that a part of a tree is not here and could not be fetched.
type ReadError struct {
	Tree   object.Digest
	What   string        // "chunk 12", "page 3", "manifest"
	Object object.Digest // the object that could not be had
	Err    error
}

func (e *ReadError) Error() string {
	return fmt.Sprintf("tree %s: %s (object %s): %v", e.Tree.Short(), e.What, e.Object.Short(), e.Err)
}

func (e *ReadError) Unwrap() error { return e.Err }

// ErrNoOrigin is what a [ReadError] wraps where the tree was opened without
// anything to fetch from.
var ErrNoOrigin = errors.New("it is not in the cache, and there is no origin to fetch it from")

// ErrClosed tells that the tree or the cache was closed.
var ErrClosed = errors.New("it was closed")

// NotCachedError tells that a tree is not in the cache.
type NotCachedError struct{ Tree object.Digest }

func (e *NotCachedError) Error() string {
	return fmt.Sprintf("tree %s is not in the cache", e.Tree.Short())
}

// Hint names the way out.
func (e *NotCachedError) Hint() string {
	return "`premix cache status` lists what is there"
}

// BusyError tells that a tree cannot be dropped or moved as it is used.
type BusyError struct {
	Tree   object.Digest
	Reason string
	Way    string
}

func (e *BusyError) Error() string { return fmt.Sprintf("tree %s %s", e.Tree.Short(), e.Reason) }

// Hint names the way out.
func (e *BusyError) Hint() string { return e.Way }

// NoRoomError tells that a tree, or the rest of one, cannot be kept.
type NoRoomError struct {
	Tree  object.Digest
	Where string // "cache", "memory"
	Need  int64  // bytes
	Have  int64  // bytes that could be had; below zero where it is not known
	Quota int64  // bytes; 0 where there is none
}

func (e *NoRoomError) Error() string {
	s := fmt.Sprintf("tree %s does not fit into the %s: it needs %d bytes more", e.Tree.Short(), e.Where, e.Need)
	if e.Have >= 0 {
		s += fmt.Sprintf(", %d can be had", e.Have)
	}
	if e.Quota > 0 {
		s += fmt.Sprintf(" of a quota of %d", e.Quota)
	}
	return s
}

// Hint names the way out.
func (e *NoRoomError) Hint() string {
	return "raise the quota, or unpin or drop other trees (`premix cache status` lists them)"
}
