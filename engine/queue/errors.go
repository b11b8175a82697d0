package queue

import "fmt"

// InputError tells what is wrong with tasks that were to be submitted, or with a
// selection of tasks. Line is 0 where no line is meant.
type InputError struct {
	File   string
	Line   int
	Reason string
	Way    string
}

func (e *InputError) Error() string {
	if e.Line > 0 {
		return fmt.Sprintf("%s (%s:%d)", e.Reason, e.File, e.Line)
	}
	return e.Reason
}

// Hint names the way out.
func (e *InputError) Hint() string { return e.Way }
