package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/engine"
	"premix/internal/engine/queue"
	"premix/internal/hotstart"
	"premix/internal/kit/units"
	"premix/internal/recipe"
	"premix/internal/record"
)

// pipeStderrName takes the standard error of a pipe, in the work directory.
const pipeStderrName = ".stderr.pipe"

// maxError is how many bytes of an error a record keeps.
const maxError = 4 << 10

// failure is the reason why a try failed, with its hint.
type failure struct {
	cause string
	text  string
	hint  string
}

func (f *failure) Error() string { return f.text }

// fill writes the failure into the record of its try.
func (f *failure) fill(rec *record.Task) {
	rec.Cause, rec.Error, rec.Hint = f.cause, limit(strings.ToValidUTF8(f.text, "?")), f.hint
}

// maxFinishing is how many tries may be between their tool's end and their
// record. More would only grow the work directories of a slow disk.
const maxFinishing = 64

// hot is the launcher of the tasks of a run. It starts them hot where that is possible, and
// moves their outputs into place.
type hot struct {
	*scheduler
	run       *queue.Run
	opts      Options
	tool      *recipe.Recipe
	samples   []recipe.Sample
	spec      hotstart.Spec
	timeout   time.Duration
	lanes     map[string]*lane // by the shape of the sample's name: hotstart.Spec.Shape
	preparing sync.WaitGroup   // lanes; see trial.go

	killed  chan struct{}                   // closed when all tries are to be killed
	free    []int                           // slots
	running map[int]context.CancelCauseFunc // by number of the task: ends a try
	queued  map[int]time.Time               // when tasks began to wait that wait again
	starts  Starts
	chosen  map[int]bool // tasks that run and are verified
	checked int          // tasks of this invocation that were verified
	// By the id of the snapshot.
	quarantined map[string]*Quarantine
}

// errCancelled ends a try whose task was cancelled.
var errCancelled = errors.New("the task was cancelled")

// recover quarantines the snapshots that the run has found to be wrong.
func (h *hot) recover() error {
	withdrawn, err := Withdraw(h.run, h.opts.Store)
	if before := h.counts()[queue.Succeeded]; before > 0 && h.o.Share == nil && !h.opts.Resume {
		h.progress.notice("continuing the run in %s: %d of %d tasks are done", h.q.Dir, before, len(h.run.Plan.Tasks))
	}
	for _, q := range withdrawn {
		h.quarantined[q.Snapshot] = q
		h.progress.notice("%s", strings.TrimSuffix(q.Text(), "\n"))
	}
	return err
}

// open proves how tasks start.
func (h *hot) open() error {
	if err := h.prepare(h.ctx); err != nil {
		return err
	}
	h.limits()
	for i := range h.slots {
		h.free = append(h.free, h.slots-1-i)
	}
	return nil
}

// close notes what the tasks took.
func (h *hot) close() (err error) {
	h.preparing.Wait()
	for len(h.events) > 0 { // of a lane that was prepared in vain
		(<-h.events)()
	}
	for _, l := range h.lanes {
		v := &l.verifies
		h.note(l, hotstart.Use{CPU: v.cpu - l.first.cpu, Spent: v.spent - l.first.spent, Verified: v.verified - l.first.verified})
		err = errors.Join(err, l.Close())
		if l.measured != nil {
			err = errors.Join(err, l.measured.Close())
		}
	}
	return err
}

// lane is the tasks of a run that can share a snapshot.
type lane struct {
	*hotstart.Starter
	samples  []recipe.Sample
	scratch  string            // directory for preparing
	tasks    int               // that wait at the beginning
	trial    *trial            // nil: it is decided how tasks start
	measured *hotstart.Starter // of the tasks that were measured; nil: none, or Starter
	verifies sentinel
	first    sentinel // as it was at the beginning
}

// lane returns the lane of a sample.
func (h *hot) lane(sample string) *lane { return h.lanes[h.spec.Shape(sample)] }

func (h *hot) ahead(*queue.Task) int { return 0 }
func (h *hot) hand()                 {}
func (h *hot) drop()                 {}
func (h *hot) setTimeouts()          {} // a run has no Limits

// cancel ends a try.
func (h *hot) cancel(a *activeTask) { h.running[a.Number](errCancelled) }

// signal kills all tries. Each ends by itself when the run is interrupted.
func (h *hot) signal(sig syscall.Signal) {
	if sig != unix.SIGKILL {
		return
	}
	for _, end := range h.running {
		end(nil)
	}
	select {
	case <-h.killed:
	default:
		close(h.killed)
	}
}

