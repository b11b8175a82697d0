package cache

import (
	"cmp"
	"errors"
	"math"
	"os"
	"slices"

	"premix/internal/kit/beneath"
)

// victim is a chunk to evict, unless it has been used since it was chosen.
type victim struct {
	t    *Tree
	pg   *page
	i    int
	used uint64
}

// makeRoom reserves n bytes of a volume, and reports whether it could. It evicts the
// least recently used chunks, but none used in the given generation or later. With n =
// 0 it only enforces the limits.
func (c *Cache) makeRoom(v *volume, n int64, before uint64) bool {
	for {
		lack := v.reserve(n)
		if lack <= 0 {
			return true
		}
		if n > 0 && v == c.disk && v.quota > 0 && c.fixed()+n > v.quota-v.headroom {
			return false // it would not fit even if everything else were evicted
		}
		if c.evict(v, lack, before) {
			continue
		}
		// A writer with a reservation holds no lock that others need, and gives back
		// the space that it does not use.
		if n == 0 || !v.waitForWriters() {
			return v.reserve(n) <= 0
		}
	}
}

// fixed returns the bytes of disk that eviction cannot free.
func (c *Cache) fixed() int64 {
	n := c.own.Load()
	for _, t := range c.all() {
		if !t.evictable() {
			n += t.meta.Load()
			if im := t.image.Load(); im != nil && im.vol == c.disk {
				n += im.allocated()
			}
		}
	}
	return n
}

func (t *Tree) evictable() bool { return t.pinned() == pinNone && t.held.Load() == 0 }

// evict frees at least n bytes of the disk, and reports whether it freed anything.
// Memory holds only pinned trees, so nothing there is evicted.
func (c *Cache) evict(v *volume, n int64, before uint64) bool {
	if v != c.disk {
		return false
	}
	c.evicting.Lock()
	defer c.evicting.Unlock()
	any, fresh := false, false
	for n > 0 {
		if len(c.victims) == 0 {
			if fresh {
				freed, ok := c.evictObject(before)
				if !ok {
					break
				}
				any = true
				n -= freed
				continue
			}
			any = c.removeEmpty() || any
			c.findVictims()
			fresh = true
			continue
		}
		last := c.victims[len(c.victims)-1]
		if freed, ok := c.evictObject(min(before, last.used)); ok {
			any = true
			n -= freed
			continue
		}
		if last.used >= before {
			break
		}
		c.victims = c.victims[:len(c.victims)-1]
		if freed, ok := c.evictChunk(last); ok {
			any, fresh = true, false
			n -= freed
		}
	}
	return any
}

// evictObject removes the least recently used object, if it was last used before a
// generation.
func (c *Cache) evictObject(before uint64) (freed int64, ok bool) {
	if c.objects == nil {
		return 0, false // the cache is being opened
	}
	if used, ok := c.objects.oldest(); !ok || used >= before {
		return 0, false
	}
	return c.objects.evict()
}

// evictChunk punches a chunk if it is still a valid victim, and returns the number of
// bytes freed: perhaps 0, if neighbours share its blocks.
func (c *Cache) evictChunk(v victim) (freed int64, ok bool) {
	t := v.t
	t.imageMu.Lock()
	defer t.imageMu.Unlock()
	im := t.image.Load()
	if im == nil || im.vol != c.disk || !t.evictable() || v.pg.used[v.i].Load() != v.used {
		return 0, false
	}
	held := im.allocated()
	if !t.discardAnyLocked(v.pg, v.i) && !t.dropPartLocked(v.pg, v.i, v.pg.part[v.i].Load()) {
		return 0, false
	}
	c.evicted.Add(1)
	return held - im.allocated(), true
}

