package store

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"

	"premix/store/tree"
)

// Row notes that tags are mounted one after the other, as the layers of an image are:
// their openings say so, and a node has the later ones on their way while it mounts the
// first. A tag may be in several rows. What is noted of a tag stays when that is taken
// away, and is forgotten when another tag comes to lie beside it: until then nodes ask
// for one tag in vain. Who calls sees to it that nobody else does at the same time.
func (s *Store) Row(ctx context.Context, refs []tree.Ref) error {
	if err := s.prepare(); err != nil {
		return accessError(s.dir, err)
	}
	changes := map[string][]byte{} // contents by path
	for i := 1; i < len(refs); i++ {
		path := refs[i-1].NextPath()
		was, now, err := s.following(path, refs[i])
		if err != nil {
			return accessError(s.dir, err)
		}
		if string(was) != string(now) {
			changes[path] = now
		}
	}
	if len(changes) == 0 {
		return nil
	}
	for _, ref := range refs {
		if err := s.locked(ctx, ref, func() error { return s.dropOpenings(ref) }); err != nil {
			return err
		}
	}
	for path, content := range changes {
		if err := s.replace(path, content); err != nil {
			return accessError(s.dir, err)
		}
	}
	for _, ref := range refs {
		err := s.locked(ctx, ref, func() error {
			if _, err := s.Resolve(ref); errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return s.writeOpenings(ref)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// following returns the content of a list of next tags, and what it becomes with one
// more, without those that have gone.
func (s *Store) following(path string, next tree.Ref) (was, now []byte, err error) {
	if was, err = s.file(path); err != nil {
		return nil, nil, err
	}
	list, _ := tree.ParseNext(was) // one that cannot be read is made anew
	list = slices.DeleteFunc(list, func(r tree.Ref) bool {
		_, err := os.Lstat(s.path(r.TagPath()))
		return errors.Is(err, fs.ErrNotExist)
	})
	return was, tree.MarshalNext(append(list, next)), nil
}

// file reads a file below the store's root, nil where there is none.
func (s *Store) file(path string) ([]byte, error) {
	content, err := os.ReadFile(s.path(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return content, err
}

// rowFiles gives the files by which a reader of ref's opening finds what comes next.
func (s *Store) rowFiles(ref tree.Ref, add func(path string, content []byte)) error {
	var failed error
	tree.Row(ref, func(path string) []byte {
		content, err := s.file(path)
		failed = errors.Join(failed, err)
		if content != nil {
			add(path, content)
		}
		return content
	})
	return accessError(s.dir, failed)
}
