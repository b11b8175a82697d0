package origin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"premix/internal/store/object"
)

// Group holds the origins of one store, in order of preference. It is itself an
// [Origin], and verifies objects.
//
// Lock order: Group.mu and member.mu are leaves; neither is held during a wait.
type Group struct {
	o       Options
	members []*member
	slots   chan struct{} // of fetches

	mu      sync.Mutex
	flights map[object.Digest]*flight
	changed chan struct{} // closed, and replaced, when a member recovers
}

// flight is one fetch of an object, shared by all its callers.
type flight struct {
	done   chan struct{}
	cancel context.CancelFunc

	callers int // guarded by Group.mu

	tell *teller // nil if no caller wants the content as it arrives

	// Valid once done is closed.
	stored, content []byte
	err             error
}

// teller passes on the content of an object as it arrives.
type teller struct {
	size int64 // of the content

	mu  sync.Mutex // held while got runs
	got func(soFar []byte)
}

func (t *teller) say(soFar []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.got != nil {
		t.got(soFar)
	}
}

// end ensures that got is not called again. It waits for a running call.
func (t *teller) end() {
	t.mu.Lock()
	t.got = nil
	t.mu.Unlock()
}

// ErrNoOrigin is the error of an empty group.
var ErrNoOrigin = errors.New("no origin is given")

// NewGroup returns the group of the given origins.
func NewGroup(origins []Origin, o Options) *Group {
	o = o.filled()
	g := &Group{o: o, flights: map[object.Digest]*flight{}, changed: make(chan struct{}),
		slots: make(chan struct{}, o.Fetches)}
	for _, one := range origins {
		g.members = append(g.members, &member{Origin: one, o: &g.o})
	}
	return g
}

func (g *Group) String() string {
	var names []string
	for _, m := range g.members {
		names = append(names, m.String())
	}
	return strings.Join(names, ", ")
}

// Stats returns the counts of each origin, in order of preference.
func (g *Group) Stats() []OriginStats {
	stats := make([]OriginStats, len(g.members))
	for i, m := range g.members {
		stats[i] = m.snapshot()
	}
	return stats
}

// Verified returns the content of an object, which has the digest d and, unless size is
// negative, that size. Several callers may get the same slice: it must not be written
// to.
//
// Temporary failures of all origins are retried for [Options.Patience].
func (g *Group) Verified(ctx context.Context, d object.Digest, size int64) ([]byte, error) {
	_, content, err := g.Fetch(ctx, d)
	return sized(d, size, content, err)
}

// Stream is Verified for an object whose content has size bytes. Whenever there is
// more, and until Stream returns, it calls got with the content so far, which is not
// yet verified. When an origin fails and another is used, the content begins again: got
// may receive less than before, or other bytes. If another caller has already begun to
// fetch the object, got is not called.
func (g *Group) Stream(ctx context.Context, d object.Digest, size int64, got func(soFar []byte)) ([]byte, error) {
	tell := &teller{size: size, got: got}
	defer tell.end()
	_, content, err := g.join(ctx, d, tell)
	return sized(d, size, content, err)
}

func sized(d object.Digest, size int64, content []byte, err error) ([]byte, error) {
	if err == nil && size >= 0 && int64(len(content)) != size {
		return nil, &object.CorruptError{Digest: d, Reason: fmt.Sprintf("%d bytes instead of %d", len(content), size)}
	}
	return content, err
}

// Object implements [Origin]. It returns a verified object.
func (g *Group) Object(ctx context.Context, d object.Digest) ([]byte, error) {
	stored, _, err := g.Fetch(ctx, d)
	return stored, err
}

// Fetch returns the stored form of an object, and its verified content. Neither slice
// may be written to.
func (g *Group) Fetch(ctx context.Context, d object.Digest) (stored, content []byte, err error) {
	return g.join(ctx, d, nil)
}

// join returns an object from near, or else from the origins.
func (g *Group) join(ctx context.Context, d object.Digest, tell *teller) (stored, content []byte, err error) {
	if g.o.Near == nil {
		return g.far(ctx, d, tell)
	}
	if stored, content := g.o.Near.Object(ctx, d); content != nil {
		return stored, content, nil
	}
	if stored, content, err = g.far(ctx, d, tell); err == nil {
		g.o.Near.Keep(d, stored)
	}
	return stored, content, err
}

// Far is [Group.Object] without [Options.Near].
func (g *Group) Far(ctx context.Context, d object.Digest) ([]byte, error) {
	stored, _, err := g.far(ctx, d, nil)
	return stored, err
}

