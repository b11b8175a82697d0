package pilot

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"premix/internal/engine/local"
	"premix/internal/engine/queue"
	"premix/internal/kit/exit"
	"premix/internal/record"
)

// Options are the settings with which a directory is packed.
type Options struct {
	Version  string
	Jobs     int           // engine jobs in flight, at most; 0: [DefaultJobs]
	Target   time.Duration // of an engine job; 0: [DefaultTarget]
	Cores    int           // of an engine job, at least; 0: 1
	Memory   int64         // of an engine job; 0: what its tasks declare
	Settings Settings      // without Target
	Detach   bool          // submit the tasks that can start now, and do not wait
	// While Stay is open, the dispatcher waits for further submissions even when nothing is
	// left to do. nil: it returns as soon as nothing is left.
	Stay <-chan struct{}
	Wake <-chan struct{} // that something was ordered; it is looked for anyway, now and then
	// Answer is how long the engine may take to answer at the start, without Stay and as
	// long as no job is known to be with it; 0: [DefaultAnswer]. After that it ends with
	// an error.
	Answer time.Duration
	// Gather is how long tasks that come one by one wait for company before they are
	// given away, at least; never longer than four times that.
	Gather   time.Duration
	InFlight *InFlight // receives the tasks in flight; nil: they are not published
	Kill     <-chan struct{}
	Messages *local.Messages
}

// Defaults of Options.
const (
	DefaultJobs   = 32
	DefaultTarget = 5 * time.Minute
)

// How often a dispatcher looks: soon again while something happens, and less and less
// while nothing does.
const (
	shortTick = 50 * time.Millisecond
	longTick  = 2 * time.Second
	stayTick  = 300 * time.Millisecond // at most, where others ask how far it is and tasks are given away
	restTick  = time.Second            // the same without such tasks: for orders of other processes
)

// How long an engine that does not answer is left alone.
const (
	shortBackOff = 500 * time.Millisecond
	longBackOff  = time.Minute
)

const (
	maxRefusals = 3 // one after another, with nothing in flight, end the run
	maxLost     = 5 // engine jobs one after another in which premix never began
	// The limit for engine jobs that were lost through no fault of their own, and the pause
	// after each.
	maxForgotten   = 10 * DefaultJobs
	forgottenPause = 200 * time.Millisecond
)

// dispatcher is the state of one invocation. All happens in one goroutine.
type dispatcher struct {
	o       Options
	d       Directory
	eng     Engine
	l       *ledger
	msg     *local.Messages
	started time.Time

	holder      map[int]int  // worker of a task that was given away
	fruits      map[int]bool // workers in whose share a task has ended
	times       *times
	strikes     map[int]strike
	status      map[string]Status
	cancelled   map[int]bool // workers whose jobs were cancelled here
	stuck       map[int]doom // of workers whose jobs would never have started
	stopping    bool         // nothing more is given away
	interrupted bool         // running tasks are ended, too
	broken      error
	refusals    int
	refused     time.Time // nothing is submitted before
	lost        int
	answered    bool          // the engine has
	sought      time.Time     // when reach first asked it; zero before
	silent      time.Time     // the engine is not asked before
	backOff     time.Duration // for which it was left alone last
	moved       bool          // something has changed in this round
	seen        int           // tasks of the directory when it was looked last
	came, first time.Time     // of the tasks that are being gathered: the last one, the first one
}

