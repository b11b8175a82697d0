package tracer

// Look is a system call in which a thread uses a file. The thread is stopped at the entry
// of the call until the caller calls Continue or Hold.
type Look struct {
	Tid  int
	Op   LookOp
	Path string // absolute; "" if it is unknown
	// Target is the second path of a call that renames or links a file; absolute.
	Target string
	// Descriptor is the descriptor of a LookRead or a LookShare.
	Descriptor int
}

// LookOp is the kind of a Look.
type LookOp string

// The kinds of looks.
const (
	LookOpen   LookOp = "open"   // for reading, or of a directory
	LookWrite  LookOp = "write"  // open with write access, or create
	LookStat   LookOp = "stat"   // stat, access and the like
	LookLink   LookOp = "link"   // readlink
	LookSocket LookOp = "socket" // makes a socket; no path
	LookRead   LookOp = "read"   // reads from descriptor 0, without a path, or from a followed one; only of an Overlay
	LookShare  LookOp = "share"  // maps a followed descriptor, or makes another of it; only of an Overlay
	LookChange LookOp = "change" // makes, removes or changes a file by its name, or chdir; only of an Overlay, or with Watch.Facts

	// Only with Watch.Facts:

	LookFact       LookOp = "fact"       // asks for one of the facts below, which Path has
	LookAttributes LookOp = "attributes" // reads extended attributes
	LookSystem     LookOp = "system"     // asks for the file system of a file
	LookState      LookOp = "state"      // makes state that is not visible; Path names it
)

// Facts are properties of the machine or of a process. Paths below /proc and /sys are facts
// too.
const (
	FactHost       = "the name of the machine"
	FactProcessors = "the set of processors that it may run on"
	FactNice       = "the nice value"
	FactMemory     = "the size of the memory"
	FactLimit      = "resource limit " // and the number of the resource
)
