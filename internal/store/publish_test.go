package store_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"premix/internal/kit/unmount"
	"premix/internal/store"
	"premix/internal/store/object"
	"premix/internal/store/tree"
	"premix/internal/testkit/testtree"
)

// newStore creates a store that does not sync its writes to disk.
func newStore(t testing.TB) *store.Store {
	t.Helper()
	dir := t.TempDir()
	s, err := store.Init(filepath.Join(dir, "store"), store.Options{Home: filepath.Join(dir, "home"), Unsynced: true})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// homeOf returns the home of a store that newStore made.
func homeOf(s *store.Store) string { return filepath.Join(filepath.Dir(s.Dir()), "home") }

func mustRef(t testing.TB, s string) tree.Ref {
	t.Helper()
	ref, err := tree.ParseRef(s)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

func publish(t testing.TB, s *store.Store, dir, ref, cache string) *store.Published {
	t.Helper()
	key, err := s.Key("")
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.Publish(context.Background(), dir, mustRef(t, ref), store.PublishOptions{Key: key, Cache: cache})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// image writes a tree's image to a file.
func image(t testing.TB, s *store.Store, d object.Digest, path string) {
	t.Helper()
	tr, err := s.Tree(d)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(tr.Size()); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1<<20)
	for off := int64(0); off < tr.Size(); off += int64(len(buf)) {
		n := min(int64(len(buf)), tr.Size()-off)
		if _, err := tr.ReadAt(buf[:n], off); err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(buf[:n], off); err != nil {
			t.Fatal(err)
		}
	}
}

// mounted mounts the image of a tree with the kernel's EROFS alone, and unmounts it at the
// end of the test.
func mounted(t testing.TB, s *store.Store, d object.Digest) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "image")
	image(t, s, d, file)
	dir := t.TempDir()
	if err := unix.Mount(file, dir, "erofs", unix.MS_RDONLY, ""); err != nil {
		t.Skipf("this machine cannot mount an EROFS image from a file: %v", err)
	}
	t.Cleanup(func() {
		if err := unmount.Dir(dir); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

func testTree(t testing.TB, n int) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("awkward trees need root")
	}
	dir := t.TempDir()
	if err := testtree.Build(dir, n); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestAwkwardTreesSurvive(t *testing.T) {
	for n := range testtree.Trees {
		t.Run(testtree.Name(n), func(t *testing.T) {
			s, dir, cache := newStore(t), testTree(t, n), t.TempDir()
			p := publish(t, s, dir, "awkward:latest", cache)
			diffs, err := testtree.Compare(dir, mounted(t, s, p.Tree))
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range diffs {
				t.Error(d)
			}
			again := publish(t, s, dir, "awkward:latest", cache)
			if again.Tree != p.Tree || !again.Unchanged || again.Written != 0 || again.ReadFiles != 0 {
				t.Errorf("published again: tree %s after %s, %+v", again.Tree.Short(), p.Tree.Short(), again)
			}
		})
	}
}