// start starts a try.
func (h *hot) start(a *activeTask) {
	slot := h.free[len(h.free)-1]
	h.free = h.free[:len(h.free)-1]
	task := &h.run.Plan.Tasks[a.Number-1]
	l := h.lane(task.Sample)
	t := &try{hot: h, activeTask: a, lane: l, task: task, starter: l.Starter, trial: l.trial, work: h.run.WorkDir(a.Number, a.Try)}
	if t.trial == nil {
		h.choose(t)
	}
	ctx, end := context.WithCancelCause(h.ctx)
	h.running[a.Number] = end
	if a.Queued = h.queued[a.Number]; a.Queued.IsZero() {
		a.Queued = h.started.UTC()
	}
	go func() {
		now := time.Now().UTC()
		t.rec = h.record(a, now, now)
		t.rec.Start, t.rec.Slot, t.rec.Log, t.rec.Outputs = "", slot, h.run.Worker(), t.task.Paths()
		err := t.execute(ctx)
		h.events <- func() []*record.Task {
			h.free = append(h.free, slot)
			end(nil)
			delete(h.running, a.Number)
			a.group = nil // it is removed
			h.release(a)
			h.finishing++
			return nil
		}
		ferr := t.finish(err)
		h.events <- func() []*record.Task {
			h.finishing--
			if ferr != nil {
				h.fail(ferr)
			}
			return []*record.Task{t.rec}
		}
	}()
}

// choose decides whether a try is verified.
func (h *hot) choose(t *try) {
	t.starter = t.lane.Starter
	kind, _ := t.starter.Decision()
	if t.verify = kind == hotstart.Hot && t.lane.verifies.wants(h.p.Last()); t.verify {
		h.chosen[t.Number] = true
	}
}

// settled counts a try, and has its task run again where its start was wrong.
func (h *hot) settled(rec *record.Task) {
	h.run.Take(rec)
	h.lane(rec.Sample).verifies.settle(rec, h.chosen[rec.Task])
	delete(h.chosen, rec.Task)
	h.queued[rec.Task] = time.Now().UTC()
	if rec.Verified {
		h.checked++
	}
	switch {
	case rec.Cause == record.CauseDiffers:
		h.withdraw(rec.Snapshot, hotstart.Difference{Sample: rec.Sample, Reason: rec.Error})
	case rec.OK():
		h.starts.Add(rec)
		if q := h.quarantined[rec.Snapshot]; q != nil { // it had started before
			h.withdraw(rec.Snapshot, q.Difference)
		}
	}
}

// line returns the number of tasks by their kind of start.
func (h *hot) line() string {
	var list []string
	for _, s := range h.starts.List() {
		list = append(list, fmt.Sprintf("%s %d", s.Kind, s.Tasks))
	}
	if list == nil {
		return ""
	}
	return " · " + strings.Join(list, ", ")
}

// sumUp completes the summary.
func (h *hot) sumUp(sum *Summary) {
	sum.Starts, sum.Verified = h.starts.List(), h.checked
	for _, id := range slices.Sorted(maps.Keys(h.quarantined)) {
		sum.Quarantined = append(sum.Quarantined, h.quarantined[id])
	}
}

// try is one try of a task. It runs in a goroutine of its own.
type try struct {
	*hot
	*activeTask
	lane    *lane
	task    *engine.Task
	rec     *record.Task
	starter *hotstart.Starter
	trial   *trial // nil: the try is not a measurement
	verify  bool
	work    string // directory
}

// finish moves the outputs of a try into place that returned err, and completes its record. It
// returns an error if this worker may not write any more: the try has no effect then.
func (t *try) finish(err error) error {
	// Before the outputs change: another worker may have the task by now.
	if _, ferr := t.fenced(); ferr != nil {
		t.rec.Cause, t.rec.Error = record.CauseInterrupted, "its worker was closed"
		return errors.Join(ferr, os.RemoveAll(t.work))
	}
	if err == nil {
		err = t.publish()
	}
	var logErr error
	t.rec.StderrOffset, t.rec.StderrLength, logErr = t.run.AppendStderr(filepath.Join(t.work, hotstart.StderrName), filepath.Join(t.work, pipeStderrName))
	if err == nil && logErr != nil {
		err = fmt.Errorf("keep the standard error: %w", logErr)
	}
	if err != nil {
		t.describe(err).fill(t.rec)
	}
	// Before the record is written, so that a full disk has room for it.
	if err := os.RemoveAll(t.work); err != nil {
		t.progress.note("a work directory is left: %v", err)
	}
	return nil
}

