package cache

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"premix/internal/store/object"
	"premix/internal/store/tree"
)

// Prefetch fetches the chunks of a profile, in its order, with at most rate bytes of
// the image, or of a bundle, per second; 0 means no limit. Bundles go first, each with
// one request and several at once, and those that readers wait for before others. A
// bundle of which most is cached is not fetched; its missing chunks are fetched one by
// one, and whole. Everything is verified by the digests of its chunks: a wrong profile
// can only waste time.
//
// If the tree's fetcher is a [Streamer], the content of a bundle is used while the rest
// of it is being received.
//
// If brought is not nil, several goroutines call it with the number of bytes of a
// bundle that are cached, from its beginning: first 0, when its fetch begins, then
// more, at last all. It must not block.
func (t *Tree) Prefetch(ctx context.Context, p *tree.Profile, rate int64, brought func(bundle int, here int64)) error {
	if p.Tree != t.digest {
		return &tree.InvalidError{What: "profile", Reason: fmt.Sprintf("it is of tree %s, not of %s", p.Tree.Short(), t.digest.Short())}
	}
	if err := p.CheckChunks(t.manifest.Chunks()); err != nil {
		return err
	}
	planning := make(chan struct{})
	planned := sync.OnceFunc(func() { close(planning) })
	t.planning.Store(&planning)
	defer func() {
		t.planning.CompareAndSwap(&planning, nil)
		planned()
	}()
	if brought == nil {
		brought = func(int, int64) {}
	}
	c := t.newBatch(ctx, prefetch)
	// When the cache is closed it waits for promised chunks: see flights.close.
	defer context.AfterFunc(t.c.ctx, func() { c.stop(ErrClosed) })()
	var told sync.Map // numbers of bundles
	tell := func(bundle int, here int64) {
		if here == p.Bundles[bundle].Size {
			if _, before := told.LoadOrStore(bundle, true); before {
				return
			}
		}
		brought(bundle, here)
	}
	if err := c.wait(t.prefetchAll(c, p, limiter(rate), planned, tell)); err != nil {
		return err
	}
	for i, b := range p.Bundles { // those already cached, or fetched chunk by chunk
		tell(i, b.Size)
	}
	return nil
}

// prefetchAll calls planned when readers can see which parts bundles will bring, and
// brought when some bytes of a bundle have been received.
func (t *Tree) prefetchAll(c *batch, p *tree.Profile, l *rate.Limiter, planned func(), brought func(bundle int, here int64)) error {
	var started map[object.Digest]*early
	if l == nil {
		started = c.fetchEarly(p.Bundles)
	}
	if err := t.loadPages(c, p); err != nil {
		return err
	}
	err := p.Check(t.manifest.Chunks(), func(chunk int) (int64, bool, error) {
		pg, err := t.pageOf(c.ctx, chunk)
		if err != nil {
			return 0, false, err
		}
		return pg.size(chunk - pg.first), pg.hole(chunk - pg.first), nil
	})
	if err != nil {
		return err
	}
	bundles, err := c.promise(p, started, brought)
	planned()
	if err != nil {
		return err
	}
	defer c.abandon(bundles)
	for _, b := range bundles {
		if err := c.addBundle(b, l); err != nil {
			return err
		}
	}
	// A part that no bundle brings is fetched with its whole chunk. Which parts these
	// are is known only when the bundles are done.
	if err := c.addRest(p, l, func(part tree.Part) bool { return part.Whole() }); err != nil {
		return err
	}
	for _, b := range bundles {
		select {
		case <-b.done:
		case <-c.ctx.Done():
			return context.Cause(c.ctx)
		}
	}
	return c.addRest(p, l, func(part tree.Part) bool { return !part.Whole() })
}

// addRest fetches the chunks of those parts that are not cached.
func (c *batch) addRest(p *tree.Profile, l *rate.Limiter, which func(tree.Part) bool) error {
	for _, part := range p.Parts {
		if !which(part) {
			continue
		}
		pg, err := c.t.pageOf(c.ctx, part.Chunk)
		if err != nil {
			return err
		}
		if i := part.Chunk - pg.first; !pg.hole(i) && !c.t.hasPart(pg, i, part) {
			if err := c.add(pg, i, l); err != nil {
				return err
			}
		}
	}
	return nil
}

