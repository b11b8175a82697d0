package cache

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// slowestKept is the number of slowest fetches that a tree remembers.
const slowestKept = 8

// counters counts events of a tree since the cache was opened.
type counters struct {
	hits, misses        atomic.Int64 // chunks read
	waits               atomic.Int64 // for bundles with parts, including those not ended
	fetches, failed     atomic.Int64 // of objects
	contentBytes        atomic.Int64 // fetched
	copied, copiedBytes atomic.Int64 // chunks from other trees
	errors              atomic.Int64 // reads that failed
	cloned              atomic.Int64 // bytes that share blocks with another tree's
	corrupt             atomic.Int64 // chunks that were wrong on disk
	passed              atomic.Int64 // chunks that could not be kept
	diskErrors          atomic.Int64 // failed writes or punches, except for lack of space
	slowest             slowest
}

// SlowFetch is a fetch that took long.
type SlowFetch struct {
	Chunk   int       `json:"chunk"`
	Seconds float64   `json:"seconds"`
	At      time.Time `json:"at"` // when it ended
}

type slowest struct {
	floor atomic.Int64 // nanoseconds below which a fetch is not recorded
	mu    sync.Mutex
	list  []SlowFetch // slowest first
}

func (s *slowest) add(chunk int, took time.Duration) {
	if int64(took) <= s.floor.Load() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, SlowFetch{chunk, took.Seconds(), time.Now().UTC()})
	slices.SortFunc(s.list, func(a, b SlowFetch) int { return cmp.Compare(b.Seconds, a.Seconds) })
	if len(s.list) > slowestKept {
		s.list = s.list[:slowestKept]
		s.floor.Store(int64(s.list[slowestKept-1].Seconds * float64(time.Second)))
	}
}

func (n *counters) fetched(chunk int, size int64, took time.Duration) {
	n.fetches.Add(1)
	n.contentBytes.Add(size)
	n.slowest.add(chunk, took)
}

// Stats holds the figures of one tree. The first group describes the present, the
// others count since the cache was opened. Bytes are bytes of the image unless stated
// otherwise.
type Stats struct {
	Size          int64 `json:"size"`           // of the image, holes included
	Chunks        int64 `json:"chunks"`         // holes included
	PresentChunks int64 `json:"present_chunks"` // known holes included
	PresentBytes  int64 `json:"present_bytes"`  // known holes included
	PartChunks    int64 `json:"part_chunks"`    // chunks with a cached part, from a profile

	Hits          int64       `json:"hits"`          // chunks read that were cached
	Misses        int64       `json:"misses"`        // chunks read that a reader waited for
	Fetches       int64       `json:"fetches"`       // objects fetched, a bundle counting as one
	FetchedBytes  int64       `json:"fetched_bytes"` // contents of chunks fetched
	Copied        int64       `json:"copied"`        // chunks taken from other trees in the cache
	CopiedBytes   int64       `json:"copied_bytes"`
	SharedBytes   int64       `json:"shared_bytes"` // of those, where the file system shares the blocks
	FailedFetches int64       `json:"failed_fetches"`
	Errors        int64       `json:"errors"`      // reads that failed
	Corrupt       int64       `json:"corrupt"`     // chunks found to be wrong on disk
	NotKept       int64       `json:"not_kept"`    // chunks not kept for lack of space
	DiskErrors    int64       `json:"disk_errors"` // of writing and punching, except for lack of space
	Slowest       []SlowFetch `json:"slowest,omitempty"`
}

// Stats returns the tree's figures. It is cheap.
func (t *Tree) Stats() Stats {
	n := &t.stats
	total := int64(t.manifest.Chunks())
	s := Stats{
		Size: t.manifest.Size, Chunks: total,
		PresentChunks: total - t.missing.Load(), PresentBytes: t.present.Load() + t.holes.Load(), PartChunks: t.parts.Load(),
		Hits: n.hits.Load(), Misses: n.misses.Load(),
		Fetches: n.fetches.Load(), FailedFetches: n.failed.Load(),
		FetchedBytes: n.contentBytes.Load(),
		Copied:       n.copied.Load(), CopiedBytes: n.copiedBytes.Load(), SharedBytes: n.cloned.Load(),
		Errors: n.errors.Load(), Corrupt: n.corrupt.Load(),
		NotKept: n.passed.Load(), DiskErrors: n.diskErrors.Load(),
	}
	n.slowest.mu.Lock()
	s.Slowest = slices.Clone(n.slowest.list)
	n.slowest.mu.Unlock()
	return s
}
