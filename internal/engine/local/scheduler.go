package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/engine/queue"
	"premix/internal/engine/spawn"
	"premix/internal/kit/exit"
	"premix/internal/kit/units"
	"premix/internal/record"
)

// TaskOptions are the settings for tasks without a recipe.
type TaskOptions struct {
	Queue     *queue.Queue
	Binary    string          // premix, to be executed as the spawner; "" for this one
	Worker    string          // "" for the local one
	Share     [][2]int        // tasks to run, as first and last numbers of ranges; nil: all
	Until     time.Time       // no more tasks are started then; zero: whenever
	Fence     func() error    // whether this worker may still write; nil: it may. See [ErrDrain]
	Jobs      int             // tasks at a time; 0: as many as the cores hold
	Cores     int             // that tasks take together; 0: the machine's, or Jobs if that is more
	Memory    int64           // budget in bytes; 0: the machine's
	Resources queue.Resources // that tasks hold besides cores and memory
	Grace     time.Duration
	FailFast  bool
	Pin       Pin
	// KeepDaemons lets processes live on that a task leaves behind outside of its process
	// group. Otherwise they end with it, where there are cgroups.
	KeepDaemons bool
	Kill        <-chan struct{} // as in Options
	processes   int             // that a task may have; 0: maxPids
	// While Stay is open, RunTasks waits for further submissions even when nothing is left to
	// do. nil: it returns as soon as nothing is left.
	Stay <-chan struct{}
	Wake <-chan struct{} // that something was ordered; it is looked for anyway, now and then

	Activity *Activity // nil: no caller follows the tasks
	Limits   *Limits   // nil: tasks keep the timeouts with which they were submitted

	Messages io.Writer
	Terminal bool
}

// Activity reports to the caller of RunTasks that tasks start and end. Orders of other
// processes are then looked for less often while no task runs: Wake has them looked for at once.
type Activity struct {
	moved  chan struct{}
	active atomic.Int64
}

// NewActivity returns an Activity.
func NewActivity() *Activity { return &Activity{moved: make(chan struct{}, 1)} }

// Moved returns the channel that receives a value after tasks have started or ended, or their
// ends became durable.
func (a *Activity) Moved() <-chan struct{} { return a.moved }

// Active returns how many tasks were given to the launcher and have not ended.
func (a *Activity) Active() int { return int(a.active.Load()) }

// set sets the number of active tasks.
func (a *Activity) set(active int) {
	if a == nil {
		return
	}
	a.active.Store(int64(active))
	select {
	case a.moved <- struct{}{}:
	default:
	}
}

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

// quietInterval is how often new orders are looked for with an [Activity] while no task runs.
const quietInterval = time.Second

// maxUnsettled is how many ended tries may wait for their records to be durable
// before no more tasks are started.
const maxUnsettled = 1 << 16

// scheduler is the state of one invocation. But for settling, everything happens in the
// goroutine that calls work. The launcher starts the tries.
type scheduler struct {
	o        TaskOptions
	ctx      context.Context // its end interrupts the run
	q        *queue.Queue
	p        *queue.Picker
	l        launcher
	recipe   string // of a run; "" for tasks without a recipe
	hints    hints
	progress *progress
	slots    int // tasks at a time
	capacity int // cores that tasks take together
	budget   int64
	pools    *pools
	seen     []hierarchy
	groups   *cgroups

	events    chan func() []*record.Task // of the launcher, which returns the records of tries that ended
	active    map[uint64]*activeTask
	cores     int   // held by active tasks
	memory    int64 // held by active tasks
	finishing int   // tries that hold nothing any more and have no record yet
	unsettled int
	started   time.Time
	finished  time.Time // zero: no task was run
	user      float64
	system    float64
	before    [4]int
	over      int            // tasks that ended for good in this invocation
	failures  []*record.Task // the first
	stopped   bool
	broken    error
}

// hints are the hints of the errors that end an invocation; where one is empty, the error has its
// own.
type hints struct{ failed, stopped, interrupted string }

// activeTask is a task that a launcher has started, and its resources.
type activeTask struct {
	*queue.Task
	group *group
	held  map[string][]string // ids of resources

	// Of spawners.
	in      *runner
	heavy   bool
	pin     *pinned
	allowed time.Duration // time of the try; 0: any
}