// far waits for the flight of an object from the origins, and begins one if there is none.
func (g *Group) far(ctx context.Context, d object.Digest, tell *teller) (stored, content []byte, err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	g.mu.Lock()
	f, ok := g.flights[d]
	if !ok {
		inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
		f = &flight{done: make(chan struct{}), cancel: cancel, tell: tell}
		g.flights[d] = f
		go g.fly(inner, d, f)
	}
	f.callers++
	g.mu.Unlock()
	select {
	case <-f.done:
		return f.stored, f.content, f.err
	case <-ctx.Done():
	}
	g.mu.Lock()
	if f.callers--; f.callers == 0 {
		f.cancel()
		if g.flights[d] == f {
			delete(g.flights, d) // the next caller begins a new fetch
		}
	}
	g.mu.Unlock()
	return nil, nil, ctx.Err()
}

// fly fetches an object until one origin has given it or no caller is left.
func (g *Group) fly(ctx context.Context, d object.Digest, f *flight) {
	defer f.cancel()
	var mu sync.Mutex // the loser of a hedge may end after the winner
	f.err = g.try(ctx, func(ctx context.Context, m *member) error {
		stored, content, err := g.fetch(ctx, m, d, f.tell)
		if err == nil {
			mu.Lock()
			defer mu.Unlock()
			if f.content == nil {
				f.stored, f.content = stored, content
			}
		}
		return err
	})
	mu.Lock()
	defer mu.Unlock()
	g.mu.Lock()
	if g.flights[d] == f {
		delete(g.flights, d)
	}
	g.mu.Unlock()
	close(f.done)
}

// refetcher is an origin behind caches.
type refetcher interface {
	refetch(ctx context.Context, d object.Digest, valid func(stored []byte) error) ([]byte, error)
}

// fetch fetches an object from one member and verifies it. tell may be nil.
func (g *Group) fetch(ctx context.Context, m *member, d object.Digest, tell *teller) (stored, content []byte, err error) {
	began := time.Now()
	valid := func(stored []byte) (err error) {
		content, err = object.Decode(nil, d, -1, stored)
		return err
	}
	if s, ok := m.Origin.(streamer); ok && tell != nil {
		u := object.Unpack(d, tell.size, tell.say)
		stored, err = s.stream(ctx, d, u.More)
		content, _ = u.End() // if streaming failed, the whole is decoded once more below
	} else {
		stored, err = m.Object(ctx, d)
	}
	if err == nil && content == nil {
		err = valid(stored)
		if r, ok := m.Origin.(refetcher); ok && err != nil {
			m.mu.Lock()
			m.stats.Corrupt++
			m.mu.Unlock()
			if again, err2 := r.refetch(ctx, d, valid); err2 == nil {
				stored, err = again, nil
			}
		}
		if err != nil {
			err = &Error{Origin: m.String(), Name: d.Path(), Kind: Corrupt, Err: err}
		}
	}
	took := time.Since(began)
	m.measure(d, len(stored), took, err)
	if g.o.OnFetch != nil && ctx.Err() == nil {
		g.o.OnFetch(m.String(), d, len(stored), took, err)
	}
	if err != nil {
		return nil, nil, err
	}
	if content == nil {
		content = []byte{}
	}
	return stored, content, nil
}

