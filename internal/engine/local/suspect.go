package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"premix/internal/engine/spawn"
	"premix/internal/record"
)

// A spawner can die. A task can kill its spawner, which is its parent, or stop it until the client
// kills it; others can too, for example an administrator, or a machine out of memory. So the tasks
// that ran then are suspects, and each of them is started again in a spawner of its own,
// where it can harm no other task. A suspect that ends is innocent. One that loses
// enough spawners has failed, and so has one whose spawner was stopped again and again. Until
// then no try is counted.

// aloneDeaths is how many spawners of its own a task has to lose until it counts as
// the cause. Each spawner that died although all of its tasks were innocent raises the
// number by one: something else kills spawners then.
const aloneDeaths = 3

// maxDeaths is how many spawners may die one after another that ran nothing.
const maxDeaths = 20

// suspect is a task that ran when a spawner died.
type suspect struct {
	death  *death // the death that it is suspected of
	deaths int    // of spawners of its own
}

// death is the end of a spawner that tasks are suspected of.
type death struct {
	open   int  // suspects that have not ended
	caused bool // one of them has failed for it, or has stopped its spawner
}

// runner is a spawner and its setup.
type runner struct {
	*spawn.Spawner
	setup spawn.Setup
	alone *suspect // that it was started for; nil: the usual one
}

// usual returns the setup of the spawner of all tasks but the suspects.
func (s *spawners) usual() *runner {
	r := &runner{setup: spawn.Setup{Slots: s.slots, StatusFile: s.q.StatusFile(s.o.Worker)}}
	r.prepare(s)
	return r
}

// prepare completes the setup.
func (r *runner) prepare(s *spawners) {
	r.setup.Resumed = func() {
		s.progress.note("another process, perhaps a task, had stopped the process that runs the tasks; it was resumed")
	}
	for i := range r.setup.Slots {
		_, out, errs := s.q.Logs(s.o.Worker, r.setup.First+i)
		r.setup.Logs = append(r.setup.Logs, out, errs)
	}
}

// addCells gives a spawner the cgroups of its slots, where there can be some.
func (s *spawners) addCells(r *runner) {
	r.setup.Cells = nil
	if s.o.KeepDaemons || s.noCells {
		return
	}
	for i := range r.setup.Slots {
		c, err := s.groups.cell(r.setup.First+i, s.processes())
		if err != nil {
			s.withoutCells(err)
			break
		}
		r.setup.Cells = append(r.setup.Cells, c)
	}
	if s.noCells || r.setup.Cells[0].Dir == "" {
		r.setup.Cells = nil
	}
}

// withoutCells has tasks run without cgroups of the slots.
func (s *spawners) withoutCells(err error) {
	s.noCells = true
	s.progress.note("tasks have no cgroups, so daemons that they start outlive them: %v", err)
}

// processes returns how many processes and threads a task may have.
func (s *spawners) processes() int {
	if s.o.processes > 0 {
		return s.o.processes
	}
	return maxPids
}

// spawn starts a spawner and listens to it.
func (s *spawners) spawn(r *runner) (_ *runner, err error) {
	binary := s.o.Binary
	if binary == "" {
		binary = "/proc/self/exe"
	}
	s.addCells(r)
	if r.Spawner, err = spawn.Start(binary, r.setup); err != nil {
		return nil, err
	}
	s.runners[r] = true
	go func() {
		err := r.Results(func(batch []spawn.Result) {
			results := slices.Clone(batch)
			s.events <- func() (records []*record.Task) {
				for i := range results {
					if s.runners[r] { // not of a spawner that was ended
						records = append(records, s.finish(&results[i])...)
					}
				}
				return records
			}
		})
		s.events <- func() []*record.Task {
			if !s.runners[r] {
				return nil // it was ended
			}
			results, records := s.died(r, err)
			for i := range results {
				records = append(records, s.finish(&results[i])...)
			}
			return records
		}
	}()
	return r, nil
}

