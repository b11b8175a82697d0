package tracer

// Clock is a clock that replaces the machine's clocks, so that two preparations of one
// program can be compared. It advances by a fixed step at each read, and so does the CPU
// time of the program. It replaces the functions of the vDSO, the system calls that return
// a time, an amount of CPU time, or the use of memory or of the processors, and the
// time-stamp counter. It does not replace the times of files.
type Clock struct {
	Realtime, Monotonic, Boottime int64 // ns
	Cycles                        uint64
	// Pace is the number by which the steps are multiplied; 0 is 1.
	Pace int64
	cpu  int64 // ns
	// apart has the distances of other clocks from these two, by their ids, at first use.
	apart map[int32]int64 // ns
	// waits has, by thread, where deadline has put a time-out, and the address that the
	// thread has given.
	waits map[int][2]uint64
}

// HeadTime and HeadCycles are more than the head of a program takes by a Clock.
const (
	HeadTime   = int64(60 * 1e9) // ns
	HeadCycles = 1 << 36
)

// Settle sets the clock to some time, with a Pace of 1. It returns false if this is not later than
// the clock.
func (c *Clock) Settle(at Clock) bool {
	if at.Realtime < c.Realtime || at.Cycles < c.Cycles {
		return false
	}
	c.Realtime, c.Monotonic, c.Boottime, c.Cycles = at.Realtime, at.Monotonic, at.Boottime, at.Cycles
	c.cpu, c.Pace = HeadTime/100, 1
	return true
}
