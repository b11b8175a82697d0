package policy

import (
	"fmt"
	"strings"
)

// mistake is an error in a statement. It ends the parsing of this statement.
type mistake struct {
	at   int // offset in the text
	what string
	hint string
}

func wrong(at int, hint, format string, args ...any) *mistake {
	return &mistake{at, fmt.Sprintf(format, args...), hint}
}

// place returns line and column of an offset.
func place(text string, at int) (line, column int) {
	at = min(at, len(text))
	before := text[:at]
	return strings.Count(before, "\n") + 1, at - strings.LastIndexByte(before, '\n')
}
