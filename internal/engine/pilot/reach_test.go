package pilot

import (
	"context"
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"premix/internal/engine/local"
	"premix/internal/engine/queue"
	"premix/internal/kit/exit"
)

// fickle is an engine whose answers the test determines. Its workers are real.
type fickle struct {
	ender
	calls  []string
	reach  func(context.Context) error
	submit func(context.Context) error // nil submits the jobs
	find   func(context.Context) error // nil finds no jobs
}

func (e *fickle) Reach(ctx context.Context, _ string) error {
	e.calls = append(e.calls, "reach")
	return e.reach(ctx)
}

func (e *fickle) Submit(ctx context.Context, w *Wave) ([]string, error) {
	e.calls = append(e.calls, "submit")
	if e.submit != nil {
		return nil, e.submit(ctx)
	}
	return e.ender.Submit(ctx, w)
}

func (e *fickle) Find(ctx context.Context, _ *Wave) ([]string, error) {
	e.calls = append(e.calls, "find")
	if e.find != nil {
		return nil, e.find(ctx)
	}
	return nil, nil
}

// twoTasks makes a directory of two waiting tasks.
func twoTasks(t *testing.T) (*queue.Queue, *TaskDir) {
	t.Helper()
	dir := t.TempDir()
	q, err := queue.Open(dir, "v1", true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { q.Close() })
	b, err := q.Submit(queue.BatchOptions{Options: queue.Options{Dir: dir}})
	if err != nil {
		t.Fatal(err)
	}
	if err := (&queue.Input{Name: "input", Format: queue.Lines}).Read(strings.NewReader("true\ntrue\n"), b); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	d, err := OpenTasks(q, true)
	if err != nil {
		t.Fatal(err)
	}
	return q, d
}

var errAway = errors.New("nobody is there")

func away(context.Context) error { return errAway }

func there(context.Context) error { return nil }

// hangs does not answer until the context ends.
func hangs(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// If the engine does not answer at the start, the dispatcher ends without submitting jobs. If the
// engine answers in time, the dispatcher continues.
func TestEngineAwayAtTheStart(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer time.Duration
		reach  func(context.Context) error
		ends   bool
	}{
		{"away", 10 * time.Millisecond, away, true},
		{"hangs", 10 * time.Millisecond, hangs, true},
		{"comes", time.Hour, func() func(context.Context) error {
			times := 0
			return func(context.Context) error {
				if times++; times < 3 {
					return errAway
				}
				return nil
			}
		}(), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			q, d := twoTasks(t)
			e := &fickle{ender: ender{t: t, dir: q.Dir, status: make(map[string]Status)}, reach: c.reach}
			err := Dispatch(t.Context(), d, e, Options{Version: "v1", Jobs: 1, Answer: c.answer})
			e.running.Wait()
			if !c.ends {
				if want := []string{"reach", "reach", "reach", "submit"}; err != nil || !slices.Equal(e.calls, want) || q.Counts()[queue.Succeeded] != 2 {
					t.Errorf("%v, asked for %v", err, e.calls)
				}
				return
			}
			if exit.Of(err) != exit.Origin || !strings.Contains(err.Error(), "ender does not answer") || slices.Contains(e.calls, "submit") {
				t.Errorf("%v, asked for %v", err, e.calls)
			}
			if err := CheckBusy(q.Dir); err != nil {
				t.Error(err)
			}
			// The same command continues.
			e.reach = there
			if err := Dispatch(t.Context(), d, e, Options{Version: "v1", Jobs: 1}); err != nil || q.Counts()[queue.Succeeded] != 2 {
				t.Error(err)
			}
			e.running.Wait()
		})
	}
}

// A dispatcher that is interrupted while it knows no job of the engine ends at once, and leaves no
// jobs to wait for.
func TestInterruptedWithoutJobs(t *testing.T) {
	for _, c := range []struct {
		name                string
		reach, submit, find func(context.Context) error
	}{
		{"it does not answer", hangs, nil, nil},
		{"it refuses connections", away, nil, nil},
		{"it went away when jobs were submitted", there, away, away},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			q, d := twoTasks(t)
			ctx, interrupt := context.WithCancelCause(t.Context())
			e := &fickle{ender: ender{t: t, dir: q.Dir, status: make(map[string]Status)}, submit: c.submit}
			// The last request of the dispatcher interrupts it.
			last := func(f func(context.Context) error) func(context.Context) error {
				return func(ctx context.Context) error {
					interrupt(&local.Interrupted{Signal: syscall.SIGINT})
					return f(ctx)
				}
			}
			if e.reach, e.find = last(c.reach), c.find; c.find != nil {
				e.reach, e.find = c.reach, last(c.find)
			}
			err := Dispatch(ctx, d, e, Options{Version: "v1", Jobs: 1, Answer: time.Hour})
			var i *local.Interrupted
			if !errors.As(err, &i) || i.Signal != syscall.SIGINT {
				t.Errorf("%v", err)
			}
			if err := CheckBusy(q.Dir); err != nil {
				t.Error(err)
			}
			if n := q.Counts()[queue.Waiting]; n != 2 {
				t.Errorf("%d tasks wait", n)
			}
		})
	}
}
