package queue

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/engine"
	"premix/internal/kit/beneath"
	"premix/internal/kit/lines"
	"premix/internal/kit/owner"
	"premix/internal/record"
)

// Names in the state directory of a task directory.
const (
	ordersFile  = "orders.jsonl"
	tasksFile   = "tasks.jsonl"
	indexFile   = "index-" // and the boot of the machine, in 16 hexadecimal digits
	lockFile    = "lock"
	orderLock   = "orders.lock" // in place of lockFile, of a run
	submitLock  = "submit.lock"
	parquetFile = "tasks.parquet"
)

// Queue is an open task directory. Its methods are safe for concurrent use.
type Queue struct {
	Dir     string         // absolute
	base    string         // directory of the state
	run     *engine.Header // of a run with a recipe; nil: the tasks have none
	first   int64          // where the tasks of a run begin in its plan
	version string         // of premix
	user    string
	own     bool // the index is memory of this process

	foreign error // why orders is nil

	mu      sync.Mutex // guards the rest; taken before lock
	x       *index
	orders  *os.File // nil: read only
	tasks   *os.File
	read    int64 // bytes of orders.jsonl that are in the fields below
	end     int64 // bytes of tasks.jsonl that were submitted
	list    []*Order
	ends    []int64  // where each of them ends in orders.jsonl
	known   int      // tasks in the batches of list
	arrays  [][2]int // first and last tasks of the arrays among them
	groups  []*group
	names   map[string]int // numbers of groups
	edges   edges
	journal *record.Writer
	number  int // of journal
	work    *os.File
	logs    map[string]*os.File // that are made durable; for Settle alone

	latest   *Spec // of an array, as its elements often follow one another
	latestAt int64 // in tasks.jsonl
	elements int   // of arrays that this process has added to the index
	moves    uint64
	size     int64 // of orders and journals at the last catchUp
}

// group is a group and the number of its tasks in each state.
type group struct {
	name  string
	user  string
	after []int
	count [4]int // by State
	total int
}

func (g *group) complete() bool { return g.count[Succeeded] == g.total }

func (q *Queue) path(name string) string { return filepath.Join(q.base, name) }

// indexPath returns the path of the index for this boot of this machine. Processes that do
// not share memory must not share an index: each would rebuild it while the other uses it.
func (q *Queue) indexPath() string { return q.path(fmt.Sprintf(indexFile+"%016x", here())) }

// tidy removes the indexes of earlier boots of this host.
func (q *Queue) tidy() {
	entries, err := os.ReadDir(q.path(""))
	if err != nil {
		return
	}
	for _, e := range entries {
		if path := q.path(e.Name()); strings.HasPrefix(e.Name(), indexFile) && outlived(path) {
			_ = os.Remove(path) // it only takes room
		}
	}
}

// IsDir reports whether dir is a directory of tasks without a recipe.
func IsDir(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, engine.StateDir, engine.QueueDir))
	return err == nil
}

// Open opens the task directory or run directory dir. If dir is neither, Open makes a task
// directory, where create is true; with create it refuses a run directory.
// The error is an *engine.DirError where a user can do something about it. version
// is the version of premix.
func Open(dir, version string, create bool) (_ *Queue, err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = engine.DirectoryError(dir, err) }()
	q := &Queue{Dir: dir, version: version, user: userName(), logs: make(map[string]*os.File)}
	switch {
	case IsDir(dir):
	case create:
		if err := makeDir(dir); err != nil {
			return nil, err
		}
	default:
		q.run, q.first, err = engine.ReadHeader(dir)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
			return nil, &engine.DirError{Dir: dir, Reason: "holds no tasks", HintText: "give the directory that was --out of premix task submit, premix task run or premix run"}
		}
		if err != nil {
			return nil, err
		}
	}
	q.base, q.own = engine.State(dir), q.run != nil
	defer func() {
		if err != nil {
			q.Close()
		}
	}()
	tasks, mode := tasksFile, os.O_RDWR|os.O_CREATE
	if q.run != nil {
		tasks, mode = engine.PlanFile, os.O_RDWR // a look at a run leaves nothing there
	}
	err = q.belongs()
	if err == nil {
		q.orders, err = owner.OpenFile(q.path(ordersFile), mode, 0o644)
	}
	if q.run != nil && errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err == nil && q.run == nil {
		q.tasks, err = owner.OpenFile(q.path(tasks), mode, 0o644)
	}
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
		q.foreign = err
	}
	if q.foreign != nil || err == nil && q.run != nil {
		if q.tasks, err = owner.OpenOthers(q.path(tasks)); err != nil {
			return nil, err
		}
	}
	if q.foreign != nil {
		if q.orders != nil {
			q.orders.Close()
		}
		q.orders, q.own = nil, true
	}
	if err != nil {
		return nil, err
	}
	if !q.own {
		if q.x, err = openIndex(q.indexPath()); err != nil {
			q.own = true // a full disk: as a reader
		}
	}
	if q.own {
		if q.x, err = openIndex(""); err != nil {
			return nil, err
		}
	}
	q.forget()
	return q, q.Refresh()
}

