package hotstart

import (
	"fmt"
	"regexp"
	"syscall"
	"time"
)

// Kind is how a task's process began.
type Kind string

// The kinds of start.
const (
	Hot  Kind = "hot"  // from a snapshot whose memory is mapped
	Cold Kind = "cold" // executed
	// Auto is a wish, never a result: hot where that is possible, pays, and gave
	// the same outputs as a cold start.
	Auto Kind = "auto"
)

// ReadyKind is the event that marks the end of a tool's initialisation.
type ReadyKind string

// The events that end an initialisation.
const (
	ReadyOpen ReadyKind = "open" // the first open of an input (default)
	ReadyRead ReadyKind = "read" // the first read from an input
	ReadyLine ReadyKind = "line" // the first line of output that matches
)

// Ready is the point at which a tool is frozen.
type Ready struct {
	Kind ReadyKind
	Line *regexp.Regexp // only for ReadyLine; matched against each line of stdout and stderr
}

// VariableLines names lines of an output that differ between two executions over the same input,
// for example because they contain a date. A proof ignores these lines.
type VariableLines struct {
	File  string         // path.Match pattern, relative to the task's directory; "stdout" is the standard output
	Lines *regexp.Regexp // lines that match are left out of the comparison; nil leaves out the whole file
}

// Spec is everything that a start freezes. All tasks of a run share one.
type Spec struct {
	Name   string
	Argv   []string // the tool and its arguments, with SampleMark where the name of the sample stands; input and output paths are relative to the task's directory
	Sample string   // name of a sample with the Shape of all tasks; only where Argv has SampleMark
	Env    []string // complete environment, KEY=VALUE
	Inputs []string // file names, relative to the task's directory, at which the tool finds its inputs
	Plain  []string // the names in Inputs whose files the tool gets decompressed
	Dirs   []string // directories to make in the task's directory before the tool starts
	Ready  Ready
	Stream bool     // stdout is read by another program: it is a FIFO, not a file
	Data   []string // absolute paths of files and directories that the tool loads; part of the fingerprint
	Recipe string   // digest of the frozen part of the recipe; part of the fingerprint
	Varies []VariableLines
	Trust  bool   // start hot although memory differs between preparations for no known reason
	Image  *Image // the tool runs in a container of it; nil: directly on the machine
}

// Task is one start of a Spec over one sample.
type Task struct {
	// Sample is the name of the sample, for a Spec with SampleMark in Argv.
	Sample string
	// Dir is an existing empty directory, absolute, private to this try. The
	// tool's working directory; StdoutName and StderrName are made in it.
	Dir string
	// Inputs maps each of Spec.Inputs to the absolute path of the real file.
	Inputs map[string]string
	// Cgroups are directories, one a hierarchy, whose cgroup.procs the task
	// joins before the tool's first instruction. Empty: none.
	Cgroups []string

	watch bool // collect the tool's looks at files; only for Cold
	prove bool // put the snapshot's noise into the tool's memory; only for Hot
}

// Names within a task's directory.
const (
	StdoutName = ".stdout" // regular file, or a FIFO where Spec.Stream
	StderrName = ".stderr" // regular file
)

// Exit is how a task's process ended.
type Exit struct {
	Code       int            // exit status; -1 where Signal is set
	Signal     syscall.Signal // 0 unless killed by a signal
	User       time.Duration
	System     time.Duration
	MaxRSS     int64 // bytes
	ReadBytes  int64 // read from storage, bytes (getrusage(2), ru_inblock)
	WriteBytes int64 // storage writes, bytes
}

// OK reports whether the tool succeeded.
func (e Exit) OK() bool { return e.Code == 0 && e.Signal == 0 }

// String describes the exit status in words.
func (e Exit) String() string {
	if e.Signal != 0 {
		return "killed by " + e.Signal.String()
	}
	return fmt.Sprintf("exit status %d", e.Code)
}
