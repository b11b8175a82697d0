package regex

import (
	"regexp"
	"sync"
)

// Lazy returns a function that compiles an expression at its first call and returns it. The
// function panics for an invalid expression, as [regexp.MustCompile] does. It is safe for
// concurrent use.
func Lazy(expression string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })
}
