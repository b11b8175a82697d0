package cache

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"premix/store/object"
)

// priority says who goes first where not all can. Somebody waits for demand; the
// others are guesses of decreasing certainty.
type priority int

const (
	demand priority = iota
	readahead
	prefetch
	background
	priorities int = iota
)

// promised is the priority of a job that is in no queue yet: who wants what it
// brings puts it into one.
const promised = priority(priorities)

// flight is one chunk on its way into memory and into the image files that want
// it. There is at most one for a digest.
type flight struct {
	c       *Cache
	digest  object.Digest
	size    int64
	owner   *Tree    // whose fetcher is used first
	targets []target // under flights.mu
	job     *job     // nil where it is not the scheduler's business
	wanted  priority // under flights.mu; the highest one asked for
	before  uint64   // what making room may evict: see Cache.makeRoom

	done    chan struct{} // closed when content or err is there
	content []byte
	err     error
	local   bool   // the content was in the owner's image file
	pooled  bool   // content goes back to buffers
	from    target // where it was read, if in another image file

	settled chan struct{} // closed when the content was kept, or could not be
	kept    bool          // in all targets
	refs    atomic.Int32  // users of content
}

// target is a place that wants a flight's content.
type target struct {
	t  *Tree
	pg *page
	i  int
}

// job is a piece of work that waits for its turn: the fetch of a chunk or of a
// bundle.
type job struct {
	priority priority
	cost     int64 // bytes of memory it takes
	several  bool  // it brings other flights as well
	started  bool
	run      func()
}

// flights knows what is on its way, and decides what goes next.
type flights struct {
	most  int   // fetches at once, without those that somebody waits for
	bytes int64 // in memory at once, likewise

	mu      sync.Mutex
	m       map[object.Digest]*flight
	queues  [priorities][]*job
	running int
	cost    int64     // of those that run
	demands int       // that run
	recent  []*flight // settled and not kept, oldest first: the next read may want them
	held    int64     // bytes of recent
	idle    *sync.Cond
	closed  bool
}

// recentBytes bounds what is remembered of chunks that could not be kept, so that
// a tree that is read in pieces smaller than a chunk does not fetch each chunk
// again for every piece.
const recentBytes = 16 << 20

func newFlights(most int, bytes int64) *flights {
	fl := &flights{most: most, bytes: bytes, m: map[object.Digest]*flight{}}
	fl.idle = sync.NewCond(&fl.mu)
	return fl
}

// want returns the flight that brings a chunk, which the caller must release, or
// nil if the chunk has become present and verified meanwhile. fresh tells that nobody
// had wanted it before, and that it is not on this machine.
func (t *Tree) want(pg *page, i int, p priority) (f *flight, fresh bool) {
	f, how := t.board(pg, i, p, maxGeneration)
	if how == boardHere {
		// What lies on this machine is read by who wants it.
		fresh = !f.land(p)
	}
	return f, fresh || how == boardFresh
}

// ask is want for somebody who does not wait.
func (t *Tree) ask(pg *page, i int, p priority) {
	f, how := t.board(pg, i, p, maxGeneration)
	if how == boardHere {
		t.c.start(f, p)
	}
	if f != nil {
		f.release()
	}
}

// boarding is what became of a wish for a chunk.
type boarding int

const (
	boardJoined boarding = iota // it is on its way, or needs none
	boardFresh                  // its fetch is queued
	boardHere                   // it may be on this machine: the caller must see to the flight
)

// board finds or makes the flight for a chunk.
func (t *Tree) board(pg *page, i int, p priority, before uint64) (f *flight, how boarding) {
	fl, d := t.c.flights, pg.digests[i]
	fl.mu.Lock()
	defer fl.mu.Unlock()
	if f = fl.m[d]; f != nil {
		if !slices.Contains(f.targets, target{t, pg, i}) {
			f.targets = append(f.targets, target{t, pg, i})
		}
		f.before, f.wanted = max(f.before, before), min(f.wanted, p)
		f.refs.Add(1)
		fl.promote(f.job, p)
		return f, boardJoined
	}
	if s := pg.state[i].Load(); s != nil && s != unverified && !t.c.o.VerifyAlways {
		return nil, boardJoined
	}
	f = t.newFlight(pg, i, before)
	f.wanted = p
	f.refs.Add(1)
	if fl.closed {
		f.err = ErrClosed
		close(f.done)
		close(f.settled)
		return f, boardJoined
	}
	fl.m[d] = f
	if pg.present(i) || t.wasHere(pg.first+i) || t.c.mayHave(d) {
		return f, boardHere
	}
	f.job = &job{priority: p, cost: f.size, run: f.fetch}
	fl.queue(f.job)
	return f, boardFresh
}

