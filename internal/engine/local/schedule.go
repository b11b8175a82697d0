package local

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"premix/internal/engine"
	"premix/internal/engine/queue"
	"premix/internal/hotstart"
	"premix/internal/recipe"
	"premix/internal/record"
)

// maxFinishing is how many tries may be between their tool's end and their
// record. More would only grow the work directories of a slow disk.
const maxFinishing = 64

// maxFailures is the number of failures that a summary shows in full.
const maxFailures = 10

// schedule is the state of one invocation. Everything but the tries themselves
// happens in the goroutine that calls work.
type schedule struct {
	run      *queue.Run
	o        Options
	timeout  time.Duration
	starter  *hotstart.Starter
	groups   *cgroups
	budget   int64                                     // of memory
	memory   int64                                     // held by running tries
	files    func(map[string]string) map[string]string // input names to fixed names
	env      []string                                  // of tool and pipe
	progress *progress

	total     int // tasks that were not done before this invocation
	before    int // tasks that were done before
	queue     []job
	begun     time.Time
	succeeded int
	failed    int
	cancelled int
	running   map[int]context.CancelCauseFunc // by number of the task: ends a try
	over      map[int]queue.State             // tasks that failed or were cancelled
	kinds     map[string]map[int]took         // by kind of start and task
	counted   map[int]string                  // kind of start of the tasks in kinds
	verifies  hotstart.Share
	sentinel  sentinel
	verified  int // tasks of this invocation
	// By the id of the snapshot.
	quarantined map[string]*Quarantine
	failures    []Failure
	broken      error  // why nothing more can be run
	stopped     bool   // no more tasks are started
	abort       func() // ends running tasks
	aborted     bool   // that was called, because this worker may not write any more
}

// job is a task that waits for a slot.
type job struct {
	task   *engine.Task
	try    int
	queued time.Time
	verify bool
}

// took is the figures of a task that succeeded, for the summary.
type took struct{ seconds, latency float64 }

// ran is the resources that a try returns when its tool has ended.
type ran struct {
	task   int
	slot   int
	memory int64
}

// outcome is the result of a try.
type outcome struct {
	job job
	rec *record.Task
	err error // the record could not be committed
}

func newSchedule(run *queue.Run, rec *recipe.Recipe, o Options, p *progress, budget int64) *schedule {
	s := &schedule{
		run: run, budget: budget, o: o, progress: p, files: rec.Files,
		env:     rec.Spec(run.Plan.Header.Threads, run.Plan.Header.Memory).Env,
		timeout: rec.Timeout, running: make(map[int]context.CancelCauseFunc), over: make(map[int]queue.State),
		kinds: make(map[string]map[int]took), counted: make(map[int]string),
		quarantined: make(map[string]*Quarantine),
		verifies:    rec.Verify,
		begun:       time.Now(),
	}
	if o.Verify != nil {
		s.verifies = *o.Verify
	}
	if o.Timeout > 0 {
		s.timeout = o.Timeout
	}
	for _, t := range run.Pending() {
		s.enqueue(t)
	}
	for _, n := range run.Cancelled() {
		s.over[n] = queue.Cancelled
		s.cancelled++
	}
	s.total = len(s.queue) + s.cancelled
	s.before = len(run.Plan.Tasks) - s.total
	return s
}

// enqueue has a task run that waits.
func (s *schedule) enqueue(t *engine.Task) {
	s.queue = append(s.queue, job{task: t, try: s.run.Tries(t.Task) + 1, queued: time.Now()})
}

// need returns the memory of the next try of a task; 0: it is not limited.
func (s *schedule) need(j job) int64 {
	return min(engine.Grown(s.run.Plan.Header.Memory, engine.Growth, s.run.Ooms(j.task.Task)), s.budget)
}

// work runs the queue in the given number of slots.
func (s *schedule) work(ctx context.Context, slots int) {
	s.begun = time.Now()
	for i := range s.queue {
		s.queue[i].queued = s.begun
	}
	free := make([]int, 0, slots)
	for i := range slots {
		free = append(free, slots-1-i)
	}
	var (
		ended     = make(chan ran)     // a tool has ended
		done      = make(chan outcome) // a try that is over
		finishing = 0
	)
	most := maxFinishing
	if s.o.FailFast {
		most = 1 // whether another task starts depends on how this one ended
	}
	orders := time.NewTicker(orderInterval)
	defer orders.Stop()
	tick := time.NewTicker(s.progress.interval())
	defer tick.Stop()
	fence := time.NewTicker(fenceInterval)
	defer fence.Stop()
	interrupt := ctx.Done()
	for {
		for !s.stopped && len(free) > 0 && len(s.queue) > 0 && finishing < most && s.memory+s.need(s.queue[0]) <= s.budget {
			j, slot := s.queue[0], free[len(free)-1]
			s.queue, free = s.queue[1:], free[:len(free)-1]
			if kind, _ := s.starter.Decision(); kind == hotstart.Hot {
				j.verify = s.sentinel.wants(len(s.queue) == 0)
			}
			need := s.need(j)
			s.memory += need
			tctx, end := context.WithCancelCause(ctx)
			s.running[j.task.Task] = end
			go func() { done <- s.try(ctx, tctx, j, slot, need, func() { ended <- ran{j.task.Task, slot, need} }) }()
		}
		if len(s.running)+finishing == 0 && (s.stopped || len(s.queue) == 0) {
			s.refresh() // a retry that was ordered before the end
			if s.overtaken(); s.stopped || len(s.queue) == 0 {
				return
			}
			continue
		}
		select {
		case r := <-ended:
			free = append(free, r.slot)
			s.memory -= r.memory
			s.running[r.task](nil)
			delete(s.running, r.task)
			finishing++
		case out := <-done:
			finishing--
			s.settle(out)
		case <-fence.C:
			s.heed()
		case <-orders.C:
			s.refresh()
		case <-interrupt:
			interrupt, s.stopped = nil, true
			s.progress.notice("ending %d running tasks (again to kill them)", len(s.running))
		case <-tick.C:
			s.progress.draw(s)
		}
	}
}

