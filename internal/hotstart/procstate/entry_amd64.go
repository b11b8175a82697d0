package procstate

// atEntry is the set of signals that this program's caller ignores: bit N-1 is signal N.
// It is empty where the program does not begin at premix_entry.
var atEntry uint64

func inherited() uint64 { return atEntry }

// filesAtEntry is the soft limit of open files that this program was started with. It is 0
// where the program does not begin at premix_entry.
var filesAtEntry uint64

// closedAtEntry is the set of standard streams that this program's caller has closed: bit N
// is descriptor N. The Go runtime opens /dev/null in their place.
var closedAtEntry uint64
