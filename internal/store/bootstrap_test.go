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

// bootstrap reads the bootstrap of a tag for a profile. It returns nil if the tag has none.
func bootstrap(t *testing.T, s *store.Store, ref tree.Ref, profile string) *tree.Bootstrap {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(s.Dir(), ref.BootstrapPath(profile)))
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	o, head, all, err := tree.ParseBootstrap(content)
	if err != nil || !head || !all {
		t.Fatalf("%t, %t, %v", head, all, err)
	}
	return o
}

// A bootstrap always repeats the files of the store, whatever happened to the store, or it
// is absent.
func TestBootstraps(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	mixed(t, dir)
	ref := tree.Ref{Name: "x", Tag: "latest"}
	p := publish(t, s, dir, "x", "")
	key, err := s.Key("")
	if err != nil {
		t.Fatal(err)
	}
	repeats := func(o *tree.Bootstrap) {
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
	o := bootstrap(t, s, ref, tree.DefaultProfile)
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
	if o := bootstrap(t, s, ref, "other"); o == nil || o.Files[tree.ProfilePath(p.Tree, "other")] == nil {
		t.Fatalf("with a profile: %+v", o)
	}
	if o := bootstrap(t, s, ref, tree.DefaultProfile); o == nil || len(o.Files) != 2 {
		t.Fatalf("without it: %+v", o)
	}
	record(tree.DefaultProfile)
	o = bootstrap(t, s, ref, tree.DefaultProfile)
	if len(o.Files) != 3 || len(o.Objects) < 3 {
		t.Fatalf("with the usual profile: %+v", o)
	}
	repeats(o)

	// A new tree of the tag removes the bootstraps of the profiles of the former tree.
	write(t, dir, "another", []byte("file"))
	p = publish(t, s, dir, "x", "")
	if bootstrap(t, s, ref, "other") != nil {
		t.Error("a bootstrap of the tag's former tree is there")
	}
	o = bootstrap(t, s, ref, tree.DefaultProfile)
	if o == nil || o.Objects[p.Tree] == nil {
		t.Fatal("the bootstrap is not of the new tree")
	}
	repeats(o)

	// The next publish makes a missing bootstrap, and Verify finds a damaged one.
	path := filepath.Join(s.Dir(), ref.BootstrapPath(tree.DefaultProfile))
	flip(t, path)
	if found := verify(t, s); len(found) != 1 {
		t.Errorf("a damaged bootstrap: %+v", found)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if again := publish(t, s, dir, "x", ""); !again.Unchanged {
		t.Fatal("the tree changed")
	}
	repeats(bootstrap(t, s, ref, tree.DefaultProfile))

	if _, err := s.NewKey(""); err != nil {
		t.Fatal(err)
	}
	if bootstrap(t, s, ref, tree.DefaultProfile) != nil {
		t.Error("a bootstrap with the former keys is there")
	}
	publish(t, s, dir, "x", "")
	repeats(bootstrap(t, s, ref, tree.DefaultProfile))
	if there, err := s.Untag(context.Background(), ref); err != nil || !there {
		t.Fatal(there, err)
	}
	if bootstrap(t, s, ref, tree.DefaultProfile) != nil {
		t.Error("a bootstrap of a tag that was taken away is there")
	}
}
