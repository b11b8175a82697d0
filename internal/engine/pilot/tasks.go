package pilot

import (
	"context"
	"errors"
	"fmt"
	"time"

	"premix/internal/engine/local"
	"premix/internal/engine/queue"
	"premix/internal/record"
)

// Tasks is a task directory as a [Directory].
type Tasks struct {
	q        *queue.Queue
	follower *queue.Follower
	begun    time.Time
	before   [4]int
	sum      local.TaskSummary
	failed   map[int]bool
	doubtful map[int]*record.Task // last failures of tasks that may be tried again
}

// maxFailures is the number of failures that a summary shows in full.
const maxFailures = 10

// OpenTasks makes a Directory of an open queue. If dispatch is true, it is locked against
// other processes that give its tasks away or run them.
func OpenTasks(q *queue.Queue, dispatch bool) (*Tasks, error) {
	if dispatch {
		if err := q.Work(queue.LocalWorker); err != nil {
			return nil, err
		}
	}
	return &Tasks{q: q, follower: q.Follower(), begun: time.Now(), before: q.Counts(), failed: make(map[int]bool), doubtful: make(map[int]*record.Task)}, nil
}

// Path returns the path of the directory.
func (d *Tasks) Path() string { return d.q.Dir }

// Lock returns the path of the lock of a seat.
func (d *Tasks) Lock(seat string) string { return d.q.WorkerLock(seat) }

// Tasks returns the number of tasks.
func (d *Tasks) Tasks() int {
	c := d.q.Counts()
	return c[0] + c[1] + c[2] + c[3]
}

// Refresh reads new orders and records.
func (d *Tasks) Refresh(f func(*record.Task)) error {
	if err := d.q.Refresh(); err != nil {
		return err
	}
	err := d.follower.Next(func(r *record.Task) {
		if r.Ended.After(d.begun) {
			d.sum.User += r.User
			d.sum.System += r.System
			if !r.OK() && r.Cause != record.CauseInterrupted {
				copied := *r
				d.doubtful[r.Task] = &copied
			}
		}
		f(r)
	})
	// A record may be read before the queue has applied it: the state of the task is then
	// known at the next call.
	for task, r := range d.doubtful {
		switch d.q.State(task) {
		case queue.Waiting:
			continue
		case queue.Failed:
			d.fail(r)
		}
		delete(d.doubtful, task)
	}
	return err
}

// fail counts a task that failed for good in this invocation.
func (d *Tasks) fail(r *record.Task) {
	if d.failed[r.Task] {
		return
	}
	d.failed[r.Task] = true
	if len(d.sum.Failures) < maxFailures {
		d.sum.Failures = append(d.sum.Failures, local.TaskFailure{Task: r.Task, Name: r.Sample, Error: r.Error, Hint: r.Hint})
	}
}

// Key returns a key that tasks with about the same run time have in common.
func (d *Tasks) Key(r *record.Task) string { return d.q.Key(r.Task) }

// Over reports whether a task no longer waits, or is held.
func (d *Tasks) Over(task int) bool {
	return d.q.State(task) != queue.Waiting || d.q.Held(task)
}

// Left returns how many tasks of ranges wait and are not held.
func (d *Tasks) Left(ranges [][2]int) int { return d.q.Left(ranges) }

// Free calls f for the tasks that could start now.
func (d *Tasks) Free(held func(int) bool, f func(Need) bool) error {
	return d.q.Startable(held, func(s *queue.Startable) bool {
		return f(Need{Task: s.Task, Key: s.Key, Cores: s.Cores, Memory: s.Memory, Ask: s.Ask})
	})
}

// GiveUp records that a task failed.
func (d *Tasks) GiveUp(task int, reason, hint string) error { return d.q.GiveUp(task, reason, hint) }

// Failing reports whether a task failed since OpenTasks.
func (d *Tasks) Failing() bool { return len(d.failed) > 0 }

// Line begins a progress line.
func (d *Tasks) Line() string {
	c := d.q.Counts()
	text := fmt.Sprintf("%d/%d done", c[queue.Succeeded], d.Tasks())
	if c[queue.Failed] > 0 {
		text += fmt.Sprintf(", %d failed", c[queue.Failed])
	}
	return text
}

// Work runs a share.
func (d *Tasks) Work(ctx context.Context, w *Worker) error {
	_, err := local.RunTasks(ctx, local.TaskOptions{Queue: d.q, Worker: w.Share.SeatName(), Share: w.Share.Ranges,
		Until: w.Until, Fence: w.Fence, Cores: w.Cores, Memory: w.Memory, Grace: w.Grace, FailFast: w.Settings.FailFast, KeepDaemons: w.Settings.KeepDaemons, Kill: w.Kill,
		Messages: w.Messages})
	var failed *local.FailedError
	if errors.As(err, &failed) {
		return nil // that is in the records
	}
	return err
}

// Summary returns the summary of this invocation.
func (d *Tasks) Summary() *local.TaskSummary {
	c := d.q.Counts()
	s := d.sum
	s.Dir, s.Tasks, s.Seconds = d.q.Dir, d.Tasks(), time.Since(d.begun).Seconds()
	s.Before, s.Succeeded = d.before[queue.Succeeded], c[queue.Succeeded]-d.before[queue.Succeeded]
	s.Failed, s.Cancelled, s.NotRun = c[queue.Failed], c[queue.Cancelled], c[queue.Waiting]
	return &s
}

// Result returns nil if all tasks succeeded.
func (d *Tasks) Result() error {
	s := d.Summary()
	if s.Failed+s.NotRun == 0 {
		return nil
	}
	return &local.FailedError{Failed: s.Failed, NotRun: s.NotRun, Tasks: s.Tasks,
		Way: fmt.Sprintf("premix task why %s TASK says why; premix task retry %[1]s --failed has them run again", s.Dir)}
}

// Close removes the intermediates that nothing needs any more.
func (d *Tasks) Close() error {
	_, err := d.q.Prune(false, false)
	return err
}
