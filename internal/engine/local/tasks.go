package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/engine/queue"
	"premix/internal/engine/spawn"
	"premix/internal/kit/units"
	"premix/internal/record"
)

// TaskOptions are the settings for tasks without a recipe.
type TaskOptions struct {
	Queue    *queue.Queue
	Binary   string       // premix, to be executed as the spawner; "" for this one
	Worker   string       // "" for the local one
	Share    [][2]int     // tasks to run, as first and last numbers of ranges; nil: all
	Until    time.Time    // no more tasks are started then; zero: whenever
	Fence    func() error // whether this worker may still write; nil: it may. See [ErrDrain]
	Jobs     int          // tasks at a time; 0: as many as the cores hold
	Cores    int          // that tasks take together; 0: the machine's, or Jobs if that is more
	Memory   int64        // budget in bytes; 0: the machine's
	Grace    time.Duration
	FailFast bool
	Pin      Pin
	// KeepDaemons lets processes live on that a task leaves behind outside of its process
	// group. Otherwise they end with it, where there are cgroups.
	KeepDaemons bool
	Kill        <-chan struct{} // as in Options
	processes   int             // that a task may have; 0: maxPids
	// While Stay is open, RunTasks waits for further submissions even when nothing is left to
	// do. nil: it returns as soon as nothing is left.
	Stay <-chan struct{}
	Wake <-chan struct{} // that something was ordered; it is looked for anyway, now and then

	Messages io.Writer
	Terminal bool
}

// TaskSummary is the result of one invocation.
type TaskSummary struct {
	Dir       string        `json:"dir"`
	Tasks     int           `json:"tasks"`  // in the directory
	Before    int           `json:"before"` // that had succeeded before
	Succeeded int           `json:"succeeded"`
	Failed    int           `json:"failed"`
	Cancelled int           `json:"cancelled"`
	NotRun    int           `json:"not_run"`
	Seconds   float64       `json:"seconds"`
	User      float64       `json:"user"`   // CPU seconds of the tasks
	System    float64       `json:"system"` // CPU seconds
	Failures  []TaskFailure `json:"failures,omitempty"`
}

// TaskFailure is one task that failed, after its last try.
type TaskFailure struct {
	Task  int    `json:"task"`
	Name  string `json:"name,omitempty"`
	Error string `json:"error"`
	Hint  string `json:"hint,omitempty"`
}

// Prefetching: a spawner is given tasks ahead, so that its slots do not wait for this
// process, for as long as prefetchTime bridges; tasks that run longer need none.
const (
	prefetchTime = 200 * time.Millisecond
	prefetchMost = 1024
	prefetchLong = 500 * time.Millisecond
)

// ErrDrain is returned by a fence to have a worker start no more tasks, and end when
// the running tasks have ended. Any other error ends it at once, without a record.
var ErrDrain = errors.New("no more tasks are to be started")

// fenceInterval is how often a worker asks its fence while its tasks run.
const fenceInterval = time.Second

// doubtTime is how long a worker in an engine job delays the record of a failure. An engine
// that ends a job, for example at its time limit, may signal the tasks before it signals
// premix, and then the tasks have not failed by themselves.
const doubtTime = time.Second

// Ended tries are collected before their records are made durable, while others run:
// each write costs as much as some tasks, and more where the disk is slow. So that writes take
// at most one part in settleShare of the time, tries wait that many times as long as the last
// write took, within these bounds.
const (
	settleShare = 40
	settleSoon  = 20 * time.Millisecond
	settleLate  = 200 * time.Millisecond
)

// How often new orders are looked for, and records that wait are seen to.
const orderInterval = 100 * time.Millisecond

// maxUnsettled is how many ended tries may wait for their records to be durable
// before no more tasks are started.
const maxUnsettled = 1 << 16

