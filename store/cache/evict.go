package cache

import (
	"cmp"
	"errors"
	"math"
	"os"
	"slices"

	"premix/internal/beneath"
)

// victim is a chunk that may be evicted, if it was not used since it was found.
type victim struct {
	t    *Tree
	pg   *page
	i    int
	used uint64
}

// makeRoom reserves n bytes of a volume, evicting what was used longest ago and
// before the given generation, and tells whether it could. With n = 0 it only
// sees to it that the limits hold.
func (c *Cache) makeRoom(v *volume, n int64, before uint64) bool {
	for {
		lack := v.reserve(n)
		if lack <= 0 {
			return true
		}
		if n > 0 && v == c.disk && v.quota > 0 && c.fixed()+n > v.quota-v.headroom {
			return false // it would not fit if everything else went
		}
		if c.evict(v, lack, before) {
			continue
		}
		// A writer who was promised room holds no lock that others need, and gives
		// back what he doesn't use.
		if n == 0 || !v.waitForWriters() {
			return v.reserve(n) <= 0
		}
	}
}

// fixed returns the bytes of disk that eviction can't free.
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

// evict frees at least n bytes of the disk, and tells whether it freed anything.
// Memory holds pinned trees only: there is nothing to evict.
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
				break
			}
			any = c.removeEmpty() || any
			c.findVictims()
			fresh = true
			continue
		}
		last := c.victims[len(c.victims)-1]
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

// evictChunk punches a chunk if that is still in order, and returns how many
// bytes it freed: perhaps none, where its blocks belong to its neighbours too.
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

// findVictims fills c.victims with the sixteenth of all chunks that was used
// longest ago, and at least with 256 chunks. To know the limit it counts how
// many chunks each span of generations has.
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
		// Later uses than the newest seen are possible: they are as good as newest.
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

// removeEmpty removes trees that nobody uses and that have nothing left, and
// tells whether there were any.
func (c *Cache) removeEmpty() bool {
	any := false
	for _, t := range c.all() {
		if t.kept.Load() == 0 && t.parts.Load() == 0 && t.evictable() && c.remove(t, false) == nil {
			any = true
		}
	}
	return any
}

// errUsed tells that a tree can't be removed as somebody uses it.
var errUsed = errors.New("the tree is in use")

// remove takes a tree that nobody uses out of the cache, with all its files. One
// that has chunks is only removed if whole is set.
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

// saveRecency writes which chunks are present and how recently they were used,
// as present has it: the generations since the oldest, in 255 steps.
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

// recency maps a generation to 1..255: 255 is now, and each step down is about
// 4 % of the age. The steps are those of a logarithm since the order of what was
// used long ago matters less.
func recency(now, used uint64) byte {
	if used >= now {
		return 255
	}
	steps := math.Log2(float64(now-used)) * 16
	return byte(max(1, 254-steps))
}
