package regex

import (
	"sync"
	"testing"
)

// All who ask get the same expression, whoever asks first.
func TestLazy(t *testing.T) {
	form := Lazy(`^a+$`)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if form() != form() || !form().MatchString("aaa") || form().MatchString("ab") {
				t.Error("it is another expression")
			}
		})
	}
	all.Wait()
}

// An expression that nobody uses costs nothing, not even where it is none.
func TestNone(t *testing.T) {
	form := Lazy(`(`)
	defer func() {
		if recover() == nil {
			t.Error("it was compiled")
		}
	}()
	form()
}
