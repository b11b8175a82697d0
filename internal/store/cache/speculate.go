package cache

import (
	"slices"
	"sync"
)

const (
	// wholeRun is the longest run that is fetched whole when one of its chunks is
	// missed. Its stored form, of about half the size, is as much as a link of 1 Gbit/s
	// transfers in a request of 20 ms.
	wholeRun = 5 << 20
	// reach is the distance within which two misses are neighbours. A miss with a
	// neighbour also fetches the chunks within around of its run: mostly the chunk before
	// it and the chunk behind it. Less than half of the bytes farther away are ever read.
	reach  = 512 << 10
	around = 128 << 10
	// manyMisses is the number of misses remembered.
	manyMisses = 64
	// metaFirst is the size of the metadata that is fetched with its first miss:
	// directories and inodes lie at the front, and some 2,000 of them take this much.
	// Behind them are inodes with the content of small files. In most layers of an
	// image a start needs no more.
	metaFirst = 256 << 10
	// metaAhead is the largest metadata that is fetched whole at its second miss.
	metaAhead = 2 << 20
)

// misses records the image offsets of chunks that readers had to wait for.
type misses struct {
	mu     sync.Mutex
	recent []int64 // the last misses, in a ring
	next   int     // next position in the ring
	meta   int     // number of misses in the metadata
}

func (m *misses) reset() {
	m.mu.Lock()
	m.recent, m.next, m.meta = nil, 0, 0
	m.mu.Unlock()
}

// inMeta records a miss in the metadata, and returns their number.
func (m *misses) inMeta() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.meta++
	return m.meta
}

// at records a miss, and reports whether another one was near.
func (m *misses) at(off int64) (near bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	near = slices.ContainsFunc(m.recent, func(o int64) bool { return abs(o-off) <= reach })
	if len(m.recent) < manyMisses {
		m.recent = append(m.recent, off)
	} else {
		m.recent[m.next] = off
		m.next = (m.next + 1) % manyMisses
	}
	return near
}

// Speculate enables speculative fetching, for a tree of which no profile is known: until
// the tree is closed, and while it is not guided, a miss fetches more than the reader
// asked for. On a link on which each miss costs a round trip, this is worth the extra
// bytes:
//
//   - the whole file, or the small files that share its chunk, if that is not long: a
//     reader of the head of a library will also read its end. If the head of a long
//     file is missed, its end is fetched too.
//   - the chunks beside it, if another miss was near: files of a directory lie side by
//     side, and a program that imports one module of a package imports others.
//   - the metadata of the first directories, with the first miss in the metadata, and
//     all the rest with the second, if it is not long.
//
// These fetches come after those that readers wait for.
func (t *Tree) Speculate() { t.speculative.Store(true) }

// Speculates reports whether speculative fetching is active now.
func (t *Tree) Speculates() bool {
	return t.speculative.Load() && t.guided.Load() == 0 && t.missing.Load() > 0 && !t.c.full.Load() && t.window() >= wholeRun
}

// Ask fetches a range of the image behind the fetches that readers wait for, if
// speculative fetching is active.
func (t *Tree) Ask(from, to int64) {
	if t.Speculates() {
		t.askRange(max(from, 0), min(to, t.manifest.Size), readahead)
	}
}

// speculate starts speculative fetches when a reader is about to wait for chunk i.
func (t *Tree) speculate(pg *page, i int) {
	if !t.Speculates() {
		return
	}
	meta := t.manifest.Meta
	if pg.offs[i] < meta {
		switch n := t.misses.inMeta(); {
		case n == 1:
			t.askRange(0, min(meta, metaFirst), readahead)
		case n == 2 && meta <= metaAhead:
			t.askRange(0, meta, readahead)
		}
		return
	}
	first, end := pg.run(i)
	from, to := pg.offs[first], pg.offs[end]
	if to-from > wholeRun {
		if i == first {
			t.askRange(pg.offs[end-1], to, readahead)
		}
		return
	}
	if t.misses.at(pg.offs[i]) {
		from, to = max(from-around, meta, pg.offs[0]), min(to+around, pg.offs[len(pg.digests)])
	}
	for k := pg.at(from); k < len(pg.digests) && pg.offs[k] < to; {
		a, b := pg.run(k)
		if pg.offs[b]-pg.offs[a] <= wholeRun {
			t.askRange(pg.offs[k], min(to, pg.offs[b]), readahead)
		}
		k = b
	}
}

// fileAt returns the begin and the end of the file, or group of small files, that
// contains the byte at off, as far as they are known: see page.run. The metadata counts
// as one file.
func (t *Tree) fileAt(off int64) (begin, end int64) {
	if off < t.manifest.Meta {
		return 0, t.manifest.Meta
	}
	pg := t.pages[t.pageNumberAt(off)].Load()
	if pg == nil {
		return 0, t.manifest.Size
	}
	first, last := pg.run(pg.at(off))
	return pg.offs[first], pg.offs[last]
}

// run returns the chunks around chunk i that hold the same file, or the same group of
// small files, as far as they are in the page. Files begin at block boundaries, and a
// long file is cut where its content decides. So a chunk boundary at a block boundary
// is the end of a file, except for one in thousands, where a file is taken for two.
func (p *page) run(i int) (first, end int) {
	first, end = i, i+1
	for first > 0 && p.offs[first]%block != 0 {
		first--
	}
	for end < len(p.digests) && p.offs[end]%block != 0 {
		end++
	}
	return first, end
}
