package cache

import (
	"bytes"
	"maps"
	"testing"

	"premix/internal/store/object"
	"premix/internal/store/tree"
)

// FuzzBundle prefetches a bundle with arbitrary content. The bundle has the digest and,
// where fit is set, the size that the profile names. Every byte that is then read from the
// tree is still right.
func FuzzBundle(f *testing.F) {
	w := newWorld()
	s := w.publish(f, shape{seed: 85, chunks: 24, mean: 5 * object.LeafSize, page: 8, holes: true})
	var row []tree.Part
	var seams []int // offsets in the bundle at which parts end
	for i, c := range s.chunks {
		switch {
		case c.Hole() || len(row) == 6:
		case c.Size > 4*object.LeafSize:
			row = append(row, tree.Part{Chunk: i, Runs: []object.Run{{From: 0, To: 1}, {From: 2, To: 4}}})
		default:
			row = append(row, tree.Part{Chunk: i})
		}
	}
	if len(row) < 6 {
		f.Fatalf("the sample has %d parts", len(row))
	}
	right := w.profile(s, nil, row)
	content := w.contents[right.Bundles[0].Digest]
	for n, at := 0, 0; n < len(row); n++ {
		at += int(row[n].Size(s.chunks[row[n].Chunk].Size))
		seams = append(seams, at)
	}
	if seams[len(seams)-1] != len(content) {
		f.Fatalf("parts of %d bytes in a bundle of %d", seams[len(seams)-1], len(content))
	}
	f.Add(content, true)
	f.Add([]byte{}, true)
	for _, at := range seams {
		wrong := bytes.Clone(content)
		wrong[at-1] ^= 1
		f.Add(wrong, true)
		f.Add(content[:at-1], false)
		f.Add(append(bytes.Clone(content[at:]), content[:at]...), true)
	}
	f.Fuzz(func(t *testing.T, given []byte, fit bool) {
		given = given[:min(len(given), 2*len(content))]
		if fit {
			given = append(bytes.Clone(given), content...)[:len(content)]
		}
		mine := newWorld() // a world of its own, because a world records each request, and there are many inputs
		maps.Copy(mine.contents, w.contents)
		p := *right
		p.Bundles = []tree.Bundle{{Digest: mine.add(given), Size: int64(len(content)), Parts: len(row)}}
		c := openCache(t, t.TempDir(), Options{})
		tr := openTree(t, c, s.digest, mine)
		if err := tr.Prefetch(t.Context(), &p, 0, nil); err != nil {
			t.Fatal(err)
		}
		readAll(t, tr, s)
	})
}
