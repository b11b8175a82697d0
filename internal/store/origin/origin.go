package origin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"premix/internal/kit/exit"
	"premix/internal/store/object"
)

// MaxFile is the size limit of a mutable file, in bytes.
const MaxFile = 1 << 20

// Origin serves the objects and files of a store, unverified. Any number of goroutines
// may use it. Errors are [*Error] or errors of the context.
type Origin interface {
	// Object returns the stored form of an object, at most object.MaxStored
	// bytes. It may be wrong: see object.Decode.
	Object(ctx context.Context, d object.Digest) ([]byte, error)
	// File returns a mutable file by its path below the store's root, with slashes, at
	// most MaxFile bytes. No cache may answer without asking the origin.
	File(ctx context.Context, name string) ([]byte, error)
	// String names the origin in messages, without credentials.
	String() string
}

// Opener is a remote origin, for which fetching a bootstrap (see tree.Bootstrap) is faster
// than fetching its parts.
type Opener interface {
	Origin
	// Bootstrap returns a file like File, and calls got with the bytes received so far
	// whenever there are more. It may begin again from the start.
	Bootstrap(ctx context.Context, name string, got func(soFar []byte)) ([]byte, error)
	// Cold reports whether Bootstrap would first open several connections. Requests that
	// are sent together with it then are answered at the same time.
	Cold() bool
}

// Near is a place near this machine that may have objects of the origins of a group.
type Near interface {
	// Object returns the stored form of an object and its verified content, or nil if the
	// origins are to be asked.
	Object(ctx context.Context, d object.Digest) (stored, content []byte)
	// Keep receives the stored form of an object that came from the origins. It must not
	// be changed.
	Keep(d object.Digest, stored []byte)
}

// streamer is an origin that passes on an object while it arrives.
type streamer interface {
	Origin
	// stream is Object, and calls got with the bytes received so far whenever there are
	// more. It may begin again from the start.
	stream(ctx context.Context, d object.Digest, got func(soFar []byte)) ([]byte, error)
}

// Kind is a kind of failure that a caller can decide on.
type Kind string

// The kinds of failure.
const (
	NotFound    Kind = "not found"
	Refused     Kind = "refused"          // credentials are missing or not sufficient
	Unreachable Kind = "unreachable"      // no connection
	Certificate Kind = "TLS failed"       // no connection that can be trusted
	TimedOut    Kind = "timed out"        // connecting, or the first byte of the answer
	Stalled     Kind = "stalled"          // the answer began and stalled
	Truncated   Kind = "truncated"        // the answer ended before its announced length
	TooLarge    Kind = "too large"        // larger than any file of a store at that path
	Broken      Kind = "broken"           // the origin reports it: 5xx, 429
	Unexpected  Kind = "unexpected"       // an answer that no store gives: a web page, an encoding, another status
	Redirected  Kind = "redirected"       // too often, or to a target that is not permitted
	Corrupt     Kind = "corrupt"          // does not match the digest
	Misnamed    Kind = "not a valid name" // never requested
)

// ErrNotFound matches an [Error] of the kind NotFound with errors.Is.
var ErrNotFound = errors.New("not found")

// Error reports a failed request to an origin.
type Error struct {
	Origin string
	Name   string // below the store's root
	Kind   Kind
	Err    error         // may be nil
	After  time.Duration // the origin asks not to be used for this time; 0 if it does not say
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

// Temporary reports whether the same request may succeed later without a change of the
// request or the configuration.
func (e *Error) Temporary() bool {
	switch e.Kind {
	case Unreachable, TimedOut, Stalled, Truncated, Broken:
		return true
	}
	return false
}

// Hint returns the hint for the user.
func (e *Error) Hint() string {
	switch e.Kind {
	case NotFound:
		if strings.HasPrefix(e.Name, "tags/") {
			return "`premix store ls` with the store's directory lists names and tags; check the spelling"
		}
		return "check that this is the root of a store, which has a file store.json"
	case Refused:
		return "put a line `machine HOST token TOKEN`, or with `login` and `password`, into the credentials file"
	case Unreachable, TimedOut, Stalled:
		return "check that the origin is running and that the proxies are correct; more than one origin can be given"
	case Certificate:
		return "to trust a certificate authority of your own, give --ca FILE"
	case Unexpected, TooLarge, Redirected:
		return "check that the URL is the root of a store, and that no proxy or login page answers in its place"
	case Corrupt, Truncated:
		return "run `premix store verify` on the machine of the origin, or name another origin"
	}
	return ""
}

// KindOf returns the kind of err, or "" if err is not from an origin.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return ""
}

// GroupError reports that none of several origins succeeded. It unwraps to the errors
// of the origins that might have the object or file: it is an [ErrNotFound] only if all
// of them say that they do not have it.
type GroupError struct{ Errs []error }

func (e *GroupError) Error() string {
	var all []string
	for _, err := range e.Errs {
		all = append(all, err.Error())
	}
	return fmt.Sprintf("none of %d origins: %s", len(e.Errs), strings.Join(all, "; "))
}

// Unwrap implements the interface of errors.Is and errors.As.
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

// join combines the errors of several origins.
func join(errs []error) error {
	if len(errs) == 1 {
		return errs[0]
	}
	return &GroupError{errs}
}
