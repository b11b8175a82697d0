package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/engine/queue"
	"premix/internal/engine/spawn"
	"premix/internal/kit/units"
	"premix/internal/record"
)

// Prefetching: a spawner is given tasks ahead, so that its slots do not wait for this
// process, for as long as prefetchTime bridges; tasks that run longer need none.
const (
	prefetchTime = 200 * time.Millisecond
	prefetchMost = 1024
	prefetchLong = 500 * time.Millisecond
)

// killWait is how long a spawner may take to end its tasks by SIGKILL.
const killWait = 5 * time.Second

// spawners is the launcher of tasks without a recipe. One spawner runs all of them, but for
// suspects.
type spawners struct {
	*scheduler
	spawner  *runner          // of all tasks but the suspects
	runners  map[*runner]bool // the spawner, and the spawners of suspects
	suspects map[int]*suspect // by number of the task
	outside  int              // spawners that no task killed
	deaths   int              // of spawners that ran nothing, one after another
	noCells  bool             // slots have no cgroups
	pins     *pins
	heavy    int // active tasks that are not light
	batch    []spawn.Task
	mean     float64 // seconds of a task
	known    bool    // mean is
}

// open starts the spawner.
func (s *spawners) open() (err error) {
	s.limits()
	s.spawner, err = s.spawn(s.usual())
	return err
}

// close ends the spawners.
func (s *spawners) close() error {
	for r := range s.runners {
		s.end(r)
	}
	if s.broken == nil {
		if err := s.removeStatusFiles(); err != nil {
			s.progress.note("a status file is left: %v", err)
		}
	}
	return nil
}

func (s *spawners) settled(*record.Task) {}
func (s *spawners) idle()                {}
func (s *spawners) line() string         { return "" }
func (s *spawners) sumUp(*Summary)       {}

// drop has the tries given back that have not begun.
func (s *spawners) drop() {
	if s.spawner != nil {
		_ = s.spawner.Drop(0) // if it is gone, died takes them back
	}
}

// cancel ends a try.
func (s *spawners) cancel(a *activeTask) {
	if a.in == nil {
		return // it is about to fail by itself
	}
	sp, id := a.in, a.ID()
	_ = errors.Join(sp.Drop(id), sp.Signal(id, unix.SIGTERM))
	time.AfterFunc(s.o.Grace, func() { _ = sp.Signal(id, unix.SIGKILL) }) // it may have ended, or all of it
}

// signal sends a signal to all tasks.
func (s *spawners) signal(sig syscall.Signal) {
	for r := range s.runners {
		_ = r.Signal(0, sig) // if it is gone, so are its tasks
		if sig == unix.SIGKILL {
			time.AfterFunc(killWait, r.Kill) // a task may have stopped another one before that had executed its program
		}
	}
}

