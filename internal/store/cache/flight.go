package cache

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"premix/internal/store/object"
)

// priority orders downloads. A reader waits for demand; the others are guesses of decreasing
// certainty.
type priority int

const (
	demand priority = iota
	readahead
	prefetch
	background
	priorities int = iota
)

// promised is the priority of a download that is not yet in a queue: the first one that
// wants its result queues it.
const promised = priority(priorities)

// flight is the fetch of one chunk into memory and into the image files that want it.
// There is at most one for a digest.
type flight struct {
	c        *Cache
	digest   object.Digest
	size     int64
	owner    *Tree     // its fetcher is tried first
	targets  []target  // under flights.mu
	download *download // nil if the scheduler is not involved
	wanted   priority  // under flights.mu; the highest priority requested
	before   uint64    // limit of eviction for this chunk: see Cache.makeRoom

	done    chan struct{} // closed when content or err is set
	content []byte
	err     error
	local   bool   // the content was in the owner's image file
	pooled  bool   // content goes back to buffers
	from    target // the source, if it was read from another image file

	settled chan struct{} // closed when the content was kept, or could not be
	kept    bool          // in all targets
	refs    atomic.Int32  // users of content
}

// target is a chunk of a tree that a flight brings.
type target struct {
	t  *Tree
	pg *page
	i  int
}

// download is a fetch of a chunk or of a bundle that is waiting to be scheduled.
type download struct {
	priority priority
	cost     int64 // bytes of memory it needs
	several  bool  // it also brings other flights
	started  bool
	run      func()
}

// flights holds all flights, and schedules the downloads.
type flights struct {
	most  int   // concurrent downloads, without those of priority demand
	bytes int64 // bytes in memory at once, likewise

	mu      sync.Mutex
	m       map[object.Digest]*flight
	queues  [priorities][]*download
	running int
	cost    int64     // of running downloads
	demands int       // running downloads of priority demand
	recent  []*flight // settled and not kept, oldest first: the next read may want them
	held    int64     // bytes of recent
	idle    *sync.Cond
	closed  bool
}

// recentBytes bounds the chunks in memory that could not be kept. Without them, reading
// a tree in pieces smaller than a chunk would fetch each chunk again for every piece.
const recentBytes = 16 << 20

func newFlights(most int, bytes int64) *flights {
	fl := &flights{most: most, bytes: bytes, m: map[object.Digest]*flight{}}
	fl.idle = sync.NewCond(&fl.mu)
	return fl
}

// want returns the flight of a chunk, which the caller must release, or nil if the
// chunk has become present and verified. fresh reports that the flight is new, and that
// the chunk is not on this machine.
func (t *Tree) want(pg *page, i int, p priority) (f *flight, fresh bool) {
	f, how := t.flight(pg, i, p, maxGeneration)
	if how == flightLocal {
		// The caller reads a chunk that is on this machine.
		fresh = !f.land(p)
	}
	return f, fresh || how == flightQueued
}

// ask is want for a caller that does not wait.
func (t *Tree) ask(pg *page, i int, p priority) {
	f, how := t.flight(pg, i, p, maxGeneration)
	if how == flightLocal {
		t.c.start(f, p)
	}
	if f != nil {
		f.release()
	}
}

// flightState is the result of Tree.flight.
type flightState int

const (
	flightJoined flightState = iota // the flight exists, or none is needed
	flightQueued                    // the flight is new, and its fetch is queued
	flightLocal                     // the chunk may be on this machine: the caller must call land or start
)

// flight finds or creates the flight of a chunk.
func (t *Tree) flight(pg *page, i int, p priority, before uint64) (f *flight, how flightState) {
	fl, d := t.c.flights, pg.digests[i]
	fl.mu.Lock()
	defer fl.mu.Unlock()
	if f = fl.m[d]; f != nil {
		if !slices.Contains(f.targets, target{t, pg, i}) {
			f.targets = append(f.targets, target{t, pg, i})
		}
		f.before, f.wanted = max(f.before, before), min(f.wanted, p)
		f.refs.Add(1)
		fl.promote(f.download, p)
		return f, flightJoined
	}
	if s := pg.state[i].Load(); s != nil && s != unverified && !t.c.o.VerifyAlways {
		return nil, flightJoined
	}
	f = t.newFlight(pg, i, before)
	f.wanted = p
	f.refs.Add(1)
	if fl.closed {
		f.err = ErrClosed
		close(f.done)
		close(f.settled)
		return f, flightJoined
	}
	fl.m[d] = f
	if pg.present(i) || t.wasHere(pg.first+i) || t.c.mayHave(d) {
		return f, flightLocal
	}
	f.download = &download{priority: p, cost: f.size, run: f.fetch}
	fl.queue(f.download)
	return f, flightQueued
}

// newFlight returns a flight with one reference, which finish releases.
func (t *Tree) newFlight(pg *page, i int, before uint64) *flight {
	f := &flight{
		c: t.c, digest: pg.digests[i], size: pg.size(i), owner: t,
		targets: []target{{t, pg, i}}, before: before,
		done: make(chan struct{}), settled: make(chan struct{}),
	}
	f.refs.Store(1)
	return f
}

// start queues a download that looks for the chunk on this machine and then fetches it.
func (c *Cache) start(f *flight, p priority) {
	c.flights.mu.Lock()
	defer c.flights.mu.Unlock()
	f.download = &download{priority: p, cost: f.size, run: func() {
		if !f.fromHere() {
			f.fetch()
		}
	}}
	c.flights.queue(f.download)
}