// tasks is the state of one invocation. But for settling, everything happens in the
// goroutine that calls work.
type tasks struct {
	o        TaskOptions
	q        *queue.Queue
	p        *queue.Picker
	progress *progress
	slots    int // tasks at a time
	capacity int // cores that tasks take together
	budget   int64
	spawner  *runner          // of all tasks but the suspects
	runners  map[*runner]bool // the spawner, and the spawners of suspects
	suspects map[int]*suspect // by number of the task
	outside  int              // spawners that no task killed
	ended    chan ending
	deaths   int // of spawners that ran nothing, one after another
	seen     []hierarchy
	groups   *cgroups
	noCells  bool // slots have no cgroups
	pins     *pins

	active    map[uint64]*activeTask
	cores     int   // held by active tasks
	memory    int64 // held by active tasks
	heavy     int   // active tasks that are not light
	batch     []spawn.Task
	mean      float64 // seconds of a task
	known     bool    // mean is
	unsettled int
	begun     time.Time
	user      float64
	system    float64
	before    [4]int
	over      int // tasks that ended for good in this invocation
	failures  []TaskFailure
	failed    int
	stopped   bool
	broken    error
}

// activeTask is a task that the spawner has.
type activeTask struct {
	*queue.Task
	in    *runner
	heavy bool
	group *group
	pin   *pinned
}

// ending is a message from a spawner: results, or its end.
type ending struct {
	from    *runner // nil: none was asked
	results []spawn.Result
	err     error
	end     bool
}

// settling are records on their way to the disk.
type settling struct {
	records []*record.Task
	err     error
}

// RunTasks runs the waiting tasks of a task directory, and tasks submitted in the
// meantime, and returns when nothing is left that can start. It returns the same errors as
// Run. The summary is nil if nothing could be run at all.
func RunTasks(ctx context.Context, o TaskOptions) (_ *TaskSummary, err error) {
	if o.Grace == 0 {
		o.Grace = Grace
	}
	s := &tasks{o: o, q: o.Queue, active: make(map[uint64]*activeTask), runners: make(map[*runner]bool), suspects: make(map[int]*suspect), ended: make(chan ending, 64), begun: time.Now(), seen: thisHierarchies()}
	if s.o.Worker == "" {
		s.o.Worker = queue.LocalWorker
	}
	s.progress = newProgress(o.Messages, o.Terminal)
	defer s.progress.clear()
	if s.capacity = o.Cores; s.capacity == 0 {
		s.capacity = max(cores(s.seen), o.Jobs)
	}
	if s.slots = s.capacity; o.Jobs > 0 {
		s.slots = min(s.slots, o.Jobs)
	}
	if s.budget = o.Memory; s.budget == 0 {
		if s.budget, err = memory(s.seen); err != nil {
			return nil, err
		}
	}
	if s.pins, err = newPins(o.Pin); err != nil {
		return nil, err
	}
	if err := s.q.Work(s.o.Worker); err != nil {
		return nil, err
	}
	drained, err := s.fenced()
	if err != nil {
		return nil, err
	}
	s.stopped = drained
	if err := s.recover(ctx); err != nil {
		return nil, err
	}
	s.before = s.counts()
	s.p = s.q.Picker(s.o.Share)
	if (s.before[queue.Waiting] > 0 || o.Stay != nil) && !s.stopped {
		var lacks []string
		s.groups, lacks = newCgroups(s.seen, max(s.capacity, cores(s.seen)))
		for _, l := range lacks {
			s.progress.note("no limit on %s", l)
		}
		if s.spawner, err = s.spawn(s.usual()); err != nil {
			return nil, errors.Join(err, s.groups.close())
		}
		s.work(ctx)
		for r := range s.runners {
			s.close(r)
		}
		if s.broken == nil {
			if err := s.removeBoards(); err != nil {
				s.progress.note("a board is left: %v", err)
			}
		}
		if cerr := s.groups.close(); cerr != nil {
			s.progress.note("a cgroup is left: %v", cerr)
		}
	}
	s.progress.clear()
	if o.Share == nil { // otherwise others are at work
		if _, err := s.q.Prune(false, false); err != nil {
			s.progress.note("intermediates are left: %v", err)
		}
	}
	sum := s.summary()
	var i *Interrupted
	switch {
	case ctx.Err() != nil && errors.As(context.Cause(ctx), &i):
		return sum, &Interrupted{Signal: i.Signal, Dir: s.q.Dir, Way: "premix task run --out " + s.q.Dir + " goes on"}
	case s.broken != nil:
		return sum, s.broken
	case sum.Failed+sum.NotRun > 0:
		return sum, &FailedError{Failed: sum.Failed, NotRun: sum.NotRun, Tasks: sum.Tasks,
			Way: fmt.Sprintf("premix task why %s TASK says why; premix task retry %[1]s --failed and premix task run --out %[1]s run them again", s.q.Dir)}
	}
	return sum, nil
}

