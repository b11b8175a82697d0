package store

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"premix/internal/kit/beneath"
	"premix/internal/store/object"
	"premix/internal/store/tree"
)

// bootstrapPages bounds the index pages in a bootstrap, in bytes. Further pages are
// fetched when they are needed.
const bootstrapPages = 256 << 10

// bootstrapBundle bounds the stored form of the bundle in a bootstrap, in bytes: one part
// of a profile may be large.
const bootstrapBundle = 512 << 10

// Bootstraps repeat other files of the store, and must not stay older than these. So they
// are removed before such a file changes, and made again afterwards, under the tag's
// lock. A crash in between leaves none, which costs readers a round trip or two. The
// next publish of the tag makes them, even if it changes nothing else.

// dropBootstraps removes the bootstraps of a tag.
func (s *Store) dropBootstraps(ref tree.Ref) error {
	dir := s.path(ref.BootstrapDir())
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if !s.sync {
		return nil
	}
	return beneath.SyncDir(filepath.Dir(dir)) // so that it does not reappear after a crash, older than the next change
}

// dropAllBootstraps precedes a change of store.json, which all bootstraps repeat.
func (s *Store) dropAllBootstraps() error {
	if err := os.RemoveAll(s.path(tree.BootstrapsDir)); err != nil {
		return err
	}
	if !s.sync {
		return nil
	}
	return beneath.SyncDir(s.dir)
}

// writeBootstraps makes the bootstraps of a tag whose record has just been written.
func (s *Store) writeBootstraps(ref tree.Ref) error {
	r, err := s.Resolve(ref)
	if err != nil {
		return err
	}
	names, err := s.Profiles(r.Tree)
	if err != nil {
		return err
	}
	if !slices.Contains(names, tree.DefaultProfile) {
		names = append(names, tree.DefaultProfile)
	}
	for _, name := range names {
		content, err := s.bootstrap(ref, r, name)
		if err != nil {
			return err
		}
		if content == nil {
			continue
		}
		if err := s.replace(ref.BootstrapPath(name), content); err != nil {
			return accessError(s.dir, err)
		}
	}
	return nil
}

// healBootstraps makes the bootstraps of a tag that lacks them.
func (s *Store) healBootstraps(ref tree.Ref) error {
	if _, err := os.Lstat(s.path(ref.BootstrapPath(tree.DefaultProfile))); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return s.writeBootstraps(ref)
}

// bootstrap returns the bootstrap of a tag for mounts with a profile, or nil if it would be
// too large.
func (s *Store) bootstrap(ref tree.Ref, r *tree.TagRecord, profile string) ([]byte, error) {
	var w tree.BootstrapWriter
	for _, name := range []string{tree.InfoPath, ref.TagPath()} {
		content, err := os.ReadFile(s.path(name))
		if err != nil {
			return nil, accessError(s.dir, err)
		}
		w.File(name, content)
	}
	if err := s.rowFiles(ref, w.File); err != nil {
		return nil, err
	}
	m, err := s.Manifest(r.Tree)
	if err != nil {
		return nil, err
	}
	add := func(put func(object.Digest, []byte), d object.Digest) error {
		stored, err := s.Object(d)
		if err == nil {
			put(d, stored)
		}
		return accessError(s.dir, err)
	}
	if err := add(w.Object, r.Tree); err != nil {
		return nil, err
	}
	wanted := []int{0} // chunks
	var first []tree.Bundle
	record, p, err := s.Profile(r.Tree, profile)
	switch {
	case err == nil:
		signed, err := os.ReadFile(s.path(tree.ProfilePath(r.Tree, profile)))
		if err != nil {
			return nil, accessError(s.dir, err)
		}
		w.File(tree.ProfilePath(r.Tree, profile), signed)
		if err := add(w.Object, record.Profile); err != nil {
			return nil, err
		}
		wanted = append(wanted, p.Chunks()...)
		first = p.Bundles[:min(1, len(p.Bundles))]
	case !errors.Is(err, fs.ErrNotExist):
		return nil, nil // it is damaged, or of another format: verify reports it
	}
	for _, page := range pagesOf(m, wanted) {
		if page.PageSize() > bootstrapPages-int64(w.Len()) && w.Len() > 0 {
			break
		}
		if err := add(w.Later, page.Digest); err != nil {
			return nil, err
		}
	}
	for _, b := range first {
		stored, err := s.Object(b.Digest)
		if err != nil {
			return nil, accessError(s.dir, err)
		}
		if len(stored) <= bootstrapBundle {
			w.Later(b.Digest, stored)
		}
	}
	if content := w.Bytes(); len(content) <= tree.MaxBootstrap {
		return content, nil
	}
	return nil, nil
}

// pagesOf returns the index pages that list the given chunks, in the order of the
// chunks.
func pagesOf(m *tree.Manifest, chunks []int) []tree.Page {
	var pages []tree.Page
	for _, chunk := range chunks {
		for _, p := range m.Pages {
			if chunk < p.Chunks {
				if !slices.Contains(pages, p) {
					pages = append(pages, p)
				}
				break
			}
			chunk -= p.Chunks
		}
	}
	return pages
}

// reopen calls change, which changes profiles of a tree, and makes the bootstraps of all
// tags of the tree again.
func (s *Store) reopen(ctx context.Context, d object.Digest, change func() error) error {
	refs, err := s.Tags()
	if err != nil {
		return err
	}
	var of []tree.Ref
	for _, ref := range refs {
		// A damaged tag has no bootstrap; the damage is reported elsewhere.
		if r, err := s.Resolve(ref); err == nil && r.Tree == d {
			of = append(of, ref)
		}
	}
	for _, ref := range of {
		if err := s.locked(ctx, ref, func() error { return s.dropBootstraps(ref) }); err != nil {
			return err
		}
	}
	if err := change(); err != nil {
		return err
	}
	for _, ref := range of {
		err := s.locked(ctx, ref, func() error {
			if _, err := s.Resolve(ref); errors.Is(err, fs.ErrNotExist) {
				return nil // the tag was removed in the meantime
			}
			return s.writeBootstraps(ref)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// locked calls do with a tag's lock.
func (s *Store) locked(ctx context.Context, ref tree.Ref, do func() error) error {
	unlock, err := s.lock(ctx, tagLock(ref))
	if err != nil {
		return err
	}
	defer unlock()
	return accessError(s.dir, do())
}

// checkBootstraps reports bootstraps that differ from the files that they repeat.
func (v *verifier) checkBootstraps(ref tree.Ref, r *tree.TagRecord) {
	list, err := os.ReadDir(v.s.path(ref.BootstrapDir()))
	if err != nil {
		return // a tag may lack bootstraps
	}
	for _, e := range list {
		path := ref.BootstrapPath(e.Name())
		have, err := os.ReadFile(v.s.path(path))
		var want []byte
		if err == nil {
			want, err = v.s.bootstrap(ref, r, e.Name())
		}
		if again, changed := v.s.Resolve(ref); changed != nil || *again != *r {
			return // a publish is in progress
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			v.found(path, nil, "%v", err)
		case !slices.Equal(have, want):
			v.found(path, nil, "it does not match the store; remove it, and the next publish of %s makes it again", ref)
		}
	}
}
