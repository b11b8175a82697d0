package collect

import (
	"context"
	"time"

	"premix/internal/node"
	"premix/internal/watch"
)

// store asks premix's node for the state of its mounts and its cache. Without a node it
// reports nothing.
type store struct {
	*machine
	b       batch
	ask     func(ctx context.Context) (*node.Status, *node.CacheStatus, error)
	mounts  *gauge
	failed  *gauge
	deaths  *gauge
	used    *gauge
	free    *gauge
	evicted *counter
	trees   kept[storeTree]
	origins kept[storeOrigin]
}

type storeTree struct {
	fetched, hits, misses, errors, corrupt *counter
	present                                *gauge
}

type storeOrigin struct {
	requests, bytes, errors *counter
	p99                     *gauge
}

func newStore(m *machine) *store {
	client := node.NewClient(node.Dir())
	return &store{machine: m, mounts: m.level("store.mounts"), failed: m.level("store.failed_mounts"), deaths: m.level("store.worker_deaths"),
		used: m.level("store.cache_used"), free: m.level("store.cache_free"), evicted: m.counter("store.cache_evicted"),
		ask: func(ctx context.Context) (*node.Status, *node.CacheStatus, error) {
			s, err := client.Status(ctx)
			if err != nil {
				return nil, nil, err
			}
			c, err := client.Cache(ctx)
			return s, c, err
		}}
}

// Name returns "store".
func (c *store) Name() string { return "store" }

// Collect asks the node once.
func (c *store) Collect(ctx context.Context, now time.Time, to watch.Sink) error {
	s, cache, err := c.ask(ctx)
	c.b.begin(now, c.now())
	if node.IsKind(err, node.KindNotRunning) {
		c.trees.sweep(nil)
		c.origins.sweep(nil)
		return nil
	}
	if err != nil {
		return err
	}
	failed := 0.0
	seen := make(map[string]bool)
	origins := make(map[string]node.Origin)
	for _, m := range s.Mounts {
		if m.State == "failed" {
			failed++
		}
		for _, o := range m.Origins {
			// Each mount has its own connections to an origin: their counts are added.
			sum := origins[o.URL]
			sum.Requests, sum.Bytes, sum.Errors, sum.P99 = sum.Requests+o.Requests, sum.Bytes+o.Bytes, sum.Errors+o.Errors, max(sum.P99, o.P99)
			origins[o.URL] = sum
		}
		if m.Tree.IsZero() || seen[m.Tree.String()] {
			continue // the figures belong to the tree, not to one of its mounts
		}
		seen[m.Tree.String()] = true
		c.tree(&m)
	}
	c.trees.sweep(nil)
	for url, o := range origins {
		g := c.origins.get(url, func() *storeOrigin {
			return &storeOrigin{c.counter("store.origin_requests", url), c.counter("store.origin_bytes", url), c.counter("store.origin_errors", url),
				c.level("store.origin_p99", url)}
		})
		c.b.rate(g.requests, float64(o.Requests), 1)
		c.b.rate(g.bytes, float64(o.Bytes), 1)
		c.b.rate(g.errors, float64(o.Errors), 1)
		c.b.level(g.p99, o.P99)
	}
	c.origins.sweep(nil)
	c.b.level(c.mounts, float64(len(s.Mounts)))
	c.b.level(c.failed, failed)
	c.b.level(c.deaths, float64(s.Deaths))
	c.b.level(c.used, float64(cache.Used))
	c.b.level(c.free, float64(cache.Free))
	c.b.rate(c.evicted, float64(cache.Evicted), 1)
	to.Samples(c.b.samples)
	return nil
}

func (c *store) tree(m *node.Mounted) {
	name := m.Ref
	if name == "" {
		name = m.Tree.String()
	}
	t := c.trees.get(m.Tree.String(), func() *storeTree {
		return &storeTree{c.counter("store.fetched_bytes", name), c.counter("store.hits", name), c.counter("store.misses", name),
			c.counter("store.errors", name), c.counter("store.corrupt", name), c.level("store.present", name)}
	})
	c.b.rate(t.fetched, float64(m.FetchedContent), 1)
	c.b.rate(t.hits, float64(m.Hits), 1)
	c.b.rate(t.misses, float64(m.Misses), 1)
	c.b.rate(t.errors, float64(m.Errors), 1)
	c.b.rate(t.corrupt, float64(m.Corrupt), 1)
	if m.Total > 0 {
		c.b.level(t.present, float64(m.Present)/float64(m.Total))
	}
}