// counts returns how many tasks, of the share if the worker has one, are in each state.
func (s *tasks) counts() [4]int {
	if s.o.Share == nil {
		return s.q.Counts()
	}
	return s.q.CountsOf(s.o.Share)
}

// fenced asks the fence.
func (s *tasks) fenced() (drain bool, err error) {
	if s.o.Fence == nil {
		return false, nil
	}
	if err = s.o.Fence(); errors.Is(err, ErrDrain) {
		return true, nil
	}
	return false, err
}

// heed stops the worker if the fence or the time requires it.
func (s *tasks) heed() {
	if s.stopped {
		return
	}
	drain, err := s.fenced()
	switch {
	case err != nil:
		s.fail(err)
		s.signal(0, unix.SIGKILL)
	case drain, !s.o.Until.IsZero() && time.Now().After(s.o.Until):
		s.stop()
	}
}

func (s *tasks) summary() *TaskSummary {
	count := s.counts()
	sum := &TaskSummary{Dir: s.q.Dir, Before: s.before[queue.Succeeded], Succeeded: count[queue.Succeeded] - s.before[queue.Succeeded],
		Failed: count[queue.Failed], Cancelled: count[queue.Cancelled], NotRun: count[queue.Waiting],
		Seconds: time.Since(s.begun).Seconds(), User: s.user, System: s.system, Failures: s.failures}
	for _, n := range count {
		sum.Tasks += n
	}
	return sum
}

// work runs tasks until nothing is left that can start.
func (s *tasks) work(ctx context.Context) {
	toSettle := make(chan []*record.Task)
	settled := make(chan settling, 1)
	go func() {
		for records := range toSettle {
			settled <- settling{records, s.settle(records)}
		}
	}()
	defer close(toSettle)
	var (
		waiting   []*record.Task // to be settled
		doubtful  []*record.Task // to be settled when they are older than doubtTime
		last      time.Time      // when others were
		company   = settleSoon   // how long they wait
		orders    = time.NewTicker(orderInterval)
		fence     = time.NewTicker(fenceInterval)
		tick      = time.NewTicker(s.progress.interval())
		interrupt = ctx.Done()
		stay      = s.o.Stay
		kill      <-chan struct{}
		grace     <-chan time.Time
	)
	defer orders.Stop()
	defer fence.Stop()
	defer tick.Stop()
	for {
		if !s.stopped {
			s.fill()
		}
		if len(s.active) == 0 && s.unsettled == 0 && (s.stopped || stay == nil) {
			return // nothing is on its way, and nothing can start
		}
		var hand chan<- []*record.Task
		if len(waiting) > 0 && (len(s.active) == 0 || s.stopped || time.Since(last) >= company) {
			hand = toSettle
		}
		select {
		case e := <-s.ended:
			if e.from != nil && !s.runners[e.from] {
				continue // from a spawner that died
			}
			var records []*record.Task
			if e.end {
				e.results, records = s.died(e.from, e.err)
			}
			for i := range e.results {
				if rec := s.finish(ctx, &e.results[i]); rec != nil {
					records = append(records, rec)
				}
			}
			for _, rec := range records {
				if s.o.FailFast && !rec.OK() && rec.Cause != record.CauseInterrupted && !s.stopped {
					s.progress.notice("task %d failed: no more tasks are started", rec.Task)
					s.stop()
				}
				s.unsettled++
				switch {
				case s.o.Share == nil || rec.OK():
					waiting = append(waiting, rec)
				case ctx.Err() == nil:
					doubtful = append(doubtful, rec)
				default:
					waiting = append(waiting, endedWithJob(rec))
				}
			}
		case hand <- waiting:
			waiting, last = nil, time.Now()
		case done := <-settled:
			s.unsettled -= len(done.records)
			company = min(settleLate, max(settleSoon, settleShare*time.Since(last)))
			for _, rec := range done.records {
				s.settledOne(rec, done.err)
			}
		case <-orders.C:
			s.look()
			for len(doubtful) > 0 && time.Since(doubtful[0].Ended) > doubtTime {
				waiting, doubtful = append(waiting, doubtful[0]), doubtful[1:]
			}
		case <-fence.C:
			s.heed()
		case <-s.o.Wake:
			s.look()
		case <-stay:
			stay = nil
			s.look() // orders that came before it was closed
		case <-tick.C:
			s.progress.draw(s)
		case <-interrupt:
			interrupt, kill = nil, s.o.Kill
			for _, rec := range doubtful {
				endedWithJob(rec)
			}
			waiting, doubtful = append(waiting, doubtful...), nil
			s.progress.notice("ending %d running tasks (again to kill them)", min(len(s.active), s.slots))
			s.stop()
			s.signal(0, unix.SIGTERM)
			t := time.NewTimer(s.o.Grace)
			defer t.Stop()
			grace = t.C
		case <-grace:
			s.signal(0, unix.SIGKILL)
		case <-kill:
			kill = nil
			s.signal(0, unix.SIGKILL)
		}
	}
}

