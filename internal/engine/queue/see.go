package queue

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/engine"
	"premix/internal/engine/spawn"
	"premix/internal/kit/exit"
	"premix/internal/kit/lines"
	"premix/internal/kit/owner"
	"premix/internal/kit/units"
	"premix/internal/record"
)

// LocalWorker is the name of the worker of this machine.
const LocalWorker = "0"

// StatusFile returns the path of a worker's status file.
func (q *Queue) StatusFile(worker string) string { return q.path("board-" + worker) }

// aloneMark is in the names of status files of spawners that have one task.
const aloneMark = ".alone-"

// LoneStatusFile returns the path of the status file of a worker's spawner for one task.
func (q *Queue) LoneStatusFile(worker string, n int) string {
	return q.StatusFile(worker) + aloneMark + strconv.Itoa(n)
}

// StatusFiles returns the existing status files of a worker; the status file of its usual spawner is first.
func (q *Queue) StatusFiles(worker string) []string {
	own := q.StatusFile(worker)
	list := []string{own}
	entries, err := os.ReadDir(q.path(""))
	if err != nil {
		return list // reading the usual status file reports the reason
	}
	for _, e := range entries {
		if path := q.path(e.Name()); strings.HasPrefix(path, own+aloneMark) {
			list = append(list, path)
		}
	}
	return list
}

// Logs returns the paths of a slot's logs, for standard output and standard error. name
// is the field Log of records.
func (q *Queue) Logs(worker string, slot int) (name, stdout, stderr string) {
	name = fmt.Sprintf("%s-%d", worker, slot)
	return name, q.path("log-" + name + ".out"), q.path("log-" + name + ".err")
}

// Running returns the tasks that the worker of this machine runs now.
func (q *Queue) Running() []spawn.Running {
	if q.run != nil {
		return q.runningHot()
	}
	if !q.HasWorker() {
		return nil
	}
	var list []spawn.Running
	for _, path := range q.StatusFiles(LocalWorker) {
		if b, err := spawn.ReadStatusFile(path); err == nil {
			list = append(list, b.Running...)
		}
	}
	return list
}

// GroupStatus is a group and how far it is.
type GroupStatus struct {
	Group     string   `json:"group"`
	User      string   `json:"user"`
	After     []string `json:"after,omitempty"`
	Tasks     int      `json:"tasks"`
	Waiting   int      `json:"waiting"` // without running tasks and skipped ones
	Running   int      `json:"running"`
	Succeeded int      `json:"succeeded"`
	Failed    int      `json:"failed"`
	Cancelled int      `json:"cancelled"`
	Skipped   int      `json:"skipped"` // what they come after has failed, was cancelled or skipped
}

// Status is how far a task directory is.
type Status struct {
	Dir    string        `json:"dir"`
	Worker bool          `json:"worker"` // one runs its tasks
	Tasks  int           `json:"tasks"`
	Groups []GroupStatus `json:"groups"`
}

// Status sums up the directory.
func (q *Queue) Status() *Status {
	running := q.Running()
	worker := q.HasWorker()
	q.mu.Lock()
	defer q.mu.Unlock()
	skips := q.skips()
	s := &Status{Dir: q.Dir, Worker: worker, Groups: []GroupStatus{}}
	at := make([]int, len(q.groups)) // position of a group in the list
	for i, g := range q.groups {
		at[i] = len(s.Groups)
		if g.total == 0 {
			continue // a batch may name one whose tasks all have others
		}
		st := GroupStatus{Group: g.name, User: g.user, Tasks: g.total, Waiting: g.count[Waiting],
			Succeeded: g.count[Succeeded], Failed: g.count[Failed], Cancelled: g.count[Cancelled]}
		if skips.groups[i] {
			st.Waiting, st.Skipped = 0, st.Waiting
		}
		for _, a := range g.after {
			st.After = append(st.After, q.groups[a].name)
		}
		s.Tasks += g.total
		s.Groups = append(s.Groups, st)
	}
	for task := range skips.tasks {
		if e, _ := q.entry(task); !skips.groups[e.group] {
			s.Groups[at[e.group]].Waiting--
			s.Groups[at[e.group]].Skipped++
		}
	}
	for _, r := range running {
		task, _ := spawn.SplitTryID(r.ID)
		e, ok := q.entry(task)
		if !ok {
			continue
		}
		g := &s.Groups[at[e.group]]
		switch e.state() {
		case Waiting:
			if skips.has(task, &e) { // it had begun before
				g.Skipped--
			} else {
				g.Waiting--
			}
		case Failed: // of a run, between its tries
			g.Failed--
		default:
			continue
		}
		g.Running++
	}
	return s
}

