package store_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"premix/store/object"
	"premix/store/tree"
)

// What bundles say of files is what was touched of the image: no block more, since
// nobody fetches that, and none of the data less.
func TestSpansAreWhatWasTouched(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	for i := range 300 { // gathered in chunks whose borders are anywhere
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
	// The first 100 blocks of the large file and block 500, as the cache records them:
	// blocks of the image, told in leaves of chunks.
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
				recorded.Parts[k].Runs = tree.Join(append(recorded.Parts[k].Runs, object.Run{From: int((a - at) / object.LeafSize), To: object.Leaves(b - at)}), 0)
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
	meta := 0
	for _, b := range p.Bundles {
		for _, span := range b.Spans {
			for _, r := range span.Runs {
				for block := r.From; block < r.To; block++ {
					switch {
					case span.Inode == 0 && block == 0:
						meta++
					case span.Inode == large && touched[block]:
						delete(touched, block)
					default:
						t.Errorf("block %d of inode %d was not touched", block, span.Inode)
					}
				}
			}
		}
	}
	if meta != 1 || len(touched) > 0 {
		t.Errorf("the superblock %d times, not these of the file: %v", meta, touched)
	}
}

// A start of usual size takes five requests: the opening has the first bundle.
func TestFewBundles(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	for i := range 150 {
		write(t, dir, fmt.Sprint(i), noise(uint64(i), 120<<10))
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
	p, err := s.PublishProfile(context.Background(), recorded, tree.UsualProfile, key)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Bundles) != 5 {
		t.Errorf("%d bundles", len(p.Bundles))
	}
	o := opening(t, s, tree.Ref{Name: "x", Tag: tree.DefaultTag}, tree.UsualProfile)
	if o == nil || o.Objects[p.Bundles[0].Digest] == nil {
		t.Error("the opening lacks the first bundle")
	}
	for i, b := range p.Bundles[1:] {
		if b.Size < p.Bundles[i].Size {
			t.Errorf("bundle %d has %d bytes, the one before it %d", i+1, b.Size, p.Bundles[i].Size)
		}
	}
}
