package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"premix/internal/store/erofs"
	"premix/internal/store/object"
	"premix/internal/store/tree"
)

// VerifyOptions configure a verification.
type VerifyOptions struct {
	// Drop removes damaged objects: publishing the tree again then restores them.
	Drop     bool
	Progress *VerifyProgress // updated while it runs; may be nil
}

// VerifyProgress has the counts of a running verification.
type VerifyProgress struct {
	Objects atomic.Int64
	Bytes   atomic.Int64 // of stored forms
	Trees   atomic.Int64
}

// Finding is a defect of a store.
type Finding struct {
	What   string   // a file of the store, or "tree D of NAME:TAG"
	Reason string   // the defect
	Files  []string // files of the tree that cannot be read completely
}

// Verified is the result of verifying a store.
type Verified struct {
	Objects  int64
	Bytes    int64 // of stored forms
	Trees    int
	Records  int // of tags and profiles
	Dropped  int
	Findings []Finding
}

// Verify reads the whole store: it compares every object with its digest, follows every
// tree to its chunks, and checks every signature and every tag's chain of records. The
// result lists damage; an error means that the store could not be read. Writers and a
// gc may run at the same time: trees that they make or remove may then be reported as
// incomplete.
func (s *Store) Verify(ctx context.Context, o VerifyOptions) (*Verified, error) {
	if o.Progress == nil {
		o.Progress = &VerifyProgress{}
	}
	v := &verifier{s: s, o: o, sizes: map[object.Digest]int64{}, trees: map[object.Digest]bool{}}
	for _, step := range []func(context.Context) error{v.objects, v.tags, v.profiles} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	v.v.Objects, v.v.Bytes = o.Progress.Objects.Load(), o.Progress.Bytes.Load()
	slices.SortFunc(v.v.Findings, func(a, b Finding) int { return strings.Compare(a.What, b.What) })
	return &v.v, nil
}

type verifier struct {
	s *Store
	o VerifyOptions

	mu    sync.Mutex // held while objects are read
	v     Verified
	sizes map[object.Digest]int64 // of the contents of sound objects
	trees map[object.Digest]bool  // already followed
}

func (v *verifier) found(what string, files []string, format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.v.Findings = append(v.v.Findings, Finding{what, fmt.Sprintf(format, args...), files})
}

// objects reads every object.
func (v *verifier) objects(ctx context.Context) error {
	g, within := errgroup.WithContext(ctx)
	g.SetLimit(2 * runtime.GOMAXPROCS(0))
	err := v.names(func(d object.Digest) error {
		g.Go(func() error { return v.object(within, d) })
		return context.Cause(within)
	})
	return cmp.Or(g.Wait(), err)
}

// names calls f for the name of every object.
func (v *verifier) names(f func(object.Digest) error) error {
	root := v.s.path("objects")
	shards, err := os.ReadDir(root)
	if err != nil {
		return accessError(v.s.dir, err)
	}
	for _, shard := range shards {
		list, err := os.ReadDir(filepath.Join(root, shard.Name()))
		if errors.Is(err, unix.ENOTDIR) {
			v.found("objects/"+shard.Name(), nil, "it is not a directory of objects")
			continue
		}
		if err != nil {
			return accessError(v.s.dir, err)
		}
		for _, e := range list {
			name := "objects/" + shard.Name() + "/" + e.Name()
			d, err := object.ParseDigest(e.Name())
			if err != nil || d.Path() != name {
				v.found(name, nil, "it is not the name of an object")
				continue
			}
			if err := f(d); err != nil {
				return err
			}
		}
	}
	return nil
}

