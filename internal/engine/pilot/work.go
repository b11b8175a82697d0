package pilot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"premix/internal/engine"
	"premix/internal/engine/queue"
	"premix/internal/kit/exit"
)

// WorkOptions are the number and the resources of this worker.
type WorkOptions struct {
	Engine string
	Wave   int
	Index  int // in the wave, from 0
	Cores  int // of the allocation; 0: the machine's
	Memory int64
	// Resources: the engine asks for the resources of shares, so the allocation has them.
	Resources bool
	Grace     time.Duration
	Kill      <-chan struct{}
}

// ClosedError reports to a worker that its share was given to others.
type ClosedError struct{ Worker int }

func (e *ClosedError) Error() string {
	return fmt.Sprintf("worker %d was closed: its tasks are with others", e.Worker)
}

// ExitCode implements exit.Coded.
func (*ClosedError) ExitCode() exit.Code { return exit.Failed }

// Work runs the share of a worker in this process. It returns nil if the worker ended in
// order, whatever became of its tasks, and also if it was closed before it began.
func Work(ctx context.Context, d Directory, o WorkOptions, w Worker) error {
	f := &fence{d: d, l: &ledger{path: ledgerPath(d.Path())}}
	if err := f.l.read(); err != nil {
		return err
	}
	wave := f.l.wave(o.Wave)
	if wave == nil || wave.Engine != o.Engine || o.Index < 0 || o.Index >= len(wave.workers) {
		return &engine.DirError{Dir: d.Path(), Reason: fmt.Sprintf("has no share %d of wave %d for %s", o.Index, o.Wave, o.Engine), HintText: "premix itself runs this command"}
	}
	f.worker = wave.workers[o.Index]
	w.Share, w.Settings = &f.worker.Share, wave.Settings
	if w.Settings == nil {
		w.Settings = &Settings{}
	}
	for _, name := range w.Settings.Unset {
		if err := os.Unsetenv(name); err != nil {
			return err
		}
	}
	w.Cores, w.Memory, w.Grace, w.Kill, w.Fence = o.Cores, o.Memory, o.Grace, o.Kill, f.check
	if o.Resources && w.Share.Resources != "" {
		var err error
		if w.Resources, err = queue.ParseResources(w.Share.Resources); err != nil {
			return err
		}
	}
	if w.Settings.Target > 0 {
		w.Until = time.Now().Add(time.Duration(w.Settings.Target * float64(time.Second)))
	}
	err := d.Work(ctx, &w)
	var closed *ClosedError
	if errors.As(err, &closed) && !f.began {
		return nil // a late start, which is not worth a message
	}
	return err
}
