package files

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestSubtreesAsDu compares the sums with du(1), on a tree with hard links, holes and a symlink.
func TestSubtreesAsDu(t *testing.T) {
	root := t.TempDir()
	for i := range 40 {
		write(t, fmt.Sprintf("%s/a/%d/file", root, i%7), int64(1+i*5000))
		write(t, fmt.Sprintf("%s/a/%d/more%d", root, i%7, i), int64(i*1000))
		write(t, fmt.Sprintf("%s/b/deep/er/%d", root, i), 100)
	}
	// These files have content, so that they take space on disk.
	for _, name := range []string{"a/1/full", "b/full", "here"} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(strings.Repeat("x", 300_000)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"a/2/again", "a/1/again"} {
		if err := os.Link(root+"/a/1/full", filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/etc", root+"/b/link"); err != nil {
		t.Fatal(err)
	}
	sum, _ := scanned(t, Options{Roots: []string{root}})
	table := opened(t, sum.Table)
	list, err := table.Subtrees(root, 2)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]*Subtree{}
	for i, s := range list {
		got[s.Path] = s
		if i > 1 && s.Depth == 1 && list[i-1].Depth == 1 && s.Allocated > list[i-1].Allocated {
			t.Errorf("%s comes after a smaller one", s.Path)
		}
	}
	for option, of := range map[string]func(s *Subtree) int64{"-B1": func(s *Subtree) int64 { return s.Allocated }, "--inodes": func(s *Subtree) int64 { return s.Entries }} {
		out, err := exec.Command("du", option, "--max-depth=2", root).Output()
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for line := range strings.Lines(string(out)) {
			var want int64
			path := ""
			if _, err := fmt.Sscan(line, &want, &path); err != nil {
				t.Fatal(err)
			}
			n++
			// The name under which du counts a linked file depends on the order of the directory.
			if path == root+"/a/1" || path == root+"/a/2" {
				continue
			}
			if s := got[path]; s == nil || of(s) != want {
				t.Errorf("du %s %s: %d, got %+v", option, path, want, s)
			}
		}
		if n != len(list) {
			t.Errorf("du has %d directories, Subtrees %d", n, len(list))
		}
	}
	// 80 + 40 files without the overwritten ones (40 of a/*/file become 7), and 3 with content.
	if s := list[0]; s.Files != 7+40+40+3 || s.Path != root || s.Modified == 0 || s.Unread != 0 {
		t.Errorf("%+v", s)
	}
	// The linked file counts with its first name.
	if s := got[root+"/a/1"]; s.Allocated < 300_000 {
		t.Errorf("%+v", s)
	}
	// The sums of a subdirectory are the same.
	below, err := table.Subtrees(root+"/b/", 1)
	if err != nil || below[0].Allocated != got[root+"/b"].Allocated || below[1].Path != root+"/b/deep" || len(below) != 2 {
		t.Errorf("%v, %v", below, err)
	}
	for _, dir := range []string{"/", root + "/c", root + "/here", root + "/a/", root + "x"} {
		_, err := table.Subtrees(dir, 1)
		if is := err != nil && strings.Contains(err.Error(), " has no directory "); is == strings.HasSuffix(dir, "/a/") {
			t.Errorf("%s: %v", dir, err)
		}
	}
}