// Dispatch runs the waiting tasks of a directory through an engine, and returns when nothing
// is left that can start and no worker is open. It takes over the engine jobs of an earlier
// dispatcher. If ctx is cancelled with a *local.Interrupted, the jobs are
// cancelled and that error is returned when they have ended, or at once when Kill is
// closed or no job is with the engine.
func Dispatch(ctx context.Context, d Directory, eng Engine, o Options) (err error) {
	if o.Jobs == 0 {
		o.Jobs = DefaultJobs
	}
	if o.Target == 0 {
		o.Target = DefaultTarget
	}
	if o.Answer == 0 {
		o.Answer = DefaultAnswer
	}
	if o.Cores == 0 {
		o.Cores = 1
	}
	if o.Messages == nil {
		o.Messages = local.NewMessages(nil, false)
	}
	o.Settings.Target = o.Target.Seconds()
	s := &dispatcher{o: o, d: d, eng: eng, msg: o.Messages, started: time.Now(),
		l:      &ledger{path: ledgerPath(d.Path()), version: o.Version},
		holder: make(map[int]int), fruits: make(map[int]bool), times: newTimes(),
		strikes: make(map[int]strike), status: make(map[string]Status), cancelled: make(map[int]bool), stuck: make(map[int]doom)}
	defer func() { err = errors.Join(err, s.l.close()) }()
	if err := s.l.read(); err != nil {
		return err
	}
	if err := s.takeOver(); err != nil {
		return err
	}
	defer s.msg.Clear()
	if err := s.run(ctx); err != nil {
		return err
	}
	if err := d.Close(); err != nil {
		s.msg.Note("closing the directory: %v", err)
	}
	var i *local.Interrupted
	switch {
	case ctx.Err() != nil && errors.As(context.Cause(ctx), &i):
		return &local.Interrupted{Signal: i.Signal, Dir: d.Path(), HintText: "the same command continues"}
	case s.broken != nil:
		return s.broken
	case o.Detach:
		return nil
	}
	return d.Result()
}

// takeOver takes over the shares that an earlier dispatcher has given away.
func (s *dispatcher) takeOver() error {
	open := s.l.open()
	running := 0
	for _, h := range open {
		if w := s.l.wave(h.wave); w.Engine != s.eng.Name() {
			return busy(s.d.Path(), w.Engine, len(open))
		}
		for _, r := range h.Ranges {
			for t := r[0]; t <= r[1]; t++ {
				s.holder[t] = h.Worker
			}
		}
		if h.job != "" {
			running++
		}
	}
	if running > 0 {
		s.msg.Notice("continuing with %d jobs of %s that were submitted before", running, s.eng.Name())
	}
	return nil
}

// busy is the error for a directory whose tasks were given to jobs of an engine.
func busy(dir, engine string, jobs int) error {
	return exit.Errorf(exit.Directory, "go on with --engine "+engine+", and end that with Ctrl-C to have the jobs cancelled",
		"tasks of %s were given to %d jobs of %s that may still run", dir, jobs, engine)
}

// CheckBusy returns an error if tasks of a directory are given away, so that the caller must
// not run them itself. The caller has locked the directory.
func CheckBusy(dir string) error {
	l := &ledger{path: ledgerPath(dir)}
	if err := l.read(); err != nil {
		return err
	}
	if open := l.open(); len(open) > 0 {
		return busy(dir, l.wave(open[0].wave).Engine, len(open))
	}
	return nil
}

// BusyFence returns a local.TaskOptions.Fence that calls Busy only once.
func BusyFence(dir string) func() error {
	return sync.OnceValue(func() error { return CheckBusy(dir) })
}

// run repeats rounds until nothing is left.
func (s *dispatcher) run(ctx context.Context) error {
	var (
		interrupt = ctx.Done()
		kill      <-chan struct{}
		pause     = shortTick
		stay      = s.o.Stay
		drawn     = time.Now()
	)
	for {
		s.moved = false
		if err := s.round(ctx); err != nil {
			return err
		}
		s.o.InFlight.copyState(s)
		if s.finished() && (stay == nil || s.stopping) {
			return nil
		}
		if stay == nil && time.Since(drawn) >= s.msg.Interval() {
			s.msg.Draw(s.line())
			drawn = time.Now()
		}
		if pause = min(s.slowest(stay), pause*3/2); s.moved {
			pause = shortTick
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-s.o.Wake:
			pause = shortTick
		case <-stay:
			stay = nil
		case <-interrupt:
			interrupt, kill = nil, s.o.Kill
			if n := len(s.l.open()); n > 0 {
				s.msg.Notice("cancelling %d jobs (again to leave at once)", n)
			}
			s.stopping, s.interrupted = true, true
			s.silent = time.Time{} // ask at once
		case <-kill:
			s.msg.Notice("left; %d jobs may still run", len(s.l.open()))
			return nil
		}
		t.Stop()
	}
}

