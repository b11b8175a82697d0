package files

import (
	"cmp"
	"path/filepath"
	"slices"
	"strings"

	"premix/internal/kit/exit"
)

// Subtree is a directory with all entries below it. A file with several names counts once,
// with the first of its names in the scan, by their bytes.
type Subtree struct {
	Path      string `json:"path"`
	Depth     int    `json:"depth"`     // below the directory that was asked about, which has 0
	Files     int64  `json:"files"`     // regular files
	Bytes     int64  `json:"bytes"`     // sizes of regular files
	Allocated int64  `json:"allocated"` // bytes on disk of all entries, directories too
	Entries   int64  `json:"entries"`   // of all types, the directory itself included
	Modified  int64  `json:"modified"`  // the latest, ns since 1970
	Unread    int64  `json:"unread"`    // entries that have an error

	children []*Subtree
}

func (s *Subtree) add(e *Entry) {
	s.Entries++
	s.Allocated += e.Allocated
	s.Modified = max(s.Modified, e.Modified)
	if e.Type == "f" {
		s.Files++
		s.Bytes += e.Size
	}
	if e.Error != "" {
		s.Unread++
	}
}

// subtrees collects the directories down to a depth below one.
type subtrees struct {
	dir   string
	depth int
	found bool // the directory itself is in the table
	known map[string]*Subtree
	last  string     // a directory, and the subtrees that hold it
	chain []*Subtree //
}

// Subtrees returns the sums of a directory and of its subdirectories down to a depth, each
// directory followed by its subdirectories, those with most bytes on disk first.
func (t *Table) Subtrees(dir string, depth int) ([]*Subtree, error) {
	dir = filepath.Clean(dir)
	s := &subtrees{dir: dir, depth: depth, known: make(map[string]*Subtree)}
	top := &Subtree{Path: dir}
	s.known[dir] = top
	type file struct{ device, inode int64 }
	linked := make(map[file]Entry)
	err := t.Each(func(e *Entry) error {
		if e.Type == "f" && e.Links > 1 {
			// The entry is counted at the end, where its first name is.
			f := file{e.Device, e.Inode}
			if was, ok := linked[f]; !ok && within(e.Dir, dir) || ok && within(e.Dir, dir) && e.Path() < was.Path() {
				kept := *e
				kept.Dir, kept.Name = strings.Clone(e.Dir), strings.Clone(e.Name)
				linked[f] = kept
			}
			return nil
		}
		s.add(e)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if !s.found {
		return nil, exit.Errorf(exit.Usage, "it is a scan of "+strings.Join(t.Roots, ", "), "%s has no directory %s", t.Path, dir)
	}
	for _, e := range linked {
		s.add(&e)
	}
	return top.list(nil), nil
}

func (s *subtrees) add(e *Entry) {
	at := e.Dir
	if e.Type == "d" {
		at = e.Path()
		s.found = s.found || at == s.dir
	}
	if at != s.last || s.chain == nil {
		s.last, s.chain = strings.Clone(at), s.holders(at)
	}
	for _, t := range s.chain {
		t.add(e)
	}
}

// holders returns the subtrees that hold a directory.
func (s *subtrees) holders(at string) []*Subtree {
	if !within(at, s.dir) {
		return []*Subtree{}
	}
	parent := s.known[s.dir]
	chain := []*Subtree{parent}
	rest := strings.TrimPrefix(strings.TrimPrefix(at, s.dir), "/")
	for depth := 1; depth <= s.depth && rest != ""; depth++ {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		path := join(parent.Path, bytesOf(name))
		t := s.known[path]
		if t == nil {
			t = &Subtree{Path: path, Depth: depth}
			s.known[path] = t
			parent.children = append(parent.children, t)
		}
		chain = append(chain, t)
		parent = t
	}
	return chain
}

// list appends a subtree and all subtrees below it to a list, the largest first.
func (s *Subtree) list(to []*Subtree) []*Subtree {
	to = append(to, s)
	slices.SortFunc(s.children, func(a, b *Subtree) int {
		return cmp.Or(cmp.Compare(b.Allocated, a.Allocated), cmp.Compare(a.Path, b.Path))
	})
	for _, c := range s.children {
		to = c.list(to)
	}
	return to
}
