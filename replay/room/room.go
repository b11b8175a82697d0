package room

import "premix/replay/trace"

// Request is what a job wants of a pool.
type Request struct {
	Cores  int32 // in all
	Nodes  int32 // that it is spread over evenly; 0: it does not matter
	Memory int32 // MiB a core
}

// Room is what of a pool is free, now and later. A holder is a number that the caller
// chooses, such as that of a job; it holds room once at a time. Moments before the last
// Forget are not asked for.
type Room interface {
	// Possible tells whether a request fits when nothing is taken.
	Possible(r Request) bool
	// Fits tells whether a request can be held in [from, until).
	Fits(r Request, from, until trace.Time) bool
	// Earliest is the first moment, not before from, at which a request can be held for
	// a time; trace.Never if there is none.
	Earliest(r Request, from, length trace.Time) trace.Time
	// Gap tells whether there may be a moment in [from, until) at which a request could
	// begin; false is certain.
	Gap(r Request, from, until trace.Time) bool
	// Take holds room. What does not fit is taken all the same by a counted pool, and
	// refused by a placed one.
	Take(holder int32, r Request, from, until trace.Time) bool
	// Give gives back, from a moment on, what a holder took with the same request until
	// that end.
	Give(holder int32, r Request, from, until trace.Time)
	// Extend makes a holder keep its room for longer, whether it is free or not.
	Extend(holder int32, r Request, until, to trace.Time)
	// Free is how many cores are free at a moment, and Total how many there are.
	Free(at trace.Time) int64
	Total() int64
	// Least is the number of cores that a request takes, other room than its own
	// included, as whole nodes are.
	Least(r Request) int32
	// Short tells that more is taken at a moment than there is.
	Short(at trace.Time) bool
	// Forget says that nobody asks about moments before now any more.
	Forget(now trace.Time)
}

// Counted is a pool of units that are alike.
type Counted struct {
	unit   int32 // cores of a unit: 1, or those of a node
	memory int64 // MiB of a unit; 0: not counted
	total  int64 // units
	steps  *steps

	// Without a look ahead only this moment is known, which is much cheaper.
	ahead bool
	now   int64 // units free now, if not ahead
}

// NewCounted makes a pool of units. If cores is more than 1 a unit is a whole node with
// so many cores and memory (MiB; 0: not counted). With ahead false the room only knows
// what is free now: whoever holds room gives it back when it ends, and all that is asked
// for is asked of now.
func NewCounted(units int64, cores int32, memory int64, ahead bool) *Counted {
	return &Counted{unit: max(cores, 1), memory: memory, total: units, steps: newSteps(units), ahead: ahead, now: units}
}

func (c *Counted) units(r Request) int64 {
	if c.unit == 1 {
		return int64(r.Cores)
	}
	n := (int64(r.Cores) + int64(c.unit) - 1) / int64(c.unit)
	if c.memory > 0 && r.Memory > 0 {
		each := min(c.memory/int64(r.Memory), int64(c.unit)) // cores of a node that have memory enough
		if each < 1 {
			return c.total + 1
		}
		n = (int64(r.Cores) + each - 1) / each
	}
	return max(n, int64(r.Nodes))
}

func (c *Counted) Possible(r Request) bool { return c.units(r) <= c.total }

func (c *Counted) Fits(r Request, from, until trace.Time) bool {
	if !c.ahead {
		return c.units(r) <= c.now
	}
	return c.steps.least(from, until) >= c.units(r)
}

func (c *Counted) Earliest(r Request, from, length trace.Time) trace.Time {
	return c.steps.earliest(from, max(length, 1), c.units(r))
}

func (c *Counted) Gap(r Request, from, until trace.Time) bool {
	want := c.units(r)
	return c.steps.value(from) >= want || c.steps.reaches(c.steps.root, c.steps.base, from, want) < until
}

func (c *Counted) Take(_ int32, r Request, from, until trace.Time) bool {
	c.change(-c.units(r), from, until)
	return true
}

func (c *Counted) Give(_ int32, r Request, from, until trace.Time) {
	c.change(c.units(r), from, until)
}

func (c *Counted) Extend(_ int32, r Request, until, to trace.Time) {
	if c.ahead {
		c.change(-c.units(r), until, to)
	}
}

func (c *Counted) change(units int64, from, until trace.Time) {
	if !c.ahead {
		c.now += units
		return
	}
	if from >= until {
		return
	}
	c.steps.change(from, units)
	c.steps.change(until, -units)
}

func (c *Counted) Free(at trace.Time) int64 {
	if !c.ahead {
		return c.now * int64(c.unit)
	}
	return c.steps.value(at) * int64(c.unit)
}

func (c *Counted) Total() int64          { return c.total * int64(c.unit) }
func (c *Counted) Least(r Request) int32 { return int32(min(c.units(r)*int64(c.unit), 1<<30)) }
func (c *Counted) Short(at trace.Time) bool {
	return c.Free(at) < 0
}

func (c *Counted) Forget(now trace.Time) {
	if c.ahead {
		c.steps.forget(now)
	}
}
