package cache

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"premix/store/object"
	"premix/store/tree"
)

// Prefetch fetches what a profile names, in its order, with at most rate bytes of
// the image, or of a bundle, per second; 0 sets no bound. Bundles go first, each with one
// request and several at once, those first that readers wait for; one of which most
// chunks are here already is not fetched, what lacks comes singly. Each chunk is verified by its own digest: a
// profile can waste time, and nothing else.
func (t *Tree) Prefetch(ctx context.Context, p *tree.Profile, rate int64) error {
	if err := t.checkProfile(p); err != nil {
		return err
	}
	c := t.newCrowd(ctx, prefetch)
	// The cache waits for promised chunks when it is closed: see flights.close.
	defer context.AfterFunc(t.c.ctx, func() { c.stop(ErrClosed) })()
	return c.wait(t.prefetchAll(c, p, limiter(rate)))
}

func (t *Tree) checkProfile(p *tree.Profile) error {
	if p.Tree != t.digest {
		return &tree.InvalidError{What: "profile", Reason: fmt.Sprintf("it is of tree %s, not of %s", p.Tree.Short(), t.digest.Short())}
	}
	total := t.manifest.Chunks()
	outside := func(i int) bool { return i < 0 || i >= total }
	bad := slices.ContainsFunc(p.Chunks, outside)
	for _, b := range p.Bundles {
		bad = bad || slices.ContainsFunc(b.Chunks, outside) || len(b.Stored) != len(b.Chunks) || b.Size() > tree.MaxBundle
	}
	if bad {
		return &tree.InvalidError{What: "profile", Reason: fmt.Sprintf("it does not fit a tree of %d chunks", total)}
	}
	return nil
}

func (t *Tree) prefetchAll(c *crowd, p *tree.Profile, l *rate.Limiter) error {
	var begun map[object.Digest]*early
	if l == nil {
		begun = c.fetchEarly(p.Bundles)
	}
	if err := t.loadPages(c, p); err != nil {
		return err
	}
	bundles, err := c.promise(p.Bundles, begun)
	if err != nil {
		return err
	}
	defer c.abandon(bundles)
	for _, b := range bundles {
		if err := c.addBundle(b, l); err != nil {
			return err
		}
	}
	for _, chunk := range p.Chunks {
		pg, err := t.pageOf(c.ctx, chunk)
		if err != nil {
			return err
		}
		if i := chunk - pg.first; !pg.hole(i) && !pg.present(i) {
			if err := c.add(pg, i, l); err != nil {
				return err
			}
		}
	}
	return nil
}

// loadPages gets the index pages that a profile needs, many at a time.
func (t *Tree) loadPages(c *crowd, p *tree.Profile) error {
	var pages sync.WaitGroup
	asked := map[int]bool{}
	ask := func(chunk int) {
		k := t.pageNumber(chunk)
		if asked[k] || t.pages[k].Load() != nil {
			return
		}
		asked[k] = true
		select {
		case c.places <- struct{}{}:
		case <-c.ctx.Done():
			return
		}
		pages.Go(func() {
			defer func() { <-c.places }()
			if _, err := t.page(c.ctx, k); err != nil {
				c.stop(err)
			}
		})
	}
	for _, b := range p.Bundles {
		for _, chunk := range b.Chunks {
			ask(chunk)
		}
	}
	for _, chunk := range p.Chunks {
		ask(chunk)
	}
	pages.Wait()
	return context.Cause(c.ctx)
}

// bundle is a bundle on its way, with the flights that it brings.
type bundle struct {
	tree.Bundle
	flights map[int]*flight // by place in the bundle
	job     *job
	early   *early        // nil where it is not on its way yet
	done    chan struct{} // closed when the flights have what it had for them
}

// early is the content of a bundle whose fetch began before it was known what the
// bundle brings.
type early struct {
	done    chan struct{}
	content []byte
	err     error
}

// fetchEarly begins to fetch the first bundles while the index pages come, in an
// empty cache only: in another one the pages may tell that a bundle is not wanted.
func (c *crowd) fetchEarly(list []tree.Bundle) map[object.Digest]*early {
	// The chunk that a mount reads first may be here.
	if c.t.c.chunks.Load() > 1 {
		return nil
	}
	begun := map[object.Digest]*early{}
	var bytes int64
	for _, b := range list {
		if bytes += b.Size(); bytes > c.t.c.o.Window {
			break
		}
		if begun[b.Digest] != nil {
			continue
		}
		e := &early{done: make(chan struct{})}
		begun[b.Digest] = e
		u := c.t.use()
		c.wg.Go(func() {
			defer close(e.done)
			e.content, e.err = u.fetch(b.Digest, b.Size())
		})
	}
	return begun
}

