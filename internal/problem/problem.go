package problem

import (
	"cmp"
	"errors"
	"fmt"
	"premix/internal/exit"
	"slices"
	"strings"
)

// Problem is one mistake.
type Problem struct {
	File    string // as the caller named it
	Line    int    // from 1; 0 where the file as a whole is meant
	Column  int    // from 1, in characters; 0 where the line as a whole is meant
	Message string // what is wrong
	Hint    string // the way out; empty where the message says it all
	Err     error  // what came of doing what the file says; nil where it is the file that is wrong
}

// Place is FILE:LINE:COLUMN as far as they are known.
func (p Problem) Place() string {
	switch {
	case p.Line == 0:
		return p.File
	case p.Column == 0:
		return fmt.Sprintf("%s:%d", p.File, p.Line)
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
}

// List is all that is wrong with one file, in the order of its lines. It is the error for
// whatever the writer of the file can mend.
type List []Problem

// Error gives one PLACE: MESSAGE line a problem, each followed by its hint.
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

// Unwrap is what the first problem came of, where nothing is wrong with the file itself:
// a server that does not answer is no mistake of its writer.
func (l List) Unwrap() error {
	if slices.ContainsFunc(l, func(p Problem) bool { return p.Err == nil }) {
		return nil
	}
	return l[0].Err
}

// ExitCode implements exit.Coded. Where nothing is wrong with the file itself, the code is
// the cause's.
func (l List) ExitCode() exit.Code {
	if code := exit.Of(l.Unwrap()); code != exit.OK && code != exit.Internal {
		return code
	}
	return exit.Usage
}

// Enough is how many mistakes are told of a file that may be as long as it likes, and be of
// another kind than what is read in it.
const Enough = 20

// Collector gathers the problems of one file.
type Collector struct {
	File string
	List List
}

// Add adds a problem of a line.
func (c *Collector) Add(line int, hint, format string, args ...any) {
	c.AddAt(line, 0, hint, format, args...)
}

// AddAt adds a problem of a place in a line.
func (c *Collector) AddAt(line, column int, hint, format string, args ...any) {
	c.List = append(c.List, Problem{File: c.File, Line: line, Column: column, Message: fmt.Sprintf(format, args...), Hint: hint})
}

// AddError adds a problem of a line that came of err, whose way out the hint is.
func (c *Collector) AddError(line int, what string, err error) {
	hint := ""
	var h interface{ Hint() string }
	if errors.As(err, &h) {
		hint = h.Hint()
	}
	c.List = append(c.List, Problem{File: c.File, Line: line, Message: fmt.Sprintf("%s: %v", what, err), Hint: hint, Err: err})
}

// Err is nil, or a List sorted by place; problems of one place keep their order.
func (c *Collector) Err() error {
	if len(c.List) == 0 {
		return nil
	}
	slices.SortStableFunc(c.List, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return c.List
}