// try calls do with members until one succeeds, within the group's patience.
func (g *Group) try(ctx context.Context, do func(context.Context, *member) error) error {
	if len(g.members) == 0 {
		return ErrNoOrigin
	}
	deadline := time.Now().Add(g.o.Patience)
	for {
		g.mu.Lock()
		changed := g.changed
		g.mu.Unlock()
		// The slot comes first: a member that order takes for a probe must be tried.
		release, err := g.acquire(ctx)
		if err != nil {
			return err
		}
		ready, wait := g.order(true)
		if len(ready) > 0 {
			err = g.each(ctx, ready, do)
			release()
			if err == nil || ctx.Err() != nil || !temporary(err) {
				return err
			}
			_, wait = g.order(false)
		} else {
			release()
			err = g.lastErrors()
		}
		if time.Now().Add(wait).After(deadline) {
			return err
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-changed:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		timer.Stop()
	}
}

// acquire waits for a slot.
func (g *Group) acquire(ctx context.Context) (release func(), err error) {
	select {
	case g.slots <- struct{}{}:
		return func() { <-g.slots }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// order returns the members that may be used now, best first. If there is none, wait is
// the time until one may be used. With take, a member whose rest is over is taken for a
// probe: by the caller if there is no other member, otherwise by a separate request.
func (g *Group) order(take bool) (ready []*member, wait time.Duration) {
	now := time.Now()
	var demoted, rested []*member
	wait = g.o.RestMost
	for _, m := range g.members {
		s, w := m.state(now)
		switch {
		case s == Healthy:
			ready = append(ready, m)
		case s == Demoted:
			demoted = append(demoted, m)
		case s == Probing && w == 0:
			rested = append(rested, m)
			wait = 0
		default:
			wait = min(wait, w)
		}
	}
	ready = append(ready, demoted...)
	if !take {
		if len(ready) > 0 {
			wait = g.o.Rest / 2
		}
		return ready, wait
	}
	aside := len(ready) > 0
	for _, m := range rested {
		switch {
		case !m.probe(now):
		case aside:
			go g.probeAside(m)
		default:
			ready = append(ready, m)
		}
	}
	return ready, wait
}

// probeAside probes a member with a request for store.json, which every store has.
func (g *Group) probeAside(m *member) {
	ctx, cancel := context.WithTimeout(context.Background(), g.o.Connect+g.o.Header)
	defer cancel()
	began := time.Now()
	_, err := m.File(ctx, "store.json")
	if ctx.Err() != nil {
		err = &Error{Origin: m.String(), Kind: TimedOut}
	}
	g.note(m, began, err)
}

// note records the outcome of a request for a member's health, and wakes waiters if the
// member has recovered.
func (g *Group) note(m *member, began time.Time, err error) {
	if !m.note(began, err) {
		return
	}
	g.mu.Lock()
	close(g.changed)
	g.changed = make(chan struct{})
	g.mu.Unlock()
	if g.o.OnRecover != nil {
		g.o.OnRecover(m.String())
	}
}

// each calls do with one member after the other until one succeeds. With hedging, it
// does not wait for a slow member.
func (g *Group) each(ctx context.Context, ready []*member, do func(context.Context, *member) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan error, len(ready))
	running, next := 0, 0
	var hedge <-chan time.Time
	start := func() {
		m := ready[next]
		next++
		running++
		if p := m.p99(); g.o.Hedge && next < len(ready) && p > 0 {
			hedge = time.After(max(p, hedgeAfter))
		}
		go func() {
			began := time.Now()
			err := do(ctx, m)
			g.note(m, began, err)
			results <- err
		}()
	}
	// Members that were taken for a probe and not needed are given back.
	defer func() {
		for _, m := range ready[next:] {
			m.mu.Lock()
			m.probing = false
			m.mu.Unlock()
		}
	}()
	start()
	var errs []error
	for {
		select {
		case <-hedge:
			hedge = nil
			if next < len(ready) {
				start()
			}
		case err := <-results:
			running--
			if err == nil {
				return nil
			}
			if ctx.Err() != nil {
				return err
			}
			errs = append(errs, err)
			if next < len(ready) {
				start()
			} else if running == 0 {
				return join(errs)
			}
		}
	}
}

// temporary reports whether err, or one of several joined errors, may pass.
func temporary(err error) bool {
	if several, ok := errors.AsType[*GroupError](err); ok {
		for _, e := range several.Errs {
			if temporary(e) {
				return true
			}
		}
		return false
	}
	e, ok := errors.AsType[*Error](err)
	return ok && e.Temporary()
}

// lastErrors returns the reasons why no member may be used.
func (g *Group) lastErrors() error {
	var errs []error
	for _, m := range g.members {
		m.mu.Lock()
		if m.lastErr != nil {
			errs = append(errs, m.lastErr)
		}
		m.mu.Unlock()
	}
	return join(errs)
}

// Each calls do with one origin after the other until one succeeds, healthy ones first,
// resting ones last. It does not wait for origins to recover: it is for occasional
// requests.
func (g *Group) Each(ctx context.Context, do func(context.Context, Origin) error) error {
	if len(g.members) == 0 {
		return ErrNoOrigin
	}
	now := time.Now()
	var order [3][]*member
	for _, m := range g.members {
		s, _ := m.state(now)
		i := 2
		switch s {
		case Healthy:
			i = 0
		case Demoted:
			i = 1
		}
		order[i] = append(order[i], m)
	}
	var errs []error
	for _, list := range order {
		for _, m := range list {
			began := time.Now()
			err := do(ctx, m.Origin)
			m.measure(object.Digest{}, 0, 0, err)
			g.note(m, began, err)
			if err == nil {
				return nil
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			errs = append(errs, err)
		}
	}
	return join(errs)
}

// File implements [Origin].
func (g *Group) File(ctx context.Context, name string) ([]byte, error) {
	var b []byte
	err := g.Each(ctx, func(ctx context.Context, one Origin) (err error) {
		b, err = one.File(ctx, name)
		return err
	})
	return b, err
}