// settling are records on their way to the disk.
type settling struct {
	records []*record.Task
	err     error
}

// RunTasks runs the waiting tasks of a task directory, and tasks submitted in the
// meantime, and returns when nothing is left that can start. It returns the same errors as
// Run. The summary is nil if nothing could be run at all.
func RunTasks(ctx context.Context, o TaskOptions) (_ *Summary, err error) {
	if o.Worker == "" {
		o.Worker = queue.LocalWorker
	}
	dir := o.Queue.Dir
	s := newScheduler(o, newProgress(o.Messages, o.Terminal), thisHierarchies())
	s.hints = hints{
		failed:      fmt.Sprintf("premix task why %s TASK says why; premix task retry %[1]s --failed and premix task run --out %[1]s run them again", dir),
		stopped:     "fix the cause; premix task run --out " + dir + " continues",
		interrupted: "premix task run --out " + dir + " goes on",
	}
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
	if s.pools, err = newPools(o.Resources); err != nil {
		return nil, err
	}
	l := &spawners{scheduler: s, runners: make(map[*runner]bool), suspects: make(map[int]*suspect)}
	if l.pins, err = newPins(o.Pin); err != nil {
		return nil, err
	}
	if err := s.q.Work(o.Worker); err != nil {
		return nil, err
	}
	sum, err := s.run(ctx, l)
	if o.Share == nil && sum != nil { // otherwise others are at work
		if _, err := s.q.Prune(false, false); err != nil {
			s.progress.note("intermediates are left: %v", err)
		}
	}
	return sum, err
}

func newScheduler(o TaskOptions, p *progress, seen []hierarchy) *scheduler {
	if o.Grace == 0 {
		o.Grace = Grace
	}
	return &scheduler{o: o, q: o.Queue, recipe: o.Queue.Recipe(), progress: p, seen: seen, pools: &pools{}, active: make(map[uint64]*activeTask),
		events: make(chan func() []*record.Task, 64), started: time.Now()}
}

// run runs the waiting tasks.
func (s *scheduler) run(ctx context.Context, l launcher) (*Summary, error) {
	s.ctx, s.l = ctx, l
	drained, err := s.fenced()
	if err != nil {
		return nil, err
	}
	if err := l.recover(); err != nil {
		return nil, err
	}
	s.stopped = drained
	s.before = s.counts()
	if (s.before[queue.Waiting] > 0 || s.o.Stay != nil) && !s.stopped {
		err := l.open()
		opened := err == nil
		if opened {
			s.p = s.q.Picker(s.o.Share)
			s.p.Passes = func(t *queue.Task) bool { return !s.pools.has(t) }
			s.started = time.Now()
			s.work()
			s.finished = time.Now()
			err = l.close()
		}
		if cerr := s.groups.close(); cerr != nil {
			s.progress.note("a cgroup is left: %v", cerr)
		}
		if !opened {
			return nil, s.interrupted(err)
		}
		if err != nil && s.broken == nil {
			s.broken = err
		}
	}
	s.progress.clear()
	sum := s.summary()
	switch err := s.interrupted(s.broken); {
	case err != nil:
		return sum, err
	case sum.Failed+sum.NotRun > 0:
		return sum, &FailedError{Failed: sum.Failed, NotRun: sum.NotRun, Tasks: sum.Tasks, HintText: s.hints.failed}
	}
	return sum, nil
}

// limits makes the cgroups of this invocation.
func (s *scheduler) limits() {
	var lacks []string
	s.groups, lacks = newCgroups(s.seen, max(s.capacity, cores(s.seen)))
	for _, l := range lacks {
		s.progress.note("no limit on %s", l)
	}
}

// interrupted returns err, or the cause with which ctx was cancelled.
func (s *scheduler) interrupted(err error) error {
	var i *Interrupted
	if s.ctx.Err() != nil && errors.As(context.Cause(s.ctx), &i) {
		return &Interrupted{Signal: i.Signal, Dir: s.q.Dir, HintText: s.hints.interrupted}
	}
	return err
}

// counts returns how many tasks, of the share if the worker has one, are in each state.
func (s *scheduler) counts() [4]int {
	if s.o.Share == nil {
		return s.q.Counts()
	}
	return s.q.CountsOf(s.o.Share)
}