// Selection picks tasks. Its conditions are joined by and; without any it picks all.
type Selection struct {
	Tasks  [][2]int // first and last of ranges; none: all
	Group  string   // "" for any
	States []State  // none: any
	Shown  []string // states as Tasks shows them, which are more; none: any
}

// Skipped is the shown state of a task that waits and is skipped.
const Skipped = "skipped"

// ParseState adds a state as Tasks shows it.
func (s *Selection) ParseState(text string) error {
	all := []string{Waiting.String(), "running", Succeeded.String(), Failed.String(), Cancelled.String(), Skipped}
	if !slices.Contains(all, text) {
		return &InputError{Reason: fmt.Sprintf("there is no state %q", text), HintText: "there are: " + strings.Join(all, ", ")}
	}
	s.Shown = append(s.Shown, text)
	return nil
}

// openEnd is the last task of a range without an end.
const openEnd = math.MaxInt

// ParseTasks adds tasks as people write them: 4711, 1-100, or 101- for all from 101 on.
func (s *Selection) ParseTasks(text string) error {
	first, last, isRange := strings.Cut(text, "-")
	a, err := strconv.Atoi(first)
	b := a
	switch {
	case err == nil && isRange && last == "":
		b = openEnd
	case err == nil && isRange:
		b, err = strconv.Atoi(last)
	}
	if err != nil || a < 1 || b < a {
		return &InputError{Reason: fmt.Sprintf("%q is not the number of a task", text), HintText: "write a number, or a range as in 1-100 or 101-"}
	}
	s.Tasks = append(s.Tasks, [2]int{a, b})
	return nil
}

// each calls f for each entry that is picked. The caller holds mu.
func (q *Queue) each(s *Selection, f func(task int, e *entry)) error {
	entries := q.entries()
	group := -1
	if s.Group != "" {
		id, ok := q.names[s.Group]
		if !ok {
			return &InputError{Reason: fmt.Sprintf("there is no group %s in %s", s.Group, q.Dir), HintText: "premix task ls shows the groups"}
		}
		group = id
	}
	ranges := s.Tasks
	if len(ranges) == 0 {
		ranges = [][2]int{{1, entries.len()}}
	}
	var e entry
	for _, r := range ranges {
		if r[1] == openEnd {
			r[1] = entries.len()
		}
		if len(s.Tasks) > 0 && r[1] > entries.len() {
			return q.noTask(r[1])
		}
		for t := r[0]; t <= r[1]; t++ {
			e = entries.at(t)
			if group >= 0 && int(e.group) != group {
				continue
			}
			if len(s.States) > 0 && !slices.Contains(s.States, e.state()) {
				continue
			}
			f(t, &e)
		}
	}
	return nil
}

// TaskStatus is a task as ls shows it.
type TaskStatus struct {
	Task  int    `json:"task"`
	Group string `json:"group"`
	State string `json:"state"`
	Tries int    `json:"tries"`
}

