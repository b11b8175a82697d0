package local

import (
	"errors"
	"fmt"
	"io/fs"
	"premix/internal/kit/exit"
	"syscall"
)

// HintAgain is the hint of a FailedError of a run.
const HintAgain = "fix the cause and run the same command again: tasks that are done are not run again"

// FailedError reports that some tasks of a run failed, or were not run.
type FailedError struct {
	Failed   int
	NotRun   int
	Tasks    int
	HintText string
}

func (e *FailedError) Error() string {
	switch {
	case e.NotRun == 0:
		return fmt.Sprintf("%d of %d tasks failed", e.Failed, e.Tasks)
	case e.Failed == 0:
		return fmt.Sprintf("%d of %d tasks were not run", e.NotRun, e.Tasks)
	}
	return fmt.Sprintf("%d of %d tasks failed, %d were not run", e.Failed, e.Tasks, e.NotRun)
}

// ExitCode implements exit.Coded.
func (*FailedError) ExitCode() exit.Code { return exit.Failed }

// Hint returns the hint for the user.
func (e *FailedError) Hint() string { return e.HintText }

// Interrupted is the cause with which a caller cancels the context of Run, and
// the error that Run then returns.
type Interrupted struct {
	Signal   syscall.Signal
	Dir      string // run directory; set by Run
	HintText string // how to go on; empty: with the same command
}

func (e *Interrupted) Error() string { return fmt.Sprintf("interrupted (%v)", e.Signal) }

// ExitCode implements exit.Coded.
func (e *Interrupted) ExitCode() exit.Code { return exit.Signal(e.Signal) }

// Hint returns the hint for the user.
func (e *Interrupted) Hint() string {
	if e.HintText != "" {
		return e.HintText
	}
	if e.Dir == "" {
		return ""
	}
	return "run the same command again to continue"
}

// ToolError reports that the recipe's program is not on this machine, or cannot be
// executed.
type ToolError struct {
	Tool string // name or path
	Err  error  // problem with the path; nil where a name is not on PATH
}

func (e *ToolError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("there is no program %s on PATH", e.Tool)
	}
	return fmt.Sprintf("%s cannot be executed: %v", e.Tool, e.Err)
}

// ExitCode implements exit.Coded.
func (*ToolError) ExitCode() exit.Code { return exit.Usage }

func (e *ToolError) Unwrap() error { return e.Err }

// Hint returns the hint for the user.
func (e *ToolError) Hint() string {
	var script *scriptError
	switch {
	case errors.As(e.Err, &script):
		return script.hint
	case e.Err == nil:
		return fmt.Sprintf("install %s, or put its directory on PATH", e.Tool)
	case errors.Is(e.Err, fs.ErrPermission):
		return "make it executable for this user (chmod +x), or name another program in `command`"
	}
	return "install it there, or name another program in `command`"
}

// ProbeError reports that the wished kind of start cannot be proved, because the
// tool does not succeed with the probe.
type ProbeError struct{ err error }

func (e *ProbeError) Error() string { return e.err.Error() }

// ExitCode implements exit.Coded.
func (*ProbeError) ExitCode() exit.Code { return exit.Failed }
func (e *ProbeError) Unwrap() error     { return e.err }

// Hint returns the hint for the user.
func (e *ProbeError) Hint() string {
	return "run with --start cold to see the messages of the tool, or name a sample that works as `probe` in the recipe"
}
