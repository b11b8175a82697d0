package engine

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"premix/hotstart"
	"premix/internal/lock"
	"premix/internal/owner"
	"premix/record"
)

// Names in a run directory.
const (
	StateDir   = ".premix"     // everything but outputs and the page
	ReportFile = "report.html" // the page
	QueueDir   = "queue"       // in StateDir, of tasks without a recipe; see engine/queue
)

// Names in StateDir.
const (
	lockFile    = "lock"
	planFile    = "plan.jsonl"
	stderrFile  = "stderr.log"
	tasksDir    = "tasks"
	parquetFile = "tasks.parquet"
)

// Run is an open run directory. Its methods are safe for concurrent use.
type Run struct {
	Dir  string // absolute
	Plan *Plan

	version string         // of this premix
	state   []state        // by task number - 1
	seat    string         // of a worker; "" where there is one premix for all
	share   [][2]int       // of a worker; nil: all
	lock    *os.File       // nil in a worker
	journal *record.Writer // nil until the first commit

	// Snapshots from which a task of the run started that differed from a cold start.
	differ map[string]hotstart.Difference

	mu         sync.Mutex // guards the rest
	stderr     *os.File
	stderrSize int64
}

// state is what the journals tell of one task.
type state struct {
	tries    int
	ooms     int // tries that ran out of memory
	ok       bool
	snapshot string // that the last try started from; "" if it started cold
}

// newHeader is the header of a table that this process begins.
func newHeader(table, version string) record.Header {
	// A host without a name is still a host.
	host, _ := os.Hostname()
	return record.Header{Table: table, Format: record.Format, Premix: version, Host: host, PID: os.Getpid(), Created: time.Now().UTC()}
}

// Open makes the run directory for a plan, or continues the run of the same plan that is
// in it. A run whose tasks are all done is refused unless resume is true: to do nothing
// would pass off its outputs as those of files that may have changed since. A directory
// that is in use, not empty, holds another run or cannot be written gives a *DirError.
func Open(dir string, plan *Plan, resume bool) (_ *Run, err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = dirError(dir, err) }()
	if err := MakeDir(dir); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	ours := slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == StateDir })
	if len(entries) > 0 && !ours {
		return nil, &DirError{Dir: dir, Reason: "is not empty and holds no run", Way: "give a new or empty directory with --out"}
	}
	if _, err := os.Stat(filepath.Join(dir, StateDir, QueueDir)); err == nil {
		return nil, &DirError{Dir: dir, Reason: "holds tasks without a recipe", Way: "give another directory with --out; premix task ls shows what is in this one"}
	}
	if err := os.Mkdir(filepath.Join(dir, StateDir), 0o775); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	if err := owner.Directory(filepath.Join(dir, StateDir)); err != nil {
		return nil, err
	}
	r := &Run{Dir: dir, Plan: plan, version: plan.Header.Premix}
	if err := r.take(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			r.lock.Close()
		}
	}()
	old, err := ReadPlan(dir)
	switch {
	case err == nil && !resume && r.untouched(entries):
		// A run that never got to its first task: nothing to lose.
		if err := plan.write(r.path(planFile)); err != nil {
			return nil, err
		}
	case err == nil:
		if what := plan.changed(old); what != "" {
			return nil, &DirError{Dir: dir, Reason: "cannot be resumed: the run was begun with " + what, Way: "put it back as it was, or begin a new run in another directory"}
		}
		r.Plan = old
	case errors.Is(err, fs.ErrNotExist):
		// No run, or one that was killed before it had a plan.
		if len(entries) > 1 {
			return nil, &DirError{Dir: dir, Reason: "is not empty and holds no run", Way: "give a new or empty directory with --out"}
		}
		if err := plan.write(r.path(planFile)); err != nil {
			return nil, err
		}
	default:
		return nil, err
	}
	Announce(dir)
	if err := r.load(); err != nil {
		return nil, err
	}
	if !resume && len(r.Pending()) == 0 {
		return nil, errors.Join(&DirError{Dir: dir, Reason: "already holds this run, and all its tasks are done", Way: "give another directory with --out to run them again"}, r.Close())
	}
	return r, nil
}