// endedWithJob turns a failure into an interruption: the engine that ends an engine job has
// signalled the task before premix, or before premix got the result of the task.
func endedWithJob(rec *record.Task) *record.Task {
	rec.Cause, rec.Error, rec.Hint = record.CauseInterrupted, "ended with its engine job", ""
	return rec
}

// stop starts no more tasks, and has those given back that have not begun.
func (s *tasks) stop() {
	s.stopped = true
	if s.spawner != nil {
		_ = s.spawner.Drop(0) // if it is gone, died takes them back
	}
}

// look applies new orders.
func (s *tasks) look() {
	if !s.q.Changed() && !s.p.Behind() {
		return
	}
	if err := s.q.Refresh(); err != nil {
		s.fail(err)
		return
	}
	s.p.Refresh()
	cancelled := make(map[int]bool)
	for _, t := range s.p.Cancelled() {
		cancelled[t] = true
	}
	if len(cancelled) == 0 {
		return
	}
	for id, a := range s.active {
		if !cancelled[a.Number] {
			continue
		}
		if a.in == nil {
			continue // it is about to fail by itself
		}
		sp, id := a.in, id
		_ = errors.Join(sp.Drop(id), sp.Signal(id, unix.SIGTERM))
		time.AfterFunc(s.o.Grace, func() { _ = sp.Signal(id, unix.SIGKILL) }) // it may have ended, or all of it
	}
}

// fail stops the run for good.
func (s *tasks) fail(err error) {
	if s.broken == nil {
		s.broken = &StoppedError{err: err, way: "mend the cause; premix task run --out " + s.q.Dir + " goes on"}
	}
	s.stop()
}

// fill hands tasks to the spawner.
func (s *tasks) fill() {
	for s.unsettled < maxUnsettled {
		t, err := s.p.Next(s.fits)
		if err != nil {
			s.fail(err)
			break
		}
		if t == nil {
			break
		}
		s.start(t)
		if len(s.batch) >= prefetchMost {
			s.hand()
		}
	}
	s.hand()
}

// hand hands the batch over.
func (s *tasks) hand() {
	if len(s.batch) == 0 {
		return
	}
	// If the spawner is gone, its end arrives later.
	_ = s.spawner.Start(s.batch)
	clear(s.batch)
	s.batch = s.batch[:0]
}

// light reports whether a task takes one core and nothing else: many light tasks may be
// handed over ahead.
func (s *tasks) light(t *queue.Task) bool {
	return t.Cores == 1 && t.Memory == 0 && s.pins == nil && s.suspects[t.Number] == nil
}

// fits reports whether a task can start now.
func (s *tasks) fits(t *queue.Task) bool {
	if t.Ooms > 0 && t.Memory > s.budget {
		t.Memory = s.budget
	}
	if s.tooLarge(t) != nil {
		return true // to fail
	}
	if s.light(t) && s.heavy == 0 {
		return len(s.active) < s.slots+s.ahead()
	}
	return len(s.active) < s.slots && s.cores+t.Cores <= s.capacity && s.memory+t.Memory <= s.budget
}

