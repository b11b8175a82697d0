package frozen

import (
	"math"
	"time"
)

// ClockPlace is a word in memory or in a register that is a time in a frozen process. Start
// moves it on by the time since the process was stopped, so that the started process
// measures the same durations as a process that has just been initialised.
type ClockPlace struct {
	Address          uint64 // of 8 bytes; 0: in a register
	Thread, Register int    // as in RegisterId
	Word             uint64 // at the freeze
	Of               ClockOf
	Form             ClockForm
	Unit             time.Duration // where Form is ClockWord, and Of is not ClockCycles
}

// ClockOf is the clock by which a word is a time.
type ClockOf uint8

// The clocks.
const (
	ClockRealtime ClockOf = iota
	ClockMonotonic
	ClockBoottime
	ClockCycles
)

// ClockForm is the form of a time in a word. All forms except ClockWord have seconds.
type ClockForm uint8

// The forms.
const (
	ClockWord  ClockForm = iota // 64 bits, in Unit
	ClockLow                    // the low 32 bits
	ClockHigh                   // the high 32 bits
	ClockFloat                  // a floating-point number
)

// clockUnits are the units in which programs keep times.
var clockUnits = []time.Duration{time.Nanosecond, time.Microsecond, time.Millisecond, 10 * time.Millisecond, time.Second}

// clockPlace finds the form in which x is a time of a process that began at a, and y the
// same time of a process that began at b. The two clocks differ by whole seconds.
func clockPlace(x, y uint64, a, b Moment) (ClockPlace, bool) {
	p := ClockPlace{Word: x}
	if b.Cycles != a.Cycles && y-x == b.Cycles-a.Cycles {
		p.Of = ClockCycles
		return p, true
	}
	for of, shift := range []int64{b.Realtime - a.Realtime, b.Monotonic - a.Monotonic, b.Boottime - a.Boottime} {
		p.Of = ClockOf(of)
		if shift == 0 || shift%int64(time.Second) != 0 {
			continue
		}
		for _, p.Unit = range clockUnits {
			if int64(y-x) == shift/int64(p.Unit) {
				return p, true
			}
		}
		p.Unit = 0
		seconds := shift / int64(time.Second)
		switch {
		case x>>32 == y>>32 && int64(uint32(y)-uint32(x)) == seconds:
			p.Form = ClockLow
		case uint32(x) == uint32(y) && int64(y>>32-x>>32) == seconds:
			p.Form = ClockHigh
		default:
			f, g := math.Float64frombits(x), math.Float64frombits(y)
			// A word that is not a number, as a negative integer is, fails each comparison.
			if !(math.Abs(f) < 1e11 && math.Abs(g-f-float64(seconds)) < 1e-6) || f == 0 {
				continue
			}
			p.Form = ClockFloat
		}
		return p, true
	}
	return p, false
}

// at returns the word in a process that was stopped at a time and continues now. Times move
// by whole seconds, since a fraction may be a word of its own, which was equal in both
// preparations.
func (p ClockPlace) at(stopped, now Moment) uint64 {
	from, to := stopped.Realtime, now.Realtime
	switch p.Of {
	case ClockCycles:
		return p.Word + now.Cycles - stopped.Cycles
	case ClockMonotonic:
		from, to = stopped.Monotonic, now.Monotonic
	case ClockBoottime:
		from, to = stopped.Boottime, now.Boottime
	}
	seconds := passed(from, to)
	switch p.Form {
	case ClockLow:
		return p.Word&^math.MaxUint32 | uint64(uint32(p.Word)+uint32(seconds))
	case ClockHigh:
		return p.Word + uint64(seconds)<<32
	case ClockFloat:
		return math.Float64bits(math.Float64frombits(p.Word) + float64(seconds))
	}
	return p.Word + uint64(seconds*int64(time.Second/p.Unit))
}
