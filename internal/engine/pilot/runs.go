package pilot

import (
	"context"
	"errors"
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
	TaskDir
	o        local.Options
	run      *queue.Run                 // nil in a worker
	from     func(Trees) recipe.Sources // of a worker
	wrong    map[string]*local.Quarantine
	starts   local.Starts
	verified int
}

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
	withdrawn, err := local.Withdraw(run, o.Store)
	if err != nil {
		return nil, errors.Join(err, run.Close())
	}
	d := dirOf(run, o)
	for _, q := range withdrawn {
		d.wrong[q.Snapshot] = q
	}
	return d, nil
}

func dirOf(run *queue.Run, o local.Options) *Runs {
	return &Runs{TaskDir: tasksOf(run.Queue), o: o, run: run, wrong: make(map[string]*local.Quarantine), starts: make(local.Starts)}
}

// WorkerOfRun opens the run in dir for a worker. o has the options that are not in the plan,
// and from returns the sources for the files that the recipe names.
func WorkerOfRun(dir string, o local.Options, from func(Trees) recipe.Sources) (*Runs, error) {
	plan, err := engine.ReadPlan(dir)
	if err != nil {
		return nil, err
	}
	o.Out, o.Recipe, o.Sheet = dir, plan.Header.RecipeFile, plan.Header.SheetFile
	return &Runs{TaskDir: TaskDir{dir: dir}, o: o, from: from}, nil
}

// Settings returns the settings for the workers of the run.
func (d *Runs) Settings() Settings {
	s := Settings{Start: string(d.o.Start), Trust: d.o.Trust, Retries: d.o.Retries, Timeout: d.o.Timeout.Seconds(), Store: d.o.Store, FailFast: d.o.FailFast}
	if d.o.Verify != nil {
		s.Verify = d.o.Verify.String()
	}
	return s
}

// Refresh reads new records and orders.
func (d *Runs) Refresh(f func(*record.Task)) error {
	err := d.TaskDir.Refresh(func(r *record.Task) {
		if r.Task >= 1 && r.Task <= len(d.run.Plan.Tasks) {
			d.take(r)
		}
		f(r)
	})
	for id := range d.wrong {
		if err == nil {
			err = d.withdraw(id)
		}
	}
	return err
}

// take applies a record.
func (d *Runs) take(r *record.Task) {
	d.run.Take(r)
	if !r.Finished.After(d.started) {
		return
	}
	if r.Verified {
		d.verified++
	}
	if r.OK() {
		d.starts.Add(r)
	}
	if r.Cause == record.CauseDiffers && d.wrong[r.Snapshot] == nil {
		d.wrong[r.Snapshot] = local.NewQuarantine(d.run, d.o.Store, r.Snapshot, hotstart.Difference{Sample: r.Sample, Reason: r.Error}, 0)
	}
}

// withdraw has the tasks wait again that started from a snapshot, after one of them has
// differed from a cold start.
func (d *Runs) withdraw(id string) error {
	tasks, err := d.run.Withdraw(id)
	for _, t := range tasks {
		d.wrong[id].Again++
		if !d.starts.Drop(t.Task) {
			d.before[queue.Succeeded]--
		}
	}
	return err
}

// Work runs a share.
func (d *Runs) Work(ctx context.Context, w *Worker) error {
	lock, busy, err := queue.TakeLock(d.Lock(w.Share.SlotName()), queue.WorkerLockWait)
	if err != nil {
		return err
	}
	if busy {
		return &engine.DirError{Dir: d.dir, Reason: "has a worker in seat " + w.Share.SlotName() + " that still runs", HintText: "its tasks are run when that one has ended"}
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
	o.Worker, o.Share, o.Until, o.Fence = w.Share.SlotName(), w.Share.Ranges, w.Until, w.Fence
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
	s := d.TaskDir.Summary()
	s.Starts, s.Verified = d.starts.List(), d.verified
	for _, id := range slices.Sorted(maps.Keys(d.wrong)) {
		s.Quarantined = append(s.Quarantined, d.wrong[id])
	}
	return s
}

// Result returns nil if all tasks have succeeded.
func (d *Runs) Result() error {
	err := d.TaskDir.Result()
	var failed *local.FailedError
	if errors.As(err, &failed) {
		failed.HintText = local.HintAgain
	}
	return err
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