// Tasks lists tasks.
func (q *Queue) Tasks(s *Selection) ([]TaskStatus, error) {
	running := make(map[int]bool)
	for _, r := range q.Running() {
		task, _ := spawn.SplitTryID(r.ID)
		running[task] = true
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	skips := q.skips()
	list := []TaskStatus{}
	err := q.each(s, func(task int, e *entry) {
		st := TaskStatus{Task: task, Group: q.groups[e.group].name, State: e.state().String(), Tries: int(e.try)}
		if s := e.state(); running[task] && (s == Waiting || s == Failed) {
			st.State = "running"
		} else if skips.has(task, e) {
			st.State = Skipped
		}
		if len(s.Shown) > 0 && !slices.Contains(s.Shown, st.State) {
			return
		}
		list = append(list, st)
	})
	return list, err
}

// which returns the tasks that f picks, as ranges with equal tries, and their number.
func (q *Queue) which(s *Selection, f func(*entry) bool) ([][3]int, int, error) {
	var list [][3]int
	n := 0
	err := q.each(s, func(task int, e *entry) {
		if !f(e) {
			return
		}
		n++
		if last := len(list) - 1; last >= 0 && list[last][1] == task-1 && list[last][2] == int(e.try) {
			list[last][1] = task
			return
		}
		list = append(list, [3]int{task, task, int(e.try)})
	})
	return list, n, err
}

// maxWhich is the maximal number of ranges in one order.
const maxWhich = 4096

// change gives an order for the tasks that f picks, and returns their number.
func (q *Queue) change(kind string, s *Selection, f func(*entry) bool) (n int, err error) {
	o := &Order{Order: kind}
	err = q.give(o, func() (err error) {
		o.Which, n, err = q.which(s, f)
		return err
	})
	return n, err
}

// give makes an order durable and applies it; fill completes it by the tasks as they are
// then. It is written as several if it has very many ranges of tasks, and not at all if it
// has none.
func (q *Queue) give(o *Order, fill func() error) (err error) {
	defer func() { err = engine.DirectoryError(q.Dir, err) }()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.run != nil && q.orders == nil && q.foreign == nil {
		if q.orders, err = owner.OpenFile(q.path(ordersFile), os.O_RDWR|os.O_CREATE, 0o644); err != nil {
			return err
		}
	}
	return q.locked(func() error {
		if err := errors.Join(q.catchUp(), fill()); err != nil {
			return err
		}
		for part := range slices.Chunk(o.Which, maxWhich) {
			if err := q.order(&Order{Order: o.Order, Retries: o.Retries, Which: part}); err != nil {
				return err
			}
		}
		return nil
	})
}

// Cancel has tasks not run that have not ended. A task of a run that has failed is one of
// them, since the next invocation would try it again.
func (q *Queue) Cancel(s *Selection) (int, error) {
	return q.change(orderCancel, s, func(e *entry) bool {
		return e.state() == Waiting || q.run != nil && e.state() == Failed
	})
}

// Retry has tasks run again that failed or were cancelled.
func (q *Queue) Retry(s *Selection) (int, error) { return q.change(orderRetry, s, (*entry).retried) }

// HoldRetry has tasks that failed or were cancelled not started, once they are retried, until they
// are released.
func (q *Queue) HoldRetry(s *Selection) (int, error) { return q.change(orderHold, s, (*entry).retried) }

// retried reports whether Retry changes a task.
func (e *entry) retried() bool { return e.state() == Failed || e.state() == Cancelled }

// Explanation is the answer of Why.
type Explanation struct {
	Task    int          `json:"task"`
	Name    string       `json:"name,omitempty"`
	Group   string       `json:"group"`
	Command string       `json:"command"`
	State   string       `json:"state"`
	Why     string       `json:"why"` // one sentence
	Hint    string       `json:"hint,omitempty"`
	Stderr  []string     `json:"stderr,omitempty"`  // last lines
	Record  *record.Task `json:"record,omitempty"`  // of the last try
	Because int          `json:"because,omitempty"` // the task because of which it is skipped
}

// Hold has tasks not started that wait, until they are released.
func (q *Queue) Hold(s *Selection) (int, error) {
	return q.change(orderHold, s, func(e *entry) bool { return e.runnable() })
}

// Release has tasks started that were held.
func (q *Queue) Release(s *Selection) (int, error) {
	return q.change(orderRelease, s, func(e *entry) bool { return e.flags&flagHeld != 0 && e.state() == Waiting })
}

// Held reports whether a task waits to be released.
func (q *Queue) Held(task int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	e, ok := q.entry(task)
	return ok && e.flags&flagHeld != 0 && e.state() == Waiting
}

// Record returns the last record of a task; nil if it has none.
func (q *Queue) Record(task int) (*record.Task, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	e, ok := q.entry(task)
	if !ok {
		return nil, q.noTask(task)
	}
	return q.record(&e)
}

// Why returns the reason why a task waits, or its result.
func (q *Queue) Why(task int) (*Explanation, error) {
	return q.explain(task, q.Running(), q.HasWorker())
}

// explain is Why for a caller that knows the running tasks, and whether the directory has a
// worker.
func (q *Queue) explain(task int, running []spawn.Running, worker bool) (*Explanation, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	e, spec, err := q.look(task)
	if err != nil {
		return nil, err
	}
	rec, err := q.record(&e)
	if err != nil {
		return nil, err
	}
	x := &Explanation{Task: task, Name: spec.Name, Group: q.groups[e.group].name, Command: spec.Text(), State: e.state().String(), Record: rec}
	switch e.state() {
	case Succeeded:
		x.Why = fmt.Sprintf("it succeeded in try %d, after %s", e.try, units.Seconds(rec.Seconds))
	case Failed:
		if q.isRunning(x, running) {
			return x, nil
		}
		x.Hint = rec.Hint
		if q.run != nil {
			x.Why = fmt.Sprintf("it failed in try %d: %s", rec.Try, rec.Error)
			if x.Hint == "" {
				x.Hint = "fix the cause, then " + q.command()
			}
			x.Stderr, _ = engine.Stderr(q.Dir, rec, engine.StderrLines)
			break
		}
		x.Why = fmt.Sprintf("it failed %s: %s", times(int(e.fails)), rec.Error)
		if x.Hint == "" {
			x.Hint = fmt.Sprintf("fix the cause, then premix task retry %s %d", q.Dir, task)
		}
		if text, err := q.read1(rec.Log, ".err", rec.StderrOffset, rec.StderrLength, tailBytes); err == nil {
			x.Stderr = lines.Last(text, engine.StderrLines)
		}
	case Cancelled:
		x.Why = "it was cancelled"
		x.Hint = fmt.Sprintf("premix task retry %s %d has it run after all", q.Dir, task)
	default:
		if q.isRunning(x, running) {
			return x, nil
		}
		if s := q.skips(); s.has(task, &e) {
			if err := q.skipped(x, s); err != nil {
				return nil, err
			}
		}
		if x.Why == "" {
			x.Why, x.Hint = q.waits(&e, task, worker)
		}
		if rec != nil && rec.Cause != "" {
			x.Why += fmt.Sprintf("; try %d ended so: %s", rec.Try, rec.Error)
		}
	}
	return x, nil
}

// isRunning explains a task that runs, and reports whether it does.
func (q *Queue) isRunning(x *Explanation, running []spawn.Running) bool {
	for _, r := range running {
		if t, try := spawn.SplitTryID(r.ID); t == x.Task {
			process := ""
			if r.PID > 0 {
				process = fmt.Sprintf("as process %d, ", r.PID)
			}
			x.State = "running"
			x.Why = fmt.Sprintf("it has been running for %s, %sin try %d", units.Seconds(time.Since(r.Started).Seconds()), process, try)
			return true
		}
	}
	return false
}

// waits returns the reason why a task waits.
func (q *Queue) waits(e *entry, task int, worker bool) (why, hint string) {
	if e.flags&flagHeld != 0 {
		return "it is held until it is released", ""
	}
	g := q.groups[e.group]
	for _, a := range g.after {
		before := q.groups[a]
		switch {
		case before.complete():
			continue
		case before.count[Waiting] > 0:
			return fmt.Sprintf("it waits for group %s, of which %d of %d tasks have succeeded", before.name, before.count[Succeeded], before.total), ""
		case before.count[Failed] > 0:
			return fmt.Sprintf("it waits for group %s, of which %d tasks failed", before.name, before.count[Failed]),
				fmt.Sprintf("fix the cause, then premix task retry %s --failed", q.Dir)
		default:
			return fmt.Sprintf("it waits for group %s, of which %d tasks were cancelled", before.name, before.count[Cancelled]),
				fmt.Sprintf("premix task retry %s --group %s has them run after all", q.Dir, before.name)
		}
	}
	entries := q.entries()
	if _, on := q.unmet(&entries, task, 0); on > 0 {
		n := 0
		for _, d := range q.edges.of(task) {
			if o, _ := q.entry(int(d)); o.state() != Succeeded {
				n++
			}
		}
		return fmt.Sprintf("it waits for %s, of %d tasks that it comes after", q.named(on, n), len(q.edges.of(task))), ""
	}
	if !worker {
		return "it waits for a premix that runs the tasks of this directory", q.command()
	}
	n := 0
	for t := 1; t <= entries.len(); t++ {
		o := entries.at(t)
		if o.group == e.group && o.state() == Waiting && (o.priority > e.priority || o.priority == e.priority && t < task) {
			n++
		}
	}
	return fmt.Sprintf("it waits for free cores; %d tasks of its group come before it", n), ""
}

// named returns a task that one waits for as text, and how many there are besides.
func (q *Queue) named(task, n int) string {
	if n == 1 {
		return fmt.Sprintf("task %d", task)
	}
	return fmt.Sprintf("task %d and %d more", task, n-1)
}

// skipped explains a task that is skipped. Without a task that has failed or was cancelled it
// leaves Why empty: the groups before the task are the reason.
func (q *Queue) skipped(x *Explanation, s *skips) error {
	x.State = Skipped
	root, way := q.cause(s, x.Task)
	if root == 0 {
		return nil
	}
	e, _ := q.entry(root)
	rec, err := q.record(&e)
	if err != nil {
		return err
	}
	x.Because = root
	x.Why = fmt.Sprintf("it is skipped: it comes after task %d", root)
	if len(way) > 0 {
		x.Why += fmt.Sprintf(", by way of task %d", way[0])
		if len(way) > 1 {
			x.Why += fmt.Sprintf(" and %d more", len(way)-1)
		}
	}
	if e.state() == Failed && rec != nil {
		x.Why += ", which failed: " + rec.Error
		x.Hint = fmt.Sprintf("fix the cause, then premix task retry %s %d", q.Dir, root)
	} else {
		x.Why += ", which was cancelled"
		x.Hint = fmt.Sprintf("premix task retry %s %d has it run after all", q.Dir, root)
	}
	return nil
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// Text returns the command as text for messages.
func (s *Spec) Text() string {
	if s.Argv == nil {
		return s.Command
	}
	if s.Recipe != nil && s.Recipe.Pipe != "" {
		return (&Spec{Argv: s.Argv}).Text() + " | " + s.Recipe.Pipe
	}
	var words []string
	for _, a := range s.Argv {
		words = append(words, Quote(a))
	}
	return strings.Join(words, " ")
}

// tailBytes is how much of the end of an output people are shown lines of.
const tailBytes = 16 << 10

// read1 reads the last bytes, at most most, of a piece of a log.
func (q *Queue) read1(log, ext string, offset, length int64, most int64) ([]byte, error) {
	if length == 0 || log == "" {
		return nil, nil
	}
	f, err := owner.OpenOthers(q.path("log-" + filepath.Base(log) + ext))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	n := min(length, most)
	text := make([]byte, n)
	got, err := f.ReadAt(text, offset+length-n)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return text[:got], err
}

// extent is the place of a try's output: length bytes of a file, or the rest of the
// file from offset on if length is negative.
type extent struct {
	path           string // "" for a task that has not run
	offset, length int64
	slot           bool // the file is the log of a slot, where other tasks write when this one has ended
	try            int  // 0 for a file of the task's own
}

// extent finds the output of the last try of a task.
func (q *Queue) extent(task int, stderr bool) (p extent, err error) {
	spec, err := q.Spec(task)
	if err != nil {
		return p, err
	}
	q.mu.Lock()
	e, _ := q.entry(task)
	files := q.list[e.order].Files
	rec, err := q.record(&e)
	q.mu.Unlock()
	if err != nil {
		return p, err
	}
	if q.run != nil {
		return q.extentOfRun(spec, rec, stderr)
	}
	path, errs := spec.Files(files, task)
	ext, kind := ".out", "standard output"
	if stderr {
		path, ext, kind = errs, ".err", "standard error"
	}
	if path != "" {
		return extent{path: path, length: -1}, nil
	}
	for _, r := range q.Running() {
		if t, try := spawn.SplitTryID(r.ID); t == task {
			name, _, _ := q.Logs(LocalWorker, r.Slot)
			p = extent{path: q.path("log-" + name + ext), offset: r.Out, length: -1, slot: true, try: try}
			if stderr {
				p.offset = r.Err
			}
			return p, nil
		}
	}
	if rec == nil || rec.Log == "" {
		return p, nil
	}
	p = extent{path: q.path("log-" + filepath.Base(rec.Log) + ext), offset: rec.StdoutOffset, length: rec.StdoutLength, try: rec.Try}
	if stderr {
		p.offset, p.length = rec.StderrOffset, rec.StderrLength
	}
	if p.length > 0 {
		q.mu.Lock()
		pruned := q.punched()[task] >= rec.Try
		q.mu.Unlock()
		if pruned {
			return p, exit.Errorf(exit.Failed, "submit the command again to have its output; premix task why prints the command", "the %s of task %d was removed by premix task prune --output", kind, task)
		}
	}
	return p, nil
}

// open opens the file of an extent, and returns its length. f is nil if the file does not
// exist, or if the task has ended in between, so that other tasks may have written to it.
func (q *Queue) open(task int, stderr bool, p extent) (f *os.File, length int64, err error) {
	if p.path == "" {
		return nil, 0, nil
	}
	open := os.Open // of a file that the user named
	if q.foreign != nil {
		open = owner.OpenOthers
	}
	if f, err = open(p.path); err != nil {
		if q.run != nil && errors.Is(err, fs.ErrNotExist) {
			err = nil // its work directory has gone, or it has not written yet
		}
		return nil, 0, err
	}
	if length = p.length; length < 0 {
		info, err := f.Stat()
		if err != nil {
			return nil, 0, errors.Join(err, f.Close())
		}
		length = max(0, info.Size()-p.offset)
	}
	if p.slot {
		if now, err := q.extent(task, stderr); err != nil || now != p {
			return nil, 0, errors.Join(err, f.Close())
		}
	}
	return f, length, nil
}

// Output copies the output of a task, from its last try or so far, to w: standard output if
// stderr is false. limit is the number of bytes from the end; negative: all.
func (q *Queue) Output(task int, stderr bool, limit int64, w io.Writer) error {
	for {
		p, err := q.extent(task, stderr)
		if err != nil || p.path == "" {
			return err
		}
		f, length, err := q.open(task, stderr, p)
		if err != nil {
			return err
		}
		if f == nil {
			if err := q.Refresh(); err != nil {
				return err
			}
			if now, err := q.extent(task, stderr); err != nil || now == p {
				return err // it has not written yet
			}
			continue // it has ended just now
		}
		defer f.Close()
		_, err = io.Copy(w, section(f, p.offset, length, limit))
		return err
	}
}

// section reads the last limit bytes of an extent of a file; all if limit is negative.
func section(f *os.File, offset, length, limit int64) io.Reader {
	if limit >= 0 && length > limit {
		offset, length = offset+length-limit, limit
	}
	return io.NewSectionReader(f, offset, length)
}

// followInterval is how often Follow looks for more.
const followInterval = 100 * time.Millisecond

// Follow copies the output of a task like Output, and continues until the task has ended and
// is not to be tried again. After the output of one try it copies the output of the next.
func (q *Queue) Follow(task int, stderr bool, limit int64, w io.Writer) error {
	var last extent
	var shown int64
	for ; ; time.Sleep(followInterval) {
		if err := q.Refresh(); err != nil {
			return err
		}
		over := q.State(task) != Waiting
		p, err := q.extent(task, stderr)
		if err != nil {
			return err
		}
		if p.try < last.try { // its try has ended and has no record
			if over {
				return nil
			}
			continue
		}
		moved := p.path != last.path || p.offset != last.offset
		if q.run != nil { // the output of a try moves when the try has ended
			moved = p.try != last.try
		}
		if last.path != "" && moved {
			if err := q.restOf(task, stderr, last, shown, w); err != nil {
				return err
			}
			shown = 0
		}
		first := last.path == ""
		if shown, err = q.more(task, stderr, p, shown, map[bool]int64{true: limit, false: -1}[first], w); err != nil {
			return err
		}
		if p.path != "" {
			last = p
		}
		if over {
			return nil
		}
	}
}

// restOf copies the rest of an earlier try, if its record exists.
func (q *Queue) restOf(task int, stderr bool, last extent, shown int64, w io.Writer) error {
	rec, err := q.Record(task)
	if err != nil || rec == nil || rec.Try != last.try {
		return nil // without it, the end of its output is not known
	}
	rest := extent{path: last.path, offset: rec.StdoutOffset, length: rec.StdoutLength}
	if stderr {
		rest.offset, rest.length = rec.StderrOffset, rec.StderrLength
	}
	if q.run != nil {
		rest = recorded(q.Dir, rec, stderr)
	}
	if rest.path == "" {
		return nil
	}
	_, err = q.more(task, stderr, rest, shown, -1, w)
	return err
}

// more copies the bytes of an extent after the first shown bytes, and returns the new number
// of shown bytes.
func (q *Queue) more(task int, stderr bool, p extent, shown, limit int64, w io.Writer) (int64, error) {
	f, length, err := q.open(task, stderr, p)
	if f == nil {
		if p.length < 0 && errors.Is(err, fs.ErrNotExist) {
			err = nil // its own file does not exist yet
		}
		return shown, err
	}
	defer f.Close()
	if length < shown {
		if q.run != nil {
			return shown, nil // a cold start writes it again, to be compared
		}
		shown = 0 // a further try has truncated the file
	}
	_, err = io.Copy(w, section(f, p.offset+shown, length-shown, limit))
	return length, err
}

// Input returns the file that is the task's standard input; "" for none.
func (s *Spec) Input() string {
	if s.Stdin == "" || filepath.IsAbs(s.Stdin) {
		return s.Stdin
	}
	return filepath.Join(s.Dir, s.Stdin)
}

// Files returns the task's own files for standard output and standard error, each "" if it
// goes to the log. dir is the directory of its batch.
func (s *Spec) Files(dir string, task int) (stdout, stderr string) {
	abs := func(p string) string {
		if p == "" || filepath.IsAbs(p) {
			return p
		}
		return filepath.Join(s.Dir, p)
	}
	stdout, stderr = abs(s.Stdout), abs(s.Stderr)
	if dir != "" {
		if stdout == "" {
			stdout = filepath.Join(dir, strconv.Itoa(task)+".out")
		}
		if stderr == "" {
			stderr = filepath.Join(dir, strconv.Itoa(task)+".err")
		}
	}
	return stdout, stderr
}

// Pruned is the result of Prune.
type Pruned struct {
	Files int   `json:"files"` // intermediates that were removed
	Bytes int64 `json:"bytes"` // that were given back
}

// chains reports of each group whether a group comes after it, and whether it or a later one is
// not complete. The caller holds mu.
func (q *Queue) chains() (after, open []bool) {
	after, open = make([]bool, len(q.groups)), make([]bool, len(q.groups))
	for i, g := range q.groups {
		open[i] = !g.complete()
		for _, a := range g.after {
			after[a] = true
		}
	}
	for changed := true; changed; {
		changed = false
		for i, g := range q.groups {
			for _, a := range g.after {
				if open[i] && !open[a] {
					open[a], changed = true, true
				}
			}
		}
	}
	return after, open
}

// remove removes the intermediates of a task.
func (p *Pruned) remove(spec *Spec) (errs []error) {
	for _, name := range spec.Intermediates {
		if !filepath.IsAbs(name) {
			name = filepath.Join(spec.Dir, name)
		}
		info, err := os.Lstat(name)
		if err != nil {
			continue // it is gone
		}
		if err := os.RemoveAll(name); err != nil {
			errs = append(errs, err)
			continue
		}
		p.Files++
		p.Bytes += info.Size()
	}
	return errs
}

// appended adds a try of a task to ranges of tasks, in their order.
func appended(list [][3]int, task, try int) [][3]int {
	if n := len(list); n > 0 && list[n-1][1] == task-1 && list[n-1][2] == try {
		list[n-1][1] = task
		return list
	}
	return append(list, [3]int{task, task, try})
}

// orderAll writes orders of a kind for tries. The caller holds mu and the lock of the tables.
func (q *Queue) orderAll(kind string, which [][3]int) error {
	for part := range slices.Chunk(which, maxWhich) {
		if err := q.catchUp(); err != nil {
			return err
		}
		if err := q.order(&Order{Order: kind, Which: part}); err != nil {
			return err
		}
	}
	return nil
}

// Prune removes the intermediates of tasks whose group, and all groups and tasks that come
// after them, have succeeded. Where none comes after one, its intermediates are
// removed if last is true. With output, the space of the output of tasks that succeeded is
// freed in the logs, too.
func (q *Queue) Prune(last, output bool) (*Pruned, error) {
	p := &Pruned{}
	if q.orders == nil {
		return p, q.denied()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	after, open := q.chains()
	needed, later := q.needed(open)
	var which, punch [][3]int
	gone := map[int]entry{} // by number of the task
	var errs []error
	if output {
		can, err := q.punches()
		if err != nil {
			return p, err
		}
		output = can
	}
	punched := q.punched()
	entries := q.entries()
	for i := range entries.len() {
		e := entries.at(i + 1)
		if e.state() != Succeeded {
			continue
		}
		if e.flags&flagPruned == 0 && int64(e.specLen) > int64(len(plain)) && !open[e.group] && !needed[i+1] && (after[e.group] || later[i+1] || last) {
			spec, err := q.spec(i+1, &e)
			if err != nil {
				return p, err
			}
			if len(spec.Intermediates) > 0 {
				errs = append(errs, p.remove(spec)...)
				which = append(which, [3]int{i + 1, i + 1, int(e.try)})
			}
		}
		if !output {
			continue
		}
		gone[i+1] = e
		if punched[i+1] < int(e.try) {
			punch = appended(punch, i+1, int(e.try))
		}
	}
	// Write the order before punching: removed output must be known to be removed.
	err := q.locked(func() error {
		if err := q.orderAll(orderPrune, which); err != nil {
			return err
		}
		return q.orderAll(orderPunch, punch)
	})
	if errs = append(errs, err); err != nil {
		return p, errors.Join(errs...)
	}
	// Also output that was to be removed before: that premix may have been killed.
	for task, e := range gone {
		n, err := q.punch(&e)
		if errs = append(errs, err); punched[task] < int(e.try) {
			p.Bytes += n
		}
	}
	return p, errors.Join(errs...)
}

// punched returns the tries, by task, whose output was removed. The caller holds mu.
func (q *Queue) punched() map[int]int {
	tries := map[int]int{}
	for _, o := range q.list {
		if o.Order != orderPunch {
			continue
		}
		for _, w := range o.Which {
			for task := w[0]; task <= w[1]; task++ {
				tries[task] = max(tries[task], w[2])
			}
		}
	}
	return tries
}

// punches reports whether the file system of the logs can punch holes into files.
func (q *Queue) punches() (bool, error) {
	logs, err := filepath.Glob(q.path("log-*"))
	if err != nil || len(logs) == 0 {
		return false, err
	}
	f, err := owner.OpenFile(logs[0], os.O_WRONLY, 0)
	if err != nil {
		return false, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return false, err
	}
	// Nothing is behind the end of the file, and nothing comes there.
	const page = 4 << 10
	err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, (info.Size()/page+1024)*page, page)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return false, nil
	}
	return err == nil, err
}

// punch frees the space of a task's output in the logs. Only whole blocks can be freed.
func (q *Queue) punch(e *entry) (int64, error) {
	rec, err := q.record(e)
	if err != nil || rec == nil || rec.Log == "" {
		return 0, err
	}
	var sum int64
	for _, piece := range []struct {
		ext            string
		offset, length int64
	}{{".out", rec.StdoutOffset, rec.StdoutLength}, {".err", rec.StderrOffset, rec.StderrLength}} {
		if piece.length == 0 {
			continue
		}
		f, err := owner.OpenFile(q.path("log-"+filepath.Base(rec.Log)+piece.ext), os.O_WRONLY, 0)
		if err != nil {
			return sum, err
		}
		err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, piece.offset, piece.length)
		f.Close()
		if err != nil {
			return sum, err
		}
		sum += piece.length
	}
	return sum, nil
}

// Records returns all records of the tasks in dir, of a run or without a recipe, one worker
// after another, in the order in which they were settled. Memory does not grow with their
// number.
func Records(dir string) iter.Seq2[*record.Task, error] {
	return func(yield func(*record.Task, error) bool) {
		q := &Queue{Dir: dir, base: engine.State(dir)}
		numbers, _, err := q.journals()
		if err != nil {
			yield(nil, err)
			return
		}
		slices.Sort(numbers)
		stop := errors.New("stop")
		for _, n := range numbers {
			_, _, err := record.Read(q.journalPath(n), func(rec *record.Task) error {
				if !yield(rec, nil) {
					return stop
				}
				return nil
			})
			if errors.Is(err, stop) {
				return
			}
			if err != nil {
				yield(nil, err)
				return
			}
		}
	}
}
