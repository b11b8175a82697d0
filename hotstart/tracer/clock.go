package tracer

// Clock is a clock that stands in for those of the machine, so that two preparations of
// one program can be compared: it advances by a fixed step whenever it is read, and so
// does the CPU time that the program has used. It replaces the functions of the vDSO, the
// system calls that return a time, an amount of CPU time, the use of memory or of the
// processors, and the time-stamp counter. Times of files are not replaced.
type Clock struct {
	Realtime, Monotonic int64 // ns
	Cycles              uint64
	cpu                 int64 // ns
}
