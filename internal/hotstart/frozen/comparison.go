package frozen

import (
	"fmt"
	"strings"
)

// Moment is one time, by three clocks, in nanoseconds, and by the processor's
// time-stamp counter.
type Moment struct {
	Realtime, Monotonic int64
	Cycles              uint64
	Boottime            int64
}

// Preparation describes how a process came to be frozen.
type Preparation struct {
	Pid      int    // as the process sees it
	Children []int  // process ids of the children that each start makes, in order
	Threads  []int  // ids as the process sees them, in the order of Image.Threads; nil: the ids in the image
	Began    Moment // by the clock that the process was given
	Stopped  Moment // by the same clock
	Dir      string // working directory
	Device   uint64 // of the file of the program, where each process has another one; or 0
	Inputs   []Input
}

// Facts are the known differences of two preparations of one program. The preparations
// have different process ids and windows of time, and inputs of different status. They have different working directories,
// unless all tasks have the same one. The times of their input files lie outside both
// windows.
type Facts struct {
	A, B Preparation
	// Words are the late words: each has a value for either preparation.
	Words []LateWord
	// Free is memory that the caller of Start always overwrites.
	Free []Range
	// Late has the writes of a start from the first image with the words of the second
	// preparation. If it is not nil, Compare applies these writes to the image before it
	// compares, and Words is empty.
	Late *Late
	// Dates are the dates of an earlier comparison with the first image, which the second
	// preparation confirms if Further is true. There are no others then.
	Dates   []DatePlace
	Further bool
	// Rewrites is true if a start may seed the generator of rand(3) as the process did, and
	// write the path of its working directory into the environment.
	Rewrites bool
	// Confirmed is true if further preparations confirm the dates of the comparison.
	Confirmed bool
	// Heads are the heads of the two preparations, if each start executes the head. Kept are the
	// ranges of an earlier comparison.
	Heads [2]*Head
	Kept  []Range
}

// The names of the rules that explain a difference.
const (
	RuleDeadStack = "dead stack"
	RuleProcessID = "process id"
	RuleThreadID  = "thread id"
	RuleDevice    = "device of the container"
	RuleClock     = "clock"
	RuleDate      = "printed time"
	RuleStatus    = "status of an input"
	RuleSeed      = "random numbers of the C library"
	RuleDirectory = "working directory in the environment"
	RuleYear      = "year of the time zone"
	RuleRseq      = "restartable sequences"
	RuleProcessor = "processor that the dynamic linker ran on"
	RuleWord      = "late word"
	RuleVectors   = "vector registers during a function of the C library"
	RuleHead      = "memory from before the load"
)

// Difference is a run of bytes that differ.
type Difference struct {
	Where   string // path of the mapping, [heap], [stack], anonymous, or the register or state
	Address uint64 // 0: not in memory
	Offset  uint64 // in the mapping
	Length  int
	A, B    string // the first words of 8 bytes, as numbers
	Near    string // the nearest printable string
	File    string // of which the memory is an image, data without initial values included
	At      int64  // offset in File, or -1
	Symbol  string // of File
}

func (d Difference) String() string {
	var b strings.Builder
	b.WriteString(d.Where)
	if d.Address != 0 {
		fmt.Fprintf(&b, " at %#x (offset %#x), %d bytes", d.Address, d.Offset, d.Length)
	} else if d.Length > 0 {
		fmt.Fprintf(&b, " at offset %#x, %d bytes", d.Offset, d.Length)
	}
	fmt.Fprintf(&b, ": %s, %s", d.A, d.B)
	if d.Symbol != "" {
		fmt.Fprintf(&b, "; in %s of %s", d.Symbol, d.File)
	}
	if d.Near != "" {
		fmt.Fprintf(&b, "; near %q", d.Near)
	}
	return b.String()
}

// Group is the differences that one rule explains.
type Group struct {
	Rule  string
	Count int          // of words
	First []Difference // at most maxListed
}

// Comparison is the result of Compare.
type Comparison struct {
	// Layout names the differences of the layouts. If there are any, contents have
	// not been compared.
	Layout      []string
	Explained   []Group
	Unexplained []Difference // at most maxListed
	More        int          // unexplained differences that are not listed
	Ids         []IdPlace    // in the memory of the first image
	Devices     []uint64     // addresses of the device in the memory of the first image
	RegisterIds []RegisterId // in the registers of the first image
	Clocks      []ClockPlace // in the first image; at most maxNoise
	Dates       []DatePlace  // in the memory of the first image; at most maxNoise
	Statuses    []StatusPlace
	Generator   *Generator
	WorkDirs    []DirPlace  // in the memory of the first image
	Words       []WordPlace // in the memory of the first image
	Offsets     []Offset    // in the registers of the first image
	Kept        []Range     // see Head
	// Noise has the second preparation's values of words that do not matter by one of the
	// rules. It has at most maxNoise words.
	Noise []Patch
	Read  int64 // bytes that were read from each page file
}

// Same reports whether each difference is explained.
func (c *Comparison) Same() bool { return len(c.Layout) == 0 && len(c.Unexplained) == 0 }

// Note notes in the first image where the process keeps ids of its threads, the device of
// its files, times, the status of inputs, random numbers and its working directory. stopped is the time at which the process was stopped.
func (c *Comparison) Note(im *Image, stopped Moment) {
	im.Ids, im.RegisterIds, im.Devices = c.Ids, c.RegisterIds, c.Devices
	im.Clocks, im.Dates, im.Stopped = c.Clocks, c.Dates, stopped
	im.Statuses, im.Generator, im.WorkDirs = c.Statuses, c.Generator, c.WorkDirs
}

// Patch is an address in the memory of a process and the value to write there.
type Patch struct {
	Address uint64
	Data    [8]byte
}

// maxNoise is how many words of noise are kept.
const maxNoise = 1 << 16
