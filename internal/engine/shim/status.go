package shim

import (
	"sync"
	"time"

	"premix/internal/engine/queue"
	"premix/internal/engine/spawn"
	"premix/internal/record"
)

// state is one of Slurm's states of a job: its long name and its short one.
type state struct{ name, code string }

var (
	pending    = state{"PENDING", "PD"}
	running    = state{"RUNNING", "R"}
	suspended  = state{"SUSPENDED", "S"}
	completing = state{"COMPLETING", "CG"}
	completed  = state{"COMPLETED", "CD"}
	cancelled  = state{"CANCELLED", "CA"}
	failed     = state{"FAILED", "F"}
	timeout    = state{"TIMEOUT", "TO"}
	oom        = state{"OUT_OF_MEMORY", "OOM"}
	nodeFail   = state{"NODE_FAIL", "NF"}
)

// states are all states of Slurm, by both names.
var states = sync.OnceValue(func() map[string]state {
	m := make(map[string]state)
	for _, s := range []state{pending, running, completing, completed, cancelled, failed, timeout, oom, nodeFail,
		suspended, {"PREEMPTED", "PR"}, {"BOOT_FAIL", "BF"}, {"CONFIGURING", "CF"}, {"DEADLINE", "DL"}, {"REQUEUED", "RQ"},
		{"REQUEUE_HOLD", "RH"}, {"RESIZING", "RS"}, {"REVOKED", "RV"}, {"SIGNALING", "SI"}, {"SPECIAL_EXIT", "SE"}, {"STAGE_OUT", "SO"}, {"STOPPED", "ST"}} {
		m[s.name], m[s.code] = s, s
	}
	return m
})

// status is how a job is at one moment.
type status struct {
	state
	reason   string // Slurm's word
	started  time.Time
	finished time.Time
	exit     int // of the script; 0 if it was killed, or has not ended
	signal   int
	rec      *record.Task // once it has ended
	pid      int
}

// over reports whether the job has ended for good.
func (s status) over() bool {
	return s.state != pending && s.state != running && s.state != suspended && s.state != completing
}

// took returns how long the job has run.
func (s status) took() time.Duration {
	switch {
	case s.started.IsZero():
		return 0
	case s.finished.IsZero():
		return time.Since(s.started)
	}
	return s.finished.Sub(s.started)
}

// status returns the status of a job. The caller holds mu.
func (w *worker) status(j *job, now map[int]spawn.Running) status {
	st := status{reason: "None"}
	r, runs := now[j.id]
	if runs {
		st.started, st.pid = r.Started, r.PID
	}
	switch s := w.q.State(j.id); {
	case s == queue.Waiting && runs:
		if st.state = running; j.suspended {
			st.state = suspended
		}
		return st
	case s == queue.Waiting && w.q.Held(j.id):
		st.state = pending
		switch {
		case j.userHeld:
			st.reason = "JobHeldUser"
		case j.invalid:
			st.reason = "DependencyNeverSatisfied"
		case time.Now().Before(j.Begin):
			st.reason = "BeginTime"
		case j.needs != nil:
			st.reason = "Dependency"
		default:
			st.reason = "JobArrayTaskLimit"
		}
		return st
	case s == queue.Waiting && !j.running.IsZero() && w.behind == nil:
		// It has ended, and its record is on its way to the disk.
		st.state, st.started = completing, j.running
		return st
	case s == queue.Waiting:
		st.state, st.reason = pending, "Resources"
		return st
	case s == queue.Cancelled && runs:
		st.state = completing
		return st
	case s == queue.Cancelled && j.Again:
		st.state, st.reason = pending, "BeginTime"
		return st
	case s == queue.Cancelled:
		st.state = cancelled
	case s == queue.Succeeded:
		st.state = completed
	default:
		st.state = failed
	}
	if j.last == nil {
		if j.last, _ = w.q.Record(j.id); j.last != nil { // without the record the status has less detail
			w.keep(j)
		}
	}
	if st.rec = j.last; st.rec == nil {
		st.finished = j.Submitted
		return st
	}
	st.started, st.finished, st.signal = st.rec.Started, st.rec.Finished, st.rec.Signal
	st.exit = max(0, st.rec.Exit)
	if st.state == failed {
		switch st.rec.Cause {
		case record.CauseTimeout:
			st.state, st.reason = timeout, "TimeLimit"
		case record.CauseMemory:
			st.state, st.reason = oom, "OutOfMemory"
		case record.CauseLost:
			st.state, st.reason = nodeFail, "NodeDown"
		case record.CauseExit, record.CauseSignal:
			st.reason = "NonZeroExitCode"
		case record.CauseStart:
			st.exit, st.reason = 1, "JobLaunchFailure"
		}
	}
	return st
}

// waited returns how long the job waited for its start.
func (r *row) waited() time.Duration {
	switch {
	case !r.started.IsZero():
		return max(0, r.started.Sub(r.Submitted))
	case r.over():
		return max(0, r.finished.Sub(r.Submitted))
	}
	return time.Since(r.Submitted)
}
