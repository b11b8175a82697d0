package recipe

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Problem is one mistake in a recipe or a sample sheet.
type Problem struct {
	File    string // as the caller named it
	Line    int    // from 1; 0 where the file as a whole is meant
	Message string // what is wrong
	Hint    string // the way out; empty where the message says it all
}

// Place is FILE:LINE, or FILE where the whole file is meant.
func (p Problem) Place() string {
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d", p.File, p.Line)
}

// Problems is all that is wrong with one file, sorted by line. It is the error
// that Load and Sheet return for anything the writer of the file can mend.
type Problems []Problem

// Error gives one FILE:LINE: MESSAGE line a problem, each followed by its hint.
func (ps Problems) Error() string {
	var b strings.Builder
	for i, p := range ps {
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

// collector gathers the problems of one file.
type collector struct {
	file string
	list Problems
}

func (c *collector) add(line int, hint, format string, args ...any) {
	c.list = append(c.list, Problem{File: c.file, Line: line, Message: fmt.Sprintf(format, args...), Hint: hint})
}

// err is nil, or Problems sorted by line; those of one line keep their order.
func (c *collector) err() error {
	if len(c.list) == 0 {
		return nil
	}
	slices.SortStableFunc(c.list, func(a, b Problem) int { return cmp.Compare(a.Line, b.Line) })
	return c.list
}
