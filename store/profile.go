package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"premix/store/object"
	"premix/store/tree"
)

// Profile reads and verifies a profile of a tree and its record.
func (s *Store) Profile(d object.Digest, name string) (*tree.ProfileRecord, *tree.Profile, error) {
	m, err := s.Manifest(d)
	if err != nil {
		return nil, nil, err
	}
	signed, err := os.ReadFile(s.path(tree.ProfilePath(d, name)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, &UseError{Reason: fmt.Sprintf("tree %s has no profile %s", d.Short(), name), Way: "premix store ls lists profiles", Err: err}
	}
	if err != nil {
		return nil, nil, accessError(s.dir, err)
	}
	r, err := tree.OpenProfile(signed, s.info.ID, d, name, s.info.Keys)
	if err != nil {
		return nil, nil, damage(tree.ProfilePath(d, name), err)
	}
	content, err := s.Content(r.Profile, -1)
	if err != nil {
		return nil, nil, damage(tree.ProfilePath(d, name), err)
	}
	p, err := tree.ParseProfile(content, d, m.Chunks())
	if err != nil {
		return nil, nil, damage(tree.ProfilePath(d, name), err)
	}
	return r, p, nil
}

// PublishProfile makes bundles of the chunks of a recorded profile and puts it
// beside its tree, under a name; one of this name is replaced. It returns the
// profile as it was published.
func (s *Store) PublishProfile(ctx context.Context, recorded *tree.Profile, name string, key tree.PrivateKey) (*tree.Profile, error) {
	if err := tree.ParseProfileName(name); err != nil {
		return nil, &UseError{Reason: err.Error(), Way: "give another --name", Err: err}
	}
	t, err := s.Tree(recorded.Tree)
	if err != nil {
		return nil, err
	}
	w, err := s.Begin()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	p := &tree.Profile{Tree: recorded.Tree}
	b := &bundler{w: w, t: t, p: p, bundled: map[object.Digest]bool{}}
	seen := map[int]bool{}
	for _, i := range recorded.Chunks {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		if seen[i] || i < 0 || i >= len(t.chunks) {
			continue
		}
		seen[i] = true
		p.Chunks = append(p.Chunks, i)
		if err := b.add(i); err != nil {
			return nil, err
		}
	}
	if err := b.flush(); err != nil {
		return nil, err
	}
	content, err := p.Marshal()
	if err != nil {
		return nil, err
	}
	d, _, err := w.Put(content)
	if err != nil {
		return nil, err
	}
	if err := w.Flush(); err != nil {
		return nil, err
	}
	signed, err := tree.SignProfile(key, &tree.ProfileRecord{
		Store: s.info.ID, Tree: p.Tree, Name: name, Profile: d, Time: time.Now().UTC().Truncate(time.Second),
	})
	if err != nil {
		return nil, err
	}
	return p, accessError(s.dir, s.replace(tree.ProfilePath(p.Tree, name), signed))
}

// bundler rows up stored forms of chunks.
type bundler struct {
	w       *Writer
	t       *Tree
	p       *tree.Profile
	bundled map[object.Digest]bool
	open    tree.Bundle
	row     []byte
}

func (b *bundler) add(i int) error {
	c := b.t.chunks[i]
	if c.Hole() || b.bundled[c.Digest] {
		return nil
	}
	b.bundled[c.Digest] = true
	stored, err := b.t.s.Object(c.Digest)
	if err == nil {
		_, err = object.Decode(nil, c.Digest, c.Size, stored)
	}
	if err != nil {
		return damage("tree "+b.t.digest.Short(), fmt.Errorf("chunk %d: %w", i, err))
	}
	if len(b.row)+len(stored) > tree.MaxBundle {
		if err := b.flush(); err != nil {
			return err
		}
	}
	b.row = append(b.row, stored...)
	b.open.Stored = append(b.open.Stored, len(stored))
	b.open.Chunks = append(b.open.Chunks, i)
	return nil
}

func (b *bundler) flush() error {
	if len(b.row) == 0 {
		return nil
	}
	d, _, err := b.w.Put(b.row)
	if err != nil {
		return err
	}
	b.open.Digest = d
	b.p.Bundles = append(b.p.Bundles, b.open)
	b.open, b.row = tree.Bundle{}, b.row[:0]
	return nil
}
