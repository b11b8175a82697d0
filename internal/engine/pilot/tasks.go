package pilot

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"premix/internal/engine"
	"premix/internal/engine/local"
	"premix/internal/engine/queue"
	"premix/internal/record"
)

// TaskDir is a task directory as a [Directory].
type TaskDir struct {
	dir      string
	q        *queue.Queue // nil in the worker of a run
	follower *queue.Follower
	started  time.Time
	before   [4]int
	user     float64
	system   float64
	failed   map[int]*record.Task
	doubtful map[int]*record.Task // last failures of tasks that may be tried again
}

// OpenTasks makes a Directory of an open queue. If dispatch is true, it is locked against
// other processes that give its tasks away or run them.
func OpenTasks(q *queue.Queue, dispatch bool) (*TaskDir, error) {
	if dispatch {
		if err := q.Work(queue.LocalWorker); err != nil {
			return nil, err
		}
	}
	t := tasksOf(q)
	return &t, nil
}

func tasksOf(q *queue.Queue) TaskDir {
	return TaskDir{dir: q.Dir, q: q, follower: q.Follower(), started: time.Now(), before: q.Counts(), failed: make(map[int]*record.Task), doubtful: make(map[int]*record.Task)}
}

// Path returns the path of the directory.
func (d *TaskDir) Path() string { return d.dir }

// Lock returns the path of the lock of a worker slot.
func (d *TaskDir) Lock(seat string) string { return engine.WorkerLock(d.dir, seat) }

// Tasks returns the number of tasks.
func (d *TaskDir) Tasks() int {
	c := d.q.Counts()
	return c[0] + c[1] + c[2] + c[3]
}

// Refresh reads new orders and records.
func (d *TaskDir) Refresh(f func(*record.Task)) error {
	err := d.follower.Next(func(r *record.Task) {
		if r.Finished.After(d.started) {
			d.user += r.User
			d.system += r.System
			if !r.OK() && r.Cause != record.CauseInterrupted {
				copied := *r
				d.doubtful[r.Task] = &copied
			}
		}
		f(r)
	})
	if err := errors.Join(err, d.q.Refresh()); err != nil { // it knows all records that were read
		return err
	}
	for task, r := range d.doubtful {
		switch d.q.State(task) {
		case queue.Waiting:
			continue
		case queue.Failed:
			d.failed[task] = r
		}
		delete(d.doubtful, task)
	}
	for task := range d.failed {
		if d.q.State(task) != queue.Failed {
			delete(d.failed, task) // a retry was ordered
		}
	}
	return nil
}

// Key returns a key that tasks with about the same run time have in common.
func (d *TaskDir) Key(r *record.Task) string { return d.q.Key(r.Task) }

// Over reports whether a task no longer waits, or is held.
func (d *TaskDir) Over(task int) bool {
	return d.q.State(task) != queue.Waiting || d.q.Held(task)
}

// Left returns how many tasks of ranges wait and are not held.
func (d *TaskDir) Left(ranges [][2]int) int { return d.q.Left(ranges) }

// Free calls f for the tasks that could start now.
func (d *TaskDir) Free(held func(int) bool, f func(Requirements) bool) error {
	return d.q.EachReady(held, func(s *queue.ReadyTask) bool {
		return f(Requirements{Task: s.Task, Key: s.Key, Cores: s.Cores, Memory: s.Memory, Ask: s.Ask, Resources: s.Resources})
	})
}

// GiveUp records that a task failed.
func (d *TaskDir) GiveUp(task int, reason, hint string) error { return d.q.GiveUp(task, reason, hint) }

// Failing reports whether a task failed since OpenTasks.
func (d *TaskDir) Failing() bool { return len(d.failed) > 0 }

// Line begins a progress line.
func (d *TaskDir) Line() string {
	c := d.q.Counts()
	text := fmt.Sprintf("%d/%d done", c[queue.Succeeded], d.Tasks())
	if c[queue.Failed] > 0 {
		text += fmt.Sprintf(", %d failed", c[queue.Failed])
	}
	return text
}

// Work runs a share.
func (d *TaskDir) Work(ctx context.Context, w *Worker) error {
	_, err := local.RunTasks(ctx, local.TaskOptions{Queue: d.q, Worker: w.Share.SlotName(), Share: w.Share.Ranges,
		Until: w.Until, Fence: w.Fence, Cores: w.Cores, Memory: w.Memory, Resources: w.Resources, Grace: w.Grace, FailFast: w.Settings.FailFast, KeepDaemons: w.Settings.KeepDaemons, Kill: w.Kill,
		Messages: w.Messages})
	var failed *local.FailedError
	if errors.As(err, &failed) {
		return nil // that is in the records
	}
	return err
}

// Summary returns the summary of this invocation.
func (d *TaskDir) Summary() *local.Summary {
	s := local.NewSummary(d.q, d.before, d.q.Counts())
	s.Seconds, s.User, s.System = time.Since(d.started).Seconds(), d.user, d.system
	for _, task := range slices.Sorted(maps.Keys(d.failed)) {
		s.AddFailure(d.failed[task])
	}
	return s
}

// Result returns nil if all tasks succeeded.
func (d *TaskDir) Result() error {
	s := d.Summary()
	if s.Failed+s.NotRun == 0 {
		return nil
	}
	return &local.FailedError{Failed: s.Failed, NotRun: s.NotRun, Tasks: s.Tasks,
		HintText: fmt.Sprintf("premix task why %s TASK says why; premix task retry %[1]s --failed has them run again", s.Dir)}
}

// Close removes the intermediates that nothing needs any more.
func (d *TaskDir) Close() error {
	_, err := d.q.Prune(false, false)
	return err
}
