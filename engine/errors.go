package engine

import "fmt"

// DirError tells that a run directory cannot be used: it is locked by another
// premix, it is not empty, or it holds another run.
type DirError struct {
	Dir    string
	Reason string
	Way    string
}

func (e *DirError) Error() string { return fmt.Sprintf("run directory %s %s", e.Dir, e.Reason) }

// Hint names the way out.
func (e *DirError) Hint() string { return e.Way }

// OutputError tells that a declared output is not as it has to be.
type OutputError struct {
	Name   string // the output's name in the recipe
	Reason string
	Way    string
}

func (e *OutputError) Error() string { return fmt.Sprintf("output %s: %s", e.Name, e.Reason) }

// Hint names the way out.
func (e *OutputError) Hint() string { return e.Way }
