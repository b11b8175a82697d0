package policy

import (
	"fmt"
	"slices"
	"strings"
)

// mistake is one found while a statement is read: it ends the reading of that statement.
type mistake struct {
	at   int // offset in the text
	what string
	hint string
}

func (p *mistake) Error() string { return p.what }

func wrong(at int, hint, format string, args ...any) *mistake {
	return &mistake{at, fmt.Sprintf(format, args...), hint}
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
