package policy

import (
	"slices"

	"premix/replay/trace"
)

// ends are the moments at which running jobs are expected to end, in order.
type ends struct {
	of     map[int32]trace.Time // by job, as in sorted
	sorted []trace.Time
	moved  bool // some jobs are expected to end at other times than of has
}

// most is how many ends Slurm looks at together, whatever their times.
const most = 201

func (e *ends) add(job int32, at trace.Time) {
	e.of[job] = at
	i, _ := slices.BinarySearch(e.sorted, at)
	e.sorted = slices.Insert(e.sorted, i, at)
}

func (e *ends) remove(job int32) {
	at, ok := e.of[job]
	if !ok {
		return
	}
	delete(e.of, job)
	if i, found := slices.BinarySearch(e.sorted, at); found {
		e.sorted = slices.Delete(e.sorted, i, i+1)
	}
}

// renew asks for all ends again.
func (e *ends) renew(until func(job int32) trace.Time) {
	e.moved = false
	e.sorted = e.sorted[:0]
	for job := range e.of {
		at := until(job)
		e.of[job] = at
		e.sorted = append(e.sorted, at)
	}
	slices.Sort(e.sorted)
}

// together returns the last of the ends that Slurm looks at together with that at a
// moment; the moment itself where no job ends. Slurm's select plugin takes running jobs
// away in the order of their ends and asks after each group whether the waiting job fits: a
// group lasts for a precision, which is larger for each next one (_will_run_test in
// src/plugins/select/cons_tres/job_test.c; bf_window_linear in slurm.conf(5)).
func (e *ends) together(moment, precision, linear trace.Time) trace.Time {
	i, found := slices.BinarySearch(e.sorted, moment)
	if !found {
		return moment
	}
	for at := 0; ; {
		next, _ := slices.BinarySearch(e.sorted[at:], e.sorted[at]+precision+1)
		next = at + min(next, most)
		if i < next {
			return e.sorted[next-1]
		}
		at = next
		if linear > 0 {
			precision += linear
		} else {
			precision = min(2*precision, trace.Never/4)
		}
	}
}
