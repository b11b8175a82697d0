package record

import "time"

// Causes of failure, the values of [Task.Cause]. An empty cause is success.
const (
	CauseExit        = "exit"        // the tool, or its pipe, ended with a status other than 0
	CauseSignal      = "signal"      // the tool was killed by a signal that premix did not send
	CauseMemory      = "memory"      // the kernel killed it at the memory limit of its cgroup
	CauseProcesses   = "processes"   // the kernel refused it a process or thread at the limit of its cgroup
	CauseTimeout     = "timeout"     // premix ended it at its timeout
	CauseInput       = "input"       // an input could not be read
	CauseOutput      = "output"      // a declared output is missing, empty or of the wrong type
	CauseDisk        = "disk"        // the disk of the run directory is full
	CauseStart       = "start"       // the tool could not be started
	CauseInterrupted = "interrupted" // the run was interrupted while the task ran
	CauseDiffers     = "differs"     // it started hot, and its outputs differed from the outputs of a cold start
	CauseLost        = "lost"        // its spawner or engine job ended before it, and it is not to run once more
	CauseInternal    = "internal"    // premix itself failed
)

// Task is the record of one try of one task: a row of the table "task".
// Times are UTC; durations are seconds; sizes are bytes.
type Task struct {
	Task   int    `json:"task" parquet:"task"`     // number in the plan, from 1
	Sample string `json:"sample" parquet:"sample"` // name from the sample sheet, or of a task without a recipe
	Try    int    `json:"try" parquet:"try"`       // from 1, counted over all invocations
	Slot   int    `json:"slot" parquet:"slot"`     // from 0; one task at a time runs in a slot

	Start  string `json:"start" parquet:"start,dict"`   // hot or cold; empty if it was never started
	Reason string `json:"reason" parquet:"reason,dict"` // why it was started like this

	Snapshot  string  `json:"snapshot,omitempty" parquet:"snapshot,dict"` // id of the snapshot that it started from
	Verified  bool    `json:"verified,omitempty" parquet:"verified"`      // its sample was run cold too, and nothing differed
	Verifying float64 `json:"verifying,omitempty" parquet:"verifying"`    // CPU seconds that this took, not counted in user and system

	Queued   time.Time `json:"queued" parquet:"queued,timestamp(nanosecond)"`   // when it could have run first
	Started  time.Time `json:"started" parquet:"started,timestamp(nanosecond)"` // when its start was begun
	Finished time.Time `json:"ended" parquet:"ended,timestamp(nanosecond)"`     // when the tool and its pipe had ended

	Wait    float64 `json:"wait" parquet:"wait"`       // from queued to started
	Latency float64 `json:"latency" parquet:"latency"` // from started until the tool ran with its own input
	Seconds float64 `json:"seconds" parquet:"seconds"` // wall clock time from started to ended

	User       float64 `json:"user" parquet:"user"`               // CPU time in user mode, tool and pipe
	System     float64 `json:"system" parquet:"system"`           // CPU time in the kernel, tool and pipe
	MaxRSS     int64   `json:"max_rss" parquet:"max_rss"`         // largest resident set of one process of tool or pipe; 0 if too small to measure
	ReadBytes  int64   `json:"read_bytes" parquet:"read_bytes"`   // read from storage, not from the page cache
	WriteBytes int64   `json:"write_bytes" parquet:"write_bytes"` // sent to storage

	Exit   int    `json:"exit" parquet:"exit"`           // exit status; -1 if killed by a signal or never started
	Signal int    `json:"signal" parquet:"signal"`       // number of the signal, 0 if none
	Cause  string `json:"cause" parquet:"cause,dict"`    // why it failed: one of the causes; empty on success
	Error  string `json:"error" parquet:"error"`         // the same for people; empty on success
	Hint   string `json:"hint,omitempty" parquet:"hint"` // hint for the user; "" without one

	Outputs []string `json:"outputs" parquet:"outputs,list"` // relative to the run directory

	StderrOffset int64 `json:"stderr_offset" parquet:"stderr_offset"` // where its standard error begins in stderr.log
	StderrLength int64 `json:"stderr_length" parquet:"stderr_length"`

	// Of tasks without a recipe.
	Group        string `json:"group,omitempty" parquet:"group,dict"`
	Cores        int    `json:"cores,omitempty" parquet:"cores"`   // held while it ran
	Memory       int64  `json:"memory,omitempty" parquet:"memory"` // held while it ran; 0: not counted
	Log          string `json:"log,omitempty" parquet:"log,dict"`  // which pair of logs has its output, in place of stderr.log
	StdoutOffset int64  `json:"stdout_offset,omitempty" parquet:"stdout_offset"`
	StdoutLength int64  `json:"stdout_length,omitempty" parquet:"stdout_length"`
}

// OK reports whether the try succeeded.
func (t *Task) OK() bool { return t.Cause == "" }