func limit(text string) string {
	if len(text) > maxError {
		return strings.ToValidUTF8(text[:maxError], "") + "..."
	}
	return text
}

// execute runs tool and pipe, and fills in the record.
func (t *try) execute(ctx context.Context) (err error) {
	defer func() {
		if rerr := t.group.remove(); rerr != nil {
			t.progress.note("a cgroup is left: %v", rerr)
		}
	}()
	p, err := t.once(ctx)
	if t.trial != nil {
		if p.outlasted && err != nil {
			p, err = t.prepared(ctx)
		} else if err == nil {
			t.quick()
		}
	}
	if t.verify && t.rec.Snapshot != "" {
		if rerr := t.group.remove(); rerr != nil { // the cold start has one of that name
			t.progress.note("a cgroup is left: %v", rerr)
		}
		err = t.compared(ctx, p, err)
	}
	if f := (*failure)(nil); errors.As(err, &f) && f.cause == record.CauseInterrupted && errors.Is(context.Cause(ctx), errCancelled) {
		return &failure{cause: record.CauseInterrupted, text: "ended because it was cancelled"}
	}
	return err
}

// once starts tool and pipe, waits for their end, and fills in the record.
func (t *try) once(ctx context.Context) (*pair, error) {
	p := &pair{grace: t.o.Grace, kill: t.killed}
	if t.trial != nil {
		p.limit = t.trial.limit
	}
	if err := os.Mkdir(t.work, 0o777); err != nil {
		return p, err
	}
	for _, dir := range t.task.Dirs {
		if err := os.MkdirAll(filepath.Join(t.work, dir), 0o777); err != nil {
			return p, err
		}
	}
	if err := checkInputs(t.task); err != nil {
		return p, err
	}
	err := t.begin(ctx, p)
	if err == nil {
		t.rec.Start, t.rec.Reason, t.rec.Snapshot = string(p.tool.Kind), p.tool.Reason, p.tool.Snapshot
		p.wait(ctx, t.timeout)
	}
	t.rec.Finished = time.Now().UTC()
	if err != nil {
		return p, startFailure(ctx, t.task, err)
	}
	t.rec.Seconds = t.rec.Finished.Sub(t.rec.Started).Seconds()
	p.fill(t.rec)
	return p, p.verdict(t.group.oomKills(), t.Memory, t.timeout)
}

// begin starts the tool and its pipe.
func (t *try) begin(ctx context.Context, p *pair) error {
	tool, err := t.starter.Start(ctx, t.hotTask())
	if err != nil {
		return err
	}
	p.tool = tool
	if t.task.Pipe == "" {
		return nil
	}
	stdout := tool.Stdout
	if t.verify && tool.Snapshot != "" {
		read, write, err := os.Pipe()
		if err != nil {
			p.signal(unix.SIGKILL)
			_, werr := tool.Wait()
			return errors.Join(err, werr, stdout.Close())
		}
		p.copyStdout(t.starter, write)
		stdout = read
	}
	defer stdout.Close()
	p.pipe, err = startPipe(t.task.Pipe, t.work, t.spec.Env, t.group.dirs, stdout)
	if err != nil {
		p.signal(unix.SIGKILL)
		_, werr := tool.Wait()
		return errors.Join(err, werr)
	}
	return nil
}

// hotTask returns the task for a starter.
func (t *try) hotTask() hotstart.Task {
	return hotstart.Task{Sample: t.task.Sample, Dir: t.work, Inputs: t.tool.Files(t.task.Inputs), Cgroups: t.group.dirs}
}

// checkInputs returns an error in plain words if an input is missing or unreadable.
func checkInputs(t *engine.Task) error {
	for name, path := range t.Inputs {
		f, err := os.Open(path)
		if err == nil {
			err = f.Close()
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return &failure{record.CauseInput, fmt.Sprintf("input %s is no longer there: %s", name, path), "put the file back and run the same command again"}
		case err != nil:
			return &failure{record.CauseInput, fmt.Sprintf("input %s cannot be read: %v", name, err), "fix the file and run the same command again"}
		}
	}
	return nil
}

// startFailure returns the reason why a tool could not start.
func startFailure(ctx context.Context, t *engine.Task, err error) error {
	if ctx.Err() != nil {
		return &failure{cause: record.CauseInterrupted, text: "interrupted before it had started"}
	}
	// An input may have disappeared in between.
	if ierr := checkInputs(t); ierr != nil {
		return ierr
	}
	if errors.Is(err, unix.ENOSPC) {
		return err
	}
	f := &failure{cause: record.CauseStart, text: err.Error()}
	var input *hotstart.InputError
	if errors.As(err, &input) {
		f.cause, f.hint = record.CauseInput, "fix the file and run the same command again"
	}
	var unavailable *hotstart.Unavailable
	if errors.As(err, &unavailable) {
		f.hint = unavailable.HintText
	}
	return f
}

