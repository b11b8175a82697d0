package store

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"

	"premix/internal/store/tree"
)

// Row records that tags are mounted one after the other, like the layers of an image.
// Their bootstraps list it, so that a node can request later tags while it mounts the
// first. A tag may be in several rows. The list of a tag outlives the tags in it, until
// another tag is added to the list: until then nodes request a removed tag in vain. Row
// must not run concurrently.
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
		if err := s.locked(ctx, ref, func() error { return s.dropBootstraps(ref) }); err != nil {
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
			return s.writeBootstraps(ref)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// following returns the content of a list of next tags, and its content with one more,
// without tags that no longer exist.
func (s *Store) following(path string, next tree.Ref) (was, now []byte, err error) {
	if was, err = s.file(path); err != nil {
		return nil, nil, err
	}
	list, _ := tree.ParseNext(was) // an invalid list is replaced
	list = slices.DeleteFunc(list, func(r tree.Ref) bool {
		_, err := os.Lstat(s.path(r.TagPath()))
		return errors.Is(err, fs.ErrNotExist)
	})
	return was, tree.MarshalNext(append(list, next)), nil
}

// file reads a file below the store's root. It returns nil if the file does not exist.
func (s *Store) file(path string) ([]byte, error) {
	content, err := os.ReadFile(s.path(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return content, err
}

// rowFiles calls add for the files from which a reader of ref's bootstrap learns the next
// tags.
func (s *Store) rowFiles(ref tree.Ref, add func(path string, content []byte)) error {
	var failed error
	tree.NextRefs(ref, func(path string) []byte {
		content, err := s.file(path)
		failed = errors.Join(failed, err)
		if content != nil {
			add(path, content)
		}
		return content
	})
	return accessError(s.dir, failed)
}
