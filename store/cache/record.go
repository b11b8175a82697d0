package cache

import (
	"slices"
	"sync"

	"premix/store/tree"
)

// Recorder notes in which order chunks are first touched.
type Recorder struct {
	t     *Tree
	mu    sync.Mutex
	seen  []bool // by chunk
	order []int
}

// Record begins to note which chunks are read, present or not, until Stop is
// called. Readahead and prefetch don't count, nor do holes.
func (t *Tree) Record() *Recorder {
	r := &Recorder{t: t, seen: make([]bool, t.manifest.Chunks())}
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

// Stop ends the recording. What was noted stays.
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

// Profile returns what was noted so far. It has no bundles.
func (r *Recorder) Profile() *tree.Profile {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &tree.Profile{Tree: r.t.digest, Chunks: slices.Clone(r.order)}
}

func (t *Tree) recordTouch(chunk int) {
	list := t.record.Load()
	if list == nil {
		return
	}
	for _, r := range *list {
		r.mu.Lock()
		if !r.seen[chunk] {
			r.seen[chunk] = true
			r.order = append(r.order, chunk)
		}
		r.mu.Unlock()
	}
}