// publish checks the outputs of a try that succeeded and moves them into place. On a
// full disk it refuses: many tools do not check the result of write(2), and end
// with status 0 and a truncated output.
func (t *try) publish() error {
	if t.diskFull() {
		return fmt.Errorf("outputs may be cut short: %w", unix.ENOSPC)
	}
	if err := engine.Check(t.work, t.task.Outputs); err != nil {
		return err
	}
	return engine.Publish(t.work, t.run.Dir, t.task.Outputs)
}

// describe makes of any error a failure with its cause.
func (h *hot) describe(err error) *failure {
	full := &failure{record.CauseDisk, "", "make room in " + h.run.Dir + " and run the same command again"}
	var f *failure
	if errors.As(err, &f) {
		if (f.cause == record.CauseExit || f.cause == record.CauseSignal) && h.diskFull() {
			full.text = f.text + "; the disk of the run directory is full"
			return full
		}
		return f
	}
	var o *engine.OutputError
	switch {
	case errors.As(err, &o):
		if h.diskFull() {
			full.text = o.Error() + "; the disk of the run directory is full"
			return full
		}
		return &failure{record.CauseOutput, o.Error(), o.HintText}
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		full.text = fmt.Sprintf("the disk of the run directory is full: %v", err)
		return full
	}
	return &failure{cause: record.CauseInternal, text: err.Error()}
}

// lowSpace is the free space, in bytes, below which a disk counts as full.
const lowSpace = 256 << 10

func (h *hot) diskFull() bool {
	var st unix.Statfs_t
	if unix.Statfs(h.run.Dir, &st) != nil {
		return false
	}
	free := st.Bavail
	if os.Geteuid() == 0 {
		free = st.Bfree // root may use the reserved blocks
	}
	return int64(free)*st.Bsize < lowSpace
}

// pair is a tool and its pipe, if it has one, while they run.
type pair struct {
	tool  *hotstart.Process
	pipe  *pipe
	grace time.Duration
	kill  <-chan struct{}
	limit time.Duration // after which both are killed, and outlasted is set; 0: none

	copied chan error // of a standard output that is digested; nil: it is not
	digest []byte     // valid once something came from copied

	exit      hotstart.Exit
	exitErr   error
	finished  string // record.CauseTimeout or CauseInterrupted, if premix ended it
	sunk      bool   // the tool was sent SIGTERM because its pipe had failed
	killed    bool   // premix sent SIGKILL
	outlasted bool   // premix killed them at limit
}

// signal sends a signal to the tool and the pipe. Both may have ended by now.
func (p *pair) signal(sig syscall.Signal) {
	_ = p.tool.Signal(sig)
	if p.pipe != nil {
		p.pipe.signal(sig)
	}
}

// wait waits until tool and pipe have ended, and sees to it that they do at the
// timeout, if that is not 0, and when ctx is cancelled.
func (p *pair) wait(ctx context.Context, timeout time.Duration) {
	tool := make(chan struct{})
	go func() {
		defer close(tool)
		p.exit, p.exitErr = p.tool.Wait()
	}()
	var pipe <-chan struct{}
	if p.pipe != nil {
		pipe = p.pipe.finished
	}
	var timer, limit, grace <-chan time.Time
	if p.limit > 0 {
		t := time.NewTimer(p.limit)
		defer t.Stop()
		limit = t.C
	}
	if timeout > 0 {
		t := time.NewTimer(timeout)
		defer t.Stop()
		timer = t.C
	}
	end := func() {
		p.signal(unix.SIGTERM)
		if grace == nil {
			t := time.NewTimer(p.grace)
			grace = t.C
		}
	}
	interrupt, kill := ctx.Done(), p.kill
	for tool != nil || pipe != nil {
		select {
		case <-tool:
			tool = nil
		case <-pipe:
			pipe = nil
			if tool != nil && !p.pipe.ok() && grace == nil {
				p.sunk = true
				end()
			}
		case <-timer:
			timer = nil
			if p.finished == "" {
				p.finished = record.CauseTimeout
			}
			end()
		case <-interrupt:
			interrupt = nil
			if p.finished == "" {
				p.finished = record.CauseInterrupted
			}
			end()
		case <-limit:
			p.outlasted = p.finished == ""
			p.signal(unix.SIGKILL)
		case <-grace:
			p.killed = true
			p.signal(unix.SIGKILL)
		case <-kill:
			kill = nil
			p.killed = true
			p.signal(unix.SIGKILL)
		}
	}
}

