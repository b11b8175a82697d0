package around

// atEntry is the set of signals that this program's caller ignores: bit N-1 is signal N.
// It is empty where the program does not begin at premix_entry.
var atEntry uint64

func inherited() uint64 { return atEntry }
