package origin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"premix/internal/exit"
	"premix/store/object"
)

// MaxFile is the largest mutable file that is fetched, in bytes.
const MaxFile = 1 << 20

// Origin gives what a store holds, unverified. It may be used by any number of
// goroutines. Errors are [*Error] or those of the context.
type Origin interface {
	// Object returns the stored form of an object, at most object.MaxStored
	// bytes. It may be wrong: see object.Decode.
	Object(ctx context.Context, d object.Digest) ([]byte, error)
	// File returns a mutable file by its name below the store's root, with
	// slashes, at most MaxFile bytes, never from a cache that did not ask the
	// origin.
	File(ctx context.Context, name string) ([]byte, error)
	// String names the origin for people, without credentials.
	String() string
}

// Opener is an origin far away, of which it is worth while to ask for an opening
// (see tree.Opening) instead of its parts.
type Opener interface {
	Origin
	// Opening returns a file like File, and calls got with what has come of it
	// whenever more has. It may begin anew.
	Opening(ctx context.Context, name string, got func(soFar []byte)) ([]byte, error)
}

// streamer is an origin that gives an object away while it arrives.
type streamer interface {
	Origin
	// stream is Object, and calls got with what has come whenever more has. It may
	// begin anew.
	stream(ctx context.Context, d object.Digest, got func(soFar []byte)) ([]byte, error)
}

// Kind is what a caller can decide on when an origin failed.
type Kind string

// The kinds of failure.
const (
	NotFound    Kind = "not found"
	Refused     Kind = "refused"          // credentials are missing or not sufficient
	Unreachable Kind = "unreachable"      // no connection
	Certificate Kind = "TLS failed"       // no connection that can be trusted
	TimedOut    Kind = "timed out"        // connecting, or the first byte of the answer
	Stalled     Kind = "stalled"          // the answer began and did not go on
	Truncated   Kind = "truncated"        // the answer ended before its announced length
	TooLarge    Kind = "too large"        // more than a store holds under that name
	Broken      Kind = "broken"           // the origin says so: 5xx, 429
	Unexpected  Kind = "unexpected"       // an answer that no store gives: a web page, an encoding, another status
	Redirected  Kind = "redirected"       // too often, or to where it must not lead
	Corrupt     Kind = "corrupt"          // not what the digest says
	Misnamed    Kind = "not a valid name" // never asked for
)

// ErrNotFound is what an [Error] of the kind NotFound is, for errors.Is.
var ErrNotFound = errors.New("not found")

// Error says how an origin failed to give something.
type Error struct {
	Origin string
	Name   string // below the store's root
	Kind   Kind
	Err    error         // may be nil
	After  time.Duration // the origin asks for this time of peace; 0 where it says nothing
}

func (e *Error) Error() string {
	name := e.Name
	if i := strings.LastIndexByte(name, '/'); strings.HasPrefix(name, "objects/") && len(name) > i+13 {
		name = "object " + name[i+1:i+13]
	}
	s := e.Origin + ": "
	if name != "" {
		s += name + ": "
	}
	s += string(e.Kind)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// ExitCode implements exit.Coded.
func (*Error) ExitCode() exit.Code { return exit.Origin }

func (e *Error) Unwrap() error { return e.Err }

// Is makes errors.Is(err, ErrNotFound) true for the kind NotFound.
func (e *Error) Is(target error) bool { return target == ErrNotFound && e.Kind == NotFound }

// Temporary tells whether the same request may succeed later without anybody
// changing anything but the fault.
func (e *Error) Temporary() bool {
	switch e.Kind {
	case Unreachable, TimedOut, Stalled, Truncated, Broken:
		return true
	}
	return false
}

// Hint names the way out.
func (e *Error) Hint() string {
	switch e.Kind {
	case NotFound:
		if strings.HasPrefix(e.Name, "tags/") {
			return "`premix store ls` with the store's directory lists names and tags; compare the spelling"
		}
		return "is this the root of a store? it has a file store.json"
	case Refused:
		return "put a line `machine HOST token TOKEN`, or with `login` and `password`, into the credentials file"
	case Unreachable, TimedOut, Stalled:
		return "see that the origin is up and that proxies are right; more than one origin can be given"
	case Certificate:
		return "a certificate of your own authority is trusted with --ca FILE"
	case Unexpected, TooLarge, Redirected:
		return "something between here and the origin answers in its place, or the URL is not that of a store's root"
	case Corrupt, Truncated:
		return "run `premix store verify` where the origin is, or name another origin"
	}
	return ""
}

// KindOf returns the kind of err, or "" where it is not from an origin.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return ""
}

// GroupError says that none of several origins gave something. It unwraps to the
// errors of those that might have had it: only where all said that they have it
// not is it an [ErrNotFound].
type GroupError struct{ Errs []error }

func (e *GroupError) Error() string {
	var all []string
	for _, err := range e.Errs {
		all = append(all, err.Error())
	}
	return fmt.Sprintf("none of %d origins: %s", len(e.Errs), strings.Join(all, "; "))
}

// Unwrap serves errors.Is and errors.As.
func (e *GroupError) Unwrap() []error {
	var real []error
	for _, err := range e.Errs {
		if !errors.Is(err, ErrNotFound) {
			real = append(real, err)
		}
	}
	if len(real) == 0 {
		return e.Errs
	}
	return real
}

// join makes one error of those of several origins.
func join(errs []error) error {
	if len(errs) == 1 {
		return errs[0]
	}
	return &GroupError{errs}
}
