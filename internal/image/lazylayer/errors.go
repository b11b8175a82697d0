package lazylayer

import "fmt"

// Kind is the class of an [Error], on which a caller can decide.
type Kind int

// The kinds of errors.
const (
	Unsuitable  Kind = iota // the layer cannot be shown before it is fetched as a whole
	Unreachable             // the registry did not answer as needed
	Wrong                   // what the registry has returned does not match its digest
)

// Error reports why a layer, or a part of it, cannot be shown.
type Error struct {
	Kind   Kind
	Reason string
	Err    error // may be nil
}

func (e *Error) Error() string { return e.Reason }

func (e *Error) Unwrap() error { return e.Err }

func unsuitable(format string, args ...any) error {
	return &Error{Kind: Unsuitable, Reason: fmt.Sprintf(format, args...)}
}

func wrong(format string, args ...any) error {
	return &Error{Kind: Wrong, Reason: fmt.Sprintf(format, args...)}
}
