package store

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"premix/internal/beneath"
	"premix/store/object"
	"premix/store/tree"
)

// Scratch makes an empty directory, mode 0700, on the store's filesystem, which
// [Store.Publish] can read. It goes with the writer: when that is closed, or, if
// the process is killed, with the next gc.
func (w *Writer) Scratch() (string, error) {
	dir, err := os.MkdirTemp(w.dir, "scratch-")
	return dir, accessError(w.s.dir, err)
}

// scratch tells whether a directory belongs to a writer of this store.
func (s *Store) scratch(dir string) bool {
	writers, err := filepath.EvalSymlinks(s.path(writersDir))
	return err == nil && dir != writers && below(dir, writers)
}

// Keep tells whether the store has all of a tree, which then stays at least until
// the writer is closed. A tree that is not whole counts as none.
func (w *Writer) Keep(d object.Digest) (bool, error) {
	t, err := w.s.Tree(d)
	var use *UseError
	var damage *DamageError
	if errors.As(err, &use) || errors.As(err, &damage) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	for o := range t.Objects() {
		if _, ok, err := w.Has(o); !ok || err != nil {
			return false, err
		}
	}
	return true, nil
}

// Untag takes a tag away. Its history stays, since serials must grow if the tag
// is ever given again. It tells whether the tag was there.
func (s *Store) Untag(ctx context.Context, ref tree.Ref) (bool, error) {
	if ref.Tag == "" {
		return false, &UseError{Reason: ref.String() + " names a tree by its digest", Way: "name a tag: " + ref.Name + ":" + tree.DefaultTag}
	}
	if err := s.prepare(); err != nil {
		return false, accessError(s.dir, err)
	}
	unlock, err := s.lock(ctx, tagLock(ref))
	if err != nil {
		return false, err
	}
	defer unlock()
	if err := s.dropOpenings(ref); err != nil {
		return false, accessError(s.dir, err)
	}
	path := s.path(ref.TagPath())
	if err := os.Remove(path); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, accessError(s.dir, err)
	}
	if !s.sync {
		return true, nil
	}
	return true, beneath.SyncDir(filepath.Dir(path))
}

// Lock takes a lock of a caller's own, by a name of letters, and returns what
// gives it back. It comes before all other locks of the store.
func (s *Store) Lock(ctx context.Context, name string) (func(), error) {
	if err := s.prepare(); err != nil {
		return nil, accessError(s.dir, err)
	}
	return s.lock(ctx, "own-"+name)
}

// Own returns a directory of a caller's own in the store, by a name of letters, for
// what nobody else needs to see. It is on the store's filesystem and never served.
func (s *Store) Own(name string) (string, error) {
	if err := s.prepare(); err != nil {
		return "", accessError(s.dir, err)
	}
	dir := s.path(ownDir + "/" + name)
	return dir, accessError(s.dir, os.MkdirAll(dir, 0o700))
}

// Synced tells whether the store waits for the disk; see [Options].
func (s *Store) Synced() bool { return s.sync }