// slowest returns how long the dispatcher may wait while nothing happens. Records come from other
// machines, without an event; but without tasks in flight there are none.
func (s *dispatcher) slowest(stay <-chan struct{}) time.Duration {
	switch {
	case stay == nil:
		return longTick
	case len(s.l.open()) > 0:
		return stayTick
	}
	return restTick
}

// round does the work that is possible now. An error ends the invocation; temporary
// failures are waited for instead.
func (s *dispatcher) round(ctx context.Context) error {
	if err := s.refresh(); err != nil {
		return err
	}
	// What follows must work while the context is cancelled: jobs are to be ended.
	longer, cancel := s.outlive(ctx)
	defer cancel()
	if s.o.Settings.FailFast && s.d.Failing() && !s.stopping {
		s.msg.Notice("a task failed: no more tasks are started")
		s.stop()
	}
	if time.Now().After(s.silent) {
		if err := s.ask(longer); err != nil {
			if err := s.quiet(ctx, err); err != nil {
				return err
			}
		} else if !s.silent.IsZero() {
			s.silent = time.Time{}
			if s.answered {
				s.backOff = 0
			}
		}
	}
	if s.interrupted && !s.silent.IsZero() && !s.given() {
		if err := s.giveUpUnknown(); err != nil {
			return err
		}
	}
	if err := s.closeWorkers(longer); err != nil {
		return err
	}
	if s.stopping || !s.silent.IsZero() || time.Now().Before(s.refused) || ctx.Err() != nil {
		return nil
	}
	return s.give(ctx, longer)
}

// stop gives nothing more away, and has workers start nothing more.
func (s *dispatcher) stop() {
	s.stopping = true
	if len(s.l.open()) == 0 {
		return
	}
	if err := s.l.append(&Entry{Event: eventDrain}); err != nil {
		s.msg.Note("the jobs are not told to end: %v", err)
	}
}

// fail ends the run when all workers have.
func (s *dispatcher) fail(err error) {
	if s.broken == nil {
		s.broken = err
		s.stop()
	}
}

// refresh reads new records.
func (s *dispatcher) refresh() error {
	return s.d.Refresh(func(r *record.Task) {
		s.moved = true
		s.times.add(s.d.Key(r), r)
		if !r.Finished.After(s.started) {
			return
		}
		if h := s.holder[r.Task]; h > 0 {
			s.lost = 0
			if r.Cause != record.CauseInterrupted {
				s.fruits[h] = true
			}
		}
		if r.Cause == record.CauseDisk {
			s.fail(exit.Errorf(exit.Failed, "make room, then run the same command", "the disk of %s is full: no more tasks are started", s.d.Path()))
		}
	})
}

// ask queries the engine about all engine jobs in flight, and acts on their status.
func (s *dispatcher) ask(ctx context.Context) error {
	for _, w := range s.l.waves {
		if !w.submitted && !allClosed(w) {
			if err := s.find(ctx, w); err != nil {
				return err
			}
			s.answered = true
		}
	}
	var jobs, doomed []string
	var which []int
	for _, h := range s.l.open() {
		if h.job == "" {
			continue
		}
		jobs = append(jobs, h.job)
		if s.stopping && !s.cancelled[h.Worker] {
			// Those that run are left to end where the run only starts nothing more.
			if s.interrupted || s.status[h.job].Phase == Pending {
				doomed, which = append(doomed, h.job), append(which, h.Worker)
			}
		}
	}
	if len(doomed) > 0 {
		if err := s.eng.Cancel(ctx, doomed); err != nil {
			return err
		}
		for _, w := range which {
			s.cancelled[w] = true
		}
	}
	if len(jobs) == 0 {
		return nil
	}
	status, err := s.eng.Status(ctx, jobs)
	if err != nil {
		return err
	}
	s.answered = true
	for id, st := range status {
		if s.status[id] != st {
			s.moved = true
		}
		s.status[id] = st
	}
	return s.cancelStuck(ctx)
}

