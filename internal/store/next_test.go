package store_test

import (
	"context"
	"fmt"
	"testing"

	"premix/internal/store"
	"premix/internal/store/tree"
)

// A bootstrap names the next references to mount as long as each has exactly one successor.
func TestRow(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	refs := map[string]tree.Ref{}
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		write(t, dir, "name", []byte(name))
		publish(t, s, dir, name, "")
		refs[name] = tree.Ref{Name: name, Tag: tree.DefaultTag}
	}
	row := func(names ...string) {
		t.Helper()
		var list []tree.Ref
		for _, name := range names {
			list = append(list, refs[name])
		}
		if err := s.Row(context.Background(), list); err != nil {
			t.Fatal(err)
		}
		if found := verify(t, s); len(found) > 0 {
			t.Errorf("%+v", found)
		}
	}
	next := func(name, want string) {
		t.Helper()
		o := bootstrap(t, s, refs[name], tree.DefaultProfile)
		if got := fmt.Sprint(tree.NextRefs(refs[name], func(path string) []byte { return o.Files[path] })); got != want {
			t.Errorf("after %s: %s, want %s", name, got, want)
		}
	}
	next("a", "[]")
	row("a", "b", "c")
	row("a", "b", "c")
	next("a", "[b:latest c:latest]")
	next("c", "[]")
	row("a", "b", "d", "e")
	next("a", "[b:latest]")
	next("b", "[]")
	next("d", "[e:latest]")
	if _, err := s.Untag(context.Background(), refs["c"]); err != nil {
		t.Fatal(err)
	}
	if found := verify(t, s); len(found) > 0 {
		t.Errorf("%+v", found)
	}
	row("a", "b", "e")
	next("a", "[b:latest]")
	if _, err := s.Untag(context.Background(), refs["d"]); err != nil {
		t.Fatal(err)
	}
	row("a", "b", "e") // nothing is new, and no old entry is dropped
	if _, err := s.GC(context.Background(), store.GCOptions{}); err != nil {
		t.Fatal(err)
	}
	if found := verify(t, s); len(found) > 0 {
		t.Errorf("%+v", found)
	}
}
