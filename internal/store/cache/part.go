package cache

import (
	"context"
	"errors"
	"sync"

	"golang.org/x/sys/unix"

	"premix/internal/store/object"
)

// part holds the cached blocks of a chunk that is not present, which came with a
// bundle. They were verified then, and are used as long as they match their sums and
// the cache is open: they are not recorded on disk.
type part struct {
	sums          // of the cached blocks, 0 for others
	have []uint64 // a bit for each block
}

func newPart(pg *page, i int) *part {
	n := blocksIn(pg.offs[i], pg.offs[i+1])
	return &part{sums{make([]uint32, n)}, make([]uint64, (n+63)/64)}
}

// blocksIn returns the number of blocks that contain the bytes from start to end.
func blocksIn(start, end int64) int { return int((end+block-1)/block - start/block) }

// has reports whether the blocks of the n bytes at off, all in chunk i, are cached.
func (q *part) has(pg *page, i int, off, n int64) bool {
	first := off/block - pg.offs[i]/block
	for k := first; k < first+int64(blocksIn(off, off+n)); k++ {
		if q.have[k/64]&(1<<(k%64)) == 0 {
			return false
		}
	}
	return true
}

// with returns the union of both parts.
func (q *part) with(o *part) *part {
	if o == nil {
		return q
	}
	both := &part{sums{make([]uint32, len(q.crc))}, make([]uint64, len(q.have))}
	for k := range both.crc {
		bit := uint64(1) << (k % 64)
		switch {
		case q.have[k/64]&bit != 0:
			both.crc[k] = q.crc[k]
		case o.have[k/64]&bit != 0:
			both.crc[k] = o.crc[k]
		default:
			continue
		}
		both.have[k/64] |= bit
	}
	return both
}

// piece is a verified range of bytes of a chunk; off is relative to the chunk.
type piece struct {
	off  int64
	data []byte
}

// wholeBlocks returns the range of the image of the blocks that lie entirely within
// bytes from to to of chunk i. A block at an end of the chunk counts as whole.
func wholeBlocks(pg *page, i int, from, to int64) (start, end int64) {
	start, end = pg.offs[i]+from, pg.offs[i]+to
	if start > pg.offs[i] {
		start = (start + block - 1) &^ (block - 1)
	}
	if end < pg.offs[i+1] {
		end &^= block - 1
	}
	return start, end
}

// keepPart writes pieces of a chunk into the image file. If there is no space it drops
// them, and readers fetch the whole chunk.
func (t *Tree) keepPart(pg *page, i int, pieces []piece, before uint64) {
	if t.c.o.VerifyAlways { // a part cannot be hashed
		return
	}
	_, vol := t.imageDir()
	need := int64(margin)
	for _, c := range pieces {
		need += int64(len(c.data))
	}
	if !t.c.makeRoom(vol, need, before) {
		t.stats.passed.Add(1)
		return
	}
	defer vol.release(need)
	im, err := t.ensureImage()
	if err == nil {
		err = t.writePart(pg, i, pieces)
	}
	switch {
	case err == nil:
	case errors.Is(err, errGone):
	default:
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
			t.stats.passed.Add(1)
		} else {
			t.stats.diskErrors.Add(1)
		}
		// The bytes already written are not counted as used.
		t.imageMu.Lock()
		defer t.imageMu.Unlock()
		if t.image.Load() == im && !pg.present(i) && !t.dropPartLocked(pg, i, pg.part[i].Load()) {
			t.punchAlone(im, pg, i)
		}
	}
}

func (t *Tree) writePart(pg *page, i int, pieces []piece) error {
	t.imageMu.RLock()
	defer t.imageMu.RUnlock()
	im := t.image.Load()
	if t.gone || im == nil {
		return errGone
	}
	if pg.present(i) {
		return nil
	}
	defer im.account()
	q, any := newPart(pg, i), false
	for _, c := range pieces {
		at, end := wholeBlocks(pg, i, c.off, c.off+int64(len(c.data)))
		if at >= end {
			continue
		}
		data := c.data[at-pg.offs[i]-c.off:][:end-at]
		if _, err := im.f.WriteAt(data, at); err != nil {
			return err
		}
		any = true
		q.add(pg, i, at, data)
	}
	if !any {
		return nil
	}
	t.c.touch(pg, i)
	for {
		old := pg.part[i].Load()
		if pg.part[i].CompareAndSwap(old, q.with(old)) {
			if old == nil {
				t.parts.Add(1)
			}
			break
		}
	}
	if pg.present(i) { // the whole chunk has become present since
		t.forgetPart(pg, i)
	}
	return nil
}

// add records whole blocks of chunk i that begin at this offset of the image.
func (q *part) add(pg *page, i int, at int64, data []byte) {
	k := at/block - pg.offs[i]/block
	for _, crc := range sumBlocks(at, data) {
		q.crc[k] = crc
		q.have[k/64] |= 1 << (k % 64)
		k++
	}
}

