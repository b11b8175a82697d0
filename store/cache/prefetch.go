package cache

import (
	"context"
	"fmt"
	"sync"

	"golang.org/x/time/rate"
)

// limiter bounds bytes per second; nil where n is 0 or less.
func limiter(n int64) *rate.Limiter {
	if n <= 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(n), int(max(n, 1<<20)))
}

// pace waits until n bytes more may be fetched.
func pace(ctx context.Context, l *rate.Limiter, n int64) error {
	for l != nil && n > 0 {
		piece := min(n, int64(l.Burst()))
		if err := l.WaitN(ctx, int(piece)); err != nil {
			return err
		}
		n -= piece
	}
	return nil
}

// Complete fetches what is missing, in order of the image, with at most rate
// bytes of stored forms per second; 0 sets no bound. Readers go first. The error
// is a [NoRoomError] where the cache has no room for the tree: what is older than
// the call is evicted for it, but not what the call itself has fetched.
func (t *Tree) Complete(ctx context.Context, rate int64) error {
	return t.fill(ctx, limiter(rate), func(int) bool { return true })
}

// fill brings the chunks that which names to where they belong.
func (t *Tree) fill(ctx context.Context, l *rate.Limiter, which func(chunk int) bool) error {
	c := t.newCrowd(ctx, background)
	err := t.fillAll(c, l, which)
	return c.wait(err)
}

func (t *Tree) fillAll(c *crowd, l *rate.Limiter, which func(chunk int) bool) error {
	for k := range t.pages {
		pg, err := t.page(c.ctx, k)
		if err != nil {
			return err
		}
		for i := range pg.digests {
			if pg.hole(i) || pg.present(i) || !which(pg.first+i) {
				continue
			}
			if err := c.add(pg, i, l); err != nil {
				return err
			}
		}
	}
	return nil
}

// crowd is a number of chunks that somebody wants all of. It asks for a few at a
// time, so that a tree of a million chunks does not queue all of them.
type crowd struct {
	t        *Tree
	ctx      context.Context
	stop     context.CancelCauseFunc
	priority priority
	before   uint64 // what is used later than this is not evicted for it
	places   chan struct{}
	wg       sync.WaitGroup
}

func (t *Tree) newCrowd(ctx context.Context, p priority) *crowd {
	c := &crowd{t: t, priority: p, places: make(chan struct{}, 2*t.c.o.Fetches)}
	c.ctx, c.stop = context.WithCancelCause(ctx)
	// The tick makes what comes later newer than everything that is here.
	c.before = t.c.clock.Add(1)
	return c
}

// add asks for a chunk when there is a place, and does not wait for it.
func (c *crowd) add(pg *page, i int, l *rate.Limiter) error {
	select {
	case c.places <- struct{}{}:
	case <-c.ctx.Done():
		return context.Cause(c.ctx)
	}
	if l != nil && !c.t.wasHere(pg.first+i) && !c.t.c.mayHave(pg.digests[i]) {
		if err := pace(c.ctx, l, int64(pg.stored[i])); err != nil {
			<-c.places
			return context.Cause(c.ctx)
		}
	}
	c.wg.Go(func() {
		defer func() { <-c.places }()
		if err := c.bring(pg, i); err != nil {
			c.stop(err)
		}
	})
	return nil
}

// bring returns when a chunk is kept.
func (c *crowd) bring(pg *page, i int) error {
	for try := 0; ; try++ {
		f, here := c.t.board(pg, i, c.priority, c.before)
		if f == nil {
			return nil
		}
		if here {
			c.t.c.start(f, c.priority)
		}
		err := f.settle(c.ctx)
		// A flight of before, for which there was no room then, is tried again.
		kept := err == nil && (f.kept || c.t.keep(pg, i, f.content, c.before))
		again := f.owner != c.t && try < 2 // another tree's origin failed, or it was closed
		f.release()
		switch {
		case c.ctx.Err() != nil:
			return context.Cause(c.ctx)
		case kept:
			return nil
		case err == nil:
			return c.t.noRoom()
		case !again:
			return &ReadError{c.t.digest, fmt.Sprintf("chunk %d", pg.first+i), pg.digests[i], err}
		}
	}
}

// wait returns when everything that was asked for is there, or the first error.
func (c *crowd) wait(err error) error {
	if err != nil {
		c.stop(err)
	}
	c.wg.Wait()
	if c.ctx.Err() != nil && err == nil {
		err = context.Cause(c.ctx)
	}
	c.stop(nil)
	return err
}

// settle returns when the content was kept, or could not be.
func (f *flight) settle(ctx context.Context) error {
	select {
	case <-f.settled:
		return f.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (t *Tree) noRoom() error {
	_, vol := t.imageDir()
	e := &NoRoomError{Tree: t.digest, Where: "cache", Need: t.manifest.Size - t.present.Load() - t.holes.Load(), Quota: vol.quota}
	if vol != t.c.disk {
		e.Where = "memory"
	}
	e.Have = max(0, -vol.lacks(0))
	return e
}
