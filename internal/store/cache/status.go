package cache

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/store/object"
	"premix/internal/store/tree"
)

// Status describes the content of a cache. Sizes are in bytes.
type Status struct {
	Dir      string       `json:"dir"`
	Quota    int64        `json:"quota"` // 0: none
	Used     int64        `json:"used"`  // allocated on disk, by everything below Dir
	Floor    int64        `json:"floor"`
	Free     int64        `json:"free"` // on the partition
	RAMDir   string       `json:"ram_dir,omitempty"`
	RAMQuota int64        `json:"ram_quota,omitempty"`
	RAMUsed  int64        `json:"ram_used,omitempty"`
	Evicted  int64        `json:"evicted"` // chunks, since the cache was opened
	Trees    []TreeStatus `json:"trees"`   // last used first
	// Objects are those of origins that are not stores.
	Objects ObjectsStatus `json:"objects"`
}

// TreeStatus describes the cached part of a tree.
type TreeStatus struct {
	Digest  object.Digest `json:"digest"`
	Used    int64         `json:"used"`     // allocated on disk
	RAMUsed int64         `json:"ram_used"` // allocated in memory
	Pinned  string        `json:"pinned"`   // "", "disk" or "ram"
	Held    bool          `json:"held"`     // mounted directly from its image file
	Open    int           `json:"open"`     // number of users
	LastUse time.Time     `json:"last_use"` // when it was last opened or closed
	Stats
}

// Status returns what the cache holds now.
func (c *Cache) Status() Status {
	c.accountOwn()
	s := Status{Dir: c.dir, Quota: c.o.Quota, Floor: c.disk.floor, Evicted: c.evicted.Load(), Trees: []TreeStatus{}, Objects: c.objects.status()}
	for _, t := range c.all() {
		ts := TreeStatus{
			Digest: t.digest, Used: t.meta.Load(), Pinned: t.pinned().String(), Held: t.held.Load() > 0,
			LastUse: time.Unix(t.lastUse.Load(), 0).UTC(), Stats: t.Stats(),
		}
		images := []*image{t.image.Load()}
		if f := t.former.Load(); f != nil {
			images = append(images, f.im)
		}
		for _, im := range images {
			switch {
			case im == nil:
			case im.vol == c.ram:
				im.account()
				ts.RAMUsed += im.allocated()
			default:
				im.account()
				ts.Used += im.allocated()
			}
		}
		c.mu.Lock()
		ts.Open = t.refs
		c.mu.Unlock()
		s.Trees = append(s.Trees, ts)
	}
	slices.SortFunc(s.Trees, func(a, b TreeStatus) int {
		return cmp.Or(b.LastUse.Compare(a.LastUse), slices.Compare(a.Digest[:], b.Digest[:]))
	})
	s.Used = c.disk.usage()
	s.Free, _ = c.disk.free() // 0 if unknown
	if c.ram != nil {
		s.RAMDir, s.RAMQuota, s.RAMUsed = c.ram.dir, c.o.RAMQuota, c.ram.usage()
	}
	return s
}

// CheckReport is the result of a check.
type CheckReport struct {
	Trees  int      `json:"trees"`
	Chunks int64    `json:"chunks"` // hashed
	Bytes  int64    `json:"bytes"`  // hashed
	Wrong  []Damage `json:"wrong"`
}

// Damage names something that was damaged on disk.
type Damage struct {
	Tree object.Digest `json:"tree"`
	What string        `json:"what"` // "chunk 12", "page 3", "manifest"
	// Held reports that the tree was mounted directly from its image file: the kernel
	// may have returned the damage to readers.
	Held bool `json:"held,omitempty"`
}

// Check hashes all present chunks, read from the disk if possible, and punches wrong
// ones: they are fetched again when they are read. Wrong manifests and index pages are
// written again.
func (c *Cache) Check(ctx context.Context) (CheckReport, error) {
	r := CheckReport{Wrong: []Damage{}}
	for _, t := range c.all() {
		r.Trees++
		t.checkMeta(&r)
		for k := range t.pages {
			pg := t.pages[k].Load()
			if pg == nil {
				continue
			}
			for i := range pg.state {
				if ctx.Err() != nil {
					return r, context.Cause(ctx)
				}
				t.checkChunk(pg, i, &r)
			}
		}
	}
	return r, nil
}

func (t *Tree) checkChunk(pg *page, i int, r *CheckReport) {
	if !pg.present(i) {
		return
	}
	t.imageMu.RLock() // so that the file is not closed, and its descriptor reused
	if im := t.image.Load(); im != nil {
		// The page cache may have better bytes than the disk. If it cannot be dropped,
		// it is checked instead.
		_ = unix.Fadvise(int(im.f.Fd()), pg.offs[i], pg.size(i), unix.FADV_DONTNEED)
	}
	t.imageMu.RUnlock()
	b := buffers.get(pg.size(i))
	defer buffers.put(b)
	before := t.stats.corrupt.Load()
	right := t.readWhole(pg, i, b)
	if right || t.stats.corrupt.Load() > before {
		r.Chunks++
		r.Bytes += pg.size(i)
	}
	if !right && t.stats.corrupt.Load() > before {
		r.Wrong = append(r.Wrong, Damage{t.digest, fmt.Sprintf("chunk %d", pg.first+i), t.held.Load() > 0})
	}
}

// checkMeta compares manifest and index pages on disk with those in memory, and
// rewrites wrong ones.
func (t *Tree) checkMeta(r *CheckReport) {
	if allocatedAt(t.dir) == 0 {
		return // none of it was kept
	}
	if content, err := t.manifest.Marshal(); err == nil && object.Sum(content) == t.digest && !fileHas(t.dir+"/manifest", t.digest) {
		r.Wrong = append(r.Wrong, Damage{Tree: t.digest, What: "manifest"})
		t.keepMeta("manifest", content, 0)
	}
	for k, where := range t.manifest.Pages {
		pg := t.pages[k].Load()
		if pg == nil || t.readPage(where) != nil {
			continue
		}
		chunks := make([]tree.Chunk, len(pg.digests))
		for i := range chunks {
			chunks[i] = tree.Chunk{Digest: pg.digests[i], Size: pg.size(i)}
		}
		if content, again, err := tree.MarshalPage(chunks); err == nil && again.Digest == where.Digest {
			r.Wrong = append(r.Wrong, Damage{Tree: t.digest, What: fmt.Sprintf("page %d", k)})
			t.keepMeta("pages", content, t.pagePlace[k])
		}
	}
}
