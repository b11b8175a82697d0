package trust

import (
	"fmt"
	"strings"

	"premix/internal/exit"
	"premix/store/tree"
)

// ChangedError says that an origin has another store, or other keys, than the
// pin says.
type ChangedError struct {
	Origin string
	Known  Known // the pin
	Store  string
	Keys   []tree.PublicKey // what store.json says
	File   string           // known_stores
}

func (e *ChangedError) Error() string {
	if e.Store != e.Known.Store {
		return fmt.Sprintf("%s has another store than before: %s instead of %s", e.Origin, e.Store, e.Known.Store)
	}
	return fmt.Sprintf("%s has other keys for store %s than those that are trusted", e.Origin, e.Store)
}

// ExitCode implements exit.Coded.
func (*ChangedError) ExitCode() exit.Code { return exit.Trust }

// Hint names the way out.
func (e *ChangedError) Hint() string {
	return fmt.Sprintf("somebody may stand between here and there. If the change was announced, remove the line of %s from %s, or give the new key with --key-file", e.Known.Origin, e.File)
}

// UntrustedError says that a signed document is not to be believed.
type UntrustedError struct {
	Origin string
	Err    error // a *tree.SignatureError or *tree.InvalidError
}

func (e *UntrustedError) Error() string { return fmt.Sprintf("%s: %v", e.Origin, e.Err) }

// ExitCode implements exit.Coded.
func (*UntrustedError) ExitCode() exit.Code { return exit.Trust }
func (e *UntrustedError) Unwrap() error     { return e.Err }

// Hint names the way out.
func (e *UntrustedError) Hint() string {
	return "name another origin. If the store signs with a new key and this was announced, give it with --key-file"
}

// RollbackError says that an origin gave a record that is older than one that
// was seen (Serial < Seen), or another one with the same serial.
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

// Hint names the way out.
func (e *RollbackError) Hint() string {
	if e.Serial == e.Seen {
		return "the store was copied and then published to in both places, or its key is in two hands; --allow-rollback takes the record as it is"
	}
	return "the origin lags behind, or somebody replays an old record; wait or name another origin. If the store was set back on purpose: --allow-rollback"
}

// StateError says that what trust keeps on disk cannot be used.
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

// Hint names the way out.
func (e *StateError) Hint() string {
	return "mend it, or remove it: stores are then trusted at their next use as at the first"
}

// NoTagError says that none of the origins that were asked has a tag. It is an
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

// Hint names the way out.
func (e *NoTagError) Hint() string {
	return "compare the spelling; `premix store ls` lists names and tags where the store is, and its root has a file store.json"
}

// KeyFileError says what is wrong with a file of public keys.
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

// Hint names the way out.
func (e *KeyFileError) Hint() string {
	return "`premix store key` prints the public key of a store"
}
