package problem

import (
	"fmt"
	"strings"
)

// Near returns the most similar word of known, if it is likely that word is a misspelling
// of it, or "".
func Near(word string, known []string) string {
	best, least := "", 1+max(1, len(word)/3)
	lower := strings.ToLower(word)
	for _, k := range known {
		// Short words without a common letter are not similar.
		if d := distance(lower, strings.ToLower(k)); d < least && d < max(len(word), len(k)) {
			best, least = k, d
		}
	}
	return best
}

// Meant returns a hint for an unknown word: the word that was likely meant, or else
// all known words. form is the format of a known word in the hint.
func Meant(word string, known []string, form string) string {
	if k := Near(word, known); k != "" {
		return fmt.Sprintf("did you mean "+form+"?", k)
	}
	if len(known) == 0 {
		return ""
	}
	list := make([]string, len(known))
	for i, k := range known {
		list[i] = fmt.Sprintf(form, k)
	}
	return "there are: " + strings.Join(list, ", ")
}

// distance returns the number of bytes to insert, delete, replace or swap with their
// neighbour to change a to b.
func distance(a, b string) int {
	before := make([]int, len(b)+1)
	last := make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
