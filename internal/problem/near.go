package problem

import (
	"fmt"
	"strings"
)

// Near is the one of known that word was most likely meant to be, or "".
func Near(word string, known []string) string {
	best, least := "", 1+max(1, len(word)/3)
	lower := strings.ToLower(word)
	for _, k := range known {
		// Words that have no letter in common are not alike, however short they are.
		if d := distance(lower, strings.ToLower(k)); d < least && d < max(len(word), len(k)) {
			best, least = k, d
		}
	}
	return best
}

// Meant is a hint that names what word was likely meant to be, and otherwise
// all that there is to choose from. form says how one of them is written.
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

// distance is the number of bytes to insert, delete, replace or swap with their
// neighbour to get from a to b.
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