// belongs refuses a directory with commands, names of files to be removed or numbers of
// processes that another user has written down.
func (q *Queue) belongs() error {
	if err := owner.CheckNamed(q.Dir); err != nil {
		return err
	}
	for _, dir := range []string{filepath.Join(q.Dir, engine.StateDir), q.path("")} {
		if err := owner.Directory(dir); err != nil {
			return err
		}
	}
	return nil
}

// denied returns the error for a change of a read-only directory.
func (q *Queue) denied() error {
	var e *engine.DirError
	if errors.As(engine.DirectoryError(q.Dir, q.foreign), &e) {
		return e
	}
	return &engine.DirError{Dir: q.Dir, Reason: "may not be changed by this user", HintText: "ask its owner, or give another directory", Err: q.foreign}
}

// makeDir makes a task directory. It refuses a directory that holds a run.
func makeDir(dir string) error {
	if err := engine.MakeDir(dir); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(dir, engine.StateDir, engine.PlanFile)); err == nil {
		return &engine.DirError{Dir: dir, Reason: "already holds a run", HintText: "give another directory with --out"}
	}
	return os.MkdirAll(filepath.Join(dir, engine.StateDir, engine.QueueDir), 0o775)
}

func userName() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return strconv.Itoa(os.Getuid())
}

// Close closes what Open opened.
func (q *Queue) Close() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	var errs []error
	if q.journal != nil {
		errs = append(errs, q.journal.Close())
	}
	for _, f := range q.logs {
		f.Close()
	}
	for _, f := range []*os.File{q.orders, q.tasks, q.work} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	if q.x != nil {
		q.x.close()
	}
	return errors.Join(errs...)
}

// locked calls f while this process alone may change orders and index. The caller
// holds mu.
func (q *Queue) locked(f func() error) error {
	if q.orders == nil {
		return f() // a reader with an index of its own
	}
	name := lockFile
	if q.run != nil {
		name = orderLock // a run holds its own lock under the other name until it ends
	}
	l, _, err := TakeLock(q.path(name), -1)
	if err != nil {
		return err
	}
	defer l.Close()
	if err := q.x.follow(); err != nil {
		return err
	}
	return f()
}

// Refresh applies the orders and records of other processes.
func (q *Queue) Refresh() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.locked(q.catchUp)
}

// Changed reports whether there are orders that Refresh would apply. It costs one
// system call.
func (q *Queue) Changed() bool {
	info, err := os.Stat(q.path(ordersFile))
	q.mu.Lock()
	defer q.mu.Unlock()
	return err == nil && info.Size() > q.read
}

// catchUp reads new orders, and brings the index up to date. The caller holds mu and
// lock.
func (q *Queue) catchUp() error {
	if err := q.readOrders(); err != nil {
		return err
	}
	numbers, sizes, err := q.journals()
	if err != nil {
		return err
	}
	whole := q.x.fits(here()) && q.x.head().orders <= q.read && q.x.head().tasks <= int64(q.known)
	for i, n := range numbers {
		whole = whole && *q.x.applied(n) <= sizes[i]
	}
	if !whole {
		q.x.reset(here())
		q.size, q.elements = -1, 0
		if q.x.file != nil {
			q.tidy()
		}
	}
	if err := q.applyOrders(); err != nil {
		return err
	}
	for i, n := range numbers {
		if *q.x.applied(n) < sizes[i] {
			if err := q.replay(n); err != nil {
				return err
			}
		}
	}
	size := q.read
	for _, n := range sizes {
		size += n
	}
	if size == q.size {
		return nil
	}
	q.size = size
	q.moves++
	q.recount()
	return nil
}