// newFlight makes a flight with one reference, which settling drops.
func (t *Tree) newFlight(pg *page, i int, before uint64) *flight {
	f := &flight{
		c: t.c, digest: pg.digests[i], size: pg.size(i), owner: t,
		targets: []target{{t, pg, i}}, before: before,
		done: make(chan struct{}), settled: make(chan struct{}),
	}
	f.refs.Store(1)
	return f
}

// start makes the fetch of a flight a job that looks on this machine first.
func (c *Cache) start(f *flight, p priority) {
	c.flights.mu.Lock()
	defer c.flights.mu.Unlock()
	f.job = &job{priority: p, cost: f.size, run: func() {
		if !f.fromHere() {
			f.fetch()
		}
	}}
	c.flights.queue(f.job)
}

// land gets the content from this machine, or else has it fetched.
func (f *flight) land(p priority) (here bool) {
	if f.fromHere() {
		return true
	}
	fl := f.c.flights
	fl.mu.Lock()
	defer fl.mu.Unlock()
	f.job = &job{priority: p, cost: f.size, run: f.fetch}
	fl.queue(f.job)
	return false
}

// fetch gets the content from the owner's origin, or from that of another tree
// that wants it if the owner was closed.
func (f *flight) fetch() {
	for {
		u := f.origin()
		begun := time.Now()
		content, err := u.fetch(f.digest, f.size)
		switch {
		case err == nil:
			f.owner.stats.fetched(f.first(), f.size, time.Since(begun))
		case u.ctx.Err() != nil && f.origin().ctx.Err() == nil:
			continue
		default:
			f.owner.stats.failed.Add(1)
		}
		f.finish(content, err)
		return
	}
}

// origin returns the use of a tree that wants the content and is open, if there
// is one, else the owner's.
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

// first returns the chunk that the flight was begun for.
func (f *flight) first() int {
	f.c.flights.mu.Lock()
	defer f.c.flights.mu.Unlock()
	return f.targets[0].pg.first + f.targets[0].i
}

// finish gives the content to those that wait and then keeps it.
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

// leave takes a settled flight off the map, unless its content is needed there.
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

// forget lets go of one of the recent flights.
func (fl *flights) forget(n int) {
	f := fl.recent[n]
	fl.recent = slices.Delete(fl.recent, n, n+1)
	fl.held -= f.size
	delete(fl.m, f.digest)
	f.release()
}

// wait returns when the content is there.
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

// release ends one use of the content.
func (f *flight) release() {
	if f.refs.Add(-1) == 0 && f.pooled {
		buffers.put(f.content)
	}
}

// queue takes a job in and starts what may start.
func (fl *flights) queue(j *job) {
	fl.queues[j.priority] = append(fl.queues[j.priority], j)
	fl.dispatch()
}

// promote moves a waiting job forward. Its old entry stays where it was, and is
// passed over there.
func (fl *flights) promote(j *job, p priority) {
	if j == nil || j.started || p >= j.priority {
		return
	}
	j.priority = p
	fl.queue(j)
}

// dispatch starts jobs in order of priority as far as the limits allow. What
// somebody waits for has places of its own, half as many again. Background work
// leaves half of the places free while somebody waits.
func (fl *flights) dispatch() {
	for p := range fl.queues {
		for len(fl.queues[p]) > 0 {
			j := fl.queues[p][0]
			if !j.started && int(j.priority) == p {
				if !fl.mayStart(j) {
					return
				}
				fl.launch(j)
			}
			fl.queues[p][0] = nil
			fl.queues[p] = fl.queues[p][1:]
		}
	}
}

func (fl *flights) mayStart(j *job) bool {
	switch {
	case j.priority == demand:
		return fl.running < fl.most+fl.most/2
	case j.priority == background && fl.demands > 0 && fl.running >= fl.most/2:
		return false
	}
	return fl.running < fl.most && (fl.cost+j.cost <= fl.bytes || fl.running == 0)
}

func (fl *flights) launch(j *job) {
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

// close lets what runs come to its end, which the end of all contexts hastens,
// and waits for it.
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