// ahead returns how many tasks are handed over ahead.
func (s *tasks) ahead() int {
	if !s.known || s.mean > prefetchLong.Seconds() || s.o.FailFast {
		return 0
	}
	return min(prefetchMost, s.slots+int(float64(s.slots)*prefetchTime.Seconds()/max(s.mean, 1e-6)))
}

// tooLarge returns the reason why a task can never start here, or nil.
func (s *tasks) tooLarge(t *queue.Task) *failure {
	switch {
	case t.Cores > s.capacity:
		return &failure{record.CauseStart, fmt.Sprintf("the task needs %d cores and there are %d", t.Cores, s.capacity), "ask for fewer cores, or give more with --cores"}
	case t.Memory > s.budget:
		return &failure{record.CauseStart, fmt.Sprintf("the task needs %s of memory and there are %s", units.Size(t.Memory), units.Size(s.budget)), "ask for less memory, or give more with --memory"}
	}
	return nil
}

// start puts a task into the batch.
func (s *tasks) start(t *queue.Task) {
	a := &activeTask{Task: t, heavy: !s.light(t)}
	id := t.ID()
	s.active[id] = a
	out, errs := t.Spec.Files(t.Files, t.Number)
	st := spawn.Task{ID: id, Argv: t.Argv, Env: t.Environ(), Dir: t.Dir, Stdout: out, Stderr: errs, Timeout: t.Timeout, Grace: s.o.Grace}
	if t.Argv == nil {
		st.Shell = t.Command
		if argv, ok := queue.Direct(t.Command); ok && len(t.Env) == 0 {
			st.Argv = argv
		}
	}
	s.cores += t.Cores
	s.memory += t.Memory
	if a.heavy {
		s.heavy++
	}
	f := s.tooLarge(t)
	if f == nil && t.Memory > 0 {
		if err := s.limit(a, id, &st); err != nil {
			f = &failure{cause: record.CauseStart, text: err.Error()}
		}
	}
	if f != nil {
		now := time.Now()
		go func() { // the channel may be full, and this goroutine empties it
			s.ended <- ending{results: []spawn.Result{{ID: id, Started: now, Ended: now, Errno: unix.ENOEXEC, At: f.text + "\x00" + f.hint}}}
		}()
		return
	}
	if s.pins != nil {
		a.pin = s.pins.take(t.Cores)
		st.CPUs, st.Nodes = a.pin.cpus, a.pin.nodes
	}
	if s.suspects[t.Number] != nil {
		if err := s.startAlone(a, st); err != nil {
			s.release(id, a)
			s.p.Done(t.Number, 0)
			s.fail(err)
		}
		return
	}
	a.in = s.spawner
	s.batch = append(s.batch, st)
}

// limit makes the cgroup of a task.
func (s *tasks) limit(a *activeTask, id uint64, st *spawn.Task) (err error) {
	if s.groups == nil {
		return nil
	}
	a.group, err = s.groups.add(fmt.Sprintf("%d.%d", a.Number, a.Try), limits{memory: a.Memory, threads: a.Cores})
	if err != nil {
		return err
	}
	st.Join, st.Events = a.group.dirs, a.group.events()
	return nil
}

// release takes back what an active task held.
func (s *tasks) release(id uint64, a *activeTask) {
	delete(s.active, id)
	s.cores -= a.Cores
	s.memory -= a.Memory
	if a.heavy {
		s.heavy--
	}
	if a.pin != nil {
		s.pins.give(a.pin)
	}
}

// finish makes the record of a try. It returns nil if the try has no record.
func (s *tasks) finish(ctx context.Context, r *spawn.Result) *record.Task {
	a := s.active[r.ID]
	if a == nil {
		return nil
	}
	if a.group != nil {
		if err := a.group.remove(); err != nil {
			s.progress.note("a cgroup is left: %v", err)
		}
	}
	s.release(r.ID, a)
	if a.in != nil && a.in.alone != nil {
		s.leave(a, !r.Dropped)
	}
	if r.Dropped {
		s.p.Done(a.Number, 0)
		return nil
	}
	s.deaths = 0
	took := r.Ended.Sub(r.Started).Seconds()
	if s.known {
		s.mean += (took - s.mean) / 16
	} else {
		s.mean, s.known = took, true
	}
	rec := s.record(ctx, a, r)
	s.user += rec.User
	s.system += rec.System
	return rec
}