// forgetPart drops the part of a chunk that has become present, or whose files are
// gone.
func (t *Tree) forgetPart(pg *page, i int) {
	if pg.part[i].Swap(nil) != nil {
		t.parts.Add(-1)
	}
}

// dropPart punches a part if it is still the given one.
func (t *Tree) dropPart(pg *page, i int, seen *part) {
	t.imageMu.Lock()
	defer t.imageMu.Unlock()
	t.dropPartLocked(pg, i, seen)
}

func (t *Tree) dropPartLocked(pg *page, i int, seen *part) bool {
	if seen == nil || !pg.part[i].CompareAndSwap(seen, nil) {
		return false
	}
	t.parts.Add(-1)
	if im := t.image.Load(); im != nil && !pg.present(i) {
		t.punchAlone(im, pg, i)
	}
	return true
}

// punchAlone frees the blocks of a chunk that no other chunk uses.
func (t *Tree) punchAlone(im *image, pg *page, i int) {
	if t.held.Load() == 0 {
		from, to := t.punchable(pg, i)
		if im.punch(from, to) != nil {
			t.stats.diskErrors.Add(1)
		}
	}
	im.account()
}

// dropPartsLocked drops all parts. The caller holds imageMu.
func (t *Tree) dropPartsLocked() {
	t.eachPart(func(pg *page, i int) { t.dropPartLocked(pg, i, pg.part[i].Load()) })
}

// eachPart calls visit for each chunk with a part.
func (t *Tree) eachPart(visit func(pg *page, i int)) {
	if t.parts.Load() == 0 {
		return
	}
	for k := range t.pages {
		pg := t.pages[k].Load()
		if pg == nil {
			continue
		}
		for i := range pg.part {
			if pg.part[i].Load() != nil {
				visit(pg, i)
			}
		}
	}
}

// readPart reads the bytes at off from the part of chunk i, and reports whether it
// could.
func (t *Tree) readPart(pg *page, i int, p []byte, off int64) bool {
	q := pg.part[i].Load()
	if q == nil || t.c.o.VerifyAlways || !q.has(pg, i, off, int64(len(p))) {
		return false
	}
	if t.readSummed(pg, i, &q.sums, p, off) {
		t.c.touch(pg, i)
		return true
	}
	// Evicted, moved or damaged: the whole chunk is fetched.
	t.dropPart(pg, i, q)
	return false
}

// expected holds the parts that bundles being fetched will bring.
type expected struct {
	mu sync.Mutex
	m  map[int]promisedPart // by chunk
}

type promisedPart struct {
	runs []object.Run
	b    *bundle
	come chan struct{} // closed when it has been kept, or will not come
}

func (e *expected) add(chunk int, part promisedPart) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.m == nil {
		e.m = map[int]promisedPart{}
	}
	e.m[chunk] = part
}

// remove removes the part that bundle b was to bring. A part that another bundle has
// promised since stays.
func (e *expected) remove(chunk int, b *bundle) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.m[chunk].b == b {
		delete(e.m, chunk)
	}
}

// find returns the expected part that covers all blocks of the bytes at off in chunk i.
// Its bundle is nil if there is none.
func (e *expected) find(pg *page, i int, off, n int64) promisedPart {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.m[pg.first+i]
	from, to := leavesOf(pg, i, off, n)
	for _, r := range p.runs {
		if r.From <= from && to <= r.To {
			return p
		}
	}
	return promisedPart{}
}

// leavesOf returns the leaves of chunk i that the blocks of the bytes at off need.
func leavesOf(pg *page, i int, off, n int64) (from, to int) {
	start, end := pg.offs[i], pg.offs[i+1]
	return int((max(start, off&^(block-1)) - start) / object.LeafSize),
		object.Leaves(min(end, (off+n+block-1)&^(block-1)) - start)
}

// comes reports whether the bytes at off in chunk i are cached, or expected with a
// bundle.
func (t *Tree) comes(pg *page, i int, off, n int64) bool {
	if pg.hole(i) || pg.present(i) {
		return true
	}
	q := pg.part[i].Load()
	return q != nil && q.has(pg, i, off, n) || t.expected.find(pg, i, off, n).b != nil
}

// planned waits until the parts that a profile's bundles will bring are known, which
// needs index pages. A reader that did not wait would fetch chunks that a bundle is
// about to bring.
func (t *Tree) planned(ctx context.Context) error {
	p := t.planning.Load()
	if p == nil {
		return nil
	}
	select {
	case <-*p:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// await waits until a bundle has brought the bytes at off in chunk i, or failed to. It
// returns at once if no bundle is expected to bring them.
func (t *Tree) await(ctx context.Context, pg *page, i int, off, n int64) (waited bool, err error) {
	p := t.expected.find(pg, i, off, n)
	if p.b == nil {
		return false, nil
	}
	t.stats.waits.Add(1)
	fl := t.c.flights
	fl.mu.Lock()
	fl.promote(p.b.download, demand)
	fl.mu.Unlock()
	select {
	case <-p.come:
		return true, nil
	case <-ctx.Done():
		return true, context.Cause(ctx)
	}
}
