package queue

import (
	"fmt"
	"premix/internal/kit/exit"
)

// PrunedError is returned for output of a task that [Queue.Prune] has removed.
type PrunedError struct {
	Task int
	Name string // of the output
}

func (e *PrunedError) Error() string {
	return fmt.Sprintf("the %s of task %d was removed by premix task prune --output", e.Name, e.Task)
}

// ExitCode implements exit.Coded.
func (*PrunedError) ExitCode() exit.Code { return exit.Failed }

// Hint returns the hint for the user: how to make the output again.
func (e *PrunedError) Hint() string {
	return "submit the command again to have its output; premix task why prints the command"
}

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