// doom is why a job was cancelled that would never have started, and when that was asked
// for last.
type doom struct {
	reason string
	asked  time.Time
}

// cancelStuck cancels jobs that the engine will never start. Their workers are closed
// when the engine reports their end; until then the engine may also have lost the
// cancellation.
func (s *dispatcher) cancelStuck(ctx context.Context) error {
	var jobs []string
	var which []*held
	for _, h := range s.l.open() {
		if s.status[h.job].Stuck && time.Since(s.stuck[h.Worker].asked) > longBackOff {
			jobs, which = append(jobs, h.job), append(which, h)
		}
	}
	if len(jobs) == 0 {
		return nil
	}
	if err := s.eng.Cancel(ctx, jobs); err != nil {
		return err
	}
	for _, h := range which {
		reason := reasonOf(s.status[h.job])
		if s.stuck[h.Worker].reason == "" {
			s.msg.Note("job %s of %s is cancelled, as it would never start: %s", h.job, s.eng.Name(), reason)
		}
		s.stuck[h.Worker] = doom{reason, time.Now()}
	}
	return nil
}

func allClosed(w *wave) bool {
	for _, h := range w.workers {
		if !h.closed {
			return false
		}
	}
	return true
}

// describe returns a wave as an engine sees it.
func (s *dispatcher) describe(w *wave) *Wave {
	target := DefaultTarget
	if w.Settings != nil {
		target = time.Duration(w.Settings.Target * float64(time.Second))
	}
	return &Wave{Number: w.Wave, Token: w.Token, Dir: s.d.Path(), Log: s.log(), Shares: w.Shares, Target: target}
}

func (s *dispatcher) log() string {
	return filepath.Join(filepath.Dir(s.l.path), s.eng.Name()+".log")
}

// find looks for the jobs of a wave whose submission came to no known end.
func (s *dispatcher) find(ctx context.Context, w *wave) error {
	ids, err := s.eng.Find(ctx, s.describe(w))
	if err != nil {
		return err
	}
	s.moved = true
	if ids != nil {
		return s.l.append(&Entry{Event: eventSubmitted, Wave: w.Wave, Jobs: ids})
	}
	return s.abandon(w, "it was never submitted")
}

// abandon closes the workers of a wave that was not submitted. If the engine has accepted the
// wave nevertheless, its jobs find that they are closed, and end.
func (s *dispatcher) abandon(w *wave, reason string) error {
	for _, h := range w.workers {
		if !h.closed {
			if _, err := s.close(h, reason, true); err != nil {
				return err
			}
		}
	}
	return nil
}

// closeWorkers closes the workers whose engine jobs have ended.
func (s *dispatcher) closeWorkers(ctx context.Context) error {
	var idle []string
	for _, h := range s.l.open() {
		st, known := s.status[h.job]
		over := s.d.Left(h.Ranges) == 0
		finished := known && st.Phase >= Ended
		if !over && !finished && !s.cancelled[h.Worker] || h.job == "" {
			continue
		}
		began := s.began(h)
		reason := reasonOf(st)
		switch {
		case over:
			reason = "all its tasks are over"
		case s.cancelled[h.Worker]:
			reason = "it was cancelled"
		case s.stuck[h.Worker].reason != "":
			reason = s.stuck[h.Worker].reason
		}
		closed, err := s.close(h, reason, over || s.blameless(h, st, began))
		if err != nil {
			return err
		}
		if !closed {
			continue
		}
		switch {
		case over && (!began || known && st.Phase == Pending) && !finished && !s.cancelled[h.Worker]:
			// Its tasks were cancelled before it reached them, or the engine started it again
			// when they were done.
			idle = append(idle, h.job)
		case over || s.cancelled[h.Worker]:
			s.lost = 0
		case !began && !s.fruits[h.Worker]:
			// A controller that was restarted may have forgotten the jobs submitted last.
			most := maxLost
			if st.Phase == Gone || st.Blameless {
				most = maxForgotten
				s.refused = time.Now().Add(forgottenPause)
			}
			s.lost++
			if s.lost >= most {
				s.fail(&LostError{Engine: s.eng.Name(), Reason: reason, Lines: lastLines(s.log(), 5), Log: s.log()})
			}
		default:
			s.lost = 0
			s.msg.Note("job %s of %s is over (%s); what it had left is given to others", h.job, s.eng.Name(), reason)
		}
	}
	if len(idle) > 0 {
		if err := s.eng.Cancel(ctx, idle); err != nil {
			s.msg.Note("jobs %s of %s have nothing to do and are not cancelled: %v", strings.Join(idle, " "), s.eng.Name(), err)
		}
	}
	return nil
}