func (v *verifier) object(ctx context.Context, d object.Digest) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	stored, err := v.s.Object(d)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // a gc has removed it
	}
	var content []byte
	if err == nil {
		content, err = object.Decode(nil, d, -1, stored)
	}
	v.o.Progress.Objects.Add(1)
	v.o.Progress.Bytes.Add(int64(len(stored)))
	if err == nil {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.sizes[d] = int64(len(content))
		return nil
	}
	v.found(d.Path(), nil, "%v", err)
	if !v.o.Drop {
		return nil
	}
	if err := os.Remove(v.s.path(d.Path())); err != nil {
		return accessError(v.s.dir, err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.v.Dropped++
	return nil
}

// tags checks records and histories, and the trees that they name.
func (v *verifier) tags(ctx context.Context) error {
	current, err := v.s.Tags()
	if err != nil && !isDamage(err) {
		return err
	}
	if err != nil {
		v.found("tags", nil, "%v", err)
	}
	histories, err := v.s.histories()
	if err != nil && !isDamage(err) {
		return err
	}
	for _, ref := range histories {
		h, err := v.s.History(ref)
		if err != nil {
			v.found(ref.HistoryPath(), nil, "%v", err)
			continue
		}
		for i, e := range h {
			v.v.Records++
			if i > 0 && e.Record.Previous != object.Sum(h[i-1].Line) {
				v.found(ref.HistoryPath(), nil, "the record of serial %d does not continue the record before it", e.Record.Serial)
			}
			// A gc removes the manifest of a tree before its other objects.
			if _, err := os.Lstat(v.s.path(e.Record.Tree.Path())); err == nil {
				if err := v.tree(ctx, ref, e.Record.Tree); err != nil {
					return err
				}
			}
		}
	}
	for _, ref := range current {
		v.v.Records++
		r, err := v.s.Resolve(ref)
		if err != nil {
			v.found(ref.TagPath(), nil, "%v", err)
			continue
		}
		if h, err := v.s.History(ref); err == nil && (len(h) == 0 || h[len(h)-1].Record.Serial < r.Serial) {
			v.found(ref.HistoryPath(), nil, "it does not have the current record, of serial %d", r.Serial)
		}
		v.checkBootstraps(ref, r)
		if err := v.tree(ctx, ref, r.Tree); err != nil {
			return err
		}
	}
	return nil
}

func isDamage(err error) bool {
	var d *DamageError
	return errors.As(err, &d)
}

// tree follows a tree to its chunks.
func (v *verifier) tree(ctx context.Context, ref tree.Ref, d object.Digest) error {
	if v.trees[d] {
		return nil
	}
	v.trees[d] = true
	if err := context.Cause(ctx); err != nil {
		return err
	}
	v.v.Trees++
	v.o.Progress.Trees.Add(1)
	what := fmt.Sprintf("tree %s of %s", d.Short(), ref)
	t, err := v.s.Tree(d)
	if err != nil {
		v.found(what, nil, "%v", err)
		return nil
	}
	bad := map[int]bool{}
	var reasons []string
	for i, c := range t.chunks {
		if c.Hole() {
			continue
		}
		size, ok := v.sizes[c.Digest]
		switch {
		case !ok:
			bad[i] = true
			reasons = append(reasons, "chunk "+c.Digest.Short()+" is "+v.state(c.Digest))
		case size != c.Size:
			bad[i] = true
			reasons = append(reasons, fmt.Sprintf("chunk %s has %d bytes instead of %d", c.Digest.Short(), size, c.Size))
		}
	}
	if len(bad) == 0 {
		if err := t.Check(); err != nil {
			v.found(what, nil, "%v", err)
		}
		return nil
	}
	files, err := t.filesOf(bad)
	if err != nil {
		reasons = append(reasons, fmt.Sprintf("the affected files are not known: %v", err))
	}
	v.found(what, files, "%s", strings.Join(reasons, "; "))
	return nil
}

// state says in a word why an object is not sound.
func (v *verifier) state(d object.Digest) string {
	if _, err := os.Lstat(v.s.path(d.Path())); err != nil && !v.o.Drop {
		return "missing"
	}
	return "damaged"
}

// filesOf returns the paths of the files that use the given chunks, as far as the
// metadata can be read.
func (t *Tree) filesOf(bad map[int]bool) ([]string, error) {
	im, err := t.Image()
	if err != nil {
		return nil, err
	}
	files := map[string]bool{}
	for i := range bad {
		if t.offsets[i] < t.m.Meta {
			err = fmt.Errorf("bytes %d to %d of the metadata are damaged", t.offsets[i], t.offsets[i+1])
		}
	}
	walkErr := im.Walk(func(path string, i *erofs.Inode) error {
		if i.Mode&unix.S_IFMT != unix.S_IFREG {
			return nil
		}
		for off := int64(0); off < i.Size; {
			at, n, hole, err := im.Map(i.Ino, off)
			if err != nil {
				return err
			}
			if n <= 0 {
				return nil
			}
			if !hole && t.touches(at, n, bad) {
				files[path] = true
				return nil
			}
			off += n
		}
		return nil
	})
	return slices.Sorted(maps.Keys(files)), errors.Join(err, walkErr)
}

// touches reports whether n bytes of the image from at on overlap with one of the given
// chunks.
func (t *Tree) touches(at, n int64, bad map[int]bool) bool {
	for i := t.chunkAt(at); i < len(t.chunks) && t.offsets[i] < at+n; i++ {
		if bad[i] {
			return true
		}
	}
	return false
}

// profiles checks records of profiles, and the content of their bundles.
func (v *verifier) profiles(ctx context.Context) error {
	list, err := os.ReadDir(v.s.path("profiles"))
	if err != nil {
		return accessError(v.s.dir, err)
	}
	for _, e := range list {
		d, err := object.ParseDigest(e.Name())
		if err != nil {
			v.found("profiles/"+e.Name(), nil, "it is not named after a tree")
			continue
		}
		names, err := v.s.Profiles(d)
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			v.v.Records++
			if err := v.profile(d, name); err != nil {
				v.found(tree.ProfilePath(d, name), nil, "%v", err)
			}
		}
	}
	return nil
}

func (v *verifier) profile(d object.Digest, name string) error {
	_, p, err := v.s.Profile(d, name)
	if err != nil {
		return err
	}
	t, err := v.s.Tree(d)
	if err != nil {
		return err
	}
	if err := p.Check(len(t.chunks), func(i int) (int64, bool, error) { return t.chunks[i].Size, t.chunks[i].Hole(), nil }); err != nil {
		return err
	}
	var first error
	p.InBundles(func(i int, b tree.Bundle, parts []tree.Part) bool {
		first = t.checkBundle(b, parts)
		if first != nil {
			first = fmt.Errorf("bundle %d: %w", i, first)
		}
		return first == nil
	})
	return first
}

func (t *Tree) checkBundle(b tree.Bundle, parts []tree.Part) error {
	row, err := t.s.Content(b.Digest, b.Size)
	if err != nil {
		return err
	}
	for _, part := range parts {
		c := t.chunks[part.Chunk]
		n := part.Size(c.Size)
		if err := object.OpenSlice(c.Digest, c.Size, part.Slice(c.Size), row[:n], func(int64, []byte) {}); err != nil {
			return fmt.Errorf("chunk %d: %w", part.Chunk, err)
		}
		row = row[n:]
	}
	return nil
}
