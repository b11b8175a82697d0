package scheduling

import (
	"premix/internal/replay/freecapacity"
	"premix/internal/replay/trace"
)

// reservation is the reservation of a queued job.
type reservation struct {
	at      trace.Time // trace.Unknown: it has none
	checked uint32     // the openings before this one were considered
}

// reserved reports whether a job has a reservation.
func (s *scheduler) reserved(job int32) bool {
	return s.plans != nil && s.plans[job].at != trace.Unknown
}

// span is the time from from until until, which is exclusive.
type span struct{ from, until trace.Time }

// with returns the shortest span with both.
func (a span) with(b span) span {
	switch {
	case a.from >= a.until:
		return b
	case b.from >= b.until:
		return a
	}
	return span{min(a.from, b.from), max(a.until, b.until)}
}

// openings are the times at which capacity has become free that a job or a reservation was
// to have. A reservation that was as early as possible can only move to where it would use
// one of them.
type openings struct {
	first uint32 // number of list[0]
	list  []span
	hulls []span // hulls[i] is the hull of list[i:], up to the last call of sum
}

func (o *openings) add(from, until trace.Time) {
	if from < until {
		o.list = append(o.list, span{from, until})
	}
}

// next returns the number of the next opening.
func (o *openings) next() uint32 { return o.first + uint32(len(o.list)) }

// sum prepares since.
func (o *openings) sum() {
	n := len(o.list)
	o.hulls = append(o.hulls[:0], make([]span, n+1)...)
	for i := n - 1; i >= 0; i-- {
		o.hulls[i] = o.list[i].with(o.hulls[i+1])
	}
}

// since returns the hull of the openings from a number on that sum has seen. ok is false if
// some of them were forgotten.
func (o *openings) since(number uint32) (hull span, ok bool) {
	at := int64(number) - int64(o.first)
	if at < 0 {
		return span{}, false
	}
	return o.hulls[min(int(at), len(o.hulls)-1)], true
}

// forget drops the first n openings.
func (o *openings) forget(n int) {
	o.first += uint32(n)
	o.list = append(o.list[:0], o.list[n:]...)
}

// reserve gives a queued job the earliest reservation that moves no other.
func (s *scheduler) reserve(p *pool, job int32) {
	r, length := s.c.Request(job), s.c.Estimate(job)
	from := p.room.Earliest(r, s.c.Now(), length)
	if from == trace.Never || !p.room.Take(job, r, from, from+length) {
		return // nodes are down; the next plan includes it
	}
	s.plans[job] = reservation{from, p.vacant.next()}
	p.due.set(moment{from, job})
}

// release drops a reservation.
func (s *scheduler) release(p *pool, job int32) {
	from := s.plans[job].at
	if from == trace.Unknown {
		return
	}
	p.room.Give(job, s.c.Request(job), max(from, s.c.Now()), from+s.c.Estimate(job))
	p.due.remove(job)
	s.plans[job].at = trace.Unknown
}

// vacate drops a reservation into whose place others may move.
func (s *scheduler) vacate(p *pool, job int32) {
	if from := s.plans[job].at; from != trace.Unknown {
		s.release(p, job)
		p.vacant.add(max(from, s.c.Now()), from+s.c.Estimate(job))
	}
}

// settle records that the reservation of a job begins at a moment, and began at another one.
func (s *scheduler) settle(p *pool, job int32, was, from trace.Time) {
	p.due.set(moment{from, job})
	if from != was {
		p.vacant.add(was, was+s.c.Estimate(job))
	}
	s.plans[job] = reservation{from, p.vacant.next()}
}

// compress moves reservations to the front: the first jobs, up to the depth, each as far as
// the others permit; of the jobs after them, only the ones that can start now. If
// reservations may be invalid, those of the first jobs are all made again, in order; the
// others are corrected when they are due. The rest is continued when the next job ends.
func (s *scheduler) compress(p *pool) error {
	at, n := first, 0
	front := func(f func(k key)) {
		n = 0
		p.queue.all(func(k key) bool {
			if s.Depth > 0 && n == s.Depth {
				return false
			}
			n++
			at = k
			f(k)
			return true
		})
	}
	if p.broken {
		front(func(k key) { s.release(p, k.job) })
		p.vacant.forget(len(p.vacant.list))
		p.vacant.first++ // no reservation is known to be as early as possible
	}
	p.broken, p.early = false, false
	p.vacant.sum()
	seen := len(p.vacant.list)
	// Moves of this pass open more; moved is the hull of what the first summed have opened.
	moved, summed := span{}, seen
	front(func(k key) {
		for ; summed < len(p.vacant.list); summed++ {
			moved = moved.with(p.vacant.list[summed])
		}
		if s.plans[k.job].at == trace.Unknown {
			s.reserve(p, k.job)
		} else if s.plans[k.job].at > s.c.Now() {
			s.advance(p, k.job, moved)
		}
	})
	p.vacant.forget(seen)
	p.cut = s.Depth > 0 && n == s.Depth && p.queue.n > n
	if !p.cut {
		return nil
	}
	return s.fill(p, at)
}

