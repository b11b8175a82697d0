package local

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"premix/engine"
	"premix/hotstart"
	"premix/recipe"
	"premix/record"
)

// maxFinishing is how many tries may be between their tool's end and their
// record. More would only grow the work directories of a slow disk.
const maxFinishing = 64

// maxFailures is how many failures a summary tells in full.
const maxFailures = 10

// schedule is the state of one invocation. Everything but the tries themselves
// happens in the goroutine that calls work.
type schedule struct {
	run      *engine.Run
	o        Options
	timeout  time.Duration
	retries  int
	starter  *hotstart.Starter
	groups   *cgroups
	budget   int64                                     // of memory
	memory   int64                                     // held by running tries
	files    func(map[string]string) map[string]string // input names to fixed names
	env      []string                                  // of tool and pipe
	progress *progress

	total     int // tasks to run in this invocation
	before    int // tasks that were done before
	queue     []job
	begun     time.Time
	succeeded int
	failed    int
	running   int
	kinds     map[string]map[int]took // by kind of start and task
	counted   map[int]string          // kind of start of the tasks in kinds
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
	last   int // number of the last try that it may have
	queued time.Time
	verify bool
}

// took is what the summary has of a task that succeeded.
type took struct{ seconds, latency float64 }

// ran is what a try gives back when its tool has ended.
type ran struct {
	slot   int
	memory int64
}

// outcome is what becomes of a try.
type outcome struct {
	job job
	rec *record.Task
	err error // the record could not be committed
}

func newSchedule(run *engine.Run, rec *recipe.Recipe, o Options, p *progress, budget int64) *schedule {
	s := &schedule{
		run: run, budget: budget, o: o, progress: p, files: rec.Files,
		env:     rec.Spec(run.Plan.Header.Threads, run.Plan.Header.Memory).Env,
		timeout: rec.Timeout, retries: rec.Retries,
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
	if o.Retries >= 0 {
		s.retries = o.Retries
	}
	for _, t := range run.Pending() {
		tries := run.Tries(t.Task)
		s.queue = append(s.queue, job{task: t, try: tries + 1, last: tries + 1 + s.retries})
	}
	s.total = len(s.queue)
	s.before = len(run.Plan.Tasks) - s.total
	return s
}

// need is the memory of the next try of a task; 0: it is not limited.
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
			s.running++
			need := s.need(j)
			s.memory += need
			go func() { done <- s.try(ctx, j, slot, need, func() { ended <- ran{slot, need} }) }()
		}
		if s.running+finishing == 0 && (s.stopped || len(s.queue) == 0) {
			if s.overtaken(); s.stopped || len(s.queue) == 0 {
				return
			}
			continue
		}
		select {
		case r := <-ended:
			free = append(free, r.slot)
			s.memory -= r.memory
			s.running--
			finishing++
		case out := <-done:
			finishing--
			s.settle(out)
		case <-fence.C:
			s.heed()
		case <-interrupt:
			interrupt, s.stopped = nil, true
			s.progress.notice("ending %d running tasks (again to kill them)", s.running)
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

// heed does what the fence and the time say.
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
		out.job.try, out.job.last, out.job.verify = out.job.try+1, out.job.last+1, false
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
	if !s.stopped && out.job.try < out.job.last && again(rec.Cause) {
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
	if len(s.failures) < maxFailures {
		// Its absence from the log is no reason to hide the failure itself.
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

// Again tells whether another try may do better after a failure with this cause.
func Again(cause string) bool { return again(cause) }

// again tells whether another try may do better.
func again(cause string) bool {
	return !slices.Contains([]string{record.CauseInterrupted, record.CauseDisk, record.CauseInput}, cause)
}