// fenced asks the fence.
func (s *scheduler) fenced() (drain bool, err error) {
	if s.o.Fence == nil {
		return false, nil
	}
	if err = s.o.Fence(); errors.Is(err, ErrDrain) {
		return true, nil
	}
	return false, err
}

// checkFence stops the worker if the fence or the time requires it.
func (s *scheduler) checkFence() {
	if s.stopped {
		return
	}
	drain, err := s.fenced()
	switch {
	case err != nil:
		s.fail(err)
		s.l.signal(unix.SIGKILL)
	case drain, !s.o.Until.IsZero() && time.Now().After(s.o.Until):
		s.stop()
	}
}

// work runs tasks until nothing is left that can start.
func (s *scheduler) work() {
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
		interrupt = s.ctx.Done()
		stay      = s.o.Stay
		kill      <-chan struct{}
		grace     <-chan time.Time
		slow      bool // new orders are looked for less often
	)
	defer orders.Stop()
	defer fence.Stop()
	defer tick.Stop()
	for {
		if !s.stopped {
			s.fill()
		}
		if len(s.active)+s.finishing+s.unsettled == 0 && (s.stopped || stay == nil) {
			if s.latest(); len(s.active) == 0 {
				return
			}
		}
		if quiet := s.o.Activity != nil && len(s.active)+s.finishing+s.unsettled == 0; quiet != slow {
			slow = quiet
			orders.Reset(intervalOf(slow))
		}
		var hand chan<- []*record.Task
		if len(waiting) > 0 && (len(s.active)+s.finishing == 0 || s.stopped || time.Since(last) >= company) {
			hand = toSettle
		}
		select {
		case event := <-s.events:
			sure, unsure := s.sortEnded(event())
			waiting, doubtful = append(waiting, sure...), append(doubtful, unsure...)
		case hand <- waiting:
			waiting, last = nil, time.Now()
		case done := <-settled:
			s.unsettled -= len(done.records)
			company = min(settleLate, max(settleSoon, settleShare*time.Since(last)))
			for _, rec := range done.records {
				s.settledOne(rec, done.err)
			}
			s.o.Activity.set(len(s.active))
		case <-orders.C:
			s.refreshOrders()
			for len(doubtful) > 0 && time.Since(doubtful[0].Finished) > doubtTime {
				waiting, doubtful = append(waiting, doubtful[0]), doubtful[1:]
			}
		case <-fence.C:
			s.checkFence()
		case <-s.o.Limits.wake():
			s.l.setTimeouts()
		case <-s.o.Wake:
			s.refreshOrders()
		case <-stay:
			stay = nil
			s.refreshOrders() // orders that came before it was closed
		case <-tick.C:
			s.progress.draw(s)
		case <-interrupt:
			interrupt, kill = nil, s.o.Kill
			for _, rec := range doubtful {
				finishedWithJob(rec)
			}
			waiting, doubtful = append(waiting, doubtful...), nil
			s.progress.notice("ending %d running tasks (again to kill them)", min(len(s.active), s.slots))
			s.stop()
			s.l.signal(unix.SIGTERM)
			t := time.NewTimer(s.o.Grace)
			defer t.Stop()
			grace = t.C
		case <-grace:
			s.l.signal(unix.SIGKILL)
		case <-kill:
			kill = nil
			s.l.signal(unix.SIGKILL)
		}
	}
}

// latest applies the latest orders, when nothing is on its way and nothing else can start.
func (s *scheduler) latest() {
	s.refreshOrders()
	s.l.idle()
	if !s.stopped {
		s.fill()
	}
}

// ended counts a try that has ended. doubtful reports whether its failure may be that of the
// engine job, which then ends soon.
func (s *scheduler) ended(rec *record.Task) (doubtful bool) {
	s.user += rec.User
	s.system += rec.System
	if s.o.FailFast && !rec.OK() && s.q.Fails(rec) && !s.stopped {
		s.progress.notice("%s failed: no more tasks are started", s.name(rec))
		s.stop()
	}
	s.unsettled++
	if s.o.Share == nil || rec.OK() || rec.Cause == record.CauseDiffers {
		return false
	}
	if s.ctx.Err() == nil {
		return true
	}
	finishedWithJob(rec)
	return false
}