// loadPages loads the index pages that a profile needs, many at a time.
func (t *Tree) loadPages(c *batch, p *tree.Profile) error {
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
	for _, part := range p.Parts {
		ask(part.Chunk)
	}
	pages.Wait()
	return context.Cause(c.ctx)
}

// bundle is a bundle being fetched, with its results: flights of whole chunks, and
// parts of others.
type bundle struct {
	tree.Bundle
	slices   []slice
	flights  map[int]*flight       // by index in slices; those not yet delivered
	parts    map[int]chan struct{} // likewise; each is closed when the part was kept, or will not be
	download *download
	early    *early        // nil if its fetch has not begun early
	done     chan struct{} // closed when the fetch has ended

	// State of the bytes received, of the fetching goroutine.
	next    int   // the first slice not yet delivered
	at      int64 // its offset
	told    int64 // bytes reported to brought
	wrong   bool  // that slice is wrong; the rest waits until the whole bundle is verified
	brought func(here int64)
}

// slice is a part of a chunk in a bundle.
type slice struct {
	target
	part tree.Part
}

// early is the content of a bundle whose fetch began before its slices were known.
type early struct {
	done    chan struct{}
	content []byte
	err     error

	mu    sync.Mutex // held while take runs
	soFar []byte
	take  func(soFar []byte) // nil until the slices are known
}

func (e *early) got(soFar []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.soFar = soFar
	if e.take != nil {
		e.take(soFar)
	}
}

// give sets the function that receives the content as it arrives. After give(nil)
// returns, no function is called.
func (e *early) give(take func(soFar []byte)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.take = take
	if take != nil && len(e.soFar) > 0 {
		take(e.soFar)
	}
}

// fetchEarly begins to fetch the first bundles while index pages are being loaded, but
// only in an empty cache: in another the pages may show that a bundle is not needed.
func (c *batch) fetchEarly(list []tree.Bundle) map[object.Digest]*early {
	if c.t.c.chunks.Load() > 0 {
		return nil
	}
	started := map[object.Digest]*early{}
	var bytes int64
	for _, b := range list {
		if bytes += b.Size; bytes > c.t.c.o.Window {
			break
		}
		if started[b.Digest] != nil {
			continue
		}
		e := &early{done: make(chan struct{})}
		started[b.Digest] = e
		u := c.t.use()
		c.wg.Go(func() {
			defer close(e.done)
			e.content, e.err = u.stream(b.Digest, b.Size, e.got)
		})
	}
	return started
}

// fetch returns the bundle's content, and calls take with the bytes received so far
// whenever there are more.
func (b *bundle) fetch(u use, take func(soFar []byte)) ([]byte, error) {
	e := b.early
	if e == nil {
		return u.stream(b.Digest, b.Size, take)
	}
	b.early = nil // so that its memory can be freed when the content is delivered
	e.give(take)
	defer e.give(nil)
	select {
	case <-e.done:
		return e.content, e.err
	case <-u.ctx.Done():
		return nil, context.Cause(u.ctx)
	}
}

// promise registers the results of all bundles before any of them is fetched: whole
// chunks as flights, parts as expected. A reader that needs one of these waits for its
// bundle, which is then fetched first, and does not fetch the chunk separately.
func (c *batch) promise(p *tree.Profile, started map[object.Digest]*early, brought func(bundle int, here int64)) (bundles []*bundle, err error) {
	p.InBundles(func(number int, one tree.Bundle, parts []tree.Part) bool {
		b := &bundle{Bundle: one, early: started[one.Digest], done: make(chan struct{}), flights: map[int]*flight{}, parts: map[int]chan struct{}{},
			brought: func(here int64) { brought(number, here) }}
		for _, part := range parts {
			var pg *page
			if pg, err = c.t.pageOf(c.ctx, part.Chunk); err != nil {
				return false
			}
			b.slices = append(b.slices, slice{target{c.t, pg, part.Chunk - pg.first}, part})
		}
		delete(started, one.Digest)
		b.download = &download{priority: promised, cost: b.Size, several: true, run: func() { c.runBundle(b) }}
		if c.t.joinBundle(b, c.before) {
			bundles = append(bundles, b)
			b.brought(0)
		}
		return true
	})
	if err != nil {
		c.abandon(bundles)
	}
	return bundles, err
}

