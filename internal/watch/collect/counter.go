package collect

import (
	"math"
	"time"

	"premix/internal/watch"
)

// batch collects the samples of one turn.
type batch struct {
	at      time.Time // of the samples
	read    time.Time // time at which the counters were read, by the clock that does not jump
	samples []watch.Sample
}

// begin empties the batch for the next turn.
func (b *batch) begin(now, read time.Time) {
	b.at, b.read, b.samples = now, read, b.samples[:0]
}

// level reports a value without change.
func (b *batch) level(g *gauge, v float64) {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return
	}
	b.samples = append(b.samples, watch.Sample{ID: g.id, Unit: g.unit, Time: b.at, Value: v})
}

// rate reports the increase of a counter a second, multiplied by scale. It reports nothing
// in the first turn, and nothing after a reset of the counter.
func (b *batch) rate(c *counter, v, scale float64) {
	delta, seconds, ok := c.step(v, b.read)
	if ok {
		b.level(&c.gauge, round(delta*scale/seconds))
	}
}

// ratio is rate for a counter of time. It limits the result to 1: the granularity of the
// kernel's clock can make it larger.
func (b *batch) ratio(c *counter, v, scale float64) {
	delta, seconds, ok := c.step(v, b.read)
	if ok {
		b.level(&c.gauge, round(min(delta*scale/seconds, 1)))
	}
}

// wait reports the mean time of the operations since the last turn, from the counters of
// their time and their number. It reports nothing if there were none.
func (b *batch) wait(g *gauge, time, count *steps, t, n, scale float64) {
	sum, _, ok := time.step(t, b.read)
	num, _, known := count.step(n, b.read)
	if ok && known && num > 0 {
		b.level(g, round(sum/num*scale))
	}
}

// round keeps 24 bits of a quotient. The time at which a counter was read is not known to a
// part in sixteen million, and 29 bits of noise would be most of a sample's size on disk.
func round(v float64) float64 { return float64(float32(v)) }

// gauge is one series.
type gauge struct {
	id   watch.ID
	unit watch.Unit
}

// counter is a series of the rates of a counter.
type counter struct {
	gauge
	steps
}

// steps holds the last value of a counter.
type steps struct {
	last float64
	at   time.Time
}

// step returns the increase of a counter since the last call, and the time since then; ok
// is false if that is not known.
func (s *steps) step(v float64, at time.Time) (delta, seconds float64, ok bool) {
	delta, seconds = v-s.last, at.Sub(s.at).Seconds()
	ok = !s.at.IsZero() && delta >= 0 && seconds > 0
	s.last, s.at = v, at
	return delta, seconds, ok
}
