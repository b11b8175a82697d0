package freecapacity

import "premix/internal/replay/trace"

// Request is the capacity that a job needs.
type Request struct {
	Cores  int32 // in total
	Nodes  int32 // over which the cores are spread evenly; 0: any number
	Memory int32 // MiB a core
	Set    int32 // number of the set of nodes that it may have, from NodePool.AddSet; 0: all
}

// Pool is the free capacity of a pool, now and later. A holder is a number that the caller
// chooses, for example a job's; it holds room once at a time. Methods must not be called
// for moments before the last Forget.
type Pool interface {
	// Possible reports whether a request fits into an empty pool.
	Possible(r Request) bool
	// Fits reports whether there is room for a request in [from, until).
	Fits(r Request, from, until trace.Time) bool
	// Earliest returns the first moment, not before from, from which on there is room for a
	// request for a time; trace.Never if there is none.
	Earliest(r Request, from, length trace.Time) trace.Time
	// Take takes room. If there is not enough, a counted pool takes it nevertheless, and a
	// placed one refuses.
	Take(holder int32, r Request, from, until trace.Time) bool
	// Give releases, from a moment on, the room that a holder took with the same request
	// until that end.
	Give(holder int32, r Request, from, until trace.Time)
	// Extend makes a holder keep its room for longer, whether it is free or not.
	Extend(holder int32, r Request, until, to trace.Time)
	// Free returns the number of free cores at a moment, and Total the number of all cores.
	Free(at trace.Time) int64
	Total() int64
	// Least returns the number of cores that a request takes, including unused cores of
	// whole nodes.
	Least(r Request) int32
	// Short reports whether more is taken at a moment than there is.
	Short(at trace.Time) bool
	// Forget drops the moments before now.
	Forget(now trace.Time)
}

// CountedPool is a pool of equal units.
type CountedPool struct {
	unit   int32 // cores of a unit: 1, or the cores of a node
	memory int64 // MiB of a unit; 0: unlimited
	total  int64 // units
	steps  *steps

	// Without looking ahead, only the present moment is stored, which is much cheaper.
	ahead bool
	now   int64 // units free now, if ahead is false
}

// NewCountedPool returns a pool of units. If cores is more than 1, a unit is a whole node with
// that many cores and memory (MiB; 0: unlimited). If ahead is false, the room only stores
// the present: holders must give room back when it ends, and all questions must be about
// now.
func NewCountedPool(units int64, cores int32, memory int64, ahead bool) *CountedPool {
	return &CountedPool{unit: max(cores, 1), memory: memory, total: units, steps: newSteps(units), ahead: ahead, now: units}
}

func (c *CountedPool) units(r Request) int64 {
	if c.unit == 1 {
		return int64(r.Cores)
	}
	n := (int64(r.Cores) + int64(c.unit) - 1) / int64(c.unit)
	if c.memory > 0 && r.Memory > 0 {
		each := min(c.memory/int64(r.Memory), int64(c.unit)) // cores of a node that have enough memory
		if each < 1 {
			return c.total + 1
		}
		n = (int64(r.Cores) + each - 1) / each
	}
	return max(n, int64(r.Nodes))
}

func (c *CountedPool) Possible(r Request) bool { return c.units(r) <= c.total }

func (c *CountedPool) Fits(r Request, from, until trace.Time) bool {
	if !c.ahead {
		return c.units(r) <= c.now
	}
	return c.steps.least(from, until) >= c.units(r)
}

func (c *CountedPool) Earliest(r Request, from, length trace.Time) trace.Time {
	return c.steps.earliest(from, max(length, 1), c.units(r))
}

// Sooner returns an earlier beginning for a holder whose room begins at kept: the first
// moment in [from, until) from which on there is room for a time that ends not after kept;
// else the first moment, not before now, from which on there is room until kept, if it is
// before until; else trace.Never.
func (c *CountedPool) Sooner(r Request, now, from, until, length, kept trace.Time) trace.Time {
	return c.steps.sooner(now, from, until, length, kept, c.units(r))
}

// Room returns until when there is room for a request that fits at a moment.
func (c *CountedPool) Room(r Request, from trace.Time) trace.Time {
	return c.steps.below(from, c.units(r))
}

func (c *CountedPool) Take(_ int32, r Request, from, until trace.Time) bool {
	c.change(-c.units(r), from, until)
	return true
}

func (c *CountedPool) Give(_ int32, r Request, from, until trace.Time) {
	c.change(c.units(r), from, until)
}

// Move makes room for a time that was to begin at a moment begin earlier.
func (c *CountedPool) Move(r Request, length, was, from trace.Time) {
	c.change(-c.units(r), from, min(from+length, was))
	c.change(c.units(r), max(from+length, was), was+length)
}

func (c *CountedPool) Extend(_ int32, r Request, until, to trace.Time) {
	if c.ahead {
		c.change(-c.units(r), until, to)
	}
}

func (c *CountedPool) change(units int64, from, until trace.Time) {
	if !c.ahead {
		c.now += units
		return
	}
	c.steps.change(from, until, units)
}

func (c *CountedPool) Free(at trace.Time) int64 {
	if !c.ahead {
		return c.now * int64(c.unit)
	}
	return c.steps.value(at) * int64(c.unit)
}

func (c *CountedPool) Total() int64          { return c.total * int64(c.unit) }
func (c *CountedPool) Least(r Request) int32 { return int32(min(c.units(r)*int64(c.unit), 1<<30)) }
func (c *CountedPool) Short(at trace.Time) bool {
	return c.Free(at) < 0
}

func (c *CountedPool) Forget(now trace.Time) {
	if c.ahead {
		c.steps.forget(now)
	}
}