// fenced asks the fence.
func (s *schedule) fenced() (drain bool, err error) {
	if s.o.Fence == nil {
		return false, nil
	}
	if err = s.o.Fence(); errors.Is(err, ErrDrain) {
		return true, nil
	}
	return false, err
}

// heed stops the run if the fence or the time requires it.
func (s *schedule) heed() {
	drain, err := s.fenced()
	switch {
	case err != nil:
		if s.broken == nil {
			s.broken = &StoppedError{err: err}
		}
		s.stopped, s.aborted = true, true
		s.abort()
	case drain, !s.o.Until.IsZero() && time.Now().After(s.o.Until):
		s.stopped = true
	}
}

// errCancelled ends a try whose task was cancelled.
var errCancelled = errors.New("the task was cancelled")

// refresh applies new orders: cancelled tasks do not start, and end if they are running;
// tasks that failed or were cancelled run again where a retry was ordered.
func (s *schedule) refresh() {
	if s.stopped || !s.run.Changed() {
		return
	}
	if err := s.run.Refresh(); err != nil {
		s.stopped = true
		if s.broken == nil {
			s.broken = &StoppedError{err: err}
		}
		return
	}
	s.queue = slices.DeleteFunc(s.queue, func(j job) bool {
		gone := s.run.State(j.task.Task) == queue.Cancelled
		if gone {
			s.over[j.task.Task] = queue.Cancelled
			s.cancelled++
		}
		return gone
	})
	for task, end := range s.running {
		if s.run.State(task) == queue.Cancelled {
			end(errCancelled)
		}
	}
	for _, task := range slices.Sorted(maps.Keys(s.over)) {
		if s.run.State(task) != queue.Waiting {
			continue
		}
		if s.over[task] == queue.Cancelled {
			s.cancelled--
		} else {
			s.failed--
			s.failures = slices.DeleteFunc(s.failures, func(f Failure) bool { return f.Task == task })
		}
		delete(s.over, task)
		s.enqueue(&s.run.Plan.Tasks[task-1])
	}
}

// settle counts a try that is over, or puts its task back into the queue.
func (s *schedule) settle(out outcome) {
	rec := out.rec
	if out.err != nil {
		s.stopped = true
		if s.broken == nil {
			s.broken = &StoppedError{err: out.err}
		}
		if rec.OK() {
			rec.Cause, rec.Error = record.CauseInternal, fmt.Sprintf("the record could not be written: %v", out.err)
		}
	}
	s.run.Take(rec)
	s.sentinel.settle(rec, out.job.verify)
	if rec.Verified {
		s.verified++
	}
	if rec.Cause == record.CauseDiffers {
		out.job.try, out.job.verify = out.job.try+1, false
		out.job.queued = time.Now()
		s.queue = append(s.queue, out.job)
		s.quarantine(rec)
		return
	}
	if rec.OK() {
		s.succeeded++
		if s.kinds[rec.Start] == nil {
			s.kinds[rec.Start] = make(map[int]took)
		}
		s.kinds[rec.Start][rec.Task] = took{rec.Seconds, rec.Latency}
		s.counted[rec.Task] = rec.Start
		if q := s.quarantined[rec.Snapshot]; q != nil { // it had started before
			s.withdraw(rec.Snapshot, q.Difference)
		}
		return
	}
	state := s.run.State(rec.Task)
	if state == queue.Cancelled {
		s.over[rec.Task] = state
		s.cancelled++
		return
	}
	if !s.stopped && state == queue.Waiting && again(rec.Cause) {
		s.progress.notice("sample %s, try %d: %s; trying again", rec.Sample, rec.Try, rec.Error)
		out.job.try, out.job.verify = out.job.try+1, false
		out.job.queued = time.Now()
		s.queue = append(s.queue, out.job)
		return
	}
	if rec.Cause == record.CauseInterrupted {
		return
	}
	s.failed++
	s.over[rec.Task] = queue.Failed
	if len(s.failures) < maxFailures {
		// Report the failure also without its standard error.
		tail, _ := engine.Stderr(s.run.Dir, rec, engine.StderrLines)
		s.failures = append(s.failures, Failure{
			Task: rec.Task, Sample: rec.Sample, Try: rec.Try,
			Error: rec.Error, Hint: rec.Hint, Stderr: tail,
		})
	}
	switch {
	case s.stopped:
	case rec.Cause == record.CauseDisk:
		s.stopped = true
		s.progress.notice("the disk of %s is full: no more tasks are started", s.run.Dir)
	case s.o.FailFast:
		s.stopped = true
		s.progress.notice("sample %s failed: no more tasks are started", rec.Sample)
	}
}

// again reports whether another try may do better.
func again(cause string) bool {
	return !slices.Contains([]string{record.CauseInterrupted, record.CauseDisk, record.CauseInput}, cause)
}
