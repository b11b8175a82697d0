package queue

import (
	"premix/internal/kit/exit"
)

// InputError reports invalid tasks of a submission, where the error is not about a line of a
// file, or an invalid selection of tasks.
type InputError struct {
	Reason   string
	HintText string
}

func (e *InputError) Error() string { return e.Reason }

// ExitCode implements exit.Coded.
func (*InputError) ExitCode() exit.Code { return exit.Usage }

// Hint returns the hint for the user.
func (e *InputError) Hint() string { return e.HintText }
