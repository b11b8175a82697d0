package inplace

// Interrupted is the error of a start that failed after its first effect: the command
// must not be executed again.
type Interrupted struct{ Err error }

func (e *Interrupted) Error() string { return "the hot start was interrupted: " + e.Err.Error() }
func (e *Interrupted) Unwrap() error { return e.Err }
