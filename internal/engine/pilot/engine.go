package pilot

import (
	"context"
	"premix/internal/kit/exit"
	"strconv"
	"time"
)

// Wave is the unit of submission: one engine job for each share. Job i executes the
// binary of premix with Command(i). All of them ask for the cores, the memory, the
// resources and the options of the first share.
type Wave struct {
	Number int
	Token  string // eight letters and digits; a name with it finds the jobs again
	Dir    string // absolute
	Log    string // file to which all engine jobs may append their output
	Shares []Share
	Target time.Duration // budget of a worker
}

// Command returns the arguments of premix for engine job number index. index is text, since
// an engine whose jobs only know their index from a variable passes the variable for a shell.
func (w *Wave) Command(engine, index string) []string {
	return []string{"task", "work", w.Dir, "--engine", engine, "--wave", strconv.Itoa(w.Number), "--index", index}
}

// Phase is how far an engine job is.
type Phase int

// Phases of an engine job.
const (
	Pending Phase = iota // it has not started, or is to start again
	Running
	Ended // it will not run again
	Gone  // the engine does not know it, though it was asked after the job was submitted
)

// Status is the state of a job as the engine reports it.
type Status struct {
	Phase  Phase
	Word   string // the engine's own word for the phase, like NODE_FAIL
	Reason string // why it is pending, or how it ended, in plain words; "" if unknown
	Node   string // where it runs or ran
	// Blameless: the tasks did not cause its end, for example because a node was lost.
	Blameless bool
	// Stuck: it waits, and the engine itself will never start it. The dispatcher
	// cancels it.
	Stuck bool
}

// Engine is a batch system. Its methods are called by one goroutine at a time. Their
// errors are taken as passing, that is the system did not answer, unless they are
// *RefusedError.
type Engine interface {
	// Name returns the name of the engine for --engine.
	Name() string
	// Reach returns nil if the system answers, even if it would refuse the request, and a
	// *RefusedError if no job of dir can ever be submitted to it.
	Reach(ctx context.Context, dir string) error
	// Submit submits a wave and returns the ids of its jobs, by share. If it fails, or
	// premix is killed during the call, jobs may have been submitted: Find returns them.
	Submit(ctx context.Context, w *Wave) ([]string, error)
	// Find returns the result of Submit for a wave that was submitted before the call, even if
	// Submit did not return it, and nil if the engine surely has none of its jobs.
	Find(ctx context.Context, w *Wave) ([]string, error)
	// Status returns the status of jobs. What it does not know yet is missing. It may
	// be asked often: it asks the system itself only now and then.
	Status(ctx context.Context, jobs []string) (map[string]Status, error)
	// Cancel ends jobs, also running ones, with a time to end in order. A job that has
	// already ended does not cause an error.
	Cancel(ctx context.Context, jobs []string) error
}

// RefusedError reports that a batch system has understood a request, and refused it.
type RefusedError struct {
	Engine   string
	Reason   string // in the system's words
	HintText string
	Final    bool // it would refuse them at any time
}

func (e *RefusedError) Error() string { return e.Engine + " refuses the jobs: " + e.Reason }

// ExitCode implements exit.Coded.
func (*RefusedError) ExitCode() exit.Code { return exit.Unavailable }

// Hint returns the hint for the user.
func (e *RefusedError) Hint() string { return e.HintText }

// LostError reports that engine jobs end before premix starts in them, one after another.
type LostError struct {
	Engine string
	Reason string // how the last one ended
	Lines  []string
	Log    string
}

func (e *LostError) Error() string {
	text := "jobs of " + e.Engine + " end before premix runs in them (" + e.Reason + ")"
	for _, l := range e.Lines {
		text += "\n    | " + l
	}
	return text
}

// ExitCode implements exit.Coded.
func (*LostError) ExitCode() exit.Code { return exit.Failed }

// Hint returns the hint for the user.
func (e *LostError) Hint() string {
	return "see " + e.Log + "; the directory and premix itself must be on a file system that the nodes share"
}
