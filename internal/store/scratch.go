package store

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"premix/internal/kit/beneath"
	"premix/internal/store/object"
	"premix/internal/store/tree"
)

// Scratch makes an empty directory, mode 0700, on the store's filesystem, which
// [Store.Publish] can read. It is removed when the writer is closed or, if the process
// is killed, by the next gc.
func (w *Writer) Scratch() (string, error) {
	dir, err := os.MkdirTemp(w.dir, "scratch-")
	return dir, accessError(w.s.dir, err)
}

// scratch reports whether a directory belongs to a writer of this store.
func (s *Store) scratch(dir string) bool {
	writers, err := filepath.EvalSymlinks(s.path(writersDir))
	return err == nil && dir != writers && below(dir, writers)
}

// Keep reports whether the store has all of a tree, which then stays at least until the
// writer is closed. An incomplete tree does not count.
func (w *Writer) Keep(d object.Digest) (bool, error) {
	t, err := w.s.Tree(d)
	var use *UsageError
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

// Untag removes a tag, and reports whether it existed. Its history stays, since serials
// must continue if the tag is ever set again.
func (s *Store) Untag(ctx context.Context, ref tree.Ref) (bool, error) {
	if ref.Tag == "" {
		return false, &UsageError{Reason: ref.String() + " names a tree by its digest", HintText: "name a tag: " + ref.Name + ":" + tree.DefaultTag}
	}
	if err := s.prepare(); err != nil {
		return false, accessError(s.dir, err)
	}
	unlock, err := s.lock(ctx, tagLock(ref))
	if err != nil {
		return false, err
	}
	defer unlock()
	if err := s.dropBootstraps(ref); err != nil {
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

// Lock takes a caller's own lock, named by letters, and returns a function that
// releases it. It comes before all other locks of the store.
func (s *Store) Lock(ctx context.Context, name string) (func(), error) {
	if err := s.prepare(); err != nil {
		return nil, accessError(s.dir, err)
	}
	return s.lock(ctx, "own-"+name)
}

// Own returns a caller's private directory in the store, named by letters. It is on the
// store's filesystem and never served.
func (s *Store) Own(name string) (string, error) {
	if err := s.prepare(); err != nil {
		return "", accessError(s.dir, err)
	}
	dir := s.path(ownDir + "/" + name)
	return dir, accessError(s.dir, os.MkdirAll(dir, 0o700))
}

// Synced reports whether the store waits for the disk; see [Options].
func (s *Store) Synced() bool { return s.sync }
