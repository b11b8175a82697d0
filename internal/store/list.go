package store

import (
	"os"
	"strings"

	"premix/internal/store/object"
	"premix/internal/store/tree"
)

// Listed is a tag of a store.
type Listed struct {
	Ref      tree.Ref
	Record   *tree.TagRecord // nil if it is damaged
	Manifest *tree.Manifest  // nil if it is damaged
	Profiles []string        // names of the tree's profiles
	Err      error           // the damage found, or nil
}

// List returns the tags of the store, in order of names.
func (s *Store) List() ([]Listed, error) {
	refs, err := s.Tags()
	if err != nil {
		return nil, err
	}
	list := make([]Listed, 0, len(refs))
	for _, ref := range refs {
		l := Listed{Ref: ref}
		if l.Record, l.Err = s.Resolve(ref); l.Err == nil {
			l.Manifest, l.Err = s.Manifest(l.Record.Tree)
		}
		if l.Record != nil {
			if l.Profiles, err = s.Profiles(l.Record.Tree); err != nil {
				return nil, err
			}
		}
		list = append(list, l)
	}
	return list, nil
}

// Profiles returns the names of a tree's profiles.
func (s *Store) Profiles(d object.Digest) ([]string, error) {
	entries, err := os.ReadDir(s.path("profiles/" + d.String()))
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, accessError(s.dir, err)
	}
	var names []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), ".json"); ok && tree.ParseProfileName(name) == nil {
			names = append(names, name)
		}
	}
	return names, nil
}

// StoredSize returns the size in bytes of the stored forms of a tree's objects. Missing
// objects count as 0.
func (t *Tree) StoredSize() int64 {
	var sum int64
	for d := range t.Objects() {
		if st, err := os.Lstat(t.s.path(d.Path())); err == nil {
			sum += st.Size()
		}
	}
	return sum
}
