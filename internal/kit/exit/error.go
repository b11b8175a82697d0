package exit

import "fmt"

// Error is an error on which no caller decides. It has a text, a hint for the user and a
// code. Errors on which callers decide have types of their own.
type Error struct {
	err  error
	hint string
	code Code
}

// Errorf returns an *Error with a code, a hint and a text. It wraps the operands of %w, as
// [fmt.Errorf] does.
func Errorf(code Code, hint, format string, args ...any) error {
	return &Error{fmt.Errorf(format, args...), hint, code}
}

func (e *Error) Error() string { return e.err.Error() }
func (e *Error) Unwrap() error { return e.err }

// ExitCode implements Coded.
func (e *Error) ExitCode() Code { return e.code }

// Hint returns the hint for the user; "" if there is none.
func (e *Error) Hint() string { return e.hint }