// load takes in what was recorded, and makes room for the tries to come.
func (r *Run) load() (err error) {
	r.state = make([]state, len(r.Plan.Tasks))
	r.differ = make(map[string]hotstart.Difference)
	for rec, err := range Records(r.Dir) {
		if err != nil {
			return err
		}
		if rec.Task >= 1 && rec.Task <= len(r.state) {
			r.Take(rec)
		}
	}
	// What a killed premix left behind.
	if err := os.RemoveAll(r.path(r.named(tasksDir))); err != nil {
		return err
	}
	if err := os.Mkdir(r.path(r.named(tasksDir)), 0o775); err != nil {
		return err
	}
	r.stderr, err = owner.OpenFile(r.path(r.named(stderrFile)), os.O_RDWR|os.O_CREATE, 0o664)
	if err != nil {
		return err
	}
	r.stderrSize, err = r.stderr.Seek(0, io.SeekEnd)
	if err != nil {
		return errors.Join(err, r.stderr.Close())
	}
	return nil
}

// untouched tells whether the run, in a directory with these entries, has neither
// outputs nor a journal. A page may tell of it all the same.
func (r *Run) untouched(entries []fs.DirEntry) bool {
	names, err := journals(r.Dir)
	return err == nil && len(names) == 0 && !slices.ContainsFunc(entries, func(e fs.DirEntry) bool {
		return e.Name() != StateDir && e.Name() != ReportFile
	})
}

// take locks the run directory and writes down who did.
func (r *Run) take() error {
	f, err := owner.OpenFile(r.path(lockFile), os.O_RDWR|os.O_CREATE, 0o664)
	if err != nil {
		return err
	}
	if err := lock.Take(f, lock.Exclusive); err != nil {
		who := make([]byte, 128)
		n, _ := f.ReadAt(who, 0)
		f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		return &DirError{Dir: r.Dir, Reason: "is in use by another premix (" + strings.TrimSpace(string(who[:n])) + ")", Way: "wait until it has ended, or give another directory with --out"}
	}
	r.lock = f
	h := newHeader("", "")
	// Only for the message above; a full disk must not keep a run from resuming.
	if f.Truncate(0) == nil {
		_, _ = fmt.Fprintf(f, "process %d on %s\n", h.PID, h.Host)
	}
	return nil
}

func (r *Run) path(name ...string) string {
	return filepath.Join(append([]string{r.Dir, StateDir}, name...)...)
}

// Pending are the tasks, of the share if there is one, that are not done, in the order of the plan.
func (r *Run) Pending() []*Task {
	var list []*Task
	for i := range r.Plan.Tasks {
		t := &r.Plan.Tasks[i]
		if r.has(t.Task) && (!r.state[i].ok || !r.present(t)) {
			list = append(list, t)
		}
	}
	return list
}

func (r *Run) present(t *Task) bool {
	for _, o := range t.Outputs {
		info, err := os.Lstat(filepath.Join(r.Dir, filepath.FromSlash(o.To)))
		if err != nil || info.IsDir() != o.Dir {
			return false
		}
	}
	return true
}

// Take takes in a record of the run. It is for one goroutine, as all that is about states.
func (r *Run) Take(rec *record.Task) {
	s := &r.state[rec.Task-1]
	s.tries = max(s.tries, rec.Try)
	s.ok, s.snapshot = rec.OK(), rec.Snapshot
	if rec.Cause == record.CauseMemory {
		s.ooms++
	}
	if rec.Cause == record.CauseDiffers {
		r.differ[rec.Snapshot] = hotstart.Difference{Sample: rec.Sample, Reason: rec.Error}
	}
}

// Differing are the snapshots from which a task of the run started that differed from a
// cold start.
func (r *Run) Differing() map[string]hotstart.Difference { return r.differ }

