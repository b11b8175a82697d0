package tracer

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

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
	AccessStat   AccessOp = "stat"   // stat and the like
	AccessAllows AccessOp = "allows" // access(2): whether a file exists, and the process may use it
	AccessLink   AccessOp = "link"   // readlink
	AccessSocket AccessOp = "socket" // makes a socket; no path
	AccessRead   AccessOp = "read"   // reads from descriptor 0, without a path, or from a followed one; only of an Overlay
	AccessShare  AccessOp = "share"  // maps a followed descriptor, or makes another of it; only of an Overlay
	AccessClose  AccessOp = "close"  // closes the descriptor of FollowClose; only of an Overlay
	AccessChange AccessOp = "change" // makes, removes or changes a file by its name, or chdir; only of an Overlay, or with Watch.Facts

	// Only with Watch.Facts:

	AccessFact       AccessOp = "fact"       // asks for one of the facts below, which Path has
	AccessAttributes AccessOp = "attributes" // reads extended attributes
	AccessSystem     AccessOp = "system"     // asks for the file system of a file
	AccessState      AccessOp = "state"      // makes state that is not visible; Path names it
	AccessProcess    AccessOp = "process"    // waits for another process, or sends it a signal; no path
)

// Facts are properties of the machine or of a process. Paths below /proc and /sys are facts
// too.
const (
	FactHost       = "the name of the machine"
	FactProcessors = "the set of processors that it may run on"
	FactNice       = "the nice value"
	FactIO         = "the priority for input and output"
	FactPolicy     = "the scheduling policy"
	FactInherited  = "a property that it has inherited (prctl(2))"
	FactMemory     = "the size of the memory"
	FactLimit      = "resource limit " // and the number of the resource
)

// inheritedProperties are the operations of prctl(2) that return a property which a program
// inherits.
var inheritedProperties = []int{unix.PR_GET_TIMERSLACK, unix.PR_GET_THP_DISABLE, unix.PR_GET_SECUREBITS}

// InheritedProperties returns the properties that FactInherited stands for, of this thread.
func InheritedProperties() (string, error) {
	var all []string
	for _, op := range inheritedProperties {
		v, err := unix.PrctlRetInt(op, 0, 0, 0, 0)
		if err != nil {
			return "", os.NewSyscallError("prctl", err)
		}
		all = append(all, strconv.Itoa(v))
	}
	return strings.Join(all, " "), nil
}
