package trust

import (
	"fmt"
	"strings"

	"premix/internal/kit/exit"
	"premix/internal/store/tree"
)

// ChangedError reports that an origin has another store, or other keys, than its pin.
type ChangedError struct {
	Origin string
	Known  Known // the pin
	Store  string
	Keys   []tree.PublicKey // the keys in store.json
	File   string           // known_stores
}

func (e *ChangedError) Error() string {
	if e.Store != e.Known.Store {
		return fmt.Sprintf("%s has another store than before: %s instead of %s", e.Origin, e.Store, e.Known.Store)
	}
	return fmt.Sprintf("%s has other keys for store %s than the trusted ones", e.Origin, e.Store)
}

// ExitCode implements exit.Coded.
func (*ChangedError) ExitCode() exit.Code { return exit.Trust }

// Hint returns the hint for the user.
func (e *ChangedError) Hint() string {
	return fmt.Sprintf("the connection may be intercepted. If the change was announced, remove the line of %s from %s, or give the new key with --key-file", e.Known.Origin, e.File)
}

// UntrustedError reports that a signed document is not trusted.
type UntrustedError struct {
	Origin string
	Err    error // a *tree.SignatureError or *tree.InvalidError
}

func (e *UntrustedError) Error() string { return fmt.Sprintf("%s: %v", e.Origin, e.Err) }

// ExitCode implements exit.Coded.
func (*UntrustedError) ExitCode() exit.Code { return exit.Trust }
func (e *UntrustedError) Unwrap() error     { return e.Err }

// Hint returns the hint for the user.
func (e *UntrustedError) Hint() string {
	return "name another origin. If the store signs with a new key and this was announced, give it with --key-file"
}

// RollbackError reports that an origin gave a record that is older than the seen one
// (Serial < Seen), or another record with the same serial.
type RollbackError struct {
	Origin string
	Ref    tree.Ref
	Serial int64
	Seen   int64
}

func (e *RollbackError) Error() string {
	if e.Serial == e.Seen {
		return fmt.Sprintf("%s: %s: two different records have serial %d", e.Origin, e.Ref, e.Serial)
	}
	return fmt.Sprintf("%s: %s: the record has serial %d, but %d was seen before", e.Origin, e.Ref, e.Serial, e.Seen)
}

// ExitCode implements exit.Coded.
func (*RollbackError) ExitCode() exit.Code { return exit.Trust }

// Hint returns the hint for the user.
func (e *RollbackError) Hint() string {
	if e.Serial == e.Seen {
		return "the store was copied and then published to in both places, or its key is in two hands; --allow-rollback takes the record as it is"
	}
	return "the origin lags behind, or an old record is being replayed; wait or name another origin. If the store was set back on purpose: --allow-rollback"
}

// StateError reports that a file of pins or records cannot be used.
type StateError struct {
	File string
	Line int // 0 for the file as a whole
	Err  error
}

func (e *StateError) Error() string {
	if e.Line > 0 {
		return fmt.Sprintf("%s:%d: %v", e.File, e.Line, e.Err)
	}
	return fmt.Sprintf("%s: %v", e.File, e.Err)
}

// ExitCode implements exit.Coded.
func (*StateError) ExitCode() exit.Code { return exit.Usage }
func (e *StateError) Unwrap() error     { return e.Err }

// Hint returns the hint for the user.
func (e *StateError) Hint() string {
	return "repair the file, or remove it: the next use of each store then counts as its first, and trusts the keys that the store gives"
}

// NoTagError reports that none of the origins has a tag. It wraps an
// origin.ErrNotFound.
type NoTagError struct {
	Ref     tree.Ref
	Origins []string
	Err     error
}

func (e *NoTagError) Error() string {
	return fmt.Sprintf("%s: there is no %s", strings.Join(e.Origins, ", "), e.Ref)
}

// ExitCode implements exit.Coded.
func (*NoTagError) ExitCode() exit.Code { return exit.Usage }
func (e *NoTagError) Unwrap() error     { return e.Err }

// Hint returns the hint for the user.
func (e *NoTagError) Hint() string {
	return "check the spelling; `premix store ls` lists names and tags on the machine that has the store"
}

// KeyFileError reports that a file of public keys cannot be used.
type KeyFileError struct {
	File string
	Line int // 0 for the file as a whole
	Err  error
}

func (e *KeyFileError) Error() string {
	if e.Line > 0 {
		return fmt.Sprintf("%s:%d: %v", e.File, e.Line, e.Err)
	}
	return fmt.Sprintf("%s: %v", e.File, e.Err)
}

// ExitCode implements exit.Coded.
func (*KeyFileError) ExitCode() exit.Code { return exit.Usage }
func (e *KeyFileError) Unwrap() error     { return e.Err }

// Hint returns the hint for the user.
func (e *KeyFileError) Hint() string {
	return "`premix store key` prints the public key of a store"
}