// blameless reports whether a worker ended for a reason that no task can have caused.
func (s *dispatcher) blameless(h *held, st Status, began bool) bool {
	return !began || st.Blameless || st.Phase == Gone || s.cancelled[h.Worker]
}

func reasonOf(st Status) string {
	switch {
	case st.Reason != "":
		return st.Reason
	case st.Word != "":
		return st.Word
	}
	return "nobody knows how"
}

// began reports whether a worker has got its lock.
func (s *dispatcher) began(h *held) bool {
	text, err := os.ReadFile(s.d.Lock(h.SlotName()))
	return err == nil && bytes.Contains(text, []byte(beganLine(h.Worker)))
}

// beganLine returns the line that a worker writes into its lock file.
func beganLine(worker int) string { return fmt.Sprintf("worker %d\n", worker) }

// close closes a worker, unless it still works. Its tasks get no strike if they are
// blameless.
func (s *dispatcher) close(h *held, reason string, blameless bool) (bool, error) {
	lock, busy, err := queue.TakeLock(s.d.Lock(h.SlotName()), 0)
	if err != nil || busy {
		return false, err
	}
	defer lock.Close()
	// No worker can write under this worker slot now, so its records are complete.
	if err := s.refresh(); err != nil {
		return false, err
	}
	e := &Entry{Event: eventClosed, Worker: h.Worker, Reason: reason, Fruitless: !blameless && !s.fruits[h.Worker] && s.d.Left(h.Ranges) > 0}
	if err := s.l.append(e); err != nil {
		return false, err
	}
	s.moved = true
	delete(s.status, h.job)
	left := s.d.Left(h.Ranges)
	for _, r := range h.Ranges {
		for t := r[0]; t <= r[1]; t++ {
			if s.holder[t] == h.Worker {
				delete(s.holder, t)
			}
			if !e.Fruitless {
				if s.fruits[h.Worker] {
					delete(s.strikes, t)
				}
				continue
			}
			if s.d.Over(t) {
				continue
			}
			k := strike{limit: max(1, left/2)}
			if left == 1 {
				k.alone = h.Strikes + 1
			}
			s.strikes[t] = k
			if k.alone >= maxStrikes {
				if err := s.d.GiveUp(t, fmt.Sprintf("its job of %s ended %d times before it: %s", s.eng.Name(), k.alone, reason), "give the jobs more time or memory, or see "+s.log()); err != nil {
					return false, err
				}
			}
		}
	}
	return true, nil
}

// give packs the free tasks and submits them. A submission may continue until longer is
// cancelled.
func (s *dispatcher) give(ctx, longer context.Context) error {
	open := s.l.open()
	room := s.o.Jobs - len(open)
	if room <= 0 {
		return nil
	}
	var needs []Requirements
	err := s.d.Free(func(t int) bool { return s.holder[t] > 0 }, func(n Requirements) bool {
		needs = append(needs, n)
		return true
	})
	if err != nil {
		return err
	}
	if len(needs) > 0 && s.gathering(time.Now()) {
		return nil
	}
	if len(needs) == 0 {
		s.refusals, s.refused = 0, time.Time{}
		return nil
	}
	if there, err := s.reach(ctx); err != nil || !there {
		return err
	}
	p := &packing{cores: s.o.Cores, memory: s.o.Memory, target: s.o.Target, jobs: s.o.Jobs, room: room, times: s.times, strikes: s.strikes}
	for _, shares := range waves(p.shares(needs)) {
		if err := s.submit(ctx, longer, shares); err != nil || !s.silent.IsZero() || s.stopping || time.Now().Before(s.refused) || ctx.Err() != nil {
			return err
		}
	}
	return nil
}