// end wakes those that still wait for the bundle: all of its parts are kept, or will
// not be.
func (b *bundle) end() {
	for n := range b.parts {
		b.came(n)
	}
	close(b.done)
}

// came wakes those that wait for a part.
func (b *bundle) came(n int) {
	come, to := b.parts[n], b.slices[n]
	delete(b.parts, n)
	to.t.expected.remove(to.part.Chunk, b)
	close(come)
}

// addBundle fetches a bundle when there is a free slot. A reader may have caused its
// fetch already.
func (c *batch) addBundle(b *bundle, l *rate.Limiter) error {
	select {
	case c.places <- struct{}{}:
	case <-c.ctx.Done():
		return context.Cause(c.ctx)
	}
	if err := pace(c.ctx, l, b.Size); err != nil {
		<-c.places
		return err
	}
	fl := c.t.c.flights
	fl.mu.Lock()
	fl.promote(b.download, c.priority)
	fl.mu.Unlock()
	c.wg.Go(func() {
		defer func() { <-c.places }()
		<-b.done
	})
	return nil
}

// abandon gives up the bundles whose fetch has not begun. Readers fetch the chunks that
// they need one by one.
func (c *batch) abandon(bundles []*bundle) {
	fl := c.t.c.flights
	fl.mu.Lock()
	defer fl.mu.Unlock()
	for _, b := range bundles {
		// If it is queued, it runs, sees that the context is cancelled, and ends.
		if b.download.priority == promised {
			b.download.started = true
			fl.backOut(b.flights)
			b.end()
		}
	}
}

// runBundle fetches a bundle and delivers each slice when it has arrived.
func (c *batch) runBundle(b *bundle) {
	defer b.end()
	if c.ctx.Err() != nil {
		c.backOut(b.flights)
		return
	}
	start := time.Now()
	content, err := b.fetch(c.t.use(), func(soFar []byte) { c.take(b, soFar, false) })
	if err != nil {
		// Missing chunks are still fetched one by one: prefetchAll asks for them, and a
		// waiting reader fetches its chunk at once.
		c.t.stats.failed.Add(1)
		c.backOut(b.flights)
		return
	}
	c.t.stats.fetched(b.slices[0].part.Chunk, b.Size, time.Since(start))
	c.take(b, content, true)
}

// tellEvery is the number of bytes of a bundle between two calls of brought.
const tellEvery = 256 << 10

// take delivers the slices of a bundle that have arrived completely. Until the whole
// bundle has arrived it is not verified: a slice that is wrong now may be right later,
// when the fetch has begun again.
func (c *batch) take(b *bundle, soFar []byte, all bool) {
	if b.wrong && !all {
		return
	}
	for ; b.next < len(b.slices); b.next++ {
		n, to := b.next, b.slices[b.next]
		length := int64(0)
		if !to.pg.hole(to.i) {
			length = to.part.Size(to.pg.size(to.i))
		}
		if int64(len(soFar)) < b.at+length {
			break
		}
		f, part := b.flights[n], b.parts[n]
		if f != nil || part != nil {
			err := c.deliver(to, f, soFar[b.at:b.at+length])
			if b.wrong = err != nil && !all; b.wrong {
				return
			}
			switch {
			case part != nil:
				b.came(n)
			case err == nil:
				delete(b.flights, n)
			}
			if err != nil {
				c.t.stats.failed.Add(1)
			}
		}
		b.at += length
	}
	if all {
		c.backOut(b.flights) // those whose slices were wrong
	}
	if b.at-b.told >= tellEvery || all {
		b.told = b.at
		b.brought(b.at)
	}
}

