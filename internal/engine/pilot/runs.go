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
	"premix/internal/hotstart"
	"premix/internal/recipe"
	"premix/internal/record"
)

// Runs is a run with a recipe as a [Directory].
type Runs struct {
	o         local.Options
	run       *queue.Run // nil in a worker
	dir       string
	name      string                     // of the recipe
	from      func(Trees) recipe.Sources // of a worker
	follower  *queue.Follower
	begun     time.Time
	waits     []bool   // by task number - 1
	origin    []origin // by task number - 1
	wrong     map[string]*local.Quarantine
	sum       local.Summary
	failed    map[int]*record.Task
	cancelled map[int]bool
	kinds     map[string]*kind
}

// origin is the start of a finished task, from its last record.
type origin struct {
	snapshot string // that it started from; "" also where the task is not done
	now      bool   // it is of this invocation
}

// kind collects the figures of the summary for one kind of start.
type kind struct{ latencies, seconds []float64 }

// OpenRun opens the run directory o.Out as a Directory, and locks it. It makes the run, or
// continues it.
func OpenRun(o local.Options) (*Runs, error) {
	rec, plan, err := local.Plan(o)
	if err != nil {
		return nil, err
	}
	if o.Retries < 0 {
		o.Retries = rec.Retries
	}
	run, err := queue.OpenRun(o.Out, plan, o.Retries, o.Resume)
	if err != nil {
		return nil, err
	}
	d := &Runs{o: o, run: run, dir: run.Dir, name: plan.Header.Recipe, follower: run.Follower(), begun: time.Now(),
		waits:  make([]bool, len(run.Plan.Tasks)),
		failed: make(map[int]*record.Task), cancelled: make(map[int]bool), kinds: make(map[string]*kind),
		origin: make([]origin, len(run.Plan.Tasks)), wrong: make(map[string]*local.Quarantine)}
	withdrawn, err := local.Withdraw(run, o.Store)
	if err != nil {
		return nil, errors.Join(err, run.Close())
	}
	for _, q := range withdrawn {
		d.wrong[q.Snapshot] = q
	}
	for _, t := range run.Pending() {
		d.waits[t.Task-1] = true
		d.sum.NotRun++
	}
	for _, task := range run.Cancelled() {
		d.cancelled[task] = true
		d.sum.Cancelled++
	}
	d.sum.Before = len(d.waits) - d.sum.NotRun - d.sum.Cancelled
	return d, nil
}

// WorkerOfRun opens the run in dir for a worker. o has the options that are not in the plan,
// and from returns the sources for the files that the recipe names.
func WorkerOfRun(dir string, o local.Options, from func(Trees) recipe.Sources) (*Runs, error) {
	plan, err := engine.ReadPlan(dir)
	if err != nil {
		return nil, err
	}
	o.Out, o.Recipe, o.Sheet = dir, plan.Header.RecipeFile, plan.Header.SheetFile
	return &Runs{o: o, dir: dir, name: plan.Header.Recipe, from: from}, nil
}

// Settings returns the settings for the workers of the run.
func (d *Runs) Settings() Settings {
	s := Settings{Start: string(d.o.Start), Trust: d.o.Trust, Retries: d.o.Retries, Timeout: d.o.Timeout.Seconds(), Store: d.o.Store, FailFast: d.o.FailFast}
	if d.o.Verify != nil {
		s.Verify = d.o.Verify.String()
	}
	return s
}

// Path returns the path of the directory.
func (d *Runs) Path() string { return d.dir }

// Lock returns the path of the lock of a seat.
func (d *Runs) Lock(seat string) string { return engine.WorkerLock(d.dir, seat) }

// Tasks returns the number of tasks.
func (d *Runs) Tasks() int { return len(d.waits) }

