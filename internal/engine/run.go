package engine

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"

	"premix/internal/kit/lines"
	"premix/internal/kit/owner"
	"premix/internal/record"
)

// Names in a run directory.
const (
	StateDir   = ".premix"     // everything but outputs and the page
	ReportFile = "report.html" // the page
	QueueDir   = "queue"       // in StateDir, of tasks without a recipe; see internal/engine/queue
	PlanFile   = "plan.jsonl"  // in StateDir, of a run
	TasksDir   = "tasks"       // in StateDir: work directories of a run
	LockFile   = "lock"        // in StateDir, held by the premix that runs the tasks of a run
)

// State returns the directory below dir with the journals of its tasks: of a run, or of
// tasks without a recipe.
func State(dir string) string {
	state := filepath.Join(dir, StateDir)
	queue := filepath.Join(state, QueueDir)
	if _, err := os.Stat(queue); err == nil {
		return queue
	}
	return state
}

// WorkerLock returns the path of the file that a worker of an engine holds locked.
func WorkerLock(dir, worker string) string {
	return filepath.Join(State(dir), "work-"+worker+".lock")
}

// NewHeader returns the header of a table that this process begins.
func NewHeader(table, version string) record.Header {
	host, _ := os.Hostname() // a host without a name is still a host
	return record.Header{Table: table, Format: record.Format, Premix: version, Host: host, PID: os.Getpid(), Created: time.Now().UTC()}
}

// tailBytes is how much of the end of a try's standard error is looked at.
const tailBytes = 16 << 10

// StderrLines is how many lines of a failed try's standard error are shown:
// tools report an error a few lines before they exit.
const StderrLines = 10

// StderrLog returns the path of the file with the standard error of a try whose record names
// log. A forged record leads to no other directory.
func StderrLog(dir, log string) string {
	name := "stderr.log"
	if log != "" {
		name = "stderr-" + filepath.Base(log) + ".log"
	}
	return filepath.Join(dir, StateDir, name)
}

// Stderr returns the last lines, at most n, of the standard error of a try.
func Stderr(dir string, rec *record.Task, n int) ([]string, error) {
	if rec.StderrLength == 0 {
		return nil, nil
	}
	f, err := owner.OpenOthers(StderrLog(dir, rec.Log))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size := min(rec.StderrLength, tailBytes)
	text := make([]byte, size)
	got, err := f.ReadAt(text, rec.StderrOffset+rec.StderrLength-size)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return lines.Last(text[:got], n), nil
}
