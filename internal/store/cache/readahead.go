package cache

import (
	"sort"
	"sync"

	"premix/internal/store/tree"
)

const (
	// nearby is the distance from the expected position within which a read belongs to
	// a stream: the kernel's readahead asks for several pieces at once, and they arrive
	// in any order.
	nearby = 256 << 10
	// settledRun is the number of bytes read in order from which a stream is
	// recognised.
	settledRun = 256 << 10
	// manyStreams is the number of streams of a tree that are distinguished.
	manyStreams = 16
)

// stream is a sequence of reads in order of the image.
type stream struct {
	started int64  // offset of its first read
	next    int64  // expected offset of the next read
	run     int64  // bytes read in order so far
	asked   int64  // chunks up to here were requested
	used    uint64 // number of the read that last belonged to it
}

type streams struct {
	mu    sync.Mutex
	reads uint64
	list  []stream
}

func (s *streams) reset() {
	s.mu.Lock()
	s.list = nil
	s.mu.Unlock()
}

// saw records a read, and returns the range of the image to request ahead. The window
// is as long as the bytes read in order: a reader that stops early wastes at most as
// much as it used. file returns the begin and the end of the file that contains a byte.
// A stream that began in this file may stop at its end; a stream that came from another
// file continues with the next.
func (s *streams) saw(off, n, window int64, file func(off int64) (begin, end int64)) (from, to int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads++
	var st, oldest *stream
	for i := range s.list {
		e := &s.list[i]
		if off >= e.next-nearby && off <= e.next+nearby && (st == nil || abs(e.next-off) < abs(st.next-off)) {
			st = e
		}
		if oldest == nil || e.used < oldest.used {
			oldest = e
		}
	}
	if st == nil {
		if len(s.list) < manyStreams {
			s.list = append(s.list, stream{})
			oldest = &s.list[len(s.list)-1]
		}
		*oldest = stream{started: off, next: off + n, run: n, used: s.reads}
		st = oldest
	} else {
		st.used = s.reads
		if gain := off + n - st.next; gain > 0 {
			st.run += min(gain, n)
			st.next = off + n
		}
	}
	if st.run < settledRun {
		return 0, 0
	}
	from, to = max(st.asked, st.next), st.next+min(st.run, window)
	if begin, end := file(st.next - 1); st.started >= begin {
		to = min(to, end)
	}
	if to <= from {
		return 0, 0
	}
	st.asked = to
	return from, to
}

func abs(n int64) int64 { return max(n, -n) }

// Guide announces that a profile is being prefetched: until done is called, nothing is
// fetched ahead of readers that seem to read in order. While a program starts, they
// seldom continue.
func (t *Tree) Guide() (done func()) {
	t.guided.Add(1)
	return sync.OnceFunc(func() { t.guided.Add(-1) })
}

// ahead requests the chunks that a reader of the n bytes at off will probably read
// next.
func (t *Tree) ahead(off, n int64) {
	if t.guided.Load() > 0 {
		return
	}
	window := t.window()
	if window < tree.MaxChunk {
		return
	}
	from, to := t.streams.saw(off, n, window, t.fileAt)
	to = min(to, t.manifest.Size)
	if from < to {
		t.askRange(from, to, readahead)
	}
}

// window returns the number of bytes that may be fetched ahead of a reader. The reader
// must get there before they are evicted, or dropped from memory.
func (t *Tree) window() int64 {
	window := t.c.o.Window
	if q := t.c.o.Quota; q > 0 {
		window = min(window, q/4)
	}
	if t.c.full.Load() {
		window = min(window, recentBytes/4)
	}
	return window
}

// askRange requests the chunks of a range of the image. If an index page is not loaded,
// it is fetched and the rest requested afterwards.
func (t *Tree) askRange(from, to int64, p priority) {
	for from < to {
		k := t.pageNumberAt(from)
		pg := t.pages[k].Load()
		if pg == nil {
			ctx := t.use().ctx
			go func() {
				if _, err := t.page(ctx, k); err == nil {
					t.askRange(from, to, p)
				}
			}()
			return
		}
		for i := pg.at(from); i < len(pg.digests) && pg.offs[i] < to; i++ {
			if !pg.hole(i) && !pg.present(i) && pg.part[i].Load() == nil {
				t.ask(pg, i, p)
			}
		}
		from = pg.offs[len(pg.digests)]
	}
}

// pageNumberAt returns the number of the index page whose chunks have the byte at off.
func (t *Tree) pageNumberAt(off int64) int {
	return sort.Search(len(t.pages), func(k int) bool { return t.pageOff[k+1] > off })
}

// fetchFirst fetches the first index page, which every reader of the tree needs. The
// chunks are left to the readers and to profiles.
func (t *Tree) fetchFirst() {
	u := t.use()
	if len(t.pages) == 0 || t.pages[0].Load() != nil || u.fetcher == nil {
		return
	}
	go func() {
		_, _ = t.page(u.ctx, 0) // a reader of the page gets the error
	}()
}
