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
	var parts []recordedPart
	var touched []tree.Part
	for _, part := range recorded.Parts {
		i := part.Chunk
		if seen[i] || i < 0 || i >= len(t.chunks) || t.chunks[i].Hole() {
			continue
		}
		seen[i] = true
		one := recordedPart{Part: worthwhile(part, t.chunks[i].Size), touched: part}
		if one.size, one.weight, err = t.expect(one.Part); err != nil {
			return nil, err
		}
		parts, touched = append(parts, one), append(touched, part)
	}
	files, err := t.files(t.among(touched))
	if err != nil {
		return nil, damage("tree "+p.Tree.Short(), err)
	}
	for _, row := range deal(parts) {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		b, err := w.bundle(t, files, row)
		if err != nil {
			return nil, err
		}
		p.Bundles = append(p.Bundles, b)
		for _, part := range row {
			p.Parts = append(p.Parts, part.Part)
		}
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

// recordedPart is a part of a chunk on its way into a bundle.
type recordedPart struct {
	tree.Part
	touched tree.Part // as it was recorded
	size    int64     // of its slice, bytes
	weight  int64     // an estimate of the size of its stored form, which is what is transferred
}

const (
	// firstBundle is the size of the content of a profile's first bundle, if more than one
	// part fits into it. The first bundle comes with the bootstrap of a tag: it has the
	// data that the mount itself reads, and the data that a program reads first.
	firstBundle = 256 << 10
	// bundlesAtOnce is the largest number of further bundles that are fetched at the same
	// time, each over its own connection: with the connection of the bootstrap, eight.
	bundlesAtOnce = 7
	// leastBundle is the least mean weight of these, in bytes. A connection carries about
	// as much in its first two round trips.
	leastBundle = 40 << 10
)

// deal distributes parts among bundles, and returns the parts of each bundle.
//
// A connection is slow at first, and carries twice as much in each round trip as in the one
// before. So the parts, in order of first touch, are dealt out to bundles that are fetched
// at the same time, each part to the bundle with the least weight so far: a program, which
// continues with the data that has arrived, then waits for as few round trips as the
// connections together permit. A bundle that is full is followed by another one.
func deal(parts []recordedPart) [][]recordedPart {
	if len(parts) == 0 {
		return nil
	}
	first, content := 1, parts[0].size
	for first < len(parts) && content+parts[first].size <= firstBundle {
		content += parts[first].size
		first++
	}
	bundles := [][]recordedPart{parts[:first]}
	parts = parts[first:]
	var all int64
	for _, part := range parts {
		all += part.weight
	}
	type open struct {
		row          []recordedPart
		size, weight int64 // weight: also of the bundles before it
	}
	rows := make([]open, min(max(1, all/leastBundle), bundlesAtOnce))
	for _, part := range parts {
		least := &rows[0]
		for i := range rows {
			if rows[i].weight < least.weight {
				least = &rows[i]
			}
		}
		if least.size+part.size > tree.MaxBundle {
			bundles = append(bundles, least.row)
			least.row, least.size = nil, 0
		}
		least.row = append(least.row, part)
		least.size += part.size
		least.weight += part.weight
	}
	for _, one := range rows {
		if len(one.row) > 0 {
			bundles = append(bundles, one.row)
		}
	}
	return bundles
}

// expect returns the size of a part's slice, and an estimate of the size of its stored form.
func (t *Tree) expect(part tree.Part) (size, weight int64, err error) {
	c := t.chunks[part.Chunk]
	size = part.Size(c.Size)
	stored, err := os.Stat(t.s.path(c.Digest.Path()))
	if err != nil {
		return 0, 0, accessError(t.s.dir, err)
	}
	return size, max(1, size*stored.Size()/c.Size), nil
}

// bundle writes a bundle of parts.
func (w *Writer) bundle(t *Tree, files files, parts []recordedPart) (tree.Bundle, error) {
	var content []byte
	var spans spans
	for _, part := range parts {
		c := t.chunks[part.Chunk]
		chunk, err := t.s.Content(c.Digest, c.Size)
		if err != nil {
			return tree.Bundle{}, damage("tree "+t.digest.Short(), fmt.Errorf("chunk %d: %w", part.Chunk, err))
		}
		content = object.AppendSlice(content, chunk, part.Slice(c.Size))
		for _, r := range t.blocks(part.touched) {
			spans.add(files, t.m.Meta, r.from, r.to)
		}
	}
	d, err := w.putDense(content)
	return tree.Bundle{Digest: d, Size: int64(len(content)), Parts: len(parts), Spans: spans.list()}, err
}
