package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"premix/internal/store/object"
	"premix/internal/store/tree"
)

// Profile reads and verifies a profile of a tree and its record.
func (s *Store) Profile(d object.Digest, name string) (*tree.ProfileRecord, *tree.Profile, error) {
	m, err := s.Manifest(d)
	if err != nil {
		return nil, nil, err
	}
	signed, err := os.ReadFile(s.path(tree.ProfilePath(d, name)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, &UsageError{Reason: fmt.Sprintf("tree %s has no profile %s", d.Short(), name), HintText: "premix store ls lists profiles", Err: err}
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

// PublishProfile makes bundles from a recorded profile and stores both with its tree,
// under a name, replacing an earlier profile of this name. It returns the published
// profile.
func (s *Store) PublishProfile(ctx context.Context, recorded *tree.Profile, name string, key tree.PrivateKey) (*tree.Profile, error) {
	if err := tree.ParseProfileName(name); err != nil {
		return nil, &UsageError{Reason: err.Error(), HintText: "give another --name", Err: err}
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
	seen := map[int]bool{}
	var touched []tree.Part // as recorded
	for _, part := range recorded.Parts {
		i := part.Chunk
		if seen[i] || i < 0 || i >= len(t.chunks) || t.chunks[i].Hole() {
			continue
		}
		seen[i] = true
		p.Parts = append(p.Parts, worthwhile(part, t.chunks[i].Size))
		touched = append(touched, part)
	}
	files, err := t.files(t.among(touched))
	if err != nil {
		return nil, damage("tree "+p.Tree.Short(), err)
	}
	b := &bundler{w: w, t: t, p: p, files: files}
	var all spans
	for i, part := range p.Parts {
		size, weight, err := b.expect(part)
		if err != nil {
			return nil, err
		}
		b.total += size
		b.weight += weight
		for _, r := range t.blocks(touched[i]) {
			all.add(files, t.m.Meta, r.from, r.to)
		}
	}
	b.few = bundlesFor(len(all.order))
	for i, part := range p.Parts {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		if err := b.add(part, touched[i]); err != nil {
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
	return p, s.reopen(ctx, p.Tree, func() error {
		return accessError(s.dir, s.replace(tree.ProfilePath(p.Tree, name), signed))
	})
}

// worthwhile returns the part of a chunk that goes into a bundle. A short gap between
// touched leaves is included, since it is hardly larger than the proof that would
// replace it. If most of a chunk was touched, the whole chunk is included, since a node
// keeps only whole chunks permanently.
func worthwhile(p tree.Part, size int64) tree.Part {
	var runs []object.Run
	touched, all := 0, object.Leaves(size)
	for _, r := range tree.JoinRuns(p.Runs, 1) {
		r.From, r.To = max(r.From, 0), min(r.To, all)
		if r.From < r.To {
			runs = append(runs, r)
			touched += r.To - r.From
		}
	}
	if 8*touched >= 7*all {
		runs = nil
	}
	return tree.Part{Chunk: p.Chunk, Runs: runs}
}

// firstBundle is the size of the content of a profile's first bundle, if more than one
// part fits into it. The first bundle comes with the bootstrap of a tag: it has the data
// that the mount itself reads, and the data that a program reads first.
const firstBundle = 256 << 10

// A start of usual size, up to fewBytes of parts, has fewBundles further bundles. If it
// touches many files, it has one for each perBundle files, up to manyBundles, counting
// the one in the bootstrap. Each bundle has its own connection, and all are requested at
// once. More bundles would arrive sooner, since connections are slow at first, but cost
// more requests. A program continues with the data that has arrived; so the first
// bundles are smaller, and arrive soon.
// requests. A start runs on what it has, so that the first is shorter, and soon there.
const (
	fewBundles  = 4
	manyBundles = 7
	perBundle   = 20
	fewBytes    = 20 << 20
)

// bundlesFor returns the number of bundles, after the first, for a start that touches
// this many files.
func bundlesFor(files int) int {
	return min(max(fewBundles, files/perBundle-1), manyBundles)
}

// portion returns the size of bundle k in relation to bundle 1: later bundles are larger.
func portion(k int) int64 { return int64(min(k, 3)) }

// bundler packs parts of chunks into bundles.
type bundler struct {
	w     *Writer
	t     *Tree
	p     *tree.Profile
	files files
	few   int   // number of bundles for a start of usual size, without the first
	total int64 // bytes of all parts
	// The stored form is what is transferred. Its size is not known before a bundle is
	// complete: it is estimated from the stored forms of the chunks.
	weight     int64 // of all parts
	done       int64 // weight of the parts in completed bundles
	openWeight int64 // weight of the parts in the open bundle
	open       tree.Bundle
	row        []byte
	spans      spans // of the open bundle
}

// full reports whether the open bundle is complete, so that a part of size bytes goes
// into the next one.
func (b *bundler) full(size int64) bool {
	have := int64(len(b.row)) + size
	n := len(b.p.Bundles)
	switch {
	case have > tree.MaxBundle:
		return true
	case n == 0:
		return have > firstBundle
	case b.total <= tree.MaxBundle: // several would save little time
		return false
	case b.total > fewBytes:
		return have > 1<<20<<min(n, 10)
	case n >= b.few:
		return false
	}
	all := int64(0)
	for k := n; k <= b.few; k++ {
		all += portion(k)
	}
	return b.openWeight*all >= (b.weight-b.done)*portion(n)
}

// expect returns the size of a part, and an estimate of the size of its stored form.
func (b *bundler) expect(part tree.Part) (size, weight int64, err error) {
	c := b.t.chunks[part.Chunk]
	size = part.Size(c.Size)
	stored, err := os.Stat(b.t.s.path(c.Digest.Path()))
	if err != nil {
		return 0, 0, accessError(b.t.s.dir, err)
	}
	return size, max(1, size*stored.Size()/c.Size), nil
}

// add adds a part to the open bundle. touched is the recorded part.
func (b *bundler) add(part, touched tree.Part) error {
	c := b.t.chunks[part.Chunk]
	content, err := b.t.s.Content(c.Digest, c.Size)
	if err != nil {
		return damage("tree "+b.t.digest.Short(), fmt.Errorf("chunk %d: %w", part.Chunk, err))
	}
	size, weight, err := b.expect(part)
	if err != nil {
		return err
	}
	if len(b.row) > 0 && b.full(size) {
		if err := b.flush(); err != nil {
			return err
		}
	}
	b.row = object.AppendSlice(b.row, content, part.Slice(c.Size))
	b.open.Parts++
	b.openWeight += weight
	for _, r := range b.t.blocks(touched) {
		b.spans.add(b.files, b.t.m.Meta, r.from, r.to)
	}
	return nil
}

func (b *bundler) flush() error {
	if len(b.row) == 0 {
		return nil
	}
	d, err := b.w.putDense(b.row)
	if err != nil {
		return err
	}
	b.open.Digest, b.open.Size, b.open.Spans = d, int64(len(b.row)), b.spans.list()
	b.p.Bundles = append(b.p.Bundles, b.open)
	b.done += b.openWeight
	b.open, b.row, b.spans, b.openWeight = tree.Bundle{}, b.row[:0], spans{}, 0
	return nil
}