// findVictims fills c.victims with the least recently used sixteenth of all chunks, and
// at least 256 chunks. To find the limit it counts the chunks in each span of
// generations.
func (c *Cache) findVictims() {
	const spans = 4096
	var counts [spans]int
	oldest, newest := uint64(math.MaxUint64), uint64(0)
	total := 0
	each := func(visit func(victim)) {
		for _, t := range c.all() {
			if !t.evictable() || t.kept.Load() == 0 && t.parts.Load() == 0 {
				continue
			}
			one := func(pg *page, i int) { visit(victim{t, pg, i, pg.used[i].Load()}) }
			t.eachPresent(one)
			t.eachPart(one)
		}
	}
	each(func(v victim) { oldest, newest = min(oldest, v.used), max(newest, v.used) })
	span := func(v victim) uint64 {
		// A chunk may have been used since: count it as newest.
		return (min(max(v.used, oldest), newest) - oldest) / ((newest-oldest)/spans + 1)
	}
	each(func(v victim) {
		counts[span(v)]++
		total++
	})
	want, limit := max(256, total/16), uint64(0)
	for n := 0; limit < spans && n < want; limit++ {
		n += counts[limit]
	}
	c.victims = c.victims[:0]
	each(func(v victim) {
		if span(v) < limit {
			c.victims = append(c.victims, v)
		}
	})
	slices.SortFunc(c.victims, func(a, b victim) int { return cmp.Compare(b.used, a.used) })
}

// removeEmpty removes trees that are not in use and have no chunks, and reports whether
// there were any.
func (c *Cache) removeEmpty() bool {
	any := false
	for _, t := range c.all() {
		if t.kept.Load() == 0 && t.parts.Load() == 0 && t.evictable() && c.remove(t, false) == nil {
			any = true
		}
	}
	return any
}

// errUsed means that a tree cannot be removed because it is in use.
var errUsed = errors.New("the tree is in use")

// remove removes an unused tree from the cache, with all its files. If it has chunks,
// it is only removed if whole is set.
func (c *Cache) remove(t *Tree, whole bool) error {
	trash, err := c.takeOut(t, whole)
	if err != nil {
		return err
	}
	for _, dir := range trash {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return err
}

func (c *Cache) takeOut(t *Tree, whole bool) (trash []string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t.imageMu.Lock()
	defer t.imageMu.Unlock()
	if t.refs > 0 || !t.evictable() && !whole || t.held.Load() > 0 || t.gone || t.kept.Load() > 0 && !whole {
		return nil, errUsed
	}
	t.gone = true
	delete(c.trees, t.digest)
	delete(c.numbered, t.number)
	if im := t.image.Swap(nil); im != nil {
		im.disown()
		err = im.close()
		if im.vol == c.ram {
			trash = append(trash, c.ram.dir+"/"+t.digest.String())
		}
	}
	err = errors.Join(err, t.dropFormerLocked())
	c.disk.add(-t.meta.Swap(0))
	t.eachPresent(func(pg *page, i int) {
		pg.state[i].Store(nil)
		t.count(pg, i, -1)
		c.index.remove(t, pg.first+i, pg.digests[i])
	})
	t.eachPart(t.forgetPart)
	if name := c.trashName(t.digest.String()); beneath.Move(t.dir, name, beneath.Volatile) == nil {
		trash = append(trash, name)
	}
	return trash, err
}

// saveRecency writes to the file present which chunks are present, and their
// generations in 255 steps.
func (t *Tree) saveRecency() {
	t.imageMu.Lock()
	defer t.imageMu.Unlock()
	im := t.image.Load()
	if im == nil {
		return
	}
	now := t.c.clock.Load()
	b := make([]byte, t.manifest.Chunks())
	t.eachPresent(func(pg *page, i int) { b[pg.first+i] = recency(now, pg.used[i].Load()) })
	if _, err := im.present.WriteAt(b, 0); err != nil {
		t.stats.diskErrors.Add(1)
	}
	im.account()
}

// recency maps a generation to 1..255: 255 is the present, and each step down is about
// 4 % of the age. The steps are logarithmic, since the order of chunks used long ago
// matters less.
func recency(now, used uint64) byte {
	if used >= now {
		return 255
	}
	steps := math.Log2(float64(now-used)) * 16
	return byte(max(1, 254-steps))
}
