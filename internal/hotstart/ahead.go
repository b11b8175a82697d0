package hotstart

import (
	"context"
	"runtime"
	"sync"
	"time"

	"premix/internal/kit/spare"
)

// How a template is loaded ahead.
//
// premix loads a template while the probe runs cold, which saves the time of one load. The
// template stops at the first open of an input. This is the right open for most tools. If
// the cold run shows that it is another one, the template is loaded again. With Auto, the
// load begins a moment after the cold run: if a snapshot is not worth its cost because the
// tool is quick, nothing has been loaded in vain.
//
// In the same way, the second template is loaded while the memory of the first template is
// written, if that takes some time. The two are then compared. Little memory is written
// first, since the tool may be refused then.
//
// The template must not affect the cold run. Two loads at once need twice the memory, so
// premix ends the template as soon as little memory is free. It also ends the template
// before the template writes outside its directory or makes a socket, since the cold run
// may do the same, and when it was held for a long time, since the template may hold a
// lock that the cold run waits for.

// ahead is a template that is being loaded, or is held.
type ahead struct {
	of     *preparation // a copy that has the template at the end
	cancel context.CancelFunc
	now    chan struct{} // closed when it is wanted, whatever its delay
	done   chan struct{} // closed when it is held, or cannot be
	over   chan struct{} // closed when it was adopted or given up
	once   sync.Once     // of closing over

	mu sync.Mutex // guards of.held once done is closed
}

// watchEvery is the time between two reads of the free memory. In that time a process
// can touch about 100 MB of new memory.
const watchEvery = 50 * time.Millisecond

// memoryShort reports whether less than a quarter of the machine's memory, or of the
// memory that the cgroups granted at the beginning, is left.
func memoryShort(granted int64) bool {
	available, total, err := spare.Memory()
	if err != nil || available < total/4 {
		return true
	}
	room, limited := spare.Cgroup()
	return limited && room < granted/4
}

// quick is the time for which the probe's cold start has run when a template is loaded
// beside it, where the cold start may show that a snapshot is not worth its cost.
const quick = 500 * time.Millisecond

// earlyDelay returns the time for which the cold run of the probe goes before a template is
// loaded beside it.
func (p *preparation) earlyDelay() time.Duration {
	if p.opt.Start == Auto && p.rounds() > 0 {
		return quick
	}
	return 0
}

// muchMemory is the memory of a tool from which on the second template is loaded while the
// memory of the first one is written, bytes. Less is written in a tenth of a second.
const muchMemory = 256 << 20

// secondAhead reports whether the second template is loaded ahead.
func (p *preparation) secondAhead() bool { return p.cold.memory == 0 || p.cold.memory >= muchMemory }

// loadAhead begins to load template number 0 or 1, which stops at the given moment, after a
// delay. It returns nil if the machine has no free processor or not enough memory.
func (p *preparation) loadAhead(number int, ready ReadyKind, at moment, delay time.Duration) *ahead {
	granted, _ := spare.Cgroup()
	if runtime.NumCPU() < 2 || memoryShort(granted) {
		return nil
	}
	of := *p
	of.held = nil
	a := &ahead{of: &of, now: make(chan struct{}), done: make(chan struct{}), over: make(chan struct{})}
	of.ctx, a.cancel = context.WithCancel(p.ctx)
	of.early, of.ready, of.moment = true, ready, at
	// Making its directory opens the probe, whose opens are watched in a cold run.
	t, err := of.template(number)
	if err != nil {
		a.cancel()
		return nil // p makes it again, and reports the error
	}
	go func() {
		defer close(a.done)
		select {
		case <-time.After(delay):
		case <-a.now:
		case <-of.ctx.Done():
			return
		}
		_ = of.loadIn(t, number) // then p loads it, and reports the error
	}()
	go a.watch(granted)
	return a
}

// heldFor is the time that a template is held for the cold run, beyond twice the time
// that it has taken to load it.
const heldFor = 10 * time.Second

// watch ends the template when one of these conditions is met.
func (a *ahead) watch(granted int64) {
	started := time.Now()
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	done := a.done
	var late <-chan time.Time
	for !memoryShort(granted) {
		select {
		case <-a.over:
			return
		case <-done:
			done = nil
			late = time.After(2*time.Since(started) + heldFor)
			continue
		case <-tick.C:
			continue
		case <-late:
		}
		break
	}
	a.giveUp()
}

// giveUp ends the template, unless it was adopted.
func (a *ahead) giveUp() {
	a.cancel()
	<-a.done
	a.mu.Lock()
	defer a.mu.Unlock()
	a.of.end()
}

// adopt gives the template to p, if it was held at the right open, and ends it otherwise.
func (a *ahead) adopt(p *preparation) {
	defer a.end()
	if a == nil || a.of.ready != p.ready || a.of.moment.Open != p.moment.Open {
		return
	}
	close(a.now)
	<-a.done
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.of.held == nil {
		return
	}
	with := *a.of // the template's fields; the results of the cold run are put back below
	with.ctx, with.early, with.snap, with.looked = p.ctx, p.early, p.snap, p.looked
	with.coldDir, with.coldLooks, with.cold = p.coldDir, p.coldLooks, p.cold
	with.ready, with.moment = p.ready, p.moment
	*p, a.of.held = with, nil
}

// end ends the template, unless a preparation has adopted it. A second call does nothing.
func (a *ahead) end() {
	if a != nil {
		a.once.Do(func() { close(a.over) })
		a.giveUp()
	}
}