// startAlone starts a suspect in a spawner of its own.
func (s *spawners) startAlone(a *activeTask, st spawn.Task) error {
	n := s.slots
	for slices.ContainsFunc(s.aloneSlots(), func(taken int) bool { return taken == n }) {
		n++
	}
	r := &runner{alone: s.suspects[a.Number], setup: spawn.Setup{Slots: 1, First: n, StatusFile: s.q.LoneStatusFile(s.o.Worker, n)}}
	r.prepare(s)
	if _, err := s.spawn(r); err != nil {
		return err
	}
	a.in = r
	_ = r.Start([]spawn.Task{st}) // if the spawner is gone, its end arrives later
	return nil
}

// aloneSlots returns the slots of the spawners of suspects.
func (s *spawners) aloneSlots() (list []int) {
	for r := range s.runners {
		if r.alone != nil {
			list = append(list, r.setup.First)
		}
	}
	return list
}

// leave closes the spawner of a suspect, which is innocent if it has ended.
func (s *spawners) leave(a *activeTask, finished bool) {
	r := a.in
	s.end(r)
	if !finished {
		return
	}
	delete(s.suspects, a.Number)
	d := r.alone.death
	d.caused = d.caused || r.Stops() > 0 // not often enough to fail
	if d.open--; d.open == 0 && !d.caused {
		s.outside++
	}
}

// end ends a spawner, unless that was done before.
func (s *spawners) end(r *runner) {
	if !s.runners[r] {
		return
	}
	delete(s.runners, r)
	if err := r.Close(); err != nil {
		s.progress.note("%v", err)
	}
	for _, c := range r.setup.Cells {
		if err := removeGroups(c.Dir); err != nil {
			s.progress.note("a cgroup is left: %v", err)
		}
	}
}

// died replaces a spawner that died. It returns the results of the tasks that had ended,
// and a record if a suspect has failed. Everything else that the spawner had is started
// again.
func (s *spawners) died(r *runner, err error) (finished []spawn.Result, records []*record.Task) {
	s.end(r)
	stopped := errors.Is(err, spawn.ErrStopped)
	var told *spawn.Error
	if errors.As(err, &told) {
		if r.setup.Cells != nil {
			s.withoutCells(err)
		} else {
			s.fail(err)
		}
	}
	b, err := spawn.ReadStatusFile(r.setup.StatusFile)
	if err == nil {
		finished, err = b.Finished()
	}
	if err != nil {
		s.progress.note("%v", err) // without the results the ended tasks run again
	}
	known := make(map[uint64]bool)
	finished = slices.DeleteFunc(finished, func(res spawn.Result) bool {
		a := s.active[res.ID]
		if a == nil || a.in != r || !own(&res) {
			return true
		}
		known[res.ID] = true
		return false
	})
	running := make(map[uint64]*spawn.Running)
	if b != nil && b.Session == r.PID() { // or it died before it had a status file
		for i := range b.Running {
			running[b.Running[i].ID] = &b.Running[i]
		}
	}
	d := &death{}
	again := 0
	for id, a := range s.active {
		if a.in != r || known[id] {
			continue
		}
		s.release(a)
		at := running[id]
		switch {
		case at == nil || s.stopped:
		case r.alone == nil:
			d.open++
			s.suspects[a.Number] = &suspect{death: d}
		default:
			r.alone.deaths++
			if r.alone.deaths < aloneDeaths+s.outside && !stopped {
				break
			}
			records = append(records, s.culprit(a, at, r.alone.deaths, stopped))
			r.alone.deaths, r.alone.death.caused = 0, true
			continue // it waits again when the record is durable, if ever
		}
		again++
		s.p.Done(a.Number, 0)
	}
	if len(running) > 0 {
		s.deaths = 0
	} else if s.deaths++; s.deaths > maxDeaths {
		s.fail(fmt.Errorf("the spawner died %d times before it had started a task", s.deaths))
	}
	if r.alone == nil {
		s.batch = s.batch[:0]
		if !s.stopped {
			s.progress.note("the spawner died; %d tasks are started again", again)
			if s.spawner, err = s.spawn(s.usual()); err != nil {
				s.fail(err)
			}
		}
	}
	return finished, records
}

