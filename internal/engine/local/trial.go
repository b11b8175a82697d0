package local

import (
	"context"
	"os"
	"time"

	"premix/internal/hotstart"
	"premix/internal/record"
)

// How a run decides whether hot starts pay.
//
// Preparing a snapshot takes longer than some quick tasks. So where tasks may start hot or
// cold, and no snapshot is at hand, the first tasks of a lane start cold. If one of them
// succeeds within the time of hotstart.Starter.Trial, the lane stays cold, and nothing was
// lost. If one takes longer, it is killed, hot starts are prepared, and its try begins again.
// So no task needs memory while a template is loaded.

// trial is the time before it is decided how the tasks of a lane start.
type trial struct {
	limit time.Duration // for a task
	begun bool          // hot starts are being prepared; for the scheduler
	over  chan struct{} // closed when it is decided
}

// decided begins the use of a starter by the tasks of a lane.
func (h *hot) decided(l *lane) {
	l.verifies = h.newSentinel(l.Snapshot(), len(l.samples))
	l.first = l.verifies
	h.note(l, hotstart.Use{Run: h.run.Dir})
}

// quick has the lane of a try, which was measured and succeeded, stay cold.
func (t *try) quick() {
	took := t.rec.Finished.Sub(t.rec.Started)
	h, l := t.hot, t.lane
	h.events <- func() []*record.Task {
		if l.trial != nil && !l.trial.begun {
			l.StayCold(took)
			h.conclude(l)
		}
		return nil
	}
}

// prepared prepares hot starts, or waits until another try has, and begins the try again.
func (t *try) prepared(ctx context.Context) (*pair, error) {
	if err := os.RemoveAll(t.work); err != nil {
		return &pair{}, err
	}
	h, l, over := t.hot, t.lane, t.trial.over
	h.events <- func() []*record.Task {
		if l.trial != nil && !l.trial.begun {
			l.trial.begun = true
			h.preparing.Go(func() { h.prepareLane(l) })
		}
		return nil
	}
	select {
	case <-over:
	case <-ctx.Done():
		return &pair{}, startFailure(ctx, t.task, ctx.Err())
	}
	t.trial = nil
	chosen := make(chan struct{})
	h.events <- func() []*record.Task {
		h.choose(t)
		close(chosen)
		return nil
	}
	<-chosen
	t.rec.Started = time.Now().UTC()
	return t.once(ctx)
}

// prepareLane prepares hot starts of a lane.
func (h *hot) prepareLane(l *lane) {
	starter, err := h.starter(h.ctx, l, false)
	h.events <- func() []*record.Task {
		switch {
		case err == nil:
			l.measured, l.Starter = l.Starter, starter
		case h.ctx.Err() == nil:
			h.fail(err)
		}
		h.conclude(l)
		return nil
	}
}

// conclude ends the trial of a lane.
func (h *hot) conclude(l *lane) {
	if kind, reason := l.Decision(); h.ctx.Err() == nil && h.broken == nil {
		names := ""
		if len(h.lanes) > 1 {
			names = namesLike(l)
		}
		h.progress.notice("tasks%s start %s: %s", names, kind, reason)
	}
	close(l.trial.over)
	l.trial = nil
	h.decided(l)
}