// fetch returns the bundle's content.
func (b *bundle) fetch(u use) ([]byte, error) {
	e := b.early
	if e == nil {
		return u.fetch(b.Digest, b.Size())
	}
	b.early = nil // its memory is free when the content has been given away
	select {
	case <-e.done:
		return e.content, e.err
	case <-u.ctx.Done():
		return nil, context.Cause(u.ctx)
	}
}

// promise makes flights for all chunks that bundles will bring, before any of
// those is fetched. Who wants such a chunk waits for its bundle, which goes first
// then, and does not fetch the chunk besides.
func (c *crowd) promise(list []tree.Bundle, begun map[object.Digest]*early) ([]*bundle, error) {
	var bundles []*bundle
	for _, one := range list {
		chunks := make([]target, len(one.Chunks))
		near := make([]bool, len(chunks))
		for n, chunk := range one.Chunks {
			pg, err := c.t.pageOf(c.ctx, chunk)
			if err != nil {
				c.abandon(bundles)
				return nil, err
			}
			chunks[n] = target{c.t, pg, chunk - pg.first}
			near[n] = c.t.near(pg, chunk-pg.first)
		}
		b := &bundle{Bundle: one, early: begun[one.Digest], done: make(chan struct{})}
		delete(begun, one.Digest)
		b.job = &job{priority: promised, cost: b.Size(), several: true, run: func() {
			defer close(b.done)
			c.runBundle(b)
		}}
		if b.flights = c.t.boardBundle(chunks, near, b.job, c.before); b.flights != nil {
			bundles = append(bundles, b)
		}
	}
	return bundles, nil
}

// addBundle has a bundle fetched when there is a place. A reader may have had it
// fetched before.
func (c *crowd) addBundle(b *bundle, l *rate.Limiter) error {
	select {
	case c.places <- struct{}{}:
	case <-c.ctx.Done():
		return context.Cause(c.ctx)
	}
	if err := pace(c.ctx, l, b.Size()); err != nil {
		<-c.places
		return err
	}
	fl := c.t.c.flights
	fl.mu.Lock()
	fl.promote(b.job, c.priority)
	fl.mu.Unlock()
	c.wg.Go(func() {
		defer func() { <-c.places }()
		<-b.done
	})
	return nil
}

// abandon gives up those bundles that nobody has begun to fetch. What readers
// want of them is fetched singly.
func (c *crowd) abandon(bundles []*bundle) {
	fl := c.t.c.flights
	fl.mu.Lock()
	defer fl.mu.Unlock()
	for _, b := range bundles {
		// In a queue, it runs and sees that it isn't wanted any more.
		if b.job.priority == promised {
			b.job.started = true
			fl.backOut(b.flights)
			close(b.done)
		}
	}
}

// runBundle fetches a bundle and gives its chunks to those that want them.
func (c *crowd) runBundle(b *bundle) {
	fl := c.t.c.flights
	backOut := func(fs map[int]*flight) {
		fl.mu.Lock()
		defer fl.mu.Unlock()
		fl.backOut(fs)
	}
	if c.ctx.Err() != nil {
		backOut(b.flights)
		return
	}
	start := time.Now()
	content, err := b.fetch(c.t.use())
	if err != nil {
		// Its chunks can still be had one by one: prefetchAll asks for them, and
		// whoever waits for one has it fetched at once.
		c.t.stats.failed.Add(1)
		backOut(b.flights)
		return
	}
	var size int64
	for _, f := range b.flights {
		size += f.size
	}
	c.t.stats.fetched(b.Chunks[0], size, time.Since(start))
	for n, stored := range b.Stored {
		frame := content[:stored]
		content = content[stored:]
		f := b.flights[n]
		if f == nil {
			continue
		}
		buf := buffers.get(f.size)
		if _, err := object.Decode(buf[:0], f.digest, f.size, frame); err != nil {
			buffers.put(buf)
			c.t.stats.failed.Add(1)
			backOut(map[int]*flight{n: f})
			continue
		}
		f.pooled = true
		f.finish(buf, nil)
	}
}

