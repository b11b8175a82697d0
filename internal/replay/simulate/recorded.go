package simulate

import (
	"fmt"

	"premix/internal/kit/exit"
	"premix/internal/replay/trace"
)

// UnrecordedError is returned for a trace without the start times of all jobs.
type UnrecordedError struct {
	Trace   string
	First   int64 // number of the first job without one
	Missing int
}

func (e *UnrecordedError) Error() string {
	return fmt.Sprintf("%s has no start time for %d of its jobs, the first of which is job %d", e.Trace, e.Missing, e.First)
}

// ExitCode implements exit.Coded.
func (*UnrecordedError) ExitCode() exit.Code { return exit.Usage }

// Hint returns the way to resolve the error.
func (e *UnrecordedError) Hint() string {
	return "leave out the policy recorded, or give a trace with start times or waiting times"
}

// Recorded returns the schedule in a trace: the real start times of its jobs, on whatever
// machine that was. A job that comes after others is eligible when they had ended.
func Recorded(t *trace.Trace) (*Schedule, error) {
	n := t.Len()
	s := &Schedule{Policy: "recorded", Eligible: make([]trace.Time, n), Start: make([]trace.Time, n), End: make([]trace.Time, n), Given: make(map[int32]bool)}
	missing := &UnrecordedError{Trace: t.Name}
	for job := range n {
		waited := t.WaitedOf(job)
		if waited == trace.Unknown {
			if missing.Missing == 0 {
				missing.First = t.Number[job]
			}
			missing.Missing++
			continue
		}
		s.Eligible[job] = t.Submit[job]
		s.Start[job] = t.Submit[job] + waited
		s.End[job] = s.Start[job] + t.Run[job]
		if t.Given(job) {
			s.Given[int32(job)] = true
		}
	}
	if missing.Missing > 0 {
		return nil, missing
	}
	for job := range n {
		for _, before := range t.Before(job) {
			// Think times and clocks of several machines are not exact: no job began before
			// it was eligible.
			s.Eligible[job] = min(max(s.Eligible[job], s.End[before]), s.Start[job])
		}
	}
	return s, nil
}
