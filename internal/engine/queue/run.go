package queue

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"premix/internal/engine"
	"premix/internal/hotstart"
	"premix/internal/kit/lock"
	"premix/internal/kit/owner"
	"premix/internal/record"
)

// Run is a run directory that is open to run its tasks. Its methods are safe for concurrent
// use, unless their comments say otherwise.
type Run struct {
	*Queue
	Plan *engine.Plan

	worker  string   // of an engine; "" where one premix runs all tasks
	share   [][2]int // tasks of the worker; nil: all
	retries int      // of a task
	lock    *os.File // nil in a worker

	snapshot []string // that a task which is done started from, by task number - 1
	// Snapshots from which a task of the run started that differed from a cold start.
	differ map[string]hotstart.Difference

	mu         sync.Mutex // guards the rest
	stderr     *os.File
	stderrSize int64
}

// OpenRun makes the run directory for a plan, or continues the run of the same plan that is
// in it, with the given number of retries for each unfinished task. It refuses a run whose
// tasks are all done unless resume is true: the files may have changed since, and doing
// nothing would pass off the old outputs as current. It returns an *engine.DirError for a
// directory that is in use, not empty, holds another run or cannot be written.
func OpenRun(dir string, plan *engine.Plan, retries int, resume bool) (_ *Run, err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = engine.DirectoryError(dir, err) }()
	if err := engine.MakeDir(dir); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	state := filepath.Join(dir, engine.StateDir)
	ours := slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == engine.StateDir })
	if len(entries) > 0 && !ours {
		return nil, notEmpty(dir)
	}
	if IsDir(dir) {
		return nil, &engine.DirError{Dir: dir, Reason: "holds tasks without a recipe", HintText: "give another directory with --out; premix task ls shows what is in this one"}
	}
	if err := os.Mkdir(state, 0o775); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	if err := owner.Directory(state); err != nil {
		return nil, err
	}
	r := &Run{Plan: plan, retries: retries}
	if r.lock, err = takeRun(dir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			r.lock.Close()
		}
	}()
	old, err := engine.ReadPlan(dir)
	switch changed := ""; {
	case err == nil:
		if changed = plan.Changed(old); changed == "" {
			r.Plan = old
			break
		}
		if resume || !untouched(dir, entries) {
			return nil, &engine.DirError{Dir: dir, Reason: "cannot be resumed: the run was started with " + changed, HintText: "restore the previous one, or start a new run in another directory"}
		}
		// A run that never got to its first task: nothing to lose.
		if err := os.Remove(filepath.Join(state, ordersFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		err = plan.Write(dir)
	case errors.Is(err, fs.ErrNotExist):
		// The run does not exist, or was killed before it had a plan.
		if len(entries) > 1 {
			return nil, notEmpty(dir)
		}
		err = plan.Write(dir)
	}
	if err != nil {
		return nil, err
	}
	if err := r.open(dir, plan.Header.Premix); err != nil {
		return nil, err
	}
	pending := r.Pending()
	if !resume && len(pending)+len(r.Cancelled()) == 0 {
		return nil, errors.Join(&engine.DirError{Dir: dir, Reason: "already holds this run, and all its tasks are done", HintText: "give another directory with --out to run them again"}, r.Close())
	}
	if err := r.begins(pending); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func notEmpty(dir string) error {
	return &engine.DirError{Dir: dir, Reason: "is not empty and holds no run", HintText: "give a new or empty directory with --out"}
}

// untouched reports whether the run in dir, which has these entries, has neither outputs nor
// a journal. It may have a page.
func untouched(dir string, entries []fs.DirEntry) bool {
	numbers, _, err := (&Queue{base: engine.State(dir)}).journals()
	return err == nil && len(numbers) == 0 && !slices.ContainsFunc(entries, func(e fs.DirEntry) bool {
		return e.Name() != engine.StateDir && e.Name() != engine.ReportFile
	})
}

// takeRun locks a run directory and writes the holder into the lock.
func takeRun(dir string) (*os.File, error) {
	f, err := owner.OpenFile(filepath.Join(dir, engine.StateDir, engine.LockFile), os.O_RDWR|os.O_CREATE, 0o664)
	if err != nil {
		return nil, err
	}
	if err := lock.Take(f, lock.Exclusive); err != nil {
		holder := signature(f.Name())
		f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		return nil, &engine.DirError{Dir: dir, Reason: "is in use by another premix (" + holder + ")", HintText: "wait until it has ended, or give another directory with --out"}
	}
	sign(f)
	return f, nil
}

// OpenShare opens the run in dir for a worker of an engine, which only runs the tasks in
// share, ranges of numbers, and holds the lock of that name. plan is made from the recipe
// as it is now. Tasks of the share whose outputs have gone wait again.
func OpenShare(dir string, plan *engine.Plan, retries int, worker string, share [][2]int) (_ *Run, err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = engine.DirectoryError(dir, err) }()
	old, err := engine.ReadPlan(dir)
	if err != nil {
		return nil, err
	}
	if what := plan.Changed(old); what != "" {
		return nil, &engine.DirError{Dir: dir, Reason: "cannot be resumed: the run was started with " + what, HintText: "restore the previous one, or start a new run in another directory"}
	}
	r := &Run{Plan: old, worker: worker, share: share, retries: retries}
	if err := r.open(dir, plan.Header.Premix); err != nil {
		return nil, err
	}
	gone := slices.DeleteFunc(r.Pending(), func(t *engine.Task) bool { return r.State(t.Task) != Succeeded })
	if err := r.begins(gone); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// open reads the records and orders, and prepares for further tries.
func (r *Run) open(dir, version string) (err error) {
	engine.Announce(dir)
	if r.Queue, err = Open(dir, version, false); err != nil {
		return err
	}
	if r.run == nil {
		return errors.Join(r.damaged(engine.PlanFile), r.Queue.Close())
	}
	r.snapshot, r.differ = make([]string, len(r.Plan.Tasks)), make(map[string]hotstart.Difference)
	for rec, err := range Records(dir) {
		if err != nil {
			return errors.Join(err, r.Queue.Close())
		}
		if rec.Task >= 1 && rec.Task <= len(r.snapshot) {
			r.Take(rec)
		}
	}
	// A premix that was killed has left this behind.
	if err = os.RemoveAll(r.named(engine.TasksDir)); err == nil {
		err = os.Mkdir(r.named(engine.TasksDir), 0o775)
	}
	if err == nil {
		r.stderr, err = owner.OpenFile(engine.StderrLog(dir, r.worker), os.O_RDWR|os.O_CREATE, 0o664)
	}
	if err == nil {
		r.stderrSize, err = r.stderr.Seek(0, io.SeekEnd)
	}
	if err != nil {
		return errors.Join(err, r.Queue.Close())
	}
	return nil
}

// begins gives the order that tasks wait, and have all their retries from here on.
func (r *Run) begins(tasks []*engine.Task) error {
	if len(tasks) == 0 {
		return nil
	}
	o := &Order{Order: orderBegin, Retries: r.retries}
	for _, t := range tasks {
		try := r.tries(t.Task) // this premix alone makes further ones
		if n := len(o.Which) - 1; n >= 0 && o.Which[n][1] == t.Task-1 && o.Which[n][2] == try {
			o.Which[n][1] = t.Task
		} else {
			o.Which = append(o.Which, [3]int{t.Task, t.Task, try})
		}
	}
	return r.give(o, func() error { return nil })
}

// Worker returns the name by which records refer to the log of standard error; "" where one
// premix runs all tasks.
func (r *Run) Worker() string { return r.worker }

// named returns the path of a directory that each worker has for itself.
func (r *Run) named(name string) string {
	if r.worker != "" {
		name += "-" + r.worker
	}
	return r.path(name)
}

// has reports whether a task is one of the share.
func (r *Run) has(task int) bool {
	return r.share == nil || slices.ContainsFunc(r.share, func(s [2]int) bool { return task >= s[0] && task <= s[1] })
}

// Pending returns the tasks, of the share if there is one, that are to be run, in the order
// of the plan.
func (r *Run) Pending() []*engine.Task {
	var list []*engine.Task
	for i := range r.Plan.Tasks {
		t := &r.Plan.Tasks[i]
		if s := r.State(t.Task); r.has(t.Task) && s != Cancelled && (s != Succeeded || !r.present(t)) {
			list = append(list, t)
		}
	}
	return list
}

// Cancelled returns the tasks, of the share if there is one, that were cancelled.
func (r *Run) Cancelled() []int {
	var list []int
	for i := range r.Plan.Tasks {
		if r.has(i+1) && r.State(i+1) == Cancelled {
			list = append(list, i+1)
		}
	}
	return list
}

// present reports whether the outputs of a task are there.
func (r *Run) present(t *engine.Task) bool {
	for _, o := range t.Outputs {
		info, err := os.Lstat(filepath.Join(r.Dir, filepath.FromSlash(o.To)))
		if err != nil || info.IsDir() != o.Dir {
			return false
		}
	}
	return true
}

// Take adds the snapshot of a record of the run. It is for one goroutine, as are
// Differing, Snapshots and Withdraw.
func (r *Run) Take(rec *record.Task) {
	r.snapshot[rec.Task-1] = ""
	if rec.OK() {
		r.snapshot[rec.Task-1] = rec.Snapshot
	}
	if rec.Cause == record.CauseDiffers {
		r.differ[rec.Snapshot] = hotstart.Difference{Sample: rec.Sample, Reason: rec.Error}
	}
}

// Differing returns the snapshots from which a task of the run started that differed from a
// cold start.
func (r *Run) Differing() map[string]hotstart.Difference { return r.differ }

// Snapshots returns those from which tasks started that are done.
func (r *Run) Snapshots() []string {
	seen := make(map[string]bool)
	for _, id := range r.snapshot {
		if id != "" {
			seen[id] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// Withdraw has the tasks wait again that are done and started from a snapshot, and removes
// their outputs, which may be wrong. It returns the tasks, in the order of the plan.
func (r *Run) Withdraw(snapshot string) (tasks []*engine.Task, err error) {
	for i := range r.Plan.Tasks {
		if t := &r.Plan.Tasks[i]; r.snapshot[i] == snapshot && r.has(t.Task) && r.State(t.Task) == Succeeded {
			tasks = append(tasks, t)
		}
	}
	if err := r.begins(tasks); err != nil {
		return nil, err
	}
	for _, t := range tasks {
		r.snapshot[t.Task-1] = ""
		for _, o := range t.Outputs {
			err = errors.Join(err, os.RemoveAll(filepath.Join(r.Dir, filepath.FromSlash(o.To))))
		}
	}
	return tasks, err
}

// tries returns the number of tries of a task.
func (r *Run) tries(task int) int {
	r.Queue.mu.Lock()
	defer r.Queue.mu.Unlock()
	e, _ := r.entry(task)
	return int(e.try)
}

// WorkDir returns the directory in which a try of a task runs. It is not made.
func (r *Run) WorkDir(task, try int) string {
	return filepath.Join(r.named(engine.TasksDir), fmt.Sprintf("%d.%d", task, try))
}

// Scratch makes and returns a directory on the run directory's file system. It is
// removed at the latest when the run continues.
func (r *Run) Scratch(name string) (string, error) {
	dir := filepath.Join(r.named(engine.TasksDir), name)
	return dir, os.MkdirAll(dir, 0o777)
}

// AppendStderr appends files, one after another, to the log of standard error and returns
// where they are there. A file that does not exist is empty.
func (r *Run) AppendStderr(paths ...string) (offset, length int64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	offset = r.stderrSize
	if _, err := r.stderr.Seek(offset, io.SeekStart); err != nil {
		return offset, 0, err
	}
	for _, path := range paths {
		n, err := r.appendStderr(path)
		if err != nil {
			return offset, 0, errors.Join(err, r.stderr.Truncate(offset))
		}
		length += n
	}
	r.stderrSize += length
	return offset, length, nil
}

// appendStderr appends one file to the log. The caller holds mu.
func (r *Run) appendStderr(path string) (int64, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return io.Copy(r.stderr, f)
}

// Close writes the table of all records as Parquet and unlocks the directory. A worker
// leaves both to the premix that has given it its share.
func (r *Run) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	errs := []error{r.Queue.Close(), r.stderr.Close(), os.RemoveAll(r.named(engine.TasksDir))}
	if r.lock == nil {
		return errors.Join(errs...)
	}
	errs = append(errs, record.ToParquet(r.path(parquetFile), Records(r.Dir)), r.lock.Close())
	return errors.Join(errs...)
}
