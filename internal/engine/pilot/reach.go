package pilot

import (
	"context"
	"errors"
	"premix/internal/kit/exit"
	"slices"
	"time"
)

// DefaultAnswer is how long an engine may take to answer at the start of a dispatcher.
const DefaultAnswer = time.Minute

// startBackOff is the longest pause between two attempts to reach the engine.
const startBackOff = 5 * time.Second

// farewell is how long an engine that has no job may hold up the end of an interrupted
// dispatcher.
const farewell = 5 * time.Second

// reach reports whether the engine answers. It is asked before any job is submitted, so that
// an unreachable engine certainly has no jobs of the directory.
func (s *dispatcher) reach(ctx context.Context) (bool, error) {
	if s.answered || s.o.Stay != nil {
		return true, nil
	}
	if s.sought.IsZero() {
		s.sought = time.Now()
	}
	one, cancel := context.WithTimeout(ctx, s.o.Answer)
	defer cancel()
	err := s.eng.Reach(one, s.d.Path())
	var refused *RefusedError
	switch {
	case err == nil:
		s.answered, s.backOff = true, 0
		return true, nil
	case errors.As(err, &refused):
		s.fail(refused)
		return false, nil
	}
	return false, s.quiet(ctx, err)
}

// quiet leaves an engine alone that does not answer. It is an error if that has lasted too
// long at the start.
func (s *dispatcher) quiet(ctx context.Context, err error) error {
	most := longBackOff
	if !s.answered {
		most = startBackOff
	}
	s.backOff = min(most, max(shortBackOff, 2*s.backOff))
	s.silent = time.Now().Add(s.backOff)
	if s.sought.IsZero() {
		s.sought = time.Now()
	}
	if !s.given() {
		if ctx.Err() != nil {
			return nil // it was broken off here
		}
		if asked := time.Since(s.sought); !s.answered && s.o.Stay == nil && asked >= s.o.Answer {
			return exit.Errorf(exit.Origin, "see why this machine does not reach it; nothing is lost, the same command continues; --engine-opt answer=10m waits longer", "%s does not answer, asked for %v: %w", s.eng.Name(), asked.Round(time.Second/10), err)
		}
	}
	s.msg.Note("%s does not answer, trying again: %v", s.eng.Name(), err)
	return nil
}

// given reports whether jobs are known to be with the engine.
func (s *dispatcher) given() bool {
	return slices.ContainsFunc(s.l.open(), func(h *held) bool { return h.job != "" })
}

// outlive returns a context for calls to the engine that continue when the dispatcher is
// interrupted. If there are jobs to end, it lasts until s.o.Kill; otherwise it lasts farewell
// longer than ctx.
func (s *dispatcher) outlive(ctx context.Context) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	given := s.given()
	go func() {
		interrupt := ctx.Done()
		var late <-chan time.Time
		if given {
			interrupt = nil
		}
		for {
			select {
			case <-interrupt:
				interrupt, late = nil, time.After(farewell)
				continue
			case <-late:
			case <-s.o.Kill:
			case <-longer.Done():
			}
			cancel()
			return
		}
	}()
	return longer, cancel
}

// giveUpUnknown closes the workers of the waves that an unreachable engine has not confirmed.
// If the engine does have a wave of them, its jobs find that they are closed, and end.
func (s *dispatcher) giveUpUnknown() error {
	for _, w := range s.l.waves {
		if !w.submitted && !allClosed(w) {
			if err := s.abandon(w, "the run was interrupted before it was known to be submitted"); err != nil {
				return err
			}
		}
	}
	return nil
}
