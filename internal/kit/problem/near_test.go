package problem

import "testing"

func TestNear(t *testing.T) {
	known := []string{"publish", "push", "pull", "ls", "Memory", "a"}
	for _, c := range []struct{ word, near, meant string }{
		{"publsh", "publish", "did you mean publish?"},
		{"puhs", "push", "did you mean push?"},
		{"PULL", "pull", "did you mean pull?"},
		{"memroy", "Memory", "did you mean Memory?"},
		{"l", "ls", "did you mean ls?"},
		{"x", "", "there are: publish, push, pull, ls, Memory, a"},
		{"fetch", "", "there are: publish, push, pull, ls, Memory, a"},
		{"", "", "there are: publish, push, pull, ls, Memory, a"},
	} {
		if got := Near(c.word, known); got != c.near {
			t.Errorf("near %q is %q, not %q", c.word, got, c.near)
		}
		if got := Meant(c.word, known, "%s"); got != c.meant {
			t.Errorf("the hint for %q is %q, not %q", c.word, got, c.meant)
		}
	}
	if got := Meant("x", nil, "%s"); got != "" {
		t.Errorf("of nothing there is %q", got)
	}
}