// finishedWithJob turns a failure into an interruption: the engine that ends an engine job has
// signalled the task before premix, or before premix got the result of the task.
func finishedWithJob(rec *record.Task) *record.Task {
	rec.Cause, rec.Error, rec.Hint = record.CauseInterrupted, "ended with its engine job", ""
	return rec
}

// sortEnded returns the records of tries that have ended, apart from those of which a failure is
// doubtful.
func (s *scheduler) sortEnded(records []*record.Task) (sure, doubtful []*record.Task) {
	for _, rec := range records {
		if s.ended(rec) {
			doubtful = append(doubtful, rec)
		} else {
			sure = append(sure, rec)
		}
	}
	return sure, doubtful
}

// intervalOf returns how often new orders are looked for.
func intervalOf(slow bool) time.Duration {
	if slow {
		return quietInterval
	}
	return orderInterval
}

// stop starts no more tasks, and has those given back that have not begun.
func (s *scheduler) stop() {
	s.stopped = true
	s.l.drop()
}

// refreshOrders applies new orders.
func (s *scheduler) refreshOrders() {
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
	for _, a := range s.active {
		if cancelled[a.Number] {
			s.l.cancel(a)
		}
	}
}

// fail stops the run for good.
func (s *scheduler) fail(err error) {
	if s.broken == nil {
		s.broken = exit.Errorf(exit.Failed, cmp.Or(s.hints.stopped, "free space or fix the disk, then run the same command again"), "the run was stopped: %w", err)
	}
	s.stop()
}

// fill starts the tasks that can start now.
func (s *scheduler) fill() {
	for s.unsettled < maxUnsettled && s.finishing < maxFinishing {
		if s.o.FailFast && s.finishing > 0 {
			break // whether another task starts depends on how this one ends
		}
		t, err := s.p.Next(s.fits)
		if err != nil {
			s.fail(err)
			break
		}
		if t == nil {
			break
		}
		s.start(t)
	}
	s.l.hand()
}

// start starts a try of a task.
func (s *scheduler) start(t *queue.Task) {
	a := &activeTask{Task: t}
	s.active[t.ID()] = a
	s.o.Activity.set(len(s.active))
	s.cores += t.Cores
	s.memory += t.Memory
	f := s.tooLarge(t)
	if f == nil {
		a.held = s.pools.take(t)
	}
	if f == nil && (t.Memory > 0 || s.recipe != "") {
		var err error
		if a.group, err = s.groups.add(fmt.Sprintf("%d.%d", t.Number, t.Try), limits{memory: t.Memory, threads: t.Cores}); err != nil {
			f = &failure{cause: record.CauseStart, text: err.Error()}
		}
	}
	if f == nil {
		s.l.start(a)
		return
	}
	now := time.Now()
	rec := s.record(a, now, now)
	f.fill(rec)
	go func() { // the channel may be full, and this goroutine empties it
		s.events <- func() []*record.Task {
			s.release(a)
			return []*record.Task{rec}
		}
	}()
}

// release takes back the resources of an active task.
func (s *scheduler) release(a *activeTask) {
	if a.group != nil {
		if err := a.group.remove(); err != nil {
			s.progress.note("a cgroup is left: %v", err)
		}
	}
	delete(s.active, a.ID())
	s.o.Activity.set(len(s.active))
	s.cores -= a.Cores
	s.memory -= a.Memory
	s.pools.release(a.held)
}

// record begins the record of a try.
func (s *scheduler) record(a *activeTask, started, finished time.Time) *record.Task {
	return &record.Task{
		Task: a.Number, Sample: strings.ToValidUTF8(a.Name, "?"), Try: a.Try, Start: "cold", Group: a.Group,
		Queued: a.Queued, Started: started, Finished: finished, Wait: max(0, started.Sub(a.Queued).Seconds()), Seconds: finished.Sub(started).Seconds(),
		Exit: -1, Cores: a.Cores, Memory: a.Memory,
	}
}

