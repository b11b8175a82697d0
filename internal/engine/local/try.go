package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/engine"
	"premix/internal/hotstart"
	"premix/internal/kit/units"
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

// try runs one try of a task to its record, held to an amount of memory. ctx is cancelled to
// end all tries, one to end this one. ended is called once, as soon as the slot is free.
func (s *schedule) try(ctx, one context.Context, j job, slot int, memory int64, ended func()) outcome {
	rec := &record.Task{
		Task: j.task.Task, Sample: j.task.Sample, Try: j.try, Slot: slot,
		Queued: j.queued.UTC(), Exit: -1, Outputs: j.task.Paths(), Log: s.run.Worker(), Memory: memory,
	}
	work := s.run.WorkDir(j.task.Task, j.try)
	err := s.execute(one, j, work, rec)
	if f := (*failure)(nil); errors.As(err, &f) && f.cause == record.CauseInterrupted && errors.Is(context.Cause(one), errCancelled) {
		err = &failure{cause: record.CauseInterrupted, text: "ended because it was cancelled"}
	}
	ended()
	if err != nil && s.o.Worker != "" && !differs(err) {
		select { // see doubtTime
		case <-ctx.Done():
			err = &failure{cause: record.CauseInterrupted, text: "ended with its engine job"}
		case <-time.After(doubtTime):
		}
	}
	if _, ferr := s.fenced(); ferr != nil {
		// Another worker has the task by now: this try must have no effect.
		rec.Cause, rec.Error = record.CauseInterrupted, "its worker was closed"
		return outcome{job: j, rec: rec, err: errors.Join(ferr, os.RemoveAll(work))}
	}
	if err == nil {
		err = s.publish(j, work)
	}
	var logErr error
	rec.StderrOffset, rec.StderrLength, logErr = s.run.AppendStderr(filepath.Join(work, hotstart.StderrName), filepath.Join(work, pipeStderrName))
	if err == nil && logErr != nil {
		err = fmt.Errorf("keep the standard error: %w", logErr)
	}
	if err != nil {
		f := s.describe(err)
		rec.Cause, rec.Error, rec.Hint = f.cause, limit(f.text), f.hint
	}
	// First, so that a full disk has room for the record.
	var removeErr error
	if err != nil {
		removeErr = os.RemoveAll(work)
	}
	out := outcome{job: j, rec: rec, err: s.run.Commit(rec)}
	if err == nil {
		removeErr = os.RemoveAll(work)
	}
	if removeErr != nil {
		s.progress.note("a work directory is left: %v", removeErr)
	}
	return out
}

func limit(text string) string {
	if len(text) > maxError {
		return strings.ToValidUTF8(text[:maxError], "") + "..."
	}
	return text
}

// execute runs tool and pipe and fills in the record.
func (s *schedule) execute(ctx context.Context, j job, work string, rec *record.Task) error {
	rec.Started = time.Now().UTC()
	rec.Ended = rec.Started
	rec.Wait = rec.Started.Sub(rec.Queued).Seconds()
	if err := os.Mkdir(work, 0o777); err != nil {
		return err
	}
	for _, dir := range j.task.Dirs {
		if err := os.MkdirAll(filepath.Join(work, dir), 0o777); err != nil {
			return err
		}
	}
	if err := checkInputs(j.task); err != nil {
		return err
	}
	group, err := s.groups.add(fmt.Sprintf("%d.%d", j.task.Task, j.try), limits{memory: rec.Memory, threads: s.run.Plan.Header.Threads})
	if err != nil {
		return err
	}
	p := &pair{grace: s.o.Grace, kill: s.o.Kill}
	err = s.begin(ctx, j, work, group, p)
	if err == nil {
		rec.Start, rec.Reason, rec.Snapshot = string(p.tool.Kind), p.tool.Reason, p.tool.Snapshot
		p.wait(ctx, s.timeout)
		rec.Ended = time.Now().UTC()
		rec.Seconds = rec.Ended.Sub(rec.Started).Seconds()
		p.fill(rec)
		err = p.verdict(group.oomKills(), rec.Memory, s.timeout)
	} else {
		rec.Ended = time.Now().UTC()
		err = s.startFailure(ctx, j.task, err)
	}
	if rerr := group.remove(); rerr != nil {
		s.progress.note("a cgroup is left: %v", rerr)
	}
	if j.verify && rec.Snapshot != "" {
		err = s.verify(ctx, j, work, rec, p, err)
	}
	return err
}