// Refresh reads new records and orders.
func (d *Runs) Refresh(f func(*record.Task)) error {
	err := d.follower.Next(func(r *record.Task) {
		if r.Task >= 1 && r.Task <= len(d.waits) {
			d.takeIn(r)
		}
		f(r)
	})
	if err != nil {
		return err
	}
	if err := d.run.Refresh(); err != nil { // it knows all records that were read
		return err
	}
	for i, waits := range d.waits {
		task := i + 1
		switch state := d.run.State(task); {
		case state == queue.Cancelled && waits:
			d.cancelled[task], d.waits[i] = true, false
			d.sum.Cancelled++
			d.sum.NotRun--
		case state == queue.Failed && waits:
			if d.failed[task], err = d.run.Record(task); err != nil {
				return err
			}
			d.waits[i] = false
			d.sum.Failed++
			d.sum.NotRun--
		case state == queue.Waiting && d.cancelled[task]:
			delete(d.cancelled, task)
			d.waits[i] = true
			d.sum.Cancelled--
			d.sum.NotRun++
		case state == queue.Waiting && d.failed[task] != nil:
			delete(d.failed, task)
			d.waits[i] = true
			d.sum.Failed--
			d.sum.NotRun++
		}
	}
	return nil
}

// takeIn applies a record.
func (d *Runs) takeIn(r *record.Task) {
	now := r.Ended.After(d.begun)
	if now {
		d.take(r)
	}
	if d.origin[r.Task-1] = (origin{}); r.OK() {
		d.origin[r.Task-1] = origin{r.Snapshot, now}
	}
}

// take applies a record of this invocation.
func (d *Runs) take(r *record.Task) {
	i := r.Task - 1
	if r.Verified {
		d.sum.Verified++
	}
	switch {
	case r.Cause == record.CauseDiffers:
		d.withdraw(r)
	case r.OK() && r.Snapshot != "" && d.wrong[r.Snapshot] != nil:
		// It had started before the difference was found: it waits for a cold start.
		d.wrong[r.Snapshot].Again++
	case r.OK():
		if d.waits[i] {
			d.waits[i] = false
			d.sum.NotRun--
			d.sum.Succeeded++
		} else if d.failed[r.Task] != nil { // a worker that was started again gave it more tries
			delete(d.failed, r.Task)
			d.sum.Failed--
			d.sum.Succeeded++
		} else if d.cancelled[r.Task] { // it had ended before it was cancelled
			delete(d.cancelled, r.Task)
			d.sum.Cancelled--
			d.sum.Succeeded++
		}
		k := d.kinds[r.Start]
		if k == nil {
			k = &kind{}
			d.kinds[r.Start] = k
		}
		k.latencies, k.seconds = append(k.latencies, r.Latency), append(k.seconds, r.Seconds)
	}
}

// withdraw has tasks wait again that started from a snapshot, after one of them has
// differed from a cold start. The worker that runs them removes their outputs.
func (d *Runs) withdraw(r *record.Task) {
	q := d.wrong[r.Snapshot]
	if q == nil {
		q = local.NewQuarantine(d.run, d.o.Store, r.Snapshot, hotstart.Difference{Sample: r.Sample, Reason: r.Error}, 0)
		d.wrong[r.Snapshot] = q
	}
	for i, from := range d.origin {
		if from.snapshot == r.Snapshot && !d.waits[i] {
			d.waits[i] = true
			if d.sum.NotRun++; from.now {
				d.sum.Succeeded--
			} else {
				d.sum.Before--
			}
			q.Again++
		}
	}
}

// Key returns the same key for all tasks, since they have the same recipe.
func (d *Runs) Key(*record.Task) string { return d.name }

// Over reports whether a task no longer waits.
func (d *Runs) Over(task int) bool {
	return task < 1 || task > len(d.waits) || !d.waits[task-1]
}

// Left returns how many tasks of ranges are waiting.
func (d *Runs) Left(ranges [][2]int) int {
	n := 0
	for _, r := range ranges {
		for t := r[0]; t <= r[1]; t++ {
			if !d.Over(t) {
				n++
			}
		}
	}
	return n
}

// Free calls f for the waiting tasks.
func (d *Runs) Free(held func(int) bool, f func(Need) bool) error {
	h := &d.run.Plan.Header
	for i, waits := range d.waits {
		if waits && !held(i+1) && !f(Need{Task: i + 1, Key: d.name, Cores: h.Threads, Memory: engine.Grown(h.Memory, engine.Growth, d.run.Ooms(i+1))}) {
			break
		}
	}
	return nil
}

