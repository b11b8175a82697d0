package regex

import (
	"regexp"
	"sync"
)

// Lazy is an expression that is compiled at the first call, by whoever makes it, and
// given to all. That panics where it is none, as [regexp.MustCompile] does.
func Lazy(expression string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })
}