// backOut is flights.backOut for callers without its lock.
func (c *batch) backOut(fs map[int]*flight) {
	fl := c.t.c.flights
	fl.mu.Lock()
	defer fl.mu.Unlock()
	fl.backOut(fs)
}

// deliver verifies a slice and keeps it, or passes it to a flight.
func (c *batch) deliver(to slice, f *flight, content []byte) error {
	size := to.pg.size(to.i)
	var pieces []piece
	err := object.OpenSlice(to.pg.digests[to.i], size, to.part.Slice(size), content, func(off int64, data []byte) {
		pieces = append(pieces, piece{off, data})
	})
	switch {
	case err != nil:
		return err
	case f == nil:
		c.t.keepPart(to.pg, to.i, pieces, c.before)
	default:
		// A flight has its own buffer, since the bundle's may be large.
		buf := buffers.get(f.size)
		copy(buf, content)
		f.pooled = true
		f.finish(buf, nil)
	}
	return nil
}

// hasPart reports whether the chunk's part is cached.
func (t *Tree) hasPart(pg *page, i int, part tree.Part) bool {
	if pg.present(i) || part.Whole() {
		return pg.present(i)
	}
	q := pg.part[i].Load()
	if q == nil {
		return false
	}
	for _, r := range part.Runs {
		at, end := wholeBlocks(pg, i, int64(r.From)*object.LeafSize, min(int64(r.To)*object.LeafSize, pg.size(i)))
		if at < end && !q.has(pg, i, at, end-at) {
			return false
		}
	}
	return true
}

// joinBundle creates flights for the missing whole chunks of a bundle, registers its
// other parts as expected, and reports whether the bundle is worth a fetch. It takes
// over the flight of a chunk whose fetch is still queued.
func (t *Tree) joinBundle(b *bundle, before uint64) bool {
	fl := t.c.flights
	fl.mu.Lock()
	defer fl.mu.Unlock()
	if fl.closed {
		return false
	}
	lack := 0
	var places []int
	for n, to := range b.slices {
		if to.pg.hole(to.i) || t.hasPart(to.pg, to.i, to.part) || !to.part.Whole() && t.c.o.VerifyAlways {
			continue
		}
		if f := fl.m[to.pg.digests[to.i]]; f == nil || to.part.Whole() && f.download != nil && !f.download.started && !f.download.several {
			places = append(places, n)
			if !t.near(to.pg, to.i) {
				lack++
			}
		}
	}
	if 2*lack <= len(b.slices) {
		return false
	}
	wanted := promised
	for _, n := range places {
		to := b.slices[n]
		if !to.part.Whole() {
			b.parts[n] = make(chan struct{})
			t.expected.add(to.part.Chunk, promisedPart{to.part.Runs, b, b.parts[n]})
			continue
		}
		f := fl.m[to.pg.digests[to.i]]
		switch {
		case f == nil:
			f = t.newFlight(to.pg, to.i, before)
			f.wanted = background
			fl.m[f.digest] = f
		case f.download == b.download:
			continue // the bundle has the chunk twice
		default:
			f.download.started = true // the scheduler skips it
			wanted = min(wanted, f.wanted)
		}
		f.download = b.download
		b.flights[n] = f
	}
	fl.promote(b.download, wanted)
	return true
}

// backOut fetches the chunks of flights that a bundle cannot serve one by one if they
// are wanted, and drops the other flights. The caller holds flights.mu.
func (fl *flights) backOut(fs map[int]*flight) {
	for _, f := range fs {
		if f.refs.Load() == 1 { // only finish's reference
			delete(fl.m, f.digest)
			fl.idle.Broadcast()
			continue
		}
		f.download = &download{priority: f.wanted, cost: f.size, run: f.fetch}
		fl.queue(f.download)
	}
}

// near reports whether a chunk may be available without a fetch.
func (t *Tree) near(pg *page, i int) bool {
	return t.wasHere(pg.first+i) || t.c.mayHave(pg.digests[i])
}

