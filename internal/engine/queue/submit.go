package queue

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/engine"
	"premix/internal/kit/lock"
	"premix/internal/kit/owner"
	"premix/internal/record"
)

// DefaultGroup is the group of tasks for which none is named.
const DefaultGroup = "tasks"

// BatchOptions are the properties that a submission sets for all of its tasks.
type BatchOptions struct {
	Options
	After []string // groups that its groups come after
	// Tasks that its tasks come after, as first and last numbers of ranges.
	AfterTasks [][2]int
	Once       bool   // if the same tasks, of the same group and directory, were submitted before, they are not submitted again
	Files      string // directory for a file a task, in place of the logs; "" for none
	Held       bool   // tasks are not run before they are released
}

// Batch is a submission that is being made.
type Batch struct {
	q      *Queue
	o      BatchOptions
	lock   *os.File
	w      *bufio.Writer
	hash   hash.Hash
	line   []byte
	offset int64
	bytes  int64
	tasks  int
	array  bool // the one line is an array
	groups []Group
	known  map[string]int
	blind  bool // a line could not be read: it may have named any group
	ids    map[string]span
	linked []linked // in the order of their places
	edges  edges
}

// Submitted is the result of a submission.
type Submitted struct {
	Dir    string   `json:"dir"`
	First  int      `json:"first"` // number of its first task
	Tasks  int      `json:"tasks"`
	Groups []string `json:"groups"`
	Before bool     `json:"before"` // the same tasks had been submitted before, and nothing was added
}

// Submit begins a submission. It is ended with Commit or Abort; others wait for it.
func (q *Queue) Submit(o BatchOptions) (_ *Batch, err error) {
	defer func() { err = engine.DirectoryError(q.Dir, err) }()
	if q.orders == nil {
		return nil, q.denied()
	}
	if o.Group == "" {
		o.Group = DefaultGroup
	}
	if o.Files != "" {
		if o.Files, err = filepath.Abs(o.Files); err != nil {
			return nil, err
		}
		if err := os.MkdirAll(o.Files, 0o777); err != nil {
			return nil, &InputError{Reason: fmt.Sprintf("--files: %v", err), HintText: "name a directory in which you may write"}
		}
	}
	b := &Batch{q: q, o: o, hash: sha256.New(), known: make(map[string]int)}
	if b.lock, _, err = TakeLock(q.path(submitLock), -1); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			b.lock.Close()
		}
	}()
	if err := q.Refresh(); err != nil {
		return nil, err
	}
	q.mu.Lock()
	b.offset = q.end
	q.mu.Unlock()
	if err := q.tasks.Truncate(b.offset); err != nil { // lines of a submission that was killed
		return nil, err
	}
	if _, err := b.note(o.Group, o.After); err != nil {
		return nil, err
	}
	fmt.Fprintf(b.hash, "%q %q\n", o.Group, o.Dir)
	b.w = bufio.NewWriterSize(&writerAt{q.tasks, b.offset}, 256<<10)
	return b, nil
}

type writerAt struct {
	f  *os.File
	at int64
}

func (w *writerAt) Write(b []byte) (int, error) {
	n, err := w.f.WriteAt(b, w.at)
	w.at += int64(n)
	return n, err
}

// note notes that a task names a group.
func (b *Batch) note(name string, after []string) (*Group, error) {
	i, ok := b.known[name]
	if !ok {
		if name == "" || len(name) > 255 || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == ',' }) {
			return nil, &InputError{Reason: fmt.Sprintf("%q cannot be the name of a group", name), HintText: "give it letters and digits"}
		}
		i = len(b.groups)
		b.known[name] = i
		b.groups = append(b.groups, Group{Name: name})
	}
	g := &b.groups[i]
	for _, a := range after {
		if slices.Contains(g.After, a) {
			continue
		}
		b.q.mu.Lock()
		_, ok := b.q.names[a]
		b.q.mu.Unlock()
		if _, here := b.known[a]; !ok && !here && !b.blind {
			return nil, &InputError{Reason: fmt.Sprintf("there is no group %s for %s to wait for", a, name), HintText: "submit its tasks first"}
		}
		if b.q.reaches(b.groups, a, name) {
			return nil, &InputError{Reason: fmt.Sprintf("group %s would come after itself", name), HintText: "name other groups with --after"}
		}
		g.After = append(g.After, a)
	}
	return g, nil
}

// reaches reports whether group from comes after group to, directly or through other groups.
func (q *Queue) reaches(more []Group, from, to string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	after := make(map[string][]string)
	for _, g := range q.groups {
		for _, a := range g.after {
			after[g.name] = append(after[g.name], q.groups[a].name)
		}
	}
	for _, g := range more {
		after[g.Name] = append(after[g.Name], g.After...)
	}
	seen := make(map[string]bool)
	var walk func(string) bool
	walk = func(name string) bool {
		if name == to {
			return true
		}
		if seen[name] {
			return false
		}
		seen[name] = true
		return slices.ContainsFunc(after[name], walk)
	}
	return walk(from)
}

