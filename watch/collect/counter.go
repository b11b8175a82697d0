package collect

import (
	"math"
	"time"

	"premix/watch"
)

// batch gathers the samples of one turn.
type batch struct {
	at      time.Time // of the samples
	read    time.Time // when the counters were read, by the clock that does not jump
	samples []watch.Sample
}

// begin empties the batch for the next turn.
func (b *batch) begin(now, read time.Time) {
	b.at, b.read, b.samples = now, read, b.samples[:0]
}

// level reports a value as it is.
func (b *batch) level(g *gauge, v float64) {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return
	}
	b.samples = append(b.samples, watch.Sample{ID: g.id, Unit: g.unit, Time: b.at, Value: v})
}

// rate reports how fast a counter grows, in what scale makes of its steps, a second.
// It reports nothing the first time, and nothing where the counter began anew.
func (b *batch) rate(c *counter, v, scale float64) {
	delta, seconds, ok := c.step(v, b.read)
	if ok {
		b.level(&c.gauge, round(delta*scale/seconds))
	}
}

// ratio is rate for a counter of time, of which no more can have passed than did: what
// is above 1 is so by the granularity of the kernel's clock.
func (b *batch) ratio(c *counter, v, scale float64) {
	delta, seconds, ok := c.step(v, b.read)
	if ok {
		b.level(&c.gauge, round(min(delta*scale/seconds, 1)))
	}
}

// wait reports the mean time of what happened since the last look, from counters of
// the time and of the number: nothing where nothing happened.
func (b *batch) wait(g *gauge, time, count *steps, t, n, scale float64) {
	sum, _, ok := time.step(t, b.read)
	num, _, known := count.step(n, b.read)
	if ok && known && num > 0 {
		b.level(g, round(sum/num*scale))
	}
}

// round keeps 24 bits of a quotient. When a counter was read is not known to a part in
// sixteen million, and 29 bits of noise would be most of what a sample takes on disk.
func round(v float64) float64 { return float64(float32(v)) }

// gauge is one series.
type gauge struct {
	id   watch.ID
	unit watch.Unit
}

// counter is a series that is made of a counter.
type counter struct {
	gauge
	steps
}

// steps is the memory of a counter.
type steps struct {
	last float64
	at   time.Time
}

// step returns by how much a counter grew since it was looked at before, and in what
// time; ok is false where that is not known.
func (s *steps) step(v float64, at time.Time) (delta, seconds float64, ok bool) {
	delta, seconds = v-s.last, at.Sub(s.at).Seconds()
	ok = !s.at.IsZero() && delta >= 0 && seconds > 0
	s.last, s.at = v, at
	return delta, seconds, ok
}