// limiter limits bytes per second; it is nil if n is not positive.
func limiter(n int64) *rate.Limiter {
	if n <= 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(n), int(max(n, 1<<20)))
}

// pace waits until n more bytes may be fetched.
func pace(ctx context.Context, l *rate.Limiter, n int64) error {
	for l != nil && n > 0 {
		piece := min(n, int64(l.Burst()))
		if err := l.WaitN(ctx, int(piece)); err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			return fmt.Errorf("%w: %w", context.DeadlineExceeded, err) // the deadline is earlier
		}
		n -= piece
	}
	return nil
}

// Complete fetches missing chunks, in order of the image, with at most rate bytes of
// the image per second; 0 means no limit. Readers go first. The error is a
// [NoRoomError] if the cache has no space for the tree: it evicts chunks older than the
// call, but not the chunks that the call itself has fetched.
func (t *Tree) Complete(ctx context.Context, rate int64) error {
	return t.fill(ctx, limiter(rate), func(pg *page, i int) bool { return !pg.present(i) })
}

// CompleteParts fetches the whole of each chunk of which a part is cached, as Complete
// does. Only whole chunks survive closing the cache.
func (t *Tree) CompleteParts(ctx context.Context, rate int64) error {
	c, l := t.newBatch(ctx, background), limiter(rate)
	var err error
	t.eachPart(func(pg *page, i int) {
		if err == nil {
			err = c.add(pg, i, l)
		}
	})
	return c.wait(err)
}

// Verify completes the tree and hashes the chunks not hashed since the cache was
// opened. Before the image file is mounted directly, the tree must be held and then
// verified, since the kernel does not check the bytes that it reads from there.
func (t *Tree) Verify(ctx context.Context) error {
	return t.fill(ctx, nil, func(pg *page, i int) bool {
		s := pg.state[i].Load()
		return s == nil || s == unverified
	})
}

// fill fetches and keeps the chunks for which which returns true.
func (t *Tree) fill(ctx context.Context, l *rate.Limiter, which func(pg *page, i int) bool) error {
	c := t.newBatch(ctx, background)
	err := c.wait(t.fillAll(c, l, which))
	if err == nil && t.missing.Load() == 0 && t.image.Load() == nil {
		err = t.makeEmpty() // a tree of holes only
	}
	return err
}

// makeEmpty creates an empty image file.
func (t *Tree) makeEmpty() error {
	_, vol := t.imageDir()
	if !t.c.makeRoom(vol, margin, maxGeneration) {
		return t.noRoom()
	}
	defer vol.release(margin)
	_, err := t.ensureImage()
	return err
}

func (t *Tree) fillAll(c *batch, l *rate.Limiter, which func(pg *page, i int) bool) error {
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

// batch is a large set of chunks to fetch. It requests a few at a time, so that a tree
// of a million chunks does not queue all of them.
type batch struct {
	t        *Tree
	ctx      context.Context
	stop     context.CancelCauseFunc
	priority priority
	before   uint64 // chunks used later are not evicted for it
	places   chan struct{}
	wg       sync.WaitGroup
}

func (t *Tree) newBatch(ctx context.Context, p priority) *batch {
	c := &batch{t: t, priority: p, places: make(chan struct{}, 2*t.c.o.Fetches)}
	c.ctx, c.stop = context.WithCancelCause(ctx)
	// The tick makes chunks used from now on newer than all present ones.
	c.before = t.c.clock.Add(1)
	return c
}

// add requests a chunk when there is a free slot, and does not wait for it.
func (c *batch) add(pg *page, i int, l *rate.Limiter) error {
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
func (c *batch) bring(pg *page, i int) error {
	for try := 0; ; try++ {
		f, how := c.t.flight(pg, i, c.priority, c.before)
		if f == nil {
			return nil
		}
		if how == flightLocal {
			c.t.c.start(f, c.priority)
		}
		err := f.settle(c.ctx)
		// Keeping is tried again for an earlier flight, for which there was no space.
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

// wait waits for all requested chunks, and returns the first error.
func (c *batch) wait(err error) error {
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

// settle waits until the content was kept, or could not be.
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