// forget begins the orders again. The plan of a run is its first order.
func (q *Queue) forget() {
	q.read, q.end, q.list, q.ends, q.known, q.arrays, q.groups, q.names, q.edges, q.latest, q.size = 0, 0, nil, nil, 0, nil, nil, make(map[string]int), edges{}, nil, -1
	if h := q.run; h != nil {
		g := Group{Name: h.Recipe}
		q.list, q.ends = []*Order{{Order: orderBatch, At: h.Created, First: 1, Tasks: h.Tasks, Offset: q.first, Bytes: math.MaxInt64 - q.first,
			Groups: []Group{g}, Dir: q.Dir, Cores: h.Threads, Memory: h.Memory}}, []int64{0}
		q.known = h.Tasks
		q.group(g, q.user)
	}
}

// readOrders reads the orders that were not read yet.
func (q *Queue) readOrders() error {
	f, err := owner.OpenOthers(q.path(ordersFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Size() < q.read {
		q.forget()
	}
	q.read, err = record.Follow(f, q.read, func(line []byte, at int64) error {
		o := &Order{}
		if json.Unmarshal(line, o) != nil || o.Order == "" {
			return q.damaged(ordersFile)
		}
		q.list, q.ends = append(q.list, o), append(q.ends, at+int64(len(line)))
		if o.Order != orderBatch {
			return nil
		}
		if o.First != q.known+1 || o.Tasks < 1 {
			return q.damaged(ordersFile)
		}
		q.end, q.known = o.Offset+o.Bytes, o.First+o.Tasks-1
		if o.Array {
			q.arrays = append(q.arrays, [2]int{o.First, q.known})
		}
		for _, g := range o.Groups {
			q.group(g, o.User)
		}
		if o.Edges > 0 {
			return q.readEdges(o)
		}
		return nil
	})
	return err
}

func (q *Queue) damaged(name string) error {
	return &engine.DirError{Dir: q.Dir, Reason: "is damaged (" + q.path(name) + ")", HintText: "submit the tasks again, to another directory"}
}

// group records a batch's declaration of a group.
func (q *Queue) group(g Group, user string) {
	id, ok := q.names[g.Name]
	if !ok {
		id = len(q.groups)
		q.names[g.Name] = id
		q.groups = append(q.groups, &group{name: g.Name, user: user})
	}
	for _, name := range g.After {
		// It was there when the batch was submitted.
		if before, ok := q.names[name]; ok && !slices.Contains(q.groups[id].after, before) {
			q.groups[id].after = append(q.groups[id].after, before)
		}
	}
}

// journals returns the numbers of the journals and their sizes.
func (q *Queue) journals() (numbers []int, sizes []int64, err error) {
	entries, err := os.ReadDir(q.path(""))
	if err != nil {
		return nil, nil, err
	}
	for _, e := range entries {
		text, ok := strings.CutPrefix(e.Name(), "journal-")
		if !ok {
			continue
		}
		n, err := strconv.Atoi(strings.TrimSuffix(text, ".jsonl"))
		info, ierr := e.Info()
		if err != nil || ierr != nil || n < 1 || n >= maxJournals {
			continue
		}
		numbers, sizes = append(numbers, n), append(sizes, info.Size())
	}
	return numbers, sizes, nil
}

func (q *Queue) journalPath(n int) string { return q.path(fmt.Sprintf("journal-%04d.jsonl", n)) }

// applyOrders applies the orders that the index lacks.
func (q *Queue) applyOrders() error {
	if q.run != nil && q.x.head().tasks == 0 {
		if err := q.apply(0); err != nil {
			return err
		}
	}
	next, _ := slices.BinarySearch(q.ends, q.x.head().orders+1) // the first that ends behind
	for ; next < len(q.list); next++ {
		if err := q.apply(next); err != nil {
			return err
		}
		q.x.head().orders = q.ends[next]
	}
	return nil
}

// apply applies order i to the index.
func (q *Queue) apply(i int) error {
	o := q.list[i]
	q.x.head().changes++
	if o.Order == orderBatch {
		return q.applyBatch(i, o)
	}
	for _, w := range o.Which {
		if w[0] < 1 || w[1] > len(q.x.all()) || w[1] > q.known {
			return q.damaged(ordersFile)
		}
		for t := w[0]; t <= w[1]; t++ {
			if last := q.changeRest(o, t, w); last >= t {
				t = last
				continue
			}
			e, err := q.ownEntry(t)
			if err != nil {
				return err
			}
			o.change(e, w[2])
		}
	}
	return nil
}

// change applies an order that is not a batch to the state of a task. try is its last try before
// the order.
func (o *Order) change(e *entry, try int) {
	switch o.Order {
	case orderCancel:
		e.flags |= flagCancelled
	case orderRetry:
		e.flags &^= flagCancelled
		e.begin(try)
	case orderBegin:
		e.begin(try)
		if int(e.try) <= try {
			e.flags &^= flagDone
		}
		e.retries = uint16(min(o.Retries, math.MaxUint16-1))
	case orderPrune:
		e.flags |= flagPruned
	case orderHold:
		e.flags |= flagHeld
	case orderRelease:
		e.flags &^= flagHeld
	}
}

// room makes room for the entries of a batch.
func (q *Queue) room(o *Order) error {
	last := o.First - 1 + o.Tasks
	if err := q.x.room(int64(last)); err != nil {
		return err
	}
	if o.Array {
		last = o.First
	}
	return q.x.allocate(o.First, last)
}

// applyBatch makes the entries of a batch from its lines.
func (q *Queue) applyBatch(i int, o *Order) error {
	if err := q.room(o); err != nil {
		return err
	}
	h, last := q.x.head(), o.First-1+o.Tasks
	if h.tasks != int64(o.First-1) && h.tasks != int64(last) { // the latter if a premix was killed at its end
		return q.damaged(ordersFile)
	}
	all := q.x.batch(o.First, last)
	opts := o.options()
	t := 0
	end := o.Offset + o.Bytes
	if o.Edges > 0 {
		end = o.Edges
	}
	stop := errors.New("stop")
	_, err := lines.Read(q.tasks, o.Offset, func(line []byte, at int64) error {
		if at >= end {
			return stop
		}
		if t >= o.Tasks {
			return q.damaged(tasksFile)
		}
		e := entry{spec: at, specLen: uint32(len(line)), order: uint32(i), priority: int32(opts.Priority), retries: uint16(opts.Retries)}
		if o.Held {
			e.flags = flagHeld
		}
		group := opts.Group
		if q.run == nil && !bytes.HasPrefix(line, []byte(plain)) {
			s, err := parseSpec(line)
			if err != nil {
				return q.damaged(tasksFile)
			}
			s.under(&opts)
			group, e.priority, e.retries = s.Group, int32(s.Priority), uint16(s.Retries)
			if s.tasks() != o.Tasks-t && s.Array != nil || o.Array != (s.Array != nil) {
				return q.damaged(tasksFile)
			}
		}
		id, ok := q.names[group]
		if !ok {
			return q.damaged(tasksFile)
		}
		e.group = uint32(id)
		if !o.Array {
			all[t] = e
			t++
			return nil
		}
		if q.elements += o.Tasks; q.foreign != nil && q.elements > maxForeign {
			return &engine.DirError{Dir: q.Dir, Reason: fmt.Sprintf("is of another user, and has arrays of more than %d tasks", maxForeign), HintText: "read it as its user"}
		}
		e.own, e.others = 1, e.flags
		all[0], t = e, o.Tasks
		return nil
	})
	if err != nil && !errors.Is(err, stop) {
		return err
	}
	if t != o.Tasks {
		return q.damaged(tasksFile)
	}
	h.tasks = int64(last)
	return nil
}

// replay applies the records of journal n that the index lacks.
func (q *Queue) replay(n int) error {
	f, err := owner.OpenOthers(q.journalPath(n))
	if err != nil {
		return err
	}
	defer f.Close()
	if err := q.x.journal(n); err != nil {
		return err
	}
	end, err := record.Follow(f, *q.x.applied(n), func(line []byte, at int64) error {
		var r record.Task
		if json.Unmarshal(line, &r) != nil {
			return nil
		}
		_, _, err := q.applyRecord(&r, n, at, len(line))
		return err
	})
	if err == nil {
		*q.x.applied(n) = end
	}
	return err
}

// applyRecord applies a record, and returns the state before and after.
func (q *Queue) applyRecord(r *record.Task, journal int, at int64, length int) (before, after State, err error) {
	if r.Task < 1 || r.Task > min(len(q.x.all()), q.known) {
		return Waiting, Waiting, nil
	}
	e, err := q.ownEntry(r.Task)
	if err != nil {
		return Waiting, Waiting, err
	}
	before = e.state()
	if r.Try <= int(e.try) {
		return before, before, nil
	}
	e.journal, e.record, e.recLen = uint32(journal), at, uint32(length)
	q.advance(e, r)
	return before, e.state(), nil
}

// advance applies a record of a later try to the state of a task.
func (q *Queue) advance(e *entry, r *record.Task) {
	e.try = uint16(r.Try)
	e.flags &^= flagDone // a task of a run whose outputs have gone runs again
	switch {
	case r.OK() && q.run != nil && r.Try <= int(e.base):
		e.fails = 0 // its outputs had gone when a later invocation began
	case r.OK():
		e.flags |= flagDone
		e.fails = 0 // should it run again, it has all its tries
	case r.Cause == record.CauseInterrupted, r.Cause == record.CauseDisk, r.Cause == record.CauseDiffers:
		// No fault of the task.
	default:
		if r.Try > int(e.base) {
			e.fails = min(e.fails+1, 1<<16-1)
			if r.Cause == record.CauseInput || r.Cause == record.CauseLost && q.run != nil {
				e.fails = max(e.fails, e.retries+1) // a further try would meet the same
			}
		}
		if r.Cause == record.CauseMemory {
			e.ooms = min(e.ooms+1, 1<<8-1)
		}
	}
}

// Fails reports whether a task has failed for good when this record of its next try is
// settled.
func (q *Queue) Fails(r *record.Task) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	e, _ := q.entry(r.Task)
	q.advance(&e, r)
	return e.state() == Failed
}

// recount counts the tasks of each group.
func (q *Queue) recount() {
	for _, g := range q.groups {
		g.count, g.total = [4]int{}, 0
	}
	entries := q.entries()
	for t := 1; t <= entries.len(); t++ {
		e := entries.at(t)
		g := q.groups[e.group]
		g.count[e.state()]++
		g.total++
	}
}

// order makes an order durable and applies it. The caller holds mu and lock, and has
// caught up.
func (q *Queue) order(o *Order) error {
	if q.orders == nil {
		return q.denied() // of a run, change has opened it
	}
	o.At, o.User = time.Now().UTC(), q.user
	if q.read == 0 {
		line, err := json.Marshal(q.header("order"))
		if err != nil {
			return err
		}
		if q.read, err = lines.Append(q.orders, 0, append(line, '\n'), true); err != nil {
			return err
		}
		if err := beneath.SyncDir(q.path("")); err != nil {
			return err
		}
	}
	if _, err := appendOrders(q.orders, q.read, []*Order{o}); err != nil {
		return err
	}
	return q.catchUp()
}

func (q *Queue) header(table string) record.Header { return engine.NewHeader(table, q.version) }

// entry returns a copy of the entry of a task; ok is false if the task does not exist. The
// caller holds mu.
func (q *Queue) entry(task int) (e entry, ok bool) {
	entries := q.entries()
	if task < 1 || task > entries.len() {
		return e, false
	}
	return entries.at(task), true
}

// Spec reads the spec of a task.
func (q *Queue) Spec(task int) (*Spec, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	_, spec, err := q.look(task)
	return spec, err
}

// look returns the entry and the spec of a task. The caller holds mu.
func (q *Queue) look(task int) (e entry, spec *Spec, err error) {
	e, ok := q.entry(task)
	if !ok {
		return e, nil, q.noTask(task)
	}
	spec, err = q.spec(task, &e)
	return e, spec, err
}

// spec returns the spec of a task. The caller holds mu.
func (q *Queue) spec(task int, e *entry) (*Spec, error) {
	if int(e.order) >= len(q.list) {
		return nil, q.damaged(tasksFile)
	}
	o := q.list[e.order]
	if !o.Array {
		return q.readSpec(e)
	}
	s, err := q.array(e)
	if err != nil {
		return nil, err
	}
	return s.element(task, task-o.First), nil
}

// readSpec reads the line of an entry.
func (q *Queue) readSpec(e *entry) (*Spec, error) {
	line := make([]byte, e.specLen)
	if _, err := q.tasks.ReadAt(line, e.spec); err != nil {
		return nil, q.damaged(tasksFile)
	}
	s, err := q.parse(line)
	if err != nil || int(e.order) >= len(q.list) {
		return nil, q.damaged(tasksFile)
	}
	opts := q.list[e.order].options()
	s.under(&opts)
	return s, nil
}

func (q *Queue) noTask(task int) error {
	entries := q.entries()
	n := entries.len()
	hint := fmt.Sprintf("its tasks have the numbers 1 to %d", n)
	if n == 0 {
		hint = "submit tasks with premix task submit"
	}
	return &InputError{Reason: fmt.Sprintf("there is no task %d in %s", task, q.Dir), HintText: hint}
}

// record reads the last record of a task; it returns nil for a task without a record.
func (q *Queue) record(e *entry) (*record.Task, error) {
	if e.journal == 0 {
		return nil, nil
	}
	f, err := owner.OpenOthers(q.journalPath(int(e.journal)))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	line := make([]byte, e.recLen)
	if _, err := f.ReadAt(line, e.record); err != nil {
		return nil, err
	}
	r := &record.Task{}
	return r, json.Unmarshal(line, r)
}
