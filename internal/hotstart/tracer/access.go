package tracer

// Access is a system call in which a thread uses a file. The thread is stopped at the entry
// of the call until the caller calls Continue or Hold.
type Access struct {
	Tid  int
	Op   AccessOp
	Path string // absolute; "" if it is unknown
	// Target is the second path of a call that renames or links a file; absolute.
	Target string
	// Descriptor is the descriptor of a AccessRead or a AccessShare.
	Descriptor int
}

// AccessOp is the kind of a Look.
type AccessOp string

// The kinds of looks.
const (
	AccessOpen   AccessOp = "open"   // for reading, or of a directory
	AccessWrite  AccessOp = "write"  // open with write access, or create
	AccessStat   AccessOp = "stat"   // stat, access and the like
	AccessLink   AccessOp = "link"   // readlink
	AccessSocket AccessOp = "socket" // makes a socket; no path
	AccessRead   AccessOp = "read"   // reads from descriptor 0, without a path, or from a followed one; only of an Overlay
	AccessShare  AccessOp = "share"  // maps a followed descriptor, or makes another of it; only of an Overlay
	AccessChange AccessOp = "change" // makes, removes or changes a file by its name, or chdir; only of an Overlay, or with Watch.Facts

	// Only with Watch.Facts:

	AccessFact       AccessOp = "fact"       // asks for one of the facts below, which Path has
	AccessAttributes AccessOp = "attributes" // reads extended attributes
	AccessSystem     AccessOp = "system"     // asks for the file system of a file
	AccessState      AccessOp = "state"      // makes state that is not visible; Path names it
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
