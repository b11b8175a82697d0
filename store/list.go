package store

import (
	"os"
	"strings"

	"premix/store/object"
	"premix/store/tree"
)

// Listed is a tag as the store has it.
type Listed struct {
	Ref      tree.Ref
	Record   *tree.TagRecord // nil where it is damaged
	Manifest *tree.Manifest  // nil where it is damaged
	Profiles []string        // names of the tree's profiles
	Err      error           // the damage, nil if there is none to be seen
}

// List tells what the tags of the store stand for, in order of names.
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

// Profiles lists the names of a tree's profiles.
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

// StoredSize returns how many bytes the objects of a tree take up in the store.
// Objects that are missing count as none.
func (t *Tree) StoredSize() int64 {
	var sum int64
	for d := range t.Objects() {
		if st, err := os.Lstat(t.s.path(d.Path())); err == nil {
			sum += st.Size()
		}
	}
	return sum
}
