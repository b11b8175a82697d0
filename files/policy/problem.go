package policy

import (
	"fmt"
	"slices"
	"strings"
)

// Problem is a mistake in a file of rules.
type Problem struct {
	File    string
	Line    int // from 1
	Column  int // from 1, in bytes
	Message string
	Hint    string
}

func (p Problem) Error() string {
	return fmt.Sprintf("%s:%d:%d: %s", p.File, p.Line, p.Column, p.Message)
}

// Problems are all mistakes of a file of rules, in the order of their lines.
type Problems []Problem

func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i := range p {
		lines[i] = p[i].Error()
	}
	return strings.Join(lines, "\n")
}

// problem is one found while a statement is read: it ends the reading of that statement.
type problem struct {
	at   int // offset in the text
	what string
	hint string
}

func (p *problem) Error() string { return p.what }

func wrong(at int, hint, format string, args ...any) *problem {
	return &problem{at, fmt.Sprintf(format, args...), hint}
}

// place tells line and column of an offset.
func place(text string, at int) (line, column int) {
	at = min(at, len(text))
	before := text[:at]
	return strings.Count(before, "\n") + 1, at - strings.LastIndexByte(before, '\n')
}

// nearest is the word of a list that was probably meant, "" if none is near.
func nearest(word string, list []string) string {
	best, least := "", 3
	for _, w := range list {
		if d := distance(strings.ToLower(word), strings.ToLower(w)); d < least && d < len(w) {
			best, least = w, d
		}
	}
	return best
}

// distance is how many letters have to be put in, left out or replaced (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		last := row[0]
		row[0] = i + 1
		for j := range len(b) {
			next := last
			if a[i] != b[j] {
				next++
			}
			last, row[j+1] = row[j+1], min(next, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}

// meant is a hint that names what was probably meant, or else all there is.
func meant(word string, list []string) string {
	if w := nearest(word, list); w != "" {
		return "did you mean " + w + "?"
	}
	list = slices.Clone(list)
	slices.Sort(list)
	return "there are " + strings.Join(list, ", ")
}
