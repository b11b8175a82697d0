package cache

import (
	"context"
	"sync"
)

// Getter fetches objects that the cache does not have, each once for all callers that
// wait for it.
type Getter struct {
	ctx     context.Context // ends all fetches
	objects *Objects

	mu      sync.Mutex
	flights map[string]*objectFlight
	pending sync.WaitGroup
}

// objectFlight is the fetch of an object, shared by all that wait for it.
type objectFlight struct {
	done    chan struct{}
	x       *Object
	err     error
	waiting int
}

// Wanted is an object that may have to be fetched.
type Wanted struct {
	Name string
	Size int64 // of the content; 0: unknown
	// Fetch writes the verified content to d.File, and returns its size.
	Fetch func(ctx context.Context, d *Draft) (int64, error)
}

// Getter returns a Getter whose fetches end with ctx.
func (o *Objects) Getter(ctx context.Context) *Getter {
	return &Getter{ctx: ctx, objects: o, flights: map[string]*objectFlight{}}
}

// Get returns an object. The caller closes it.
//
// A fetch that was running before the call may have met an origin that has recovered since.
// If such a fetch fails, Get fetches the object once more.
func (g *Getter) Get(ctx context.Context, w Wanted) (*Object, error) {
	x, joined, err := g.get(ctx, w)
	if err != nil && joined && ctx.Err() == nil {
		x, _, err = g.get(ctx, w)
	}
	return x, err
}

// get returns an object. It reports whether it joined a fetch that was running.
func (g *Getter) get(ctx context.Context, w Wanted) (x *Object, joined bool, err error) {
	if x := g.objects.Open(w.Name); x != nil {
		return x, false, nil
	}
	g.mu.Lock()
	f := g.flights[w.Name]
	joined = f != nil
	if f == nil {
		if g.ctx.Err() != nil {
			g.mu.Unlock()
			return nil, false, context.Canceled
		}
		f = g.beginLocked(w)
	}
	f.waiting++
	g.mu.Unlock()
	select {
	case <-f.done:
		err = f.err
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	f.waiting--
	if err == nil {
		x = f.x.Dup()
	}
	f.landLocked()
	return x, joined, err
}

// Ahead fetches an object without waiting for it, unless most fetches are running.
func (g *Getter) Ahead(w Wanted, most int) {
	if g.objects.Has(w.Name) {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.flights[w.Name] == nil && len(g.flights) < most && g.ctx.Err() == nil {
		g.beginLocked(w)
	}
}

func (g *Getter) beginLocked(w Wanted) *objectFlight {
	f := &objectFlight{done: make(chan struct{})}
	g.flights[w.Name] = f
	g.pending.Go(func() { g.fly(f, w) })
	return f
}

// landLocked closes the object of a flight that has ended and has no waiters.
func (f *objectFlight) landLocked() {
	select {
	case <-f.done:
		if f.waiting == 0 && f.x != nil {
			f.x.Close()
			f.x = nil
		}
	default:
	}
}

func (g *Getter) fly(f *objectFlight, w Wanted) {
	x, err := g.fetch(w)
	g.mu.Lock()
	defer g.mu.Unlock()
	f.x, f.err = x, err
	delete(g.flights, w.Name)
	close(f.done)
	f.landLocked()
}

// fetch fetches an object, into memory if the disk is full.
func (g *Getter) fetch(w Wanted) (*Object, error) {
	for _, memory := range []bool{false, true} {
		x, err := g.fetchInto(w, memory)
		if err == nil || memory || !Full(err) {
			return x, err
		}
	}
	return nil, nil // not reached
}

func (g *Getter) fetchInto(w Wanted, memory bool) (*Object, error) {
	d, err := g.objects.Draft(w.Size, memory)
	if err != nil {
		return nil, err
	}
	defer d.Drop()
	n, err := w.Fetch(g.ctx, d)
	if err != nil {
		return nil, err
	}
	return d.Keep(w.Name, n)
}

// Wait waits until all fetches have ended.
func (g *Getter) Wait() { g.pending.Wait() }