// boardBundle makes flights for those chunks of a bundle that lack and are not on
// their way, by their place in the bundle, or returns nil where that is not worth
// a fetch of the bundle. near tells which may be had without one. A fetch of one
// chunk that waits for its turn is taken over.
func (t *Tree) boardBundle(chunks []target, near []bool, j *job, before uint64) map[int]*flight {
	fl := t.c.flights
	fl.mu.Lock()
	defer fl.mu.Unlock()
	if fl.closed {
		return nil
	}
	lack := 0
	var places []int
	for n, to := range chunks {
		if to.pg.hole(to.i) || to.pg.present(to.i) {
			continue
		}
		if f := fl.m[to.pg.digests[to.i]]; f == nil || f.job != nil && !f.job.started && !f.job.several {
			places = append(places, n)
			if !near[n] {
				lack++
			}
		}
	}
	if 2*lack <= len(chunks) {
		return nil
	}
	fs := map[int]*flight{}
	wanted := promised
	for _, n := range places {
		to := chunks[n]
		f := fl.m[to.pg.digests[to.i]]
		switch {
		case f == nil:
			f = t.newFlight(to.pg, to.i, before)
			f.wanted = background
			fl.m[f.digest] = f
		case f.job == j:
			continue // a bundle has it twice
		default:
			f.job.started = true // the scheduler passes it over
			wanted = min(wanted, f.wanted)
		}
		f.job = j
		fs[n] = f
	}
	fl.promote(j, wanted)
	return fs
}

// backOut has flights that a bundle can't serve fetched singly, as far as somebody
// wants them; the others never were. Under flights.mu.
func (fl *flights) backOut(fs map[int]*flight) {
	for _, f := range fs {
		if f.refs.Load() == 1 { // its own
			delete(fl.m, f.digest)
			fl.idle.Broadcast()
			continue
		}
		f.job = &job{priority: f.wanted, cost: f.size, run: f.fetch}
		fl.queue(f.job)
	}
}

// near tells whether a chunk may be had without a fetch.
func (t *Tree) near(pg *page, i int) bool {
	return t.wasHere(pg.first+i) || t.c.mayHave(pg.digests[i])
}

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
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			return fmt.Errorf("%w: %w", context.DeadlineExceeded, err) // it would come too late
		}
		n -= piece
	}
	return nil
}

// Complete fetches what is missing, in order of the image, with at most rate
// bytes of the image per second; 0 sets no bound. Readers go first. The error
// is a [NoRoomError] where the cache has no room for the tree: what is older than
// the call is evicted for it, but not what the call itself has fetched.
func (t *Tree) Complete(ctx context.Context, rate int64) error {
	return t.fill(ctx, limiter(rate), func(pg *page, i int) bool { return !pg.present(i) })
}

// Verify completes the tree and hashes what was not hashed since the cache was
// opened. Who mounts the image file directly holds the tree and calls it first,
// as nothing compares what the kernel reads from there.
func (t *Tree) Verify(ctx context.Context) error {
	return t.fill(ctx, nil, func(pg *page, i int) bool {
		s := pg.state[i].Load()
		return s == nil || s == unverified
	})
}

// fill brings the chunks that which names to where they belong.
func (t *Tree) fill(ctx context.Context, l *rate.Limiter, which func(pg *page, i int) bool) error {
	c := t.newCrowd(ctx, background)
	err := c.wait(t.fillAll(c, l, which))
	if err == nil && t.missing.Load() == 0 && t.image.Load() == nil {
		err = t.makeEmpty() // a tree of holes only
	}
	return err
}

// makeEmpty makes an image file in which nothing is written.
func (t *Tree) makeEmpty() error {
	_, vol := t.imageDir()
	if !t.c.makeRoom(vol, margin, maxGeneration) {
		return t.noRoom()
	}
	defer vol.release(margin)
	_, err := t.ensureImage()
	return err
}

func (t *Tree) fillAll(c *crowd, l *rate.Limiter, which func(pg *page, i int) bool) error {
	for k := range t.pages {
		pg, err := t.page(c.ctx, k)
		if err != nil {
			return err
		}
		for i := range pg.digests {
			if pg.hole(i) || !which(pg, i) {
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
	if l != nil && !c.t.near(pg, i) {
		if err := pace(c.ctx, l, pg.size(i)); err != nil {
			<-c.places
			return err
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
		kept := err == nil && (f.kept || c.t.keep(pg, i, f.content, target{}, c.before))
		// As in readChunk.
		reopened := errors.Is(err, context.Canceled) && c.t.use().ctx.Err() == nil
		again := reopened || f.owner != c.t && try < 2
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