// record makes the record of a try from its result.
func (s *tasks) record(ctx context.Context, a *activeTask, r *spawn.Result) *record.Task {
	name, _, _ := s.q.Logs(s.o.Worker, r.Slot)
	rec := &record.Task{
		Task: a.Number, Sample: strings.ToValidUTF8(a.Name, "?"), Try: a.Try, Slot: r.Slot, Start: "cold", Group: a.Group,
		Queued: a.Queued, Started: r.Started, Ended: r.Ended, Wait: max(0, r.Started.Sub(a.Queued).Seconds()), Seconds: r.Ended.Sub(r.Started).Seconds(),
		User: r.User.Seconds(), System: r.System.Seconds(), MaxRSS: r.MaxRSS, ReadBytes: r.Read, WriteBytes: r.Written,
		Exit: -1, Cores: a.Cores, Memory: a.Memory, Log: name,
		StdoutOffset: r.Out.Offset, StdoutLength: r.Out.Length, StderrOffset: r.Err.Offset, StderrLength: r.Err.Length,
	}
	if r.Errno == 0 {
		if r.Status.Exited() {
			rec.Exit = r.Status.ExitStatus()
		} else {
			rec.Signal = int(r.Status.Signal())
		}
	}
	if f := s.verdict(ctx, a, r); f != nil {
		rec.Cause, rec.Error, rec.Hint = f.cause, limit(strings.ToValidUTF8(f.text, "?")), f.hint
	}
	if r.Full {
		s.cutShort(rec)
	}
	return rec
}

// verdict returns nil if a try succeeded.
func (s *tasks) verdict(ctx context.Context, a *activeTask, r *spawn.Result) *failure {
	if r.Errno != 0 {
		text, hint, own := strings.Cut(r.At, "\x00")
		if own {
			return &failure{record.CauseStart, text, hint}
		}
		f := &failure{cause: record.CauseStart, text: fmt.Sprintf("the command cannot %s: %v", r.At, r.Errno)}
		if errors.Is(r.Errno, fs.ErrNotExist) && len(a.Argv) > 0 {
			f.hint = fmt.Sprintf("install %s, or put its directory on PATH", a.Argv[0])
		}
		return f
	}
	if r.Status.Exited() && r.Status.ExitStatus() == 0 && !r.Refused {
		return nil
	}
	switch {
	case r.Signaled && ctx.Err() != nil:
		return &failure{cause: record.CauseInterrupted, text: "interrupted"}
	case r.Signaled:
		return &failure{cause: record.CauseInterrupted, text: "ended because it was cancelled"}
	case r.TimedOut:
		return &failure{record.CauseTimeout, fmt.Sprintf("ended at its timeout of %v", a.Timeout), "submit it with a longer --timeout"}
	case r.Refused:
		// One that ended well may have done without it, and only a part of its work.
		return &failure{record.CauseProcesses, fmt.Sprintf("it was refused a process or thread: a task may have %d", s.processes()), "have it start fewer; premix task run --keep-daemons sets no limit"}
	case r.OOMKills > 0:
		return &failure{record.CauseMemory, fmt.Sprintf("killed at its memory limit of %s", units.Size(a.Memory)), "submit it with more --task-memory, or with --retries, which give it more each time"}
	case r.Status.Exited():
		f := &failure{cause: record.CauseExit, text: fmt.Sprintf("the command ended with status %d", r.Status.ExitStatus())}
		switch {
		case r.Status.ExitStatus() == 127 && strings.HasSuffix(a.Command, "\r"):
			f.hint = "its line ends with a carriage return, as files from Windows have it: convert the file with dos2unix and submit it to another directory"
		case r.Status.ExitStatus() == 127:
			f.hint = "the shell did not find a program: install it, or put its directory on PATH"
		}
		return f
	}
	f := statusFailure("the command", -1, syscall.Signal(r.Status.Signal()))
	if f.hint != "" && r.Status.Signal() == unix.SIGKILL {
		f.hint = "premix did not send it: perhaps the machine ran out of memory; submit with --task-memory so that fewer tasks run at a time"
	} else {
		f.hint = ""
	}
	return f
}