// advance moves a reservation to the earliest moment that moves no other. moved is the hull
// of the openings of this pass.
//
// Of a counted pool the job takes any units. So if it did not fit at an earlier moment,
// there was a moment before its reservation at which too few units were free, and it fits
// now only if that moment is in an opening.
func (s *scheduler) advance(p *pool, job int32, moved span) {
	now, plan, r, length := s.c.Now(), &s.plans[job], s.c.Request(job), s.c.Estimate(job)
	was := plan.at
	if counted, ok := p.room.(*freecapacity.CountedPool); ok {
		low, high := now, was
		hull, known := p.vacant.since(plan.checked)
		if known {
			if hull = hull.with(moved); hull.from >= min(hull.until, was) {
				plan.checked = p.vacant.next()
				return
			}
			low, high = max(now, hull.from-length+1), min(hull.until, was)
		}
		from := counted.Sooner(r, now, low, high, length, was)
		if from == trace.Never {
			if known {
				plan.checked = p.vacant.next()
			}
			return
		}
		if known {
			counted.Move(r, length, was, from)
			s.settle(p, job, was, from)
			return
		}
	}
	s.release(p, job)
	from := p.room.Earliest(r, now, length) // the old reservation may be invalid
	if from == trace.Never || !p.room.Take(job, r, from, from+length) {
		p.vacant.add(was, was+length)
		return
	}
	s.settle(p, job, was, from)
}

// fill starts jobs after a key that fit now. As many of them are tried as the depth permits.
func (s *scheduler) fill(p *pool, at key) error {
	c, now := s.c, s.c.Now()
	counted, _ := p.room.(*freecapacity.CountedPool)
	var last freecapacity.Request // a request, and until when there is room for it
	until := trace.Unknown
	for tried := 0; tried < s.Depth; tried++ {
		k, ok := p.queue.candidate(at, p.room.Free(now), trace.Never, 0)
		if !ok {
			return nil
		}
		at = k
		if c.Held(k.job) {
			s.park(p, k)
			continue
		}
		plan, r, length := s.plans[k.job], c.Request(k.job), c.Estimate(k.job)
		if plan.at > now && counted != nil {
			if until == trace.Unknown || r != last {
				last, until = r, counted.Room(r, now)
			}
			if until < min(now+length, plan.at) {
				continue // it would not fit without its reservation either
			}
		}
		until = trace.Unknown
		s.release(p, k.job)
		switch {
		case c.Fits(k.job):
			if err := s.start(p, k); err != nil {
				return err
			}
			if plan.at != trace.Unknown {
				p.vacant.add(max(plan.at, now), plan.at+length)
			}
		case plan.at == trace.Unknown:
			s.reserve(p, k.job)
		case p.room.Take(k.job, r, plan.at, plan.at+length):
			s.plans[k.job] = plan
			p.due.set(moment{plan.at, k.job})
		}
	}
	return nil
}

// conservative does conservative backfilling.
func (s *scheduler) conservative(p *pool) error {
	c, now := s.c, s.c.Now()
	if p.broken || p.early {
		if err := s.compress(p); err != nil {
			return err
		}
	}
	for _, job := range p.fresh {
		s.insert(p, job)
	}
	p.fresh = p.fresh[:0]
	if p.broken {
		if err := s.compress(p); err != nil {
			return err
		}
	}
	for len(p.due.list) > 0 && p.due.list[0].at <= now {
		m := p.due.list[0]
		k := s.waits[m.job]
		if c.Held(m.job) {
			s.park(p, k)
			continue
		}
		s.release(p, m.job)
		if !c.Fits(m.job) {
			p.vacant.add(now, m.at+c.Estimate(m.job))
			s.reserve(p, m.job)
			if s.plans[m.job].at <= now {
				break // wait for the next event
			}
			continue
		}
		if err := s.start(p, k); err != nil {
			return err
		}
	}
	if p.early {
		return s.conservative(p) // a limit has freed a reservation
	}
	if len(p.due.list) > 0 {
		c.Wake(p.due.list[0].at)
	}
	return nil
}
