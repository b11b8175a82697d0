package cache

import "sync"

const (
	// wholeRun is the longest run that is fetched whole when a part of it is missed: about
	// what a link of 1 Gbit/s carries while a request is under way for 20 ms.
	wholeRun = 4 << 20
	// reach is how near to each other two misses are neighbours. A miss that has some
	// brings firstReach of what lies around its run, each further one twice as much, at
	// most mostReach. Of what is farther away than this half is never read.
	reach      = 768 << 10
	firstReach = 256 << 10
	mostReach  = 512 << 10
	// manyMisses is how many are remembered.
	manyMisses = 64
	// metaFirst is how much of the metadata comes with its first part: directories and
	// inodes lie in front, and some 2,000 of them take so much. Behind them lie whole
	// files, with their inodes. Most layers of an image need no more to start something.
	metaFirst = 256 << 10
	// metaAhead is the longest metadata of which the rest is fetched when a second part
	// of it was missed.
	metaAhead = 2 << 20
)

// misses are where chunks lie that readers had to wait for, by the order of the image.
type misses struct {
	mu     sync.Mutex
	recent []int64 // the last ones, in a ring
	next   int     // place in the ring
	meta   int     // of them in the metadata, ever
}

func (m *misses) reset() {
	m.mu.Lock()
	m.recent, m.next, m.meta = nil, 0, 0
	m.mu.Unlock()
}

// inMeta notes a miss in the metadata, and tells how many there were.
func (m *misses) inMeta() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.meta++
	return m.meta
}

// at notes a miss, and tells how much of what lies around it is worth fetching.
func (m *misses) at(off int64) (around int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, o := range m.recent {
		if abs(o-off) > reach {
			continue
		}
		if around = max(firstReach, 2*around); around >= mostReach {
			break
		}
	}
	if len(m.recent) < manyMisses {
		m.recent = append(m.recent, off)
	} else {
		m.recent[m.next] = off
		m.next = (m.next + 1) % manyMisses
	}
	return min(around, mostReach)
}

// Foresee says that nobody knows what will be wanted: until the tree is closed, or
// while it is not guided, more is fetched than what a reader misses. On a link on
// which each miss costs a round trip that is worth more than the bytes:
//
//   - all of its file, or the small files that share its chunk, if that is not long: who
//     reads the head of a library goes on with its end. Of a long file whose head is
//     missed the end comes too.
//   - what lies around it, if other misses were near: files of a directory lie side by
//     side, and who imports one module of a package imports others. It begins with
//     little and grows with the number of such misses, so that readers at random places
//     pay for little that they don't want.
//   - the metadata of the first directories, with the first part of the metadata that is
//     missed, and all the rest with the second, if that is not long.
//
// What is foreseen goes behind what readers wait for.
func (t *Tree) Foresee() { t.foreseeing.Store(true) }

// Foresees tells whether more is fetched now than what is read.
func (t *Tree) Foresees() bool {
	return t.foreseeing.Load() && t.guided.Load() == 0 && t.missing.Load() > 0 && !t.c.full.Load() && t.window() >= wholeRun
}

// Ask has a part of the image fetched behind what readers wait for, if more is fetched
// than what is read.
func (t *Tree) Ask(from, to int64) {
	if t.Foresees() {
		t.askRange(max(from, 0), min(to, t.manifest.Size), readahead)
	}
}

// foresee is called by a reader who is about to wait for chunk i.
func (t *Tree) foresee(pg *page, i int) {
	if !t.Foresees() {
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
	around := t.misses.at(pg.offs[i])
	from, to = max(from-around, meta, pg.offs[0]), min(to+around, pg.offs[len(pg.digests)])
	for k := pg.at(from); k < len(pg.digests) && pg.offs[k] < to; {
		a, b := pg.run(k)
		if pg.offs[b]-pg.offs[a] <= wholeRun {
			t.askRange(pg.offs[k], min(to, pg.offs[b]), readahead)
		}
		k = b
	}
}

// fileAt tells where the file, or group of small files, that the byte at off is in
// begins and ends, as far as that is known: see page.run. The metadata are one.
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
// small files, as far as they are in the page. Files begin at blocks, and where a long
// one is cut is decided by its content: so a border of chunks that is one of blocks is
// the end of a file, but for one in thousands, where a file is taken for two.
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
