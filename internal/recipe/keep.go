package recipe

import (
	"slices"
	"strings"
)

// keep replaces each run of bytes for which ok is false by one byte by, and removes
// by, '.' and '-' from both ends.
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
