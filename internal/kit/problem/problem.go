package problem

import (
	"cmp"
	"errors"
	"fmt"
	"premix/internal/kit/exit"
	"slices"
	"strings"
)

// Problem is one mistake.
type Problem struct {
	File    string // as the caller named it
	Line    int    // from 1; 0: the whole file
	Column  int    // from 1, in characters; 0: the whole line
	Message string
	Hint    string // how to correct it; may be empty
	Err     error  // the error of an action that the file asks for; nil for a mistake in the file
}

// Place returns FILE:LINE:COLUMN, as far as they are known.
func (p Problem) Place() string {
	switch {
	case p.Line == 0:
		return p.File
	case p.Column == 0:
		return fmt.Sprintf("%s:%d", p.File, p.Line)
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
}

// List holds all problems of one file, in the order of its lines. It is the error for
// mistakes that the writer of the file can correct.
type List []Problem

// Error returns a line PLACE: MESSAGE for each problem, followed by its hint.
func (l List) Error() string {
	var b strings.Builder
	for i, p := range l {
		if i > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "%s: %s", p.Place(), p.Message)
		if p.Hint != "" {
			fmt.Fprintf(&b, "\n  hint: %s", p.Hint)
		}
	}
	return b.String()
}

// Unwrap returns the Err of the first problem if every problem has one, else nil. In that
// case the file itself has no mistake: a server may not respond, for example.
func (l List) Unwrap() error {
	if slices.ContainsFunc(l, func(p Problem) bool { return p.Err == nil }) {
		return nil
	}
	return l[0].Err
}

// ExitCode implements exit.Coded. If Unwrap returns an error the code is the code of that
// error.
func (l List) ExitCode() exit.Code {
	if code := exit.Of(l.Unwrap()); code != exit.OK && code != exit.Internal {
		return code
	}
	return exit.Usage
}

// MaxProblems is the number of mistakes that are reported for a file of any length, which may be
// a file of another kind.
const MaxProblems = 20

// Collector gathers the problems of one file.
type Collector struct {
	File string
	List List
}

// Add adds a problem of a line.
func (c *Collector) Add(line int, hint, format string, args ...any) {
	c.AddAt(line, 0, hint, format, args...)
}

// AddAt adds a problem at a column of a line.
func (c *Collector) AddAt(line, column int, hint, format string, args ...any) {
	c.List = append(c.List, Problem{File: c.File, Line: line, Column: column, Message: fmt.Sprintf(format, args...), Hint: hint})
}

// AddError adds a problem of a line for an error of an action that the line asks for. Its
// hint is the hint of err.
func (c *Collector) AddError(line int, what string, err error) {
	hint := ""
	var h interface{ Hint() string }
	if errors.As(err, &h) {
		hint = h.Hint()
	}
	c.List = append(c.List, Problem{File: c.File, Line: line, Message: fmt.Sprintf("%s: %v", what, err), Hint: hint, Err: err})
}

// Err returns nil, or a List sorted by place; problems of one place keep their order.
func (c *Collector) Err() error {
	if len(c.List) == 0 {
		return nil
	}
	slices.SortStableFunc(c.List, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return c.List
}