// fits reports whether a task can start now.
func (s *scheduler) fits(t *queue.Task) bool {
	if t.Ooms > 0 && t.Memory > s.budget {
		t.Memory = s.budget
	}
	if s.tooLarge(t) != nil {
		return true // to fail
	}
	if n := s.l.ahead(t); n > 0 {
		return len(s.active) < s.slots+n
	}
	return len(s.active) < s.slots && s.cores+t.Cores <= s.capacity && s.memory+t.Memory <= s.budget && s.pools.has(t)
}

// tooLarge returns the reason why a task can never start here, or nil.
func (s *scheduler) tooLarge(t *queue.Task) *failure {
	switch {
	case t.Cores > s.capacity:
		return &failure{record.CauseStart, fmt.Sprintf("the task needs %d cores and there are %d", t.Cores, s.capacity), "ask for fewer cores, or give more with --cores"}
	case t.Memory > s.budget:
		return &failure{record.CauseStart, fmt.Sprintf("the task needs %s of memory and there are %s", units.Size(t.Memory), units.Size(s.budget)), "ask for less memory, or give more with --memory"}
	}
	return s.pools.lacks(t)
}

// settle makes records durable.
func (s *scheduler) settle(records []*record.Task) error {
	if _, err := s.fenced(); err != nil {
		return err
	}
	if s.recipe == "" && full(s.q.Dir) {
		for _, rec := range records {
			s.cutShort(rec)
		}
	}
	return s.q.Settle(records)
}

// cutShort changes a record to the cause of a full disk. Many programs do not check
// the result of write(2); others fail because of it.
func (s *scheduler) cutShort(rec *record.Task) {
	if rec.OK() || rec.Cause == record.CauseExit {
		rec.Cause, rec.Error, rec.Hint = record.CauseDisk, "the disk is full, so its output may be cut short", "make room, then premix task run --out "+s.q.Dir
	}
}

// full reports whether the disk has no room for this user.
func full(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && spawn.IsFull(&st)
}

// name returns the name of a task for messages.
func (s *scheduler) name(rec *record.Task) string {
	if s.recipe != "" {
		return "sample " + rec.Sample
	}
	return fmt.Sprintf("task %d", rec.Task)
}

// settledOne counts a try whose record is durable, or could not be made so.
func (s *scheduler) settledOne(rec *record.Task, err error) {
	s.p.Done(rec.Task, rec.Seconds)
	if err != nil {
		s.fail(err)
		return
	}
	s.l.settled(rec)
	state := s.q.State(rec.Task)
	switch {
	case rec.OK():
		s.over++
		return
	case rec.Cause == record.CauseInterrupted, rec.Cause == record.CauseDiffers, state == queue.Cancelled:
		return
	case rec.Cause == record.CauseDisk:
		s.failed(rec)
		s.fail(exit.Errorf(exit.Failed, "make room, then run the same command", "the disk of %s is full: no more tasks are started", s.q.Dir))
		return
	case state == queue.Waiting:
		if !s.stopped {
			s.progress.notice("%s, try %d: %s; trying again", s.name(rec), rec.Try, rec.Error)
		}
		return
	}
	s.over++
	s.failed(rec)
}

// failed keeps a failure for the summary.
func (s *scheduler) failed(rec *record.Task) {
	s.failures = slices.DeleteFunc(s.failures, func(r *record.Task) bool { return s.q.State(r.Task) == queue.Succeeded || r.Task == rec.Task })
	if len(s.failures) < maxFailures {
		s.failures = append(s.failures, rec)
	}
}

// line returns the progress line.
func (s *scheduler) line(now time.Time) string {
	count := s.counts()
	all := count[0] + count[1] + count[2] + count[3]
	var b strings.Builder
	fmt.Fprintf(&b, "%d/%d done, %d running", count[queue.Succeeded], all, min(len(s.active), s.slots))
	if count[queue.Failed] > 0 {
		fmt.Fprintf(&b, ", %d failed", count[queue.Failed])
	}
	b.WriteString(s.l.line())
	if elapsed := now.Sub(s.started); s.over > 0 && elapsed > 0 {
		rate := float64(s.over) / elapsed.Seconds()
		left := time.Duration(float64(count[queue.Waiting]) / rate * float64(time.Second))
		fmt.Fprintf(&b, " · %s · %s left", rateText(rate), durationText(left))
	}
	return b.String()
}
