package store_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"premix/internal/store/object"
	"premix/internal/store/tree"
)

// The spans of a profile's bundles list exactly the blocks of files that were touched: no
// block more, because the bundles do not contain it, and no touched data less.
func TestSpansAreWhatWasTouched(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	for i := range 300 { // small files share chunks, whose borders are at any place
		write(t, dir, fmt.Sprintf("aa/%03d", i), noise(uint64(i), 5000+37*i))
	}
	write(t, dir, "large", noise(7, 3<<20+100))
	write(t, dir, "aa/copy", noise(7, 3<<20+100))
	if err := os.Link(filepath.Join(dir, "large"), filepath.Join(dir, "same")); err != nil {
		t.Fatal(err)
	}
	tr, err := s.Tree(publish(t, s, dir, "x", "").Tree)
	if err != nil {
		t.Fatal(err)
	}
	key, err := s.Key("")
	if err != nil {
		t.Fatal(err)
	}
	im, err := tr.Image()
	if err != nil {
		t.Fatal(err)
	}
	large, err := im.Lookup(im.Root(), "large")
	if err != nil {
		t.Fatal(err)
	}
	// The first 100 blocks of the large file and block 500, in the form in which the cache
	// records them: blocks of the image as leaves of chunks.
	touched := map[int]bool{}
	recorded := &tree.Profile{Tree: tr.Digest()}
	place := map[int]int{}
	touch := func(from, to int64) {
		at := int64(0)
		for i, c := range tr.Chunks() {
			a, b := max(from, at), min(to, at+c.Size)
			if a < b {
				k, ok := place[i]
				if !ok {
					k = len(recorded.Parts)
					place[i] = k
					recorded.Parts = append(recorded.Parts, tree.Part{Chunk: i})
				}
				recorded.Parts[k].Runs = tree.JoinRuns(append(recorded.Parts[k].Runs, object.Run{From: int((a - at) / object.LeafSize), To: object.Leaves(b - at)}), 0)
			}
			at += c.Size
		}
	}
	first, _, _, err := im.Map(large, 0)
	if err != nil {
		t.Fatal(err)
	}
	for k := range 100 {
		touched[k] = true
	}
	touched[500] = true
	touch(0, 4096)
	touch(first, first+100<<12)
	touch(first+500<<12, first+501<<12)
	p, err := s.PublishProfile(context.Background(), recorded, "start", key)
	if err != nil {
		t.Fatal(err)
	}
	meta, missing := 0, maps.Clone(touched)
	for _, b := range p.Bundles {
		for _, span := range b.Spans {
			for _, r := range span.Runs {
				for block := r.From; block < r.To; block++ {
					switch {
					case span.Inode == 0 && block == 0:
						meta++
					case span.Inode == large && touched[block]:
						delete(missing, block) // two bundles may have a block that lies in two chunks
					default:
						t.Errorf("block %d of inode %d was not touched", block, span.Inode)
					}
				}
			}
		}
	}
	if meta != 1 || len(missing) > 0 {
		t.Errorf("the superblock %d times, not these of the file: %v", meta, missing)
	}
}

// A start has eight bundles, or fewer if little data or few chunks are touched, or more if some
// would be too long. The bootstrap contains the first bundle, and the others are about equally
// long.
func TestFewBundles(t *testing.T) {
	for _, c := range []struct{ files, length, bundles int }{
		{100, 160 << 10, 8}, {400, 40 << 10, 8}, {40, 40 << 10, 3}, {8, 20 << 10, 1}, {200, 400 << 10, 15},
	} {
		s, dir := newStore(t), t.TempDir()
		for i := range c.files {
			content := noise(uint64(i), c.length)
			if i%3 == 0 { // half of the file compresses to almost nothing
				clear(content[:c.length/2])
			}
			write(t, dir, fmt.Sprint(i), content)
		}
		published := publish(t, s, dir, "x", "")
		key, err := s.Key("")
		if err != nil {
			t.Fatal(err)
		}
		tr, err := s.Tree(published.Tree)
		if err != nil {
			t.Fatal(err)
		}
		recorded := &tree.Profile{Tree: tr.Digest()}
		for i := range tr.Chunks() {
			recorded.Parts = append(recorded.Parts, tree.Part{Chunk: i})
		}
		p, err := s.PublishProfile(context.Background(), recorded, tree.DefaultProfile, key)
		if err != nil {
			t.Fatal(err)
		}
		if len(p.Bundles) != c.bundles {
			t.Errorf("%d files: %d bundles, not %d", c.files, len(p.Bundles), c.bundles)
			continue
		}
		o := bootstrap(t, s, tree.Ref{Name: "x", Tag: tree.DefaultTag}, tree.DefaultProfile)
		if o == nil || o.Objects[p.Bundles[0].Digest] == nil {
			t.Errorf("%d files: the bootstrap lacks the first bundle", c.files)
		}
		var lengths []int64
		for _, b := range p.Bundles[1:] {
			stored, err := s.Object(b.Digest)
			if err != nil {
				t.Fatal(err)
			}
			lengths = append(lengths, int64(len(stored)))
		}
		if len(lengths) == 7 && slices.Max(lengths) > 2*slices.Min(lengths) {
			t.Errorf("%d files: bundles of %d bytes", c.files, lengths)
		}
	}
}
