package watch

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Problem is one mistake in a watch list.
type Problem struct {
	File    string // as the caller named it
	Line    int    // from 1; 0 where the file as a whole is meant
	Message string
	Hint    string // the way out; "" where the message says it all
}

// Problems is all that is wrong with a watch list, in the order of its lines.
type Problems []Problem

func (ps Problems) Error() string {
	var lines []string
	for _, p := range ps {
		place := p.File
		if p.Line > 0 {
			place = fmt.Sprintf("%s:%d", p.File, p.Line)
		}
		lines = append(lines, place+": "+p.Message)
	}
	return strings.Join(lines, "\n")
}

// problems collects those of one file.
type problems struct {
	file string
	list Problems
}

func (c *problems) add(line int, hint, format string, args ...any) {
	c.list = append(c.list, Problem{c.file, line, fmt.Sprintf(format, args...), hint})
}

func (c *problems) err() error {
	if len(c.list) == 0 {
		return nil
	}
	slices.SortStableFunc(c.list, func(a, b Problem) int { return cmp.Compare(a.Line, b.Line) })
	return c.list
}