// GiveUp records that a task failed.
func (d *Runs) GiveUp(task int, reason, hint string) error {
	now := time.Now().UTC()
	t := &d.run.Plan.Tasks[task-1]
	return d.run.Commit(&record.Task{Task: task, Sample: t.Sample, Try: d.run.Tries(task) + 1, Exit: -1,
		Queued: now, Started: now, Ended: now, Cause: record.CauseLost, Error: reason, Hint: hint, Outputs: t.Paths()})
}

// Failing reports whether a task failed in this invocation.
func (d *Runs) Failing() bool { return len(d.failed) > 0 }

// Line begins a progress line.
func (d *Runs) Line() string {
	text := fmt.Sprintf("%d/%d done", d.sum.Before+d.sum.Succeeded, len(d.waits))
	if d.sum.Failed > 0 {
		text += fmt.Sprintf(", %d failed", d.sum.Failed)
	}
	return text
}

// Work runs a share.
func (d *Runs) Work(ctx context.Context, w *Worker) error {
	lock, busy, err := queue.TakeLock(d.Lock(w.Share.SeatName()), queue.SeatWait)
	if err != nil {
		return err
	}
	if busy {
		return &engine.DirError{Dir: d.dir, Reason: "has a worker in seat " + w.Share.SeatName() + " that still runs", Way: "its tasks are run when that one has ended"}
	}
	defer lock.Close()
	if err := lock.Truncate(0); err != nil {
		return err
	}
	if err := w.Fence(); err != nil {
		if errors.Is(err, local.ErrDrain) {
			return nil
		}
		return err
	}
	o := d.o
	o.Worker, o.Share, o.Until, o.Fence = w.Share.SeatName(), w.Share.Ranges, w.Until, w.Fence
	o.Cores, o.Memory, o.Grace, o.Kill, o.Messages = w.Cores, w.Memory, w.Grace, w.Kill, w.Messages
	o.Trust = w.Settings.Trust
	if w.Settings.Verify != "" {
		share, err := hotstart.ParseShare(w.Settings.Verify)
		if err != nil {
			return err
		}
		o.Verify = &share
	}
	o.Start, o.Retries, o.Timeout = hotstart.Kind(w.Settings.Start), w.Settings.Retries, time.Duration(w.Settings.Timeout*float64(time.Second))
	o.Store, o.FailFast = w.Settings.Store, w.Settings.FailFast
	var trees Trees
	if w.Settings.Trees != nil {
		trees = *w.Settings.Trees
	}
	o.From = d.from(trees)
	_, err = local.Run(ctx, o)
	var failed *local.FailedError
	if errors.As(err, &failed) {
		return nil // that is in the records
	}
	return err
}

// Summary returns the summary of this invocation.
func (d *Runs) Summary() *local.Summary {
	s := d.sum
	s.Dir, s.Recipe, s.Tasks, s.Seconds, s.Starts = d.dir, d.name, len(d.waits), time.Since(d.begun).Seconds(), []local.Start{}
	for _, name := range slices.Sorted(maps.Keys(d.kinds)) {
		k := d.kinds[name]
		s.Starts = append(s.Starts, local.StartOf(name, k.latencies, k.seconds))
	}
	for _, id := range slices.Sorted(maps.Keys(d.wrong)) {
		s.Quarantined = append(s.Quarantined, d.wrong[id])
	}
	for _, task := range slices.Sorted(maps.Keys(d.failed)) {
		if len(s.Failures) == maxFailures {
			break
		}
		r := d.failed[task]
		lines, _ := engine.Stderr(d.dir, r, engine.StderrLines) // report the failure also without its standard error
		s.Failures = append(s.Failures, local.Failure{Task: r.Task, Sample: r.Sample, Try: r.Try, Error: r.Error, Hint: r.Hint, Stderr: lines})
	}
	return &s
}

// Result returns nil if all tasks have succeeded.
func (d *Runs) Result() error {
	if d.sum.Failed+d.sum.NotRun == 0 {
		return nil
	}
	return &local.FailedError{Failed: d.sum.Failed, NotRun: d.sum.NotRun, Tasks: len(d.waits),
		Way: "mend the cause and run the same command again: tasks that are done are not run again"}
}

// Close writes the table of all records and unlocks the directory.
func (d *Runs) Close() error {
	if d.run == nil {
		return nil
	}
	err := d.run.Close()
	d.run = nil
	return err
}
