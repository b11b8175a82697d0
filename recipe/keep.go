package recipe

import (
	"fmt"
	"slices"
	"strings"
)

// near is the one of known that word was most likely meant to be, or "".
func near(word string, known []string) string {
	best, least := "", 1+max(1, len(word)/3)
	lower := strings.ToLower(word)
	for _, k := range known {
		if d := distance(lower, strings.ToLower(k)); d < least {
			best, least = k, d
		}
	}
	return best
}

// meant is a hint that names what word was likely meant to be, and otherwise
// all that there is to choose from. form says how one of them is written.
func meant(word string, known []string, form string) string {
	if k := near(word, known); k != "" {
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

// keep is s with every run of bytes that ok refuses replaced by one by, and
// stripped of by, '.' and '-' at both ends.
func keep(s string, ok func(byte) bool, by byte) string {
	var b []byte
	for i := range len(s) {
		switch {
		case ok(s[i]):
			b = append(b, s[i])
		case len(b) > 0 && b[len(b)-1] != by:
			b = append(b, by)
		}
	}
	return strings.Trim(string(slices.Clip(b)), string(by)+".-")
}
