package trace

import (
	"errors"
	"io/fs"
	"iter"
	"syscall"

	"premix/internal/engine"
	"premix/internal/engine/queue"
	"premix/internal/record"
)

// The directories of premix contain the records of runs and of tasks without a recipe, with
// the cores and memory that they reserved. The last try of each task is the job.

func openDir(path string) (*Trace, error) {
	if queue.IsDir(path) {
		return fromRecords(queue.Records(path), path, "premix task directory", "", 1, 0)
	}
	plan, err := engine.ReadPlan(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil, &Error{Path: path, Reason: "is a directory that holds no run", HintText: "give the directory that was --out of premix run or premix task run, or a file"}
	}
	if err != nil {
		return nil, err
	}
	h := &plan.Header
	return fromRecords(queue.Records(path), path, "premix run directory", h.Recipe, h.Threads, h.Memory)
}

// fromRecords makes a trace of records. step, cores and memory are used for records that
// lack these values.
func fromRecords(records iter.Seq2[*record.Task, error], path, format, step string, cores int, memory int64) (*Trace, error) {
	b := newBuilder(path, format, 0)
	last := make(map[int]entry)
	var order []int
	n := 0
	for r, err := range records {
		if err != nil {
			return nil, err
		}
		n++
		if r.Finished.IsZero() || r.Started.IsZero() || r.Finished.Before(r.Started) {
			b.t.Read.leave("never started")
			continue
		}
		e := entry{number: int64(r.Task), submit: Time(r.Queued.UnixMilli()), run: FromDuration(r.Finished.Sub(r.Started)),
			cores: int64(r.Cores), account: r.Group, hasWaited: true, waited: max(FromDuration(r.Started.Sub(r.Queued)), 0)}
		held := r.Memory
		if e.cores == 0 {
			e.cores = int64(max(cores, 1))
		}
		if e.account == "" {
			e.account = step
		}
		if held == 0 {
			held = memory
		}
		e.memory = perCore((held+(1<<20)-1)>>20, e.cores)
		if before, ok := last[r.Task]; ok {
			b.t.Read.leave("an earlier try")
			if before.submit < e.submit {
				e.submit, e.waited = before.submit, e.waited+e.submit-before.submit
			}
		} else {
			order = append(order, r.Task)
		}
		last[r.Task] = e
	}
	for i, task := range order {
		e := last[task]
		if why := b.add(&e); why != "" {
			b.t.Read.bad(i+1, why, "")
		}
	}
	t := b.finish(true)
	if t.Len() == 0 {
		return nil, &Error{Path: path, Reason: "has no record of a task", HintText: "replay it when some of its tasks have ended"}
	}
	return t, nil
}
