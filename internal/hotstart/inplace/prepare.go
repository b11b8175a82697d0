package inplace

import (
	"fmt"
	"time"
)

// PrepareOptions steers Prepare.
type PrepareOptions struct {
	Worth   time.Duration                    // the time to its input from which on the command is prepared
	Scratch string                           // a directory for the time of the preparation; empty: os.TempDir()
	Log     func(format string, args ...any) // notices for people, one line each; nil: none
	// Progress is called when the tool begins to load and when it has loaded; nil: none
	Progress func(Progress)
	Enough   time.Duration // the time for further preparations, of which at least two are made; 0: 3 s
}

// Progress is the state of a preparation.
type Progress struct {
	Tool int           // id of the process of the tool that loads
	Load time.Duration // time of a load; 0: not known yet
	Rest time.Duration // expected time of the rest of the preparation
}

// Unfit is the error for a command that starts cold. Unless Passing is set, the reason
// is kept in the store, and Find returns it.
type Unfit struct {
	Reason  string
	Passing bool  // it may be gone the next time, as where an input is missing
	Written *Word // an input that the tool writes; nil: none
}

func (e *Unfit) Error() string { return "the command cannot start hot: " + e.Reason }

// unfit makes an *Unfit.
func unfit(format string, args ...any) error { return &Unfit{Reason: fmt.Sprintf(format, args...)} }

// passing makes an *Unfit for a reason that may not exist the next time.
func passing(format string, args ...any) error {
	return &Unfit{Reason: fmt.Sprintf(format, args...), Passing: true}
}