// settle makes records durable.
func (s *tasks) settle(records []*record.Task) error {
	if _, err := s.fenced(); err != nil {
		return err
	}
	if full(s.q.Dir) {
		for _, rec := range records {
			s.cutShort(rec)
		}
	}
	return s.q.Settle(records)
}

// cutShort changes a record to the cause of a full disk. Many programs do not check
// the result of write(2); others fail because of it.
func (s *tasks) cutShort(rec *record.Task) {
	if rec.OK() || rec.Cause == record.CauseExit {
		rec.Cause, rec.Error, rec.Hint = record.CauseDisk, "the disk is full, so its output may be cut short", "make room, then premix task run --out "+s.q.Dir
	}
}

// full reports whether the disk has no room for this user.
func full(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && spawn.Full(&st)
}

// settledOne counts a try whose record is durable, or could not be made so.
func (s *tasks) settledOne(rec *record.Task, err error) {
	s.p.Done(rec.Task, rec.Seconds)
	switch {
	case err != nil:
		s.fail(err)
		return
	case rec.OK():
		s.over++
		return
	case rec.Cause == record.CauseInterrupted:
		return
	case rec.Cause == record.CauseDisk:
		s.fail(errors.New("the disk of " + s.q.Dir + " is full"))
		return
	}
	if s.q.State(rec.Task) == queue.Waiting {
		s.progress.note("task %d, try %d: %s; trying again", rec.Task, rec.Try, rec.Error)
		return
	}
	s.over++
	s.failed++
	if len(s.failures) < maxFailures {
		s.failures = append(s.failures, TaskFailure{Task: rec.Task, Name: rec.Sample, Error: rec.Error, Hint: rec.Hint})
	}
}

// line returns the progress line.
func (s *tasks) line(now time.Time) string {
	count := s.counts()
	all := count[0] + count[1] + count[2] + count[3]
	var b strings.Builder
	fmt.Fprintf(&b, "%d/%d done, %d running", count[queue.Succeeded], all, min(len(s.active), s.slots))
	if count[queue.Failed] > 0 {
		fmt.Fprintf(&b, ", %d failed", count[queue.Failed])
	}
	if elapsed := now.Sub(s.begun); s.over > 0 && elapsed > 0 {
		rate := float64(s.over) / elapsed.Seconds()
		left := time.Duration(float64(count[queue.Waiting]) / rate * float64(time.Second))
		fmt.Fprintf(&b, " · %s · %s left", rateText(rate), durationText(left))
	}
	return b.String()
}

// Write writes the summary for people.
func (sum *TaskSummary) Write(w io.Writer) error {
	var b strings.Builder
	if sum.Before == sum.Tasks {
		fmt.Fprintf(&b, "nothing to do, all %d tasks are done\n", sum.Tasks)
		_, err := io.WriteString(w, b.String())
		return err
	}
	fmt.Fprintf(&b, "%d of %d tasks succeeded in %s", sum.Before+sum.Succeeded, sum.Tasks, secondsText(sum.Seconds))
	if sum.Before > 0 {
		fmt.Fprintf(&b, " (%d were done before)", sum.Before)
	}
	for _, c := range []struct {
		n    int
		text string
	}{{sum.Failed, "failed"}, {sum.Cancelled, "cancelled"}, {sum.NotRun, "not run"}} {
		if c.n > 0 {
			fmt.Fprintf(&b, ", %d %s", c.n, c.text)
		}
	}
	if n := sum.Succeeded + sum.Failed; sum.Seconds > 0 && n > 0 {
		fmt.Fprintf(&b, "; %s", rateText(float64(n)/sum.Seconds))
	}
	b.WriteByte('\n')
	for _, f := range sum.Failures {
		name := f.Name
		if name != "" {
			name = " (" + name + ")"
		}
		fmt.Fprintf(&b, "failed: task %d%s: %s\n", f.Task, name, f.Error)
		if f.Hint != "" {
			fmt.Fprintf(&b, "  hint: %s\n", f.Hint)
		}
	}
	if more := sum.Failed - len(sum.Failures); more > 0 {
		fmt.Fprintf(&b, "and %d more: `premix task ls %s --failed` lists them all\n", more, sum.Dir)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