// Snapshots are those from which tasks started that are done.
func (r *Run) Snapshots() []string {
	seen := make(map[string]bool)
	for _, s := range r.state {
		if s.ok && s.snapshot != "" {
			seen[s.snapshot] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// Withdraw makes the tasks pending that are done and started from a snapshot, and removes
// their outputs, which may be wrong. It returns the tasks, in the order of the plan.
func (r *Run) Withdraw(snapshot string) (tasks []*Task, err error) {
	for i := range r.Plan.Tasks {
		t, s := &r.Plan.Tasks[i], &r.state[i]
		if !s.ok || s.snapshot != snapshot || !r.has(t.Task) {
			continue
		}
		s.ok = false
		tasks = append(tasks, t)
		for _, o := range t.Outputs {
			err = errors.Join(err, os.RemoveAll(filepath.Join(r.Dir, filepath.FromSlash(o.To))))
		}
	}
	return tasks, err
}

// Tries is how many tries the journals tell of a task.
func (r *Run) Tries(task int) int { return r.state[task-1].tries }

// Ooms is how many tries of a task ran out of memory, by the journals.
func (r *Run) Ooms(task int) int { return r.state[task-1].ooms }

// WorkDir is where a try of a task runs. It is not made.
func (r *Run) WorkDir(task, try int) string {
	return r.path(r.named(tasksDir), fmt.Sprintf("%d.%d", task, try))
}

// Scratch makes and returns a directory on the run directory's file system. It is
// removed at the latest when the run is resumed.
func (r *Run) Scratch(name string) (string, error) {
	dir := r.path(r.named(tasksDir), name)
	return dir, os.MkdirAll(dir, 0o777)
}

// AppendStderr appends files, one after another, to stderr.log and says where
// they are there. A file that does not exist is empty.
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

// appendStderr copies one file to where stderr.log stands. The caller holds mu.
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

// Commit makes a record durable.
func (r *Run) Commit(rec *record.Task) error {
	r.mu.Lock()
	if r.journal == nil {
		w, err := r.newJournal()
		if err != nil {
			r.mu.Unlock()
			return err
		}
		r.journal = w
	}
	w := r.journal
	r.mu.Unlock()
	return w.Commit(rec)
}

func (r *Run) newJournal() (*record.Writer, error) {
	for n := 1; ; n++ {
		w, err := record.Create(r.path(fmt.Sprintf("journal-%04d.jsonl", n)), newHeader("task", r.version))
		if !errors.Is(err, fs.ErrExist) {
			return w, err
		}
	}
}

// Close writes the table of all records as Parquet and unlocks the directory. A worker
// leaves both to who has given it its share.
func (r *Run) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	if r.journal != nil {
		errs = append(errs, r.journal.Close())
	}
	errs = append(errs, r.stderr.Close(), os.RemoveAll(r.path(r.named(tasksDir))))
	if r.lock == nil {
		return errors.Join(errs...)
	}
	errs = append(errs,
		record.ToParquet(r.path(parquetFile), Records(r.Dir)),
		r.lock.Close())
	return errors.Join(errs...)
}

// journals are the paths of the journals in dir, oldest first.
func journals(dir string) ([]string, error) {
	paths, err := filepath.Glob(filepath.Join(escape(dir), StateDir, "journal-*.jsonl"))
	if err != nil {
		return nil, err
	}
	// A number has at least 4 digits: sorted by length, then by name.
	slices.Sort(paths)
	slices.SortStableFunc(paths, func(a, b string) int { return len(a) - len(b) })
	return paths, nil
}

// escape makes a path mean itself in a glob pattern.
func escape(path string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(path)
}

// Records are all records of the run in dir, in the order in which the tries
// ended, an invocation after the other. Memory does not grow with their number.
func Records(dir string) iter.Seq2[*record.Task, error] {
	return func(yield func(*record.Task, error) bool) {
		paths, err := journals(dir)
		if err != nil {
			yield(nil, err)
			return
		}
		for _, path := range paths {
			_, _, err := record.Read(path, func(rec *record.Task) error {
				if !yield(rec, nil) {
					return errStop
				}
				return nil
			})
			if errors.Is(err, errStop) {
				return
			}
			if err != nil {
				yield(nil, err)
				return
			}
		}
	}
}

// errStop ends a reading whose reader has seen enough.
var errStop = errors.New("stop")

// tailBytes is how much of the end of a try's standard error is looked at.
const tailBytes = 16 << 10

// StderrLines is how many lines of a failed try's standard error people are shown:
// tools say what went wrong a few lines before they take leave.
const StderrLines = 10

// Stderr is the last lines, at most n, of the standard error of a try.
func Stderr(dir string, rec *record.Task, n int) ([]string, error) {
	if rec.StderrLength == 0 {
		return nil, nil
	}
	if strings.Contains(rec.Log, "/") {
		return nil, &DirError{Dir: dir, Reason: fmt.Sprintf("has a record that names %q as its log", rec.Log), Way: "its records were not written by premix: look at them"}
	}
	f, err := owner.OpenOthers(filepath.Join(dir, StateDir, (&Run{seat: rec.Log}).named(stderrFile)))
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
	text = bytes.TrimRight(text[:got], "\r\n")
	if len(text) == 0 {
		return nil, nil
	}
	// A progress line that a tool rewrites in place counts as its last state.
	lines := strings.Split(strings.ToValidUTF8(string(text), "?"), "\n")
	lines = lines[max(0, len(lines)-n):]
	for i, l := range lines {
		l = strings.TrimRight(l, "\r")
		lines[i] = l[strings.LastIndexByte(l, '\r')+1:]
	}
	return lines, nil
}
