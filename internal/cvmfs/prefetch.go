package cvmfs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// Limits of a prefetch.
const (
	aheadObjects  = 32               // objects that are fetched at the same time, each over a connection
	aheadNames    = 8                // names that are looked up at the same time
	failuresMost  = 8                // after as many, the servers are left alone
	prefetchAgain = 10 * time.Second // between two prefetches of a profile that misses begin
)

// profiled is a profile that is fetched ahead of readers: when the repository is mounted, when a
// new revision is shown, and when a reader misses the content of one of its files, which has
// then been evicted, or could not be fetched before.
type profiled struct {
	p  *Profile
	at map[string]int // indices of entries by path

	mu      sync.Mutex
	running bool
	next    bool // it is to run again
	ended   time.Time

	counts atomic.Pointer[prefetchCounts] // of the last prefetch; nil before the first
}

// prefetchCounts are the counts of a prefetch.
type prefetchCounts struct {
	known   atomic.Int64 // entries that are in the revision, and whose objects are known
	missing atomic.Int64 // entries that are not, or are not below the root of the mount
	failed  atomic.Int64 // entries and objects
	objects atomic.Int64 // that were fetched
	over    atomic.Bool
}

func newProfiled(p *Profile) *profiled {
	a := &profiled{p: p, at: map[string]int{}}
	for i, t := range p.Entries {
		a.at[string(t.Path)] = i
	}
	return a
}

// prefetchAll fetches all profiles in the revision that is shown, in their order.
func (l *Live) prefetchAll() {
	for _, a := range l.profiles {
		l.prefetch(a, 0, true)
	}
}

// missed begins the prefetch of profiles with a file whose content a reader waits for.
func (l *Live) missed(path string) {
	for _, a := range l.profiles {
		if i, ok := a.at[path]; ok {
			l.prefetch(a, i, false)
		}
	}
}

// prefetch begins a prefetch at an entry, unless one is running. With fresh set, the revision
// is new, and a running prefetch is followed by another one.
func (l *Live) prefetch(a *profiled, from int, fresh bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.running {
		a.next = a.next || fresh
		return
	}
	if !fresh && time.Since(a.ended) < prefetchAgain || l.ctx.Err() != nil {
		return
	}
	a.running = true
	l.pending.Go(func() {
		for again := true; again; {
			l.fetchProfile(a, from)
			a.mu.Lock()
			again, a.next = a.next && l.ctx.Err() == nil, false
			a.running, a.ended = again, time.Now()
			a.mu.Unlock()
		}
	})
}

// fetchProfile fetches the objects of a profile that are not in the cache, from an entry on, and
// then those before it.
func (l *Live) fetchProfile(a *profiled, from int) {
	c := &prefetchCounts{}
	a.counts.Store(c)
	defer c.over.Store(true)
	shown := l.now.Load()
	ctx, stop := context.WithCancel(l.ctx)
	defer stop()
	fail := func(err error) {
		if errors.Is(err, context.Canceled) {
			return
		}
		_ = l.failed(fmt.Errorf("a profile: %w", err)) // an event; reads give EIO
		if c.failed.Add(1) >= failuresMost {
			stop()
		}
	}
	wanted := make(chan wantedObject)
	var fetchers errgroup.Group
	for range aheadObjects {
		fetchers.Go(func() error {
			for w := range wanted {
				x, err := l.cached.get(ctx, w)
				if err != nil {
					fail(err)
					continue
				}
				x.Close()
				c.objects.Add(1)
			}
			return nil
		})
	}
	names := &names{l: l, root: shown.catalog, top: shown.top}
	var last atomic.Int64
	var lookups errgroup.Group
	for range aheadNames {
		lookups.Go(func() error {
			for ctx.Err() == nil {
				k := int(last.Add(1)) - 1
				if k >= len(a.p.Entries) {
					break
				}
				t := a.p.Entries[(from+k)%len(a.p.Entries)]
				f, err := names.file(ctx, string(t.Path))
				switch {
				case err != nil:
					fail(err)
					continue
				case f == nil:
					c.missing.Add(1)
					continue
				}
				c.known.Add(1)
				for _, w := range f.within(t.Parts) {
					if l.o.Objects.Has(w.name()) {
						continue
					}
					select {
					case wanted <- w:
					case <-ctx.Done():
					}
				}
			}
			return nil
		})
	}
	_ = lookups.Wait() // they return nil
	close(wanted)
	_ = fetchers.Wait()
}

// within returns the objects of a file that overlap parts; none mean all of the file.
func (f *openFile) within(parts [][2]int64) []wantedObject {
	var list []wantedObject
	for _, k := range f.chunks {
		for len(parts) > 0 && parts[0][1]*partSize <= k.off && len(parts) > 1 {
			parts = parts[1:]
		}
		if len(parts) == 0 || parts[0][0]*partSize < k.off+k.size && k.off < parts[0][1]*partSize {
			list = append(list, f.wanted(k))
		}
	}
	return list
}

// names finds paths in a revision, and remembers directories.
type names struct {
	l    *Live
	root int      // the number of the uppermost catalog
	top  string   // the path of its root
	dirs sync.Map // from a path to the number of its catalog; -1: there is no such directory
}

// file returns the chunks of a path, none if it is not a regular file, or nil if it does not
// exist or is not below the root of the mount. It fetches the catalogs in which it looks.
func (s *names) file(ctx context.Context, path string) (*openFile, error) {
	if !isAbove(s.l.o.Path, path) {
		return nil, nil
	}
	n, e, err := s.find(ctx, path)
	switch {
	case err != nil || n < 0:
		return nil, err
	case e == nil || !e.IsRegular() || e.external:
		return &openFile{}, nil
	}
	return s.l.chunksOf(ctx, n, e)
}

// find returns the entry of a path, and the number of its catalog: -1 if there is none. The
// entry of a directory that was found before is nil.
func (s *names) find(ctx context.Context, path string) (int, *Entry, error) {
	if path == s.top {
		return s.root, nil, nil
	}
	if n, ok := s.dirs.Load(path); ok {
		return n.(int), nil, nil
	}
	n, up, err := s.find(ctx, path[:strings.LastIndexByte(path, '/')])
	if err != nil || n < 0 || up != nil && !up.IsDir() {
		return -1, nil, err
	}
	n, e, err := s.l.step(ctx, n, path)
	if err != nil {
		return -1, nil, err
	}
	if e == nil {
		n = -1
	}
	if e == nil || e.IsDir() {
		s.dirs.Store(path, n)
	}
	return n, e, nil
}

// Prefetched describes the prefetch of all profiles, for a status.
func (l *Live) Prefetched() string {
	if len(l.profiles) == 0 {
		return "none"
	}
	var entries int
	var known, missing, failed, objects int64
	over := true
	for _, a := range l.profiles {
		entries += len(a.p.Entries)
		c := a.counts.Load()
		if c == nil {
			over = false
			continue
		}
		known, missing, failed, objects = known+c.known.Load(), missing+c.missing.Load(), failed+c.failed.Load(), objects+c.objects.Load()
		over = over && c.over.Load()
	}
	text := fmt.Sprintf("%d names, %d objects fetched", entries, objects)
	if !over {
		text = fmt.Sprintf("fetching: %d of %d names, %d objects", known+missing, entries, objects)
	}
	if missing > 0 {
		text += fmt.Sprintf(", %d names do not exist here", missing)
	}
	if failed > 0 {
		text += fmt.Sprintf(", %d failed: reads fetch what they need", failed)
	}
	return text
}
