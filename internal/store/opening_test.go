package store_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	"premix/internal/store"
	"premix/internal/store/object"
	"premix/internal/store/tree"
)

// opening reads an opening of a tag, nil where there is none.
func opening(t *testing.T, s *store.Store, ref tree.Ref, profile string) *tree.Opening {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(s.Dir(), ref.OpeningPath(profile)))
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	o, head, all, err := tree.ParseOpening(content)
	if err != nil || !head || !all {
		t.Fatalf("%t, %t, %v", head, all, err)
	}
	return o
}

// An opening repeats what lies in the store, whatever happened there, or is not there.
func TestOpenings(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	mixed(t, dir)
	ref := tree.Ref{Name: "x", Tag: "latest"}
	p := publish(t, s, dir, "x", "")
	key, err := s.Key("")
	if err != nil {
		t.Fatal(err)
	}
	repeats := func(o *tree.Opening) {
		t.Helper()
		for path, content := range o.Files {
			if there, err := os.ReadFile(filepath.Join(s.Dir(), path)); err != nil || !bytes.Equal(there, content) {
				t.Errorf("%s is another one (%v)", path, err)
			}
		}
		for d, stored := range o.Objects {
			if _, err := object.Decode(nil, d, -1, stored); err != nil {
				t.Error(err)
			}
		}
		if found := verify(t, s); len(found) > 0 {
			t.Errorf("%+v", found)
		}
	}
	o := opening(t, s, ref, tree.UsualProfile)
	if len(o.Files) != 2 || o.Objects[p.Tree] == nil || len(o.Later) == 0 {
		t.Fatalf("%+v", o)
	}
	repeats(o)

	record := func(name string) {
		t.Helper()
		if _, err := s.PublishProfile(context.Background(), &tree.Profile{Tree: p.Tree, Parts: []tree.Part{{Chunk: 0}}}, name, key); err != nil {
			t.Fatal(err)
		}
	}
	record("other")
	if o := opening(t, s, ref, "other"); o == nil || o.Files[tree.ProfilePath(p.Tree, "other")] == nil {
		t.Fatalf("with a profile: %+v", o)
	}
	if o := opening(t, s, ref, tree.UsualProfile); o == nil || len(o.Files) != 2 {
		t.Fatalf("without it: %+v", o)
	}
	record(tree.UsualProfile)
	o = opening(t, s, ref, tree.UsualProfile)
	if len(o.Files) != 3 || len(o.Objects) < 3 {
		t.Fatalf("with the usual profile: %+v", o)
	}
	repeats(o)

	// Another tree: its profiles are others.
	write(t, dir, "another", []byte("file"))
	p = publish(t, s, dir, "x", "")
	if opening(t, s, ref, "other") != nil {
		t.Error("an opening of the tag's former tree is there")
	}
	o = opening(t, s, ref, tree.UsualProfile)
	if o == nil || o.Objects[p.Tree] == nil {
		t.Fatal("the opening is not of the new tree")
	}
	repeats(o)

	// One that lacks is made by the next publish; a wrong one is found.
	path := filepath.Join(s.Dir(), ref.OpeningPath(tree.UsualProfile))
	flip(t, path)
	if found := verify(t, s); len(found) != 1 {
		t.Errorf("a damaged opening: %+v", found)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if again := publish(t, s, dir, "x", ""); !again.Unchanged {
		t.Fatal("the tree changed")
	}
	repeats(opening(t, s, ref, tree.UsualProfile))

	if _, err := s.NewKey(""); err != nil {
		t.Fatal(err)
	}
	if opening(t, s, ref, tree.UsualProfile) != nil {
		t.Error("an opening with the former keys is there")
	}
	publish(t, s, dir, "x", "")
	repeats(opening(t, s, ref, tree.UsualProfile))
	if there, err := s.Untag(context.Background(), ref); err != nil || !there {
		t.Fatal(there, err)
	}
	if opening(t, s, ref, tree.UsualProfile) != nil {
		t.Error("an opening of a tag that was taken away is there")
	}
}