// First returns the number that the first task of the submission will have.
func (b *Batch) First() int {
	b.q.mu.Lock()
	defer b.q.mu.Unlock()
	return b.q.known + 1 // no other process submits now
}

// Add adds a task. after are groups that its group comes after. What is wrong with
// the task comes as an *InputError without a place.
func (b *Batch) Add(s *Spec, after []string) (err error) {
	if s.Group != "" && s.Group != b.o.Group || len(after) > 0 {
		name := s.Group
		if name == "" {
			name = b.o.Group
		}
		if name != b.o.Group {
			after = slices.Concat(b.o.After, after)
		}
		if _, err := b.note(name, after); err != nil {
			return err
		}
	}
	if s.Group == b.o.Group {
		s.Group = ""
	}
	if err := s.check(); err != nil {
		return &InputError{Reason: err.Error(), HintText: "fix it and submit all again: nothing was submitted"}
	}
	if b.array || s.Array != nil && b.tasks > 0 {
		return &InputError{Reason: "an array is not the only line of its batch", HintText: "submit it by itself"}
	}
	b.tasks, b.array = b.tasks+s.tasks(), s.Array != nil
	if b.w == nil { // of Check
		return nil
	}
	if b.line, err = s.append(b.line[:0]); err != nil {
		return err
	}
	b.bytes += int64(len(b.line))
	b.hash.Write(b.line)
	if _, err := b.w.Write(b.line); err != nil {
		return engine.DirectoryError(b.q.Dir, err)
	}
	return nil
}

// Abort gives a submission up.
func (b *Batch) Abort() {
	_ = b.q.tasks.Truncate(b.offset) // or the next submission does it
	b.lock.Close()
}

// Commit makes the submission durable.
func (b *Batch) Commit() (_ *Submitted, err error) {
	defer func() { err = engine.DirectoryError(b.q.Dir, err) }()
	if b.tasks == 0 {
		b.Abort()
		return nil, &InputError{Reason: "there are no tasks", HintText: "give one command a line"}
	}
	at, err := b.writeEdges()
	if err != nil {
		b.Abort()
		return nil, err
	}
	digest := hex.EncodeToString(b.hash.Sum(nil))
	if b.o.Once {
		if s := b.q.submitted(digest); s != nil {
			b.Abort()
			return s, nil
		}
	}
	if err = b.w.Flush(); err == nil {
		err = unix.Fdatasync(int(b.q.tasks.Fd()))
	}
	if err != nil {
		b.Abort()
		return nil, err
	}
	defer b.lock.Close()
	q := b.q
	q.mu.Lock()
	defer q.mu.Unlock()
	o := &Order{Order: orderBatch, Tasks: b.tasks, Offset: b.offset, Bytes: b.bytes, Digest: digest, Groups: b.groups,
		Dir: b.o.Dir, Cores: b.o.Cores, Memory: b.o.Memory, Priority: b.o.Priority, Timeout: b.o.Timeout.Seconds(),
		Retries: b.o.Retries, Growth: b.o.Growth, Resources: b.o.Resources, Files: b.o.Files, Held: b.o.Held, Array: b.array, Edges: at}
	err = q.locked(func() error {
		if err := q.catchUp(); err != nil {
			return err
		}
		o.First = q.known + 1
		if err := q.room(o); err != nil {
			return err
		}
		return q.order(o)
	})
	if err != nil {
		return nil, err
	}
	return submittedAs(q.Dir, o), nil
}

// writeEdges writes the edges behind the tasks, and returns their offset; 0 if there are none.
func (b *Batch) writeEdges() (at int64, err error) {
	if len(b.edges.on) == 0 {
		return 0, nil
	}
	at = b.offset + b.bytes
	return at, b.appendEdges(b.First()-1, func(line []byte) error {
		b.bytes += int64(len(line))
		b.hash.Write(line)
		_, err := b.w.Write(line)
		return err
	})
}

func submittedAs(dir string, o *Order) *Submitted {
	s := &Submitted{Dir: dir, First: o.First, Tasks: o.Tasks}
	for _, g := range o.Groups {
		s.Groups = append(s.Groups, g.Name)
	}
	return s
}

// submitted returns the batch with a digest; nil if it was not submitted.
func (q *Queue) submitted(digest string) *Submitted {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, o := range q.list {
		if o.Order == orderBatch && o.Digest == digest {
			s := submittedAs(q.Dir, o)
			s.Before = true
			return s
		}
	}
	return nil
}

