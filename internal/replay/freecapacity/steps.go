package freecapacity

import (
	"math"

	"premix/internal/replay/trace"
)

// steps is a function of time with integer values, constant between steps.
type steps struct {
	base  int64 // the value before the first step
	root  int32
	free  int32 // list of unused nodes, linked by left
	nodes []step
}

// step is a node of the treap. Index 0 is the empty tree.
type step struct {
	at          trace.Time
	delta       int64
	sum         int64 // of the deltas of the subtree
	low, high   int64 // least and greatest sum of a non-empty prefix of the subtree
	left, right int32
}

func newSteps(base int64) *steps {
	return &steps{base: base, nodes: []step{{low: math.MaxInt64 / 2, high: math.MinInt64 / 2}}}
}

// above reports which of two nodes is nearer to the root.
func (s *steps) above(a, b int32) bool { return hash(s.nodes[a].at) > hash(s.nodes[b].at) }

// hash is the finaliser of splitmix64, which spreads any sequence of numbers evenly.
func hash(t trace.Time) uint64 {
	z := uint64(t) + 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func (s *steps) pull(n int32) {
	p := &s.nodes[n]
	l, r := &s.nodes[p.left], &s.nodes[p.right]
	here := l.sum + p.delta
	p.sum = here + r.sum
	p.low = min(l.low, here, here+r.low)
	p.high = max(l.high, here, here+r.high)
}

// change adds delta to all values from a moment on.
func (s *steps) change(at trace.Time, delta int64) {
	if delta == 0 || at >= trace.Never {
		return
	}
	s.root = s.add(s.root, at, delta)
}

func (s *steps) add(n int32, at trace.Time, delta int64) int32 {
	if n == 0 {
		return s.make(at, delta)
	}
	switch p := &s.nodes[n]; {
	case at == p.at:
		if p.delta += delta; p.delta == 0 {
			joined := s.join(p.left, p.right)
			s.drop(n)
			return joined
		}
	case at < p.at:
		l := s.add(p.left, at, delta)
		s.nodes[n].left = l // nodes may have moved
		if l != 0 && s.above(l, n) {
			s.nodes[n].left = s.nodes[l].right
			s.nodes[l].right = n
			s.pull(n)
			n = l
		}
	default:
		r := s.add(p.right, at, delta)
		s.nodes[n].right = r
		if r != 0 && s.above(r, n) {
			s.nodes[n].right = s.nodes[r].left
			s.nodes[r].left = n
			s.pull(n)
			n = r
		}
	}
	s.pull(n)
	return n
}

func (s *steps) make(at trace.Time, delta int64) int32 {
	n := s.free
	if n == 0 {
		n = int32(len(s.nodes))
		s.nodes = append(s.nodes, step{})
	} else {
		s.free = s.nodes[n].left
	}
	s.nodes[n] = step{at: at, delta: delta, sum: delta, low: delta, high: delta}
	return n
}

func (s *steps) drop(n int32) {
	s.nodes[n] = step{left: s.free}
	s.free = n
}

// join joins two trees, of which all of l is earlier than r.
func (s *steps) join(l, r int32) int32 {
	switch {
	case l == 0:
		return r
	case r == 0:
		return l
	case s.above(l, r):
		s.nodes[l].right = s.join(s.nodes[l].right, r)
		s.pull(l)
		return l
	}
	s.nodes[r].left = s.join(l, s.nodes[r].left)
	s.pull(r)
	return r
}

// forget sets the value of all moments before now to the value at now.
func (s *steps) forget(now trace.Time) {
	for s.root != 0 {
		n := s.root
		for s.nodes[n].left != 0 {
			n = s.nodes[n].left
		}
		if s.nodes[n].at > now {
			return
		}
		s.base += s.nodes[n].delta
		s.root = s.add(s.root, s.nodes[n].at, -s.nodes[n].delta)
	}
}

// value returns the value at a moment.
func (s *steps) value(at trace.Time) int64 {
	v := s.base
	for n := s.root; n != 0; {
		p := &s.nodes[n]
		if p.at > at {
			n = p.left
			continue
		}
		v += s.nodes[p.left].sum + p.delta
		n = p.right
	}
	return v
}

// least returns the least value in [from, until).
func (s *steps) least(from, until trace.Time) int64 {
	v := s.value(from)
	s.under(s.root, s.base, from, until, &v)
	return v
}

// under lowers v to the least prefix, added to sum, of the steps after from and before
// until.
func (s *steps) under(n int32, sum int64, from, until trace.Time, v *int64) {
	for n != 0 {
		p := &s.nodes[n]
		if sum+p.low >= *v {
			return
		}
		switch {
		case p.at <= from:
			sum += s.nodes[p.left].sum + p.delta
			n = p.right
		case p.at >= until:
			n = p.left
		default:
			s.under(p.left, sum, from, until, v)
			sum += s.nodes[p.left].sum + p.delta
			*v = min(*v, sum)
			n = p.right
		}
	}
}

// below returns the first step after a moment at which the value is less than limit.
func (s *steps) below(n int32, sum int64, after trace.Time, limit int64) trace.Time {
	for n != 0 {
		p := &s.nodes[n]
		if sum+p.low >= limit {
			return trace.Never
		}
		here := sum + s.nodes[p.left].sum + p.delta
		if p.at > after {
			if t := s.below(p.left, sum, after, limit); t != trace.Never {
				return t
			}
			if here < limit {
				return p.at
			}
		}
		sum, n = here, p.right
	}
	return trace.Never
}

// earliest returns the first moment from which on the value is at least limit for a time.
func (s *steps) earliest(from, length trace.Time, limit int64) trace.Time {
	return s.run(from, trace.Never, length, limit)
}

// run returns the first moment in [from, until) from which on the value is at least limit
// for a time; trace.Never if there is none.
func (s *steps) run(from, until, length trace.Time, limit int64) trace.Time {
	r := run{from: from, until: until, length: length, limit: limit, begin: trace.Unknown}
	if s.value(from) >= limit {
		r.begin = from
	}
	if from < until {
		s.find(s.root, s.base, &r)
	}
	if r.begin == trace.Unknown || r.begin >= until {
		return trace.Never
	}
	return r.begin
}

// run is a search for a time in which the value is at least limit.
type run struct {
	from, until, length trace.Time
	limit               int64
	begin               trace.Time // of the time in which the search is; trace.Unknown: it is in none
}

// find continues a search with the steps of a subtree, before which the value is sum, and
// reports whether the search has ended.
func (s *steps) find(n int32, sum int64, r *run) bool {
	for n != 0 {
		p := &s.nodes[n]
		if r.begin == trace.Unknown && sum+p.high < r.limit || r.begin != trace.Unknown && sum+p.low >= r.limit {
			return false // nothing changes in this subtree
		}
		here := sum + s.nodes[p.left].sum + p.delta
		if p.at > r.from {
			if s.find(p.left, sum, r) {
				return true
			}
			switch {
			case r.begin == trace.Unknown && p.at >= r.until:
				return true
			case r.begin == trace.Unknown && here >= r.limit:
				r.begin = p.at
			case r.begin != trace.Unknown && here < r.limit:
				if p.at-r.begin >= r.length {
					return true
				}
				r.begin = trace.Unknown
			}
		}
		sum, n = here, p.right
	}
	return false
}

// sooner is Counted.Sooner with a value for the request.
func (s *steps) sooner(now, from, until, length, kept trace.Time, limit int64) trace.Time {
	if t := s.run(from, min(until, kept-length+1), length, limit); t != trace.Never {
		return t
	}
	if t := s.since(now, kept, limit); t < min(until, kept) {
		return t
	}
	return trace.Never
}

// since returns the first moment, not before from, from which on the value is at least limit
// until a moment. If there is none, it returns that moment or a later one.
func (s *steps) since(from, until trace.Time, limit int64) trace.Time {
	last := s.lastBelow(s.root, s.base, until, limit)
	if last < from {
		if s.value(from) >= limit {
			return from
		}
		last = from
	}
	return s.after(last)
}

// after returns the first step after a moment.
func (s *steps) after(at trace.Time) trace.Time {
	next := trace.Never
	for n := s.root; n != 0; {
		p := &s.nodes[n]
		if p.at > at {
			n, next = p.left, p.at
			continue
		}
		n = p.right
	}
	return next
}

// lastBelow returns the last step before a moment at which the value becomes, or stays, less
// than limit; -1 if there is none.
func (s *steps) lastBelow(n int32, sum int64, before trace.Time, limit int64) trace.Time {
	for n != 0 {
		p := &s.nodes[n]
		if sum+p.low >= limit {
			return -1
		}
		if p.at < before {
			here := sum + s.nodes[p.left].sum + p.delta
			if t := s.lastBelow(p.right, here, before, limit); t >= 0 {
				return t
			}
			if here < limit {
				return p.at
			}
		}
		n = p.left
	}
	return -1
}