// culprit returns the record of a suspect that has failed: so many of its spawners died, the
// last one because it was stopped if stopped is true.
func (s *spawners) culprit(a *activeTask, at *spawn.Running, deaths int, stopped bool) *record.Task {
	res := &spawn.Result{ID: a.ID(), Slot: at.Slot, Started: at.Started, Finished: time.Now()}
	_, out, errs := s.q.Logs(s.o.Worker, at.Slot)
	res.Out, res.Err = since(out, at.Out), since(errs, at.Err)
	rec := s.result(a, res)
	rec.Exit = -1
	rec.Cause = record.CauseLost
	rec.Error = fmt.Sprintf("the process that runs it was killed %d times while it ran there alone", deaths)
	rec.Hint = "the command kills its parent process: see what it sends signals to, such as $PPID, all processes (kill -1) or those of a name (pkill)"
	if stopped {
		rec.Error = "the process that runs it was stopped again and again while it ran there alone"
		rec.Hint = "the command stops its parent process: see what it sends SIGSTOP to, such as $PPID, all processes (kill -STOP -1) or those of a name (pkill -STOP)"
	}
	return rec
}

// since returns the piece of a log behind an offset.
func since(path string, offset int64) spawn.LogRange {
	info, err := os.Stat(path)
	if err != nil {
		return spawn.LogRange{Offset: offset}
	}
	return spawn.LogRange{Offset: offset, Length: max(0, info.Size()-offset)}
}

// own reports whether a task ended by itself, and not because its spawner had lost the client.
// A process that exits has not died of a SIGKILL; after another signal it may exit because of
// the signal.
func own(r *spawn.Result) bool {
	return r.Errno != 0 || r.Status.Exited() && (!r.Signaled || r.Status.ExitStatus() == 0) || r.Status.Signaled() && !r.Signaled && !r.Lost
}

// recover ends the processes that an earlier premix of this worker has left, and makes records
// of the tasks that had ended when it was killed.
func (s *spawners) recover() error {
	var records []*record.Task
	for _, path := range s.q.StatusFiles(s.o.Worker) {
		b, err := spawn.ReadStatusFile(path)
		if err == nil {
			err = b.Sweep()
		}
		if err != nil {
			return err
		}
		results, err := b.Finished()
		if err != nil {
			return err
		}
		for i := range results {
			rec, err := s.late(&results[i])
			if err != nil {
				return err
			}
			if rec != nil {
				records = append(records, rec)
			}
		}
	}
	if len(records) > 0 {
		if err := s.settle(records); err != nil {
			return err
		}
		s.progress.note("%d tasks had ended when premix was killed", len(records))
	}
	return s.removeStatusFiles()
}

// removeStatusFiles removes the status files, when all of their results are durable elsewhere.
func (s *spawners) removeStatusFiles() error {
	for _, path := range s.q.StatusFiles(s.o.Worker) {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// late returns the record of a try that ended after its premix had been killed; nil if the try
// gets no record.
func (s *spawners) late(r *spawn.Result) (*record.Task, error) {
	number, try := spawn.SplitTryID(r.ID)
	if !own(r) || s.o.Share != nil && !slices.ContainsFunc(s.o.Share, func(w [2]int) bool { return number >= w[0] && number <= w[1] }) {
		return nil, nil
	}
	t, err := s.q.Task(number)
	if err != nil || t == nil || t.ID() != spawn.TryID(number, try) {
		return nil, err
	}
	rec := s.result(&activeTask{Task: t}, r)
	if s.o.Share != nil && !rec.OK() {
		return nil, nil // the end of the engine job may have been the cause; see doubtTime
	}
	return rec, nil
}