// hand hands the batch over.
func (s *spawners) hand() {
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
func (s *spawners) light(t *queue.Task) bool {
	return t.Cores == 1 && t.Memory == 0 && t.Resources == "" && s.pins == nil && s.suspects[t.Number] == nil
}

// ahead returns how many tasks are handed over ahead.
func (s *spawners) ahead(t *queue.Task) int {
	if !s.known || s.mean > prefetchLong.Seconds() || s.o.FailFast || s.heavy > 0 || !s.light(t) {
		return 0
	}
	return min(prefetchMost, s.slots+int(float64(s.slots)*prefetchTime.Seconds()/max(s.mean, 1e-6)))
}

// start puts a try into the batch.
func (s *spawners) start(a *activeTask) {
	t := a.Task
	a.heavy = !s.light(t)
	if a.heavy {
		s.heavy++
	}
	a.allowed = s.o.Limits.of(t.Number, t.Timeout)
	out, errs := t.Spec.Files(t.Files, t.Number)
	st := spawn.Task{ID: t.ID(), Argv: t.Argv, Env: append(t.Environ(), s.pools.environ(a.held)...), Dir: t.Dir, Stdin: t.Input(), Stdout: out, Stderr: errs, Timeout: a.allowed, Grace: s.o.Grace}
	if t.Argv == nil {
		st.Shell = t.Command
		if argv, ok := queue.Direct(t.Command); ok && len(t.Env) == 0 {
			st.Argv = argv
		}
	}
	if a.group != nil {
		st.Join, st.Events = a.group.dirs, a.group.events()
	}
	if s.pins != nil {
		a.pin = s.pins.take(t.Cores)
		st.CPUs, st.Nodes = a.pin.cpus, a.pin.nodes
	}
	if s.suspects[t.Number] != nil {
		if err := s.startAlone(a, st); err != nil {
			s.release(a)
			s.p.Done(t.Number, 0)
			s.fail(err)
		}
		return
	}
	a.in = s.spawner
	if s.batch = append(s.batch, st); len(s.batch) >= prefetchMost {
		s.hand()
	}
}

// release takes back the resources of an active task.
func (s *spawners) release(a *activeTask) {
	s.scheduler.release(a)
	if a.heavy {
		s.heavy--
	}
	if a.pin != nil {
		s.pins.give(a.pin)
	}
}

// finish makes the record of a try. It returns nil if the try has no record.
func (s *spawners) finish(r *spawn.Result) []*record.Task {
	a := s.active[r.ID]
	if a == nil {
		return nil
	}
	s.release(a)
	if a.in != nil && a.in.alone != nil {
		s.leave(a, !r.Dropped)
	}
	if r.Dropped {
		s.p.Done(a.Number, 0)
		return nil
	}
	s.deaths = 0
	took := r.Finished.Sub(r.Started).Seconds()
	if s.known {
		s.mean += (took - s.mean) / 16
	} else {
		s.mean, s.known = took, true
	}
	return []*record.Task{s.result(a, r)}
}

// result makes the record of a try from its result.
func (s *spawners) result(a *activeTask, r *spawn.Result) *record.Task {
	name, _, _ := s.q.Logs(s.o.Worker, r.Slot)
	rec := s.record(a, r.Started, r.Finished)
	rec.Slot, rec.Log = r.Slot, name
	rec.User, rec.System, rec.MaxRSS, rec.ReadBytes, rec.WriteBytes = r.User.Seconds(), r.System.Seconds(), r.MaxRSS, r.Read, r.Written
	rec.StdoutOffset, rec.StdoutLength, rec.StderrOffset, rec.StderrLength = r.Out.Offset, r.Out.Length, r.Err.Offset, r.Err.Length
	if r.Errno == 0 {
		if r.Status.Exited() {
			rec.Exit = r.Status.ExitStatus()
		} else {
			rec.Signal = int(r.Status.Signal())
		}
	}
	if f := s.verdict(a, r); f != nil {
		f.fill(rec)
	}
	if r.Full {
		s.cutShort(rec)
	}
	return rec
}

// verdict returns nil if a try succeeded.
func (s *spawners) verdict(a *activeTask, r *spawn.Result) *failure {
	if r.Errno != 0 {
		f := &failure{cause: record.CauseStart, text: fmt.Sprintf("the command cannot %s: %v", r.At, r.Errno)}
		if _, err := os.Stat(a.Input()); a.Input() != "" && err != nil {
			f.hint = "stdin of the task names the file " + a.Input()
		} else if errors.Is(r.Errno, fs.ErrNotExist) && len(a.Argv) > 0 {
			f.hint = fmt.Sprintf("install %s, or put its directory on PATH", a.Argv[0])
		}
		return f
	}
	// A shell may end with 0 although a command of its pipeline was killed.
	if r.Status.Exited() && r.Status.ExitStatus() == 0 && !r.Refused && r.OOMKills == 0 {
		return nil
	}
	switch {
	case r.Signaled && s.ctx.Err() != nil:
		return &failure{cause: record.CauseInterrupted, text: "interrupted"}
	case r.Signaled:
		return &failure{cause: record.CauseInterrupted, text: "ended because it was cancelled"}
	case r.TimedOut:
		return &failure{record.CauseTimeout, fmt.Sprintf("ended at its timeout of %v", a.allowed), "submit it with a longer --timeout"}
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