// fill copies the resources that tool and pipe took into the record.
func (p *pair) fill(rec *record.Task) {
	rec.Latency = p.tool.Latency.Seconds()
	rec.Exit, rec.Signal = p.exit.Code, int(p.exit.Signal)
	rec.User, rec.System = p.exit.User.Seconds(), p.exit.System.Seconds()
	rec.MaxRSS = p.exit.MaxRSS
	rec.ReadBytes, rec.WriteBytes = p.exit.ReadBytes, p.exit.WriteBytes
	if p.pipe == nil {
		return
	}
	u := p.pipe.usage()
	rec.User += u.user.Seconds()
	rec.System += u.system.Seconds()
	rec.MaxRSS = max(rec.MaxRSS, u.maxRSS)
	rec.ReadBytes += u.read
	rec.WriteBytes += u.written
	if p.exit.OK() || p.pipeFailed() {
		rec.Exit, rec.Signal = p.pipe.code, int(p.pipe.sig)
	}
}

// pipeFailed reports whether the pipe was the cause of the failure: it failed, and the tool
// succeeded or died only because the pipe was gone. A tool that fails by itself also ends
// its pipe, whose input is then cut short. The order in which the two ends are noticed
// does not count.
func (p *pair) pipeFailed() bool {
	if p.pipe == nil || p.pipe.ok() {
		return false
	}
	return p.exitErr == nil && p.exit.OK() ||
		diedOf(p.exit, unix.SIGPIPE) ||
		p.sunk && diedOf(p.exit, unix.SIGTERM) ||
		p.sunk && p.killed && diedOf(p.exit, unix.SIGKILL)
}

// diedOf reports whether a signal ended a tool, or the last program of a tool that is
// a shell script.
func diedOf(e hotstart.Exit, sig syscall.Signal) bool {
	return e.Signal == sig || e.Signal == 0 && e.Code == shellSignal+int(sig)
}

// verdict returns nil if tool and pipe succeeded, or else a *failure.
func (p *pair) verdict(oomKills int, memory int64, timeout time.Duration) error {
	toolOK := p.exitErr == nil && p.exit.OK()
	pipeOK := p.pipe == nil || p.pipe.ok()
	if toolOK && pipeOK && oomKills == 0 { // a shell may end with 0 although a command of its pipeline was killed
		return nil
	}
	switch p.finished {
	case record.CauseTimeout:
		return &failure{record.CauseTimeout, fmt.Sprintf("ended at its timeout of %v", timeout), "raise `timeout` in the recipe or give a longer --timeout"}
	case record.CauseInterrupted:
		return &failure{cause: record.CauseInterrupted, text: "interrupted"}
	}
	if oomKills > 0 {
		return &failure{record.CauseMemory, fmt.Sprintf("killed at its memory limit of %s", units.Size(memory)), "raise `memory` in the recipe, or give `retries`, which double it each time"}
	}
	if p.exitErr != nil {
		return &failure{cause: record.CauseStart, text: p.exitErr.Error()}
	}
	if p.pipeFailed() {
		return statusFailure("the pipe", p.pipe.code, p.pipe.sig)
	}
	if p.pipe != nil && diedOf(p.exit, unix.SIGPIPE) {
		return &failure{record.CauseSignal, "the pipe ended before it had read all that the tool wrote", "let the pipe read to the end, for example by adding `cat >/dev/null` after what ends early"}
	}
	return statusFailure("the tool", p.exit.Code, p.exit.Signal)
}

// statusFailure returns the failure of a process with an exit code or a signal.
func statusFailure(who string, code int, sig syscall.Signal) *failure {
	if sig == 0 {
		f := &failure{cause: record.CauseExit, text: fmt.Sprintf("%s ended with status %d", who, code)}
		if code == 127 && who == "the pipe" {
			f.hint = "the shell did not find a program of the pipe: install it, or put its directory on PATH"
		}
		return f
	}
	f := &failure{cause: record.CauseSignal, text: fmt.Sprintf("%s was killed by %s", who, unix.SignalName(sig))}
	switch sig {
	case unix.SIGKILL:
		f.hint = "premix did not send it: perhaps the machine ran out of memory; declare `memory` in the recipe so that fewer tasks run at a time"
	case unix.SIGSEGV, unix.SIGBUS, unix.SIGILL, unix.SIGABRT, unix.SIGFPE:
		f.hint = "the tool crashed; see whether it does so with --start cold too, and report it to its authors if it does"
	}
	return f
}