// WorkerLockWait is how long a worker of an engine waits for its lock. A batch system may start
// it again before the lock is free: a network file system keeps the lock of a lost node for a
// minute and a half, and a dispatcher takes the lock for a moment to close a worker.
const WorkerLockWait = 2 * time.Minute

// Work makes this process a worker of the directory, the local one or another. Its
// journal begins when the first records are settled. The error is an *engine.DirError
// if there is another worker of that name.
func (q *Queue) Work(worker string) (err error) {
	defer func() { err = engine.DirectoryError(q.Dir, err) }()
	if q.run != nil {
		return &engine.DirError{Dir: q.Dir, Reason: "holds a run with a recipe", HintText: q.command() + " runs its tasks"}
	}
	if q.orders == nil {
		return q.denied()
	}
	path := q.workLock(worker)
	wait := time.Second
	if worker != LocalWorker {
		wait = WorkerLockWait
	}
	f, busy, err := TakeLock(path, wait)
	if err != nil {
		return err
	}
	if busy {
		return &engine.DirError{Dir: q.Dir, Reason: "is in use by another premix (" + signature(path) + ")", HintText: "that one runs what is submitted; follow it with premix task ls, or wait until it has ended"}
	}
	sign(f)
	engine.Announce(q.Dir)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.work = f
	return q.locked(q.catchUp)
}

// workLock returns the path of the lock that a worker holds.
func (q *Queue) workLock(worker string) string { return q.path("work-" + worker + ".lock") }

// HasWorker reports whether a premix of this machine runs the tasks, or gives them to an
// engine.
func (q *Queue) HasWorker() bool {
	if q.run == nil {
		return isLocked(q.workLock(LocalWorker))
	}
	f, err := owner.OpenOthers(q.path(engine.LockFile))
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(lock.Try(f, lock.Shared), lock.ErrHeld)
}

// Settle makes records durable, in a group: they are in the journal, or none is. What
// the tries have written into the logs is durable before. It is for one goroutine.
func (q *Queue) Settle(records []*record.Task) error {
	if err := q.syncLogs(records); err != nil {
		return err
	}
	var lines []byte
	var err error
	lengths := make([]int, len(records))
	for i, r := range records {
		before := len(lines)
		if q.run != nil { // all fields: the tasks of a run are fewer
			line, merr := json.Marshal(r)
			lines, err = append(append(lines, line...), '\n'), merr
		} else {
			lines, err = appendRecord(lines, r)
		}
		if err != nil {
			return fmt.Errorf("record of task %d: %w", r.Task, err)
		}
		lengths[i] = len(lines) - before
	}
	if q.journal == nil {
		if err := q.begin(); err != nil {
			return err
		}
	}
	q.mu.Lock()
	err = q.reserve(records)
	q.mu.Unlock()
	if err != nil {
		return err
	}
	at, err := q.journal.Append(lines)
	if err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.locked(func() error {
		if *q.x.applied(q.number) != at {
			// The index was rebuilt in between: read the missing records.
			return q.catchUp()
		}
		for i, r := range records {
			before, after, err := q.applyRecord(r, q.number, at, lengths[i])
			if err != nil {
				return err
			}
			at += int64(lengths[i])
			if e, ok := q.entry(r.Task); ok && before != after {
				g := q.groups[e.group]
				g.count[before]--
				g.count[after]++
			}
		}
		*q.x.applied(q.number) = at
		q.x.head().changes++
		q.moves++
		return nil
	})
}

// syncLogs makes the logs durable that tries have written to.
func (q *Queue) syncLogs(records []*record.Task) error {
	written := make(map[string]bool)
	for _, r := range records {
		if r.Log == "" || q.run != nil {
			continue // premix does not depend on the standard error of a run
		}
		if r.StdoutLength > 0 {
			written["log-"+r.Log+".out"] = true
		}
		if r.StderrLength > 0 {
			written["log-"+r.Log+".err"] = true
		}
	}
	for name := range written {
		f := q.logs[name]
		if f == nil {
			var err error
			if f, err = owner.OpenOthers(q.path(name)); err != nil {
				return err
			}
			q.logs[name] = f
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return &os.PathError{Op: "sync", Path: f.Name(), Err: err}
		}
	}
	return nil
}

// begin makes the journal of this worker.
func (q *Queue) begin() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	numbers, _, err := q.journals()
	if err != nil {
		return err
	}
	n := 1
	if len(numbers) > 0 {
		n = slices.Max(numbers) + 1
	}
	for ; ; n++ {
		w, err := record.Create(q.journalPath(n), q.header("task"))
		if os.IsExist(err) {
			continue
		}
		if err != nil {
			return err
		}
		q.journal, q.number = w, n
		return q.locked(q.catchUp)
	}
}
