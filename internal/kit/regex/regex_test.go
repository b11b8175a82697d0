package regex

import (
	"regexp"
	"sync"
	"testing"
)

// All callers get the same expression, whichever of them is first.
func TestLazy(t *testing.T) {
	form := Lazy(`^a+$`)
	got := make([]*regexp.Regexp, 8)
	var all sync.WaitGroup
	for i := range got {
		all.Go(func() { got[i] = form() })
	}
	all.Wait()
	for _, one := range got {
		if one != got[0] {
			t.Error("it is another expression")
		}
	}
	if !got[0].MatchString("aaa") || got[0].MatchString("ab") {
		t.Errorf("%v matches wrongly", got[0])
	}
}

// An invalid expression causes a panic at its first use, not before.
func TestNone(t *testing.T) {
	form := Lazy(`(`)
	defer func() {
		if recover() == nil {
			t.Error("what is no expression was compiled")
		}
	}()
	form()
}
