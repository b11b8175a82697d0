package freecapacity

import (
	"math"
	"slices"

	"premix/internal/replay/trace"
)

// steps is a function of time with integer values, constant between steps.
type steps struct {
	blocks []block
	unused [][]step // memory of blocks that are gone
}

// step is a change of the value.
type step struct {
	at    trace.Time
	value int64 // from at on, less the shift of the block
}

// block is a block of neighbouring steps; it has at least one. A first step may repeat the
// value before it.
type block struct {
	from      trace.Time // of the first step
	shift     int64      // is added to all values
	low, high int64      // least and greatest value, with the shift
	steps     []step
}

// maxBlock is the number of steps at which a block is split. Larger blocks make changes
// slower, and smaller ones searches.
const maxBlock = 64

// beginning is the time of the first step, before all moments.
const beginning trace.Time = math.MinInt64

func newSteps(base int64) *steps {
	s := &steps{}
	s.blocks = []block{{from: beginning, low: base, high: base, steps: append(s.memory(), step{beginning, base})}}
	return s
}

// memory returns the memory for a block.
func (s *steps) memory() []step {
	if n := len(s.unused); n > 0 {
		m := s.unused[n-1]
		s.unused = s.unused[:n-1]
		return m
	}
	return make([]step, 0, maxBlock)
}

// bound computes the least and the greatest value.
func (b *block) bound() {
	low, high := b.steps[0].value, b.steps[0].value
	for _, p := range b.steps[1:] {
		low, high = min(low, p.value), max(high, p.value)
	}
	b.low, b.high = low+b.shift, high+b.shift
}

// find returns the index of the last step that is not later than a moment.
func (b *block) find(at trace.Time) int {
	low, high := 0, len(b.steps)
	for high-low > 1 {
		if mid := (low + high) / 2; b.steps[mid].at <= at {
			low = mid
		} else {
			high = mid
		}
	}
	return low
}

// find returns the index of the block with the last step that is not later than a moment.
func (s *steps) find(at trace.Time) int {
	low, high := 0, len(s.blocks)
	for high-low > 1 {
		if mid := (low + high) / 2; s.blocks[mid].from <= at {
			low = mid
		} else {
			high = mid
		}
	}
	return low
}

// insert adds a step in a block after its first i steps, and returns its place.
func (s *steps) insert(n, i int, p step) (int, int) {
	b := &s.blocks[n]
	if len(b.steps) == maxBlock {
		half := maxBlock / 2
		later := block{from: b.steps[half].at, shift: b.shift, steps: append(s.memory(), b.steps[half:]...)}
		later.bound()
		b.steps = b.steps[:half]
		b.bound()
		s.blocks = slices.Insert(s.blocks, n+1, later)
		if i > half {
			n, i = n+1, i-half
		}
		b = &s.blocks[n]
	}
	b.steps = slices.Insert(b.steps, i, p)
	return n, i
}

// change adds delta to the values in [from, until).
func (s *steps) change(from, until trace.Time, delta int64) {
	if delta == 0 || from >= until || from >= trace.Never {
		return
	}
	if until >= trace.Never {
		until = math.MaxInt64
	}
	n := s.find(from)
	i := s.blocks[n].find(from)
	if p := s.blocks[n].steps[i]; p.at != from {
		n, i = s.insert(n, i+1, step{from, p.value})
	}
	for at, k := n, i; at < len(s.blocks); at, k = at+1, 0 {
		b := &s.blocks[at]
		if rest := at+1 == len(s.blocks) || until < s.blocks[at+1].from; rest {
			s.last(at, k, until, delta)
			break
		}
		if k == 0 {
			b.shift += delta
			b.low += delta
			b.high += delta
		} else {
			for j := k; j < len(b.steps); j++ {
				b.steps[j].value += delta
			}
			b.bound()
		}
		if s.blocks[at+1].from == until {
			break
		}
	}
	if b := &s.blocks[n]; i > 0 && i < len(b.steps) && b.steps[i].value == b.steps[i-1].value {
		b.steps = slices.Delete(b.steps, i, i+1)
	}
	s.join(n)
}

// last adds delta to the values of a block from its step with index first until a moment
// before the next block.
func (s *steps) last(n, first int, until trace.Time, delta int64) {
	b := &s.blocks[n]
	k := first
	for ; k < len(b.steps) && b.steps[k].at < until; k++ {
		b.steps[k].value += delta
	}
	switch {
	case until == math.MaxInt64:
	case k == len(b.steps) || b.steps[k].at != until:
		value := b.steps[k-1].value - delta
		n, _ = s.insert(n, k, step{until, value})
	case k > 0 && b.steps[k].value == b.steps[k-1].value:
		b.steps = slices.Delete(b.steps, k, k+1)
	}
	s.blocks[n].bound()
}

