package pilot

import (
	"context"
	"io"
	"time"

	"premix/internal/engine/queue"
	"premix/internal/record"
)

// Requirements is the resources of a task that packing depends on.
type Requirements struct {
	Task   int
	Key    string // tasks with the same key are expected to take equally long
	Cores  int
	Memory int64  // 0: not known
	Ask    string // options of the engine, KEY=VALUE, one a line: only tasks with the same share a job
	// Resources are other things that it holds, as in queue.Options. Only tasks with the same
	// share a job, which has the resources of one of them.
	Resources string
}

// Directory is the directory whose tasks are packed. It is open, and locked against other
// dispatchers and against the local engine. It is for one goroutine.
type Directory interface {
	// Path is the directory, absolute.
	Path() string
	// Lock is the file that the worker of a worker slot holds locked.
	Lock(slot string) string
	// Tasks is how many tasks there are. It may grow.
	Tasks() int
	// Refresh reads new orders and records. It calls f once for each record of this
	// directory, including the earlier ones.
	Refresh(f func(*record.Task)) error
	// Key is the key of the task of a record; see Requirements.
	Key(r *record.Task) string
	// Over reports whether a task needs no worker: it has succeeded, has failed for
	// good, was cancelled, or is held.
	Over(task int) bool
	// Left is how many tasks of ranges are not over.
	Left(ranges [][2]int) int
	// Free calls f for the tasks that could start now and that held does not name, in
	// the order in which they should, until it returns false.
	Free(held func(task int) bool, f func(Requirements) bool) error
	// GiveUp gives a task up: it records that it failed.
	GiveUp(task int, reason, hint string) error
	// Work runs a share in this process.
	Work(ctx context.Context, w *Worker) error
	// Line returns the beginning of a progress line: the number of finished tasks.
	Line() string
	// Failing reports whether a task failed in this invocation.
	Failing() bool
	// Result is nil if all tasks have succeeded, or a *local.FailedError.
	Result() error
	// Close is called when nothing is left to do.
	Close() error
}

// Worker is the argument of Directory.Work: the resources and the share of this process.
type Worker struct {
	Share    *Share
	Settings *Settings
	Cores    int   // of the allocation; 0: the machine's
	Memory   int64 // of the allocation; 0: the machine's
	// Resources of the allocation that its tasks hold, one after the other.
	Resources queue.Resources
	Grace     time.Duration
	Until     time.Time // no more tasks are started then; zero: whenever
	Kill      <-chan struct{}
	Fence     func() error // see local.TaskOptions
	Messages  io.Writer    // for the worker's messages; nil: none
}
