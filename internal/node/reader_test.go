package node

import (
	"math/rand/v2"
	"slices"
	"testing"

	"premix/internal/store/object"
	"premix/internal/store/tree"
)

// While a bundle arrives, the reader reads slightly more ahead than has arrived: each block
// once, in the order of the spans, and in the end all of them.
func TestAhead(t *testing.T) {
	b := tree.Bundle{Size: 4 << 20, Spans: []tree.Span{
		{Inode: 7, Runs: []object.Run{{From: 0, To: 40}, {From: 50, To: 51}}},
		{Inode: 9, Runs: []object.Run{{From: 3, To: 900}}},
		{Inode: 0, Runs: []object.Run{{From: 1, To: 2}}},
	}}
	type block struct {
		inode uint64
		n     int
	}
	blocks := func(list []tree.Span) (all []block) {
		for _, s := range list {
			for _, r := range s.Runs {
				for n := r.From; n < r.To; n++ {
					all = append(all, block{s.Inode, n})
				}
			}
		}
		return all
	}
	want := blocks(b.Spans)
	r := rand.New(rand.NewPCG(1, 1))
	for range 50 {
		a := newAhead(b)
		var got []block
		for here := int64(0); here < b.Size; here += 1 + r.Int64N(b.Size/5) {
			got = append(got, blocks(a.upTo(here))...)
			if most := int64(len(want)) * min(b.Size, here+lead) / b.Size; int64(len(got)) != most {
				t.Fatalf("%d blocks at %d bytes, not %d", len(got), here, most)
			}
		}
		got = append(got, blocks(a.upTo(b.Size))...)
		if !slices.Equal(got, want) || a.upTo(b.Size) != nil {
			t.Fatalf("%d blocks are read, of %d", len(got), len(want))
		}
	}
	if !slices.Equal(blocks(b.Spans), want) {
		t.Error("the profile was changed")
	}
	if got := newAhead(tree.Bundle{Size: 5}).upTo(5); got != nil {
		t.Errorf("%+v of no spans", got)
	}
}