// land gets the content from this machine, or else queues its fetch.
func (f *flight) land(p priority) (here bool) {
	if f.fromHere() {
		return true
	}
	fl := f.c.flights
	fl.mu.Lock()
	defer fl.mu.Unlock()
	f.download = &download{priority: p, cost: f.size, run: f.fetch}
	fl.queue(f.download)
	return false
}

// fetch gets the content from the owner's origin, or from the origin of another tree
// that wants it if the owner was closed.
func (f *flight) fetch() {
	for {
		u := f.origin()
		started := time.Now()
		content, err := u.fetch(f.digest, f.size)
		switch {
		case err == nil:
			f.owner.stats.fetched(f.first(), f.size, time.Since(started))
		case u.ctx.Err() != nil && f.origin().ctx.Err() == nil:
			continue
		default:
			f.owner.stats.failed.Add(1)
		}
		f.finish(content, err)
		return
	}
}

// origin returns the use of an open tree that wants the content, or the owner's use if
// there is none.
func (f *flight) origin() use {
	f.c.flights.mu.Lock()
	defer f.c.flights.mu.Unlock()
	u := f.owner.use()
	for _, to := range f.targets {
		if u.ctx.Err() == nil {
			break
		}
		u = to.t.use()
	}
	return u
}

// first returns the chunk for which the flight was created.
func (f *flight) first() int {
	f.c.flights.mu.Lock()
	defer f.c.flights.mu.Unlock()
	return f.targets[0].pg.first + f.targets[0].i
}

// finish passes the content to all waiters and then keeps it.
func (f *flight) finish(content []byte, err error) {
	fl := f.c.flights
	f.content, f.err = content, err
	close(f.done)
	f.kept = err == nil
	for {
		fl.mu.Lock()
		todo := f.targets
		f.targets = nil
		if err != nil || len(todo) == 0 {
			f.targets = todo
			fl.leave(f)
			fl.mu.Unlock()
			break
		}
		before := f.before
		fl.mu.Unlock()
		for _, to := range todo {
			if !to.t.keep(to.pg, to.i, content, f.from, before) {
				f.kept = false
			}
		}
	}
	close(f.settled)
	f.release()
}

// leave removes a settled flight from the map, unless later reads may want its content.
func (fl *flights) leave(f *flight) {
	fl.idle.Broadcast()
	if f.err != nil || f.kept || fl.closed {
		delete(fl.m, f.digest)
		return
	}
	f.refs.Add(1)
	fl.recent = append(fl.recent, f)
	fl.held += f.size
	for fl.held > recentBytes {
		fl.forget(0)
	}
}

// forget drops one of the recent flights.
func (fl *flights) forget(n int) {
	f := fl.recent[n]
	fl.recent = slices.Delete(fl.recent, n, n+1)
	fl.held -= f.size
	delete(fl.m, f.digest)
	f.release()
}

// wait waits for the content.
func (f *flight) wait(ctx context.Context) error {
	select {
	case <-f.done:
		return f.err
	default:
	}
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// release drops one reference to the content.
func (f *flight) release() {
	if f.refs.Add(-1) == 0 && f.pooled {
		buffers.put(f.content)
	}
}

// queue adds a download and starts all downloads that may start.
func (fl *flights) queue(j *download) {
	fl.queues[j.priority] = append(fl.queues[j.priority], j)
	fl.dispatch()
}

// promote moves a waiting download to a higher priority. Its old entry stays in its queue
// and is skipped there.
func (fl *flights) promote(j *download, p priority) {
	if j == nil || j.started || p >= j.priority {
		return
	}
	j.priority = p
	fl.queue(j)
}

// dispatch starts downloads in order of priority as far as the limits allow. Downloads of
// priority demand have slots of their own, half as many again. While one of them runs,
// background downloads leave half of the slots free.
func (fl *flights) dispatch() {
	for p := range fl.queues {
		for len(fl.queues[p]) > 0 {
			j := fl.queues[p][0]
			if !j.started && int(j.priority) == p {
				if !fl.mayStart(j) {
					return
				}
				fl.begin(j)
			}
			fl.queues[p][0] = nil
			fl.queues[p] = fl.queues[p][1:]
		}
	}
}

func (fl *flights) mayStart(j *download) bool {
	switch {
	case j.priority == demand:
		return fl.running < fl.most+fl.most/2
	case j.priority == background && fl.demands > 0 && fl.running >= fl.most/2:
		return false
	}
	return fl.running < fl.most && (fl.cost+j.cost <= fl.bytes || fl.running == 0)
}

func (fl *flights) begin(j *download) {
	j.started = true
	fl.running++
	fl.cost += j.cost
	waited := j.priority == demand
	if waited {
		fl.demands++
	}
	go func() {
		j.run()
		fl.mu.Lock()
		defer fl.mu.Unlock()
		fl.running--
		fl.cost -= j.cost
		if waited {
			fl.demands--
		}
		fl.dispatch()
		fl.idle.Broadcast()
	}()
}

// close waits until all downloads have ended. They end soon, since all contexts are
// cancelled.
func (fl *flights) close() {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	fl.closed = true
	for len(fl.recent) > 0 {
		fl.forget(0)
	}
	for fl.running > 0 || len(fl.m) > 0 {
		fl.idle.Wait()
	}
}
