package tagsync

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"premix/internal/kit/exit"
)

// TestDaemon checks that a round starts at once if the list has changed or a round is
// requested, and that the last valid list remains in force while the file is broken.
func TestDaemon(t *testing.T) {
	b := newBench(t)
	b.push("a/x:1", "x")
	b.push("a/y:1", "y")
	b.list("interval: 1000h\nimages:\n  - {image: 'HOST/a/x:1', as: x}\n")
	ctx, stop := context.WithCancelCause(t.Context())
	defer stop(nil)
	stopped := errors.New("stopped")
	now := make(chan struct{})
	rounds, broken := make(chan *Summary), make(chan error)
	b.o.now = nil
	d := &Daemon{Store: b.store, File: b.file, Options: b.o, Now: now,
		Done:   func(s *Summary, err error) error { rounds <- s; return err },
		Broken: func(err error) { broken <- err },
		wait:   func(time.Duration) <-chan time.Time { return time.After(time.Millisecond) },
	}
	finished := make(chan error, 1)
	go func() { finished <- d.Run(ctx) }()
	next := func() *Summary {
		t.Helper()
		select {
		case s := <-rounds:
			return s
		case err := <-broken:
			t.Fatalf("broken: %v", err)
		case err := <-finished:
			t.Fatalf("it ended: %v", err)
		case <-time.After(2 * time.Minute):
			t.Fatal("no round")
		}
		return nil
	}
	if s := next(); s.Count(Added) != 1 {
		t.Errorf("%+v", s)
	}
	b.push("a/x:1", "moved")
	now <- struct{}{}
	if s := next(); s.Count(Updated) != 1 {
		t.Errorf("%+v", s)
	}
	b.list("interval: 1000h\nimages:\n  - {image: 'HOST/a/x:1', as: x}\n  - {image: 'HOST/a/y:1', as: y}\n")
	if s := next(); s.Count(Added) != 1 || s.Count(Unchanged) != 1 {
		t.Errorf("%+v", s)
	}
	// The list is broken, and then missing: nothing is removed.
	b.list("imagse: []\n")
	var ps Problems
	if err := <-broken; !errors.As(err, &ps) {
		t.Errorf("%v", err)
	}
	if err := os.Remove(b.file); err != nil {
		t.Fatal(err)
	}
	if err := <-broken; !errors.As(err, &ps) || !strings.Contains(err.Error(), b.file) {
		t.Errorf("%v", err)
	}
	b.has("x:1", "y:1")
	b.list("name: images\nimages: []\ninterval: 1000h\n")
	if s := next(); s.Count(Removed) != 2 {
		t.Errorf("%+v", s)
	}
	// The daemon holds the lock of the list between rounds too.
	l, err := Load(b.file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(b.store, l, b.o); exit.Of(err) != exit.Directory {
		t.Errorf("%v", err)
	}
	stop(stopped)
	if err := <-finished; !errors.Is(err, stopped) {
		t.Errorf("it ended with %v", err)
	}
	w, err := New(b.store, l, b.o)
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
}

// TestDaemonWaits checks that the next round comes after the interval, plus or minus a
// tenth, or when the first failed image may be tried again.
func TestDaemonWaits(t *testing.T) {
	b := newBench(t)
	b.push("a/x:1", "x")
	for _, c := range []struct {
		list     string
		min, max time.Duration
	}{
		{"interval: 10h\nimages:\n  - {image: 'HOST/a/x:1', as: x}\n", 9 * time.Hour, 11 * time.Hour},
		{"interval: 10h\nimages:\n  - {image: 'HOST/a/none:1', as: y}\n", 0, 2 * firstRetry},
	} {
		b.list(c.list)
		ctx, stop := context.WithCancel(t.Context())
		b.o.now = nil
		var until time.Time
		d := &Daemon{Store: b.store, File: b.file, Options: b.o,
			Done:   func(*Summary, error) error { return nil },
			Broken: func(err error) { t.Error(err) },
			Pause:  func(u time.Time) { until = u; stop() },
		}
		began := time.Now()
		if err := d.Run(ctx); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if wait := until.Sub(began); wait < c.min || wait > c.max+time.Since(began) {
			t.Errorf("it waits %v", wait)
		}
	}
}