// join joins a block with the next one if both are small.
func (s *steps) join(n int) {
	if n+1 == len(s.blocks) || len(s.blocks[n].steps)+len(s.blocks[n+1].steps) > maxBlock/2 {
		return
	}
	b, next := &s.blocks[n], &s.blocks[n+1]
	for _, p := range next.steps {
		if p.value += next.shift - b.shift; p.value != b.steps[len(b.steps)-1].value {
			b.steps = append(b.steps, p)
		}
	}
	b.low, b.high = min(b.low, next.low), max(b.high, next.high)
	s.drop(n+1, n+2)
}

// drop removes blocks.
func (s *steps) drop(from, until int) {
	for _, b := range s.blocks[from:until] {
		s.unused = append(s.unused, b.steps[:0])
	}
	s.blocks = slices.Delete(s.blocks, from, until)
}

// forget drops steps before now. The value before now is then not defined.
func (s *steps) forget(now trace.Time) {
	if n := s.find(now); n > 0 {
		s.drop(0, n)
	}
	b := &s.blocks[0]
	if i := b.find(now); i > maxBlock/2 {
		b.steps = slices.Delete(b.steps, 0, i)
		b.bound()
	}
	b.from, b.steps[0].at = beginning, beginning
}

// value returns the value at a moment.
func (s *steps) value(at trace.Time) int64 {
	b := &s.blocks[s.find(at)]
	return b.steps[b.find(at)].value + b.shift
}

// least returns the least value in [from, until), and at from.
func (s *steps) least(from, until trace.Time) int64 {
	n := s.find(from)
	i := s.blocks[n].find(from)
	v := s.blocks[n].steps[i].value + s.blocks[n].shift
	for i++; n < len(s.blocks) && s.blocks[n].from < until; n, i = n+1, 0 {
		b := &s.blocks[n]
		if b.low >= v {
			continue
		}
		for ; i < len(b.steps) && b.steps[i].at < until; i++ {
			v = min(v, b.steps[i].value+b.shift)
		}
	}
	return v
}

// below returns the first step after a moment at which the value is less than limit.
func (s *steps) below(after trace.Time, limit int64) trace.Time {
	n := s.find(after)
	i := s.blocks[n].find(after) + 1
	for ; n < len(s.blocks); n, i = n+1, 0 {
		b := &s.blocks[n]
		if b.low >= limit {
			continue
		}
		for ; i < len(b.steps); i++ {
			if b.steps[i].value+b.shift < limit {
				return b.steps[i].at
			}
		}
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
	if from >= until {
		return trace.Never
	}
	n := s.find(from)
	i := s.blocks[n].find(from)
	begin := trace.Unknown // of the time with enough; trace.Unknown: there is too little now
	if s.blocks[n].steps[i].value+s.blocks[n].shift >= limit {
		begin = from
	}
	for i++; n < len(s.blocks); n, i = n+1, 0 {
		b := &s.blocks[n]
		switch {
		case begin == trace.Unknown && b.high < limit:
			continue
		case begin == trace.Unknown && b.from >= until:
			return trace.Never
		case begin != trace.Unknown && b.low >= limit:
			continue
		case begin != trace.Unknown && b.from > from && b.from-begin >= length:
			return begin
		}
		enough := limit - b.shift
		for ; i < len(b.steps); i++ {
			p := &b.steps[i]
			switch {
			case begin == trace.Unknown:
				if p.at >= until {
					return trace.Never
				}
				if p.value >= enough {
					begin = p.at
				}
			case p.value < enough:
				if p.at-begin >= length {
					return begin
				}
				begin = trace.Unknown
			}
		}
	}
	if begin == trace.Unknown {
		return trace.Never
	}
	return begin
}

// sooner is CountedPool.Sooner with a value for the request.
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
	n := s.find(until - 1)
	i := s.blocks[n].find(until - 1)
	later := trace.Never // the step after i
	if i+1 < len(s.blocks[n].steps) {
		later = s.blocks[n].steps[i+1].at
	} else if n+1 < len(s.blocks) {
		later = s.blocks[n+1].from
	}
	for {
		b := &s.blocks[n]
		if b.low < limit {
			for ; i >= 0; i-- {
				if b.steps[i].value+b.shift < limit {
					return max(later, from)
				}
				later = b.steps[i].at
				if later <= from {
					return from
				}
			}
		}
		if later = b.from; later <= from {
			return from
		}
		n--
		i = len(s.blocks[n].steps) - 1
	}
}
