package tracer

// Clock is a clock that replaces the machine's clocks, so that two preparations of one
// program can be compared. It advances by a fixed step at each read, and so does the CPU
// time of the program. It replaces the functions of the vDSO, the system calls that return
// a time, an amount of CPU time, or the use of memory or of the processors, and the
// time-stamp counter. It does not replace the times of files.
type Clock struct {
	Realtime, Monotonic, Boottime int64 // ns
	Cycles                        uint64
	cpu                           int64 // ns
	// apart has the distances of other clocks from these two, by their ids, at first use.
	apart map[int32]int64 // ns
	// waits has, by thread, where deadline has put a time-out, and the address that the
	// thread has given.
	waits map[int][2]uint64
}
