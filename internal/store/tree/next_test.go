package tree

import (
	"fmt"
	"strings"
	"testing"

	"premix/internal/store/object"
)

func TestNext(t *testing.T) {
	a, b := Ref{Name: "x/a", Tag: "1"}, Ref{Name: "x/b", Tag: DefaultTag}
	content := MarshalNext([]Ref{b, a, b})
	if string(content) != "x/a:1\nx/b:latest\n" {
		t.Errorf("it is %q", content)
	}
	if got, err := ParseNext(content); err != nil || fmt.Sprint(got) != "[x/a:1 x/b:latest]" {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"\n", "UPPER:1\n", "../x:1\n", "x@" + object.Sum(nil).String() + "\n", strings.Repeat("x:1\n", maxNext+1)} {
		if got, err := ParseNext([]byte(bad)); !IsInvalid(err) {
			t.Errorf("%.20q was taken for %v: %v", bad, got, err)
		}
	}
}

// A row of references that returns to its start ends there.
func TestRowEnds(t *testing.T) {
	a, b := Ref{Name: "a", Tag: "1"}, Ref{Name: "b", Tag: "1"}
	files := map[string][]byte{a.NextPath(): MarshalNext([]Ref{b}), b.NextPath(): MarshalNext([]Ref{a})}
	if got := NextRefs(a, func(path string) []byte { return files[path] }); len(got) > 2 {
		t.Errorf("%v", got)
	}
}