// gathering reports whether tasks are still arriving, so that more can be packed together.
func (s *dispatcher) gathering(now time.Time) bool {
	if s.o.Gather == 0 {
		return false
	}
	if n := s.d.Tasks(); n != s.seen {
		s.seen, s.came = n, now
		if s.first.IsZero() {
			s.first = now
		}
	}
	if !s.first.IsZero() && now.Sub(s.came) < s.o.Gather && now.Sub(s.first) < 4*s.o.Gather {
		s.moved = true // it is looked again soon
		return true
	}
	s.first = time.Time{}
	return false
}

// submit gives shares away and submits them.
func (s *dispatcher) submit(ctx, longer context.Context, shares []Share) error {
	taken := make(map[int]bool)
	for _, h := range s.l.open() {
		taken[h.WorkerSlot] = true
	}
	seat := 0
	for i := range shares {
		for seat++; taken[seat]; seat++ {
		}
		shares[i].Worker, shares[i].WorkerSlot = len(s.l.workers)+1+i, seat
	}
	var token [4]byte
	_, _ = rand.Read(token[:]) // it never fails
	set := s.o.Settings
	e := &Entry{Event: eventWave, Wave: len(s.l.waves) + 1, Engine: s.eng.Name(), Token: hex.EncodeToString(token[:]), Settings: &set, Shares: shares}
	if err := s.l.append(e); err != nil {
		return err
	}
	w := s.l.wave(e.Wave)
	for _, h := range w.workers {
		for _, r := range h.Ranges {
			for t := r[0]; t <= r[1]; t++ {
				s.holder[t] = h.Worker
			}
		}
	}
	s.moved = true
	ids, err := s.eng.Submit(longer, s.describe(w))
	var refused *RefusedError
	switch {
	case err == nil:
		s.refusals, s.refused = 0, time.Time{}
		return s.l.append(&Entry{Event: eventSubmitted, Wave: w.Wave, Jobs: ids})
	case errors.As(err, &refused):
		if err := s.abandon(w, refused.Reason); err != nil {
			return err
		}
		s.refusals++
		if len(s.l.open()) > 0 {
			s.refusals = 0 // the jobs in flight may be the reason
		}
		if refused.Final || s.refusals >= maxRefusals {
			s.fail(refused)
			return nil
		}
		s.refused = time.Now().Add(time.Second << s.refusals)
		s.msg.Note("%s refuses jobs, trying again: %s", s.eng.Name(), refused.Reason)
		return nil
	}
	return s.quiet(ctx, err) // find decides later whether the engine has the wave
}

// finished reports whether there is nothing left to do, or nothing left to wait for.
func (s *dispatcher) finished() bool {
	open := len(s.l.open())
	switch {
	case s.stopping:
		return open == 0
	case s.moved, !s.silent.IsZero(), !s.refused.IsZero():
		return false // something may follow
	}
	return open == 0 || s.o.Detach
}

// line returns the progress line.
func (s *dispatcher) line() string {
	running, pending := 0, 0
	for _, h := range s.l.open() {
		if st, ok := s.status[h.job]; ok && st.Phase == Running {
			running++
		} else {
			pending++
		}
	}
	return fmt.Sprintf("%s · %s: %d jobs running, %d waiting", s.d.Line(), s.eng.Name(), running, pending)
}

// lastLines returns the last lines of a file.
func lastLines(path string, n int) []string {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	const most = 4 << 10
	if info, err := f.Stat(); err == nil && info.Size() > most {
		_, _ = f.Seek(-most, 2)
	}
	text := make([]byte, most)
	got, _ := f.Read(text) // without it the message is just shorter
	lines := strings.Split(strings.TrimRight(strings.ToValidUTF8(string(text[:got]), "?"), "\n"), "\n")
	if len(lines) == 1 && lines[0] == "" {
		return nil
	}
	return lines[max(0, len(lines)-n):]
}