// begin starts the tool and its pipe.
func (s *schedule) begin(ctx context.Context, j job, work string, g *group, p *pair) error {
	tool, err := s.starter.Start(ctx, hotstart.Task{Dir: work, Inputs: s.files(j.task.Inputs), Cgroups: g.dirs})
	if err != nil {
		return err
	}
	p.tool = tool
	if j.task.Pipe == "" {
		return nil
	}
	stdout := tool.Stdout
	if j.verify && tool.Snapshot != "" {
		read, write, err := os.Pipe()
		if err != nil {
			p.signal(unix.SIGKILL)
			_, werr := tool.Wait()
			return errors.Join(err, werr, stdout.Close())
		}
		p.copyStdout(s.starter, write)
		stdout = read
	}
	defer stdout.Close()
	p.pipe, err = startPipe(j.task.Pipe, work, s.env, g.dirs, stdout)
	if err != nil {
		p.signal(unix.SIGKILL)
		_, werr := tool.Wait()
		return errors.Join(err, werr)
	}
	return nil
}

// differs reports whether a task differed from a cold start.
func differs(err error) bool {
	f := (*failure)(nil)
	return errors.As(err, &f) && f.cause == record.CauseDiffers
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
			return &failure{record.CauseInput, fmt.Sprintf("input %s cannot be read: %v", name, err), "mend the file and run the same command again"}
		}
	}
	return nil
}

// startFailure returns the reason why a tool could not start.
func (s *schedule) startFailure(ctx context.Context, t *engine.Task, err error) error {
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
		f.cause, f.hint = record.CauseInput, "mend the file and run the same command again"
	}
	var unavailable *hotstart.Unavailable
	if errors.As(err, &unavailable) {
		f.hint = unavailable.Way
	}
	return f
}

// publish checks the outputs of a try that succeeded and moves them into place. On a
// full disk it refuses: many tools do not check the result of write(2), and end
// with status 0 and a truncated output.
func (s *schedule) publish(j job, work string) error {
	if s.diskFull() {
		return fmt.Errorf("outputs may be cut short: %w", unix.ENOSPC)
	}
	if err := engine.Check(work, j.task.Outputs); err != nil {
		return err
	}
	return engine.Publish(work, s.run.Dir, j.task.Outputs)
}

// describe makes of any error a failure with its cause.
func (s *schedule) describe(err error) *failure {
	full := &failure{record.CauseDisk, "", "make room in " + s.run.Dir + " and run the same command again"}
	var f *failure
	if errors.As(err, &f) {
		if (f.cause == record.CauseExit || f.cause == record.CauseSignal) && s.diskFull() {
			full.text = f.text + "; the disk of the run directory is full"
			return full
		}
		return f
	}
	var o *engine.OutputError
	switch {
	case errors.As(err, &o):
		if s.diskFull() {
			full.text = o.Error() + "; the disk of the run directory is full"
			return full
		}
		return &failure{record.CauseOutput, o.Error(), o.Way}
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		full.text = fmt.Sprintf("the disk of the run directory is full: %v", err)
		return full
	}
	return &failure{cause: record.CauseInternal, text: err.Error()}
}

// lowSpace is the free space, in bytes, below which a disk counts as full.
const lowSpace = 256 << 10

func (s *schedule) diskFull() bool {
	var st unix.Statfs_t
	if unix.Statfs(s.run.Dir, &st) != nil {
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

	copied chan error // of a standard output that is digested; nil: it is not
	digest []byte     // valid once something came from copied

	exit    hotstart.Exit
	exitErr error
	ended   string // record.CauseTimeout or CauseInterrupted, if premix ended it
	sunk    bool   // the tool was sent SIGTERM because its pipe had failed
	killed  bool   // premix sent SIGKILL
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
		pipe = p.pipe.ended
	}
	var timer, grace <-chan time.Time
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
			if p.ended == "" {
				p.ended = record.CauseTimeout
			}
			end()
		case <-interrupt:
			interrupt = nil
			if p.ended == "" {
				p.ended = record.CauseInterrupted
			}
			end()
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
	if toolOK && pipeOK {
		return nil
	}
	switch p.ended {
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
