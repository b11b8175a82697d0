package cache

import (
	"sort"
	"sync"

	"premix/store/tree"
)

const (
	// nearby is how far from where a stream is expected to go on a read may begin
	// and still belong to it: the kernel's readahead asks for several pieces at
	// once, and they arrive in any order.
	nearby = 256 << 10
	// settledRun is how much must have been read in order before it is believed.
	settledRun = 256 << 10
	// manyStreams is how many readers of a tree are told apart.
	manyStreams = 16
)

// stream is a reader that goes through the image in order.
type stream struct {
	begun int64  // where it began
	next  int64  // where it goes on
	run   int64  // bytes read in order so far
	asked int64  // up to where chunks were asked for
	used  uint64 // when it was last seen, in reads
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

// saw notes a read, and returns which part of the image should be asked for
// ahead. The window is as long as what was read in order: a reader who stops
// early wastes at most as much as he used. file tells where the file that a byte is
// in begins and ends: who has begun in it may stop at its end, and only who has
// come from another one goes on with the next.
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
		*oldest = stream{begun: off, next: off + n, run: n, used: s.reads}
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
	if begin, end := file(st.next - 1); st.begun >= begin {
		to = min(to, end)
	}
	if to <= from {
		return 0, 0
	}
	st.asked = to
	return from, to
}

func abs(n int64) int64 { return max(n, -n) }

// Guide says that a profile names what will be wanted: until done is called nothing
// is fetched ahead of readers because they seem to go on in order. In a program that
// is being started they seldom do.
func (t *Tree) Guide() (done func()) {
	t.guided.Add(1)
	return sync.OnceFunc(func() { t.guided.Add(-1) })
}

// ahead asks for what a reader who reads at off will want next.
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

// window is how much may be fetched ahead of a reader. It must be read before it is
// evicted again, or forgotten if it could not be kept.
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

// askRange asks for the chunks of a part of the image. Where an index page is not
// known yet, it is fetched and the rest asked for afterwards.
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

// pageNumberAt returns the index page that the byte at off is in.
func (t *Tree) pageNumberAt(off int64) int {
	return sort.Search(len(t.pages), func(k int) bool { return t.pageOff[k+1] > off })
}

// fetchFirst fetches the index page that every reader of the tree needs first. What
// to fetch of the tree itself a profile may know better.
func (t *Tree) fetchFirst() {
	u := t.use()
	if len(t.pages) == 0 || t.pages[0].Load() != nil || u.fetcher == nil {
		return
	}
	go func() {
		_, _ = t.page(u.ctx, 0) // whoever needs it is told what is wrong
	}()
}
