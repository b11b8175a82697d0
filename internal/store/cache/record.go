package cache

import (
	"math/bits"
	"slices"
	"sync"

	"premix/internal/store/object"
	"premix/internal/store/tree"
)

// Recorder records the order in which chunks are first read, and which of their leaves.
type Recorder struct {
	t       *Tree
	mu      sync.Mutex
	order   []int
	touched map[int][]uint64 // by chunk: a bit for each leaf
	leaves  int              // their number
}

// Record starts recording the reads of chunks, whether present or not, until Stop is
// called. Readahead, prefetch and holes do not count. Whole blocks are recorded, since
// the kernel reads blocks.
func (t *Tree) Record() *Recorder {
	r := &Recorder{t: t, touched: map[int][]uint64{}}
	for {
		old := t.record.Load()
		list := []*Recorder{r}
		if old != nil {
			list = append(list, *old...)
		}
		if t.record.CompareAndSwap(old, &list) {
			return r
		}
	}
}

// Stop ends the recording. The result so far stays available.
func (r *Recorder) Stop() {
	for {
		old := r.t.record.Load()
		if old == nil {
			return
		}
		list := slices.DeleteFunc(slices.Clone(*old), func(o *Recorder) bool { return o == r })
		next := &list
		if len(list) == 0 {
			next = nil
		}
		if r.t.record.CompareAndSwap(old, next) {
			return
		}
	}
}

// Touched returns the number of leaves recorded so far.
func (r *Recorder) Touched() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.leaves
}

// Profile returns the recorded profile so far. It has no bundles.
func (r *Recorder) Profile() *tree.Profile {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := &tree.Profile{Tree: r.t.digest, Parts: make([]tree.Part, 0, len(r.order))}
	for _, chunk := range r.order {
		part := tree.Part{Chunk: chunk}
		for k, word := range r.touched[chunk] {
			for ; word != 0; word &= word - 1 {
				leaf := 64*k + bits.TrailingZeros64(word)
				if n := len(part.Runs); n > 0 && part.Runs[n-1].To == leaf {
					part.Runs[n-1].To++
				} else {
					part.Runs = append(part.Runs, object.Run{From: leaf, To: leaf + 1})
				}
			}
		}
		p.Parts = append(p.Parts, part)
	}
	return p
}

// recordTouch records a read of n bytes of chunk i, at off in the image.
func (t *Tree) recordTouch(pg *page, i int, off, n int64) {
	list := t.record.Load()
	if list == nil {
		return
	}
	from, to := leavesOf(pg, i, off, n)
	for _, r := range *list {
		r.note(pg.first+i, from, to, object.Leaves(pg.size(i)))
	}
}

func (r *Recorder) note(chunk, from, to, all int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	set := r.touched[chunk]
	if set == nil {
		set = make([]uint64, (all+63)/64)
		r.touched[chunk] = set
		r.order = append(r.order, chunk)
	}
	for leaf := from; leaf < to; leaf++ {
		if bit := uint64(1) << (leaf % 64); set[leaf/64]&bit == 0 {
			set[leaf/64] |= bit
			r.leaves++
		}
	}
}
