package collect

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"premix/internal/watch"
)

// fakeClock is a clock whose time a test sets.
type fakeClock struct {
	mu     sync.Mutex
	moment Moment
	waits  []*fakeWait
}

type fakeWait struct {
	until time.Duration
	done  chan struct{}
}

func (c *fakeClock) Now() Moment {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.moment
}

func (c *fakeClock) Wait(ctx context.Context, d time.Duration) {
	c.mu.Lock()
	w := &fakeWait{c.moment.Mono + d, make(chan struct{})}
	c.waits = append(c.waits, w)
	c.mu.Unlock()
	select {
	case <-w.done:
	case <-ctx.Done():
	}
}

// advance advances all clocks by d.
func (c *fakeClock) advance(d time.Duration) { c.set(d, d, d) }

// set advances each clock by a different duration.
func (c *fakeClock) set(wall, mono, boot time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.moment.Wall, c.moment.Mono, c.moment.Boot = c.moment.Wall.Add(wall), c.moment.Mono+mono, c.moment.Boot+boot
	kept := c.waits[:0]
	for _, w := range c.waits {
		if w.until <= c.moment.Mono {
			close(w.done)
		} else {
			kept = append(kept, w)
		}
	}
	c.waits = kept
}

// waiting returns the number of pending waits.
func (c *fakeClock) waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.waits)
}

func TestDifference(t *testing.T) {
	s := time.Second
	for _, c := range []struct {
		wall, mono, boot time.Duration
		kind, text       string
	}{
		{s, s, s, "", ""},
		{s + 100*time.Millisecond, s, s, "", ""}, // corrected by a time server
		{0, s, s, "clock_jumped", "The clock jumped back by 1 s."},
		{3601 * s, s, s, "clock_jumped", "The clock jumped forward by 1h0m0s."},
		{-3599 * s, s, s, "clock_jumped", "The clock jumped back by 1h0m0s."},
		{601 * s, s, 601 * s, "suspended", "The machine was suspended for 10m0s."},
		{4201 * s, s, 601 * s, "suspended", "The machine was suspended for 10m0s. The clock jumped forward by 1h0m0s."},
	} {
		before := Moment{Wall: time.Unix(1e9, 0), Mono: 5 * s, Boot: 7 * s}
		kind, text, ok := difference(before, Moment{before.Wall.Add(c.wall), before.Mono + c.mono, before.Boot + c.boot})
		if kind != c.kind || text != c.text || ok != (c.kind != "") {
			t.Errorf("%v %v %v: %v %q %q", c.wall, c.mono, c.boot, ok, kind, text)
		}
	}
}

// counting is a collector that counts its turns.
type counting struct {
	mu    sync.Mutex
	turns []time.Time
	err   error
	hang  chan struct{} // if not nil, the next turn waits for it, even after its context is done
}

func (c *counting) Name() string { return "counting" }

func (c *counting) Collect(_ context.Context, now time.Time, _ watch.Sink) error {
	c.mu.Lock()
	c.turns = append(c.turns, now)
	err, hang := c.err, c.hang
	c.mu.Unlock()
	if hang != nil {
		<-hang
	}
	return err
}

func (c *counting) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.turns)
}

// watching runs a watcher with one collector on a fake clock.
func watching(t *testing.T, c watch.Collector) (*fakeClock, *recorder, *turns) {
	t.Helper()
	clock := &fakeClock{moment: Moment{Wall: time.Date(2026, 11, 17, 12, 0, 0, 300e6, time.UTC), Mono: time.Hour, Boot: time.Hour}}
	sink := &recorder{}
	w, err := New(Options{Sink: sink, Clock: clock, Config: &Config{Node: "n1"}, Only: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	w.turns = append(w.turns, &turns{w: w, c: c, interval: time.Second})
	ctx, cancel := context.WithCancel(context.Background())
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		w.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-finished
	})
	answers(t, func() bool { return clock.waiting() == 2 })
	return clock, sink, w.turns[0]
}

func TestTurnsAreAligned(t *testing.T) {
	c := &counting{}
	clock, sink, _ := watching(t, c)
	step := func(wall, mono, boot time.Duration, turns int) {
		t.Helper()
		clock.set(wall, mono, boot)
		answers(t, func() bool { return c.count() == turns && clock.waiting() == 2 })
	}
	step(700*time.Millisecond, 700*time.Millisecond, 700*time.Millisecond, 1)
	step(time.Second, time.Second, time.Second, 2)
	step(300*time.Millisecond, 300*time.Millisecond, 300*time.Millisecond, 2)
	step(701*time.Millisecond, 701*time.Millisecond, 701*time.Millisecond, 3)
	for i, at := range c.turns {
		if want := time.Date(2026, 11, 17, 12, 0, 1+i, 0, time.UTC); !at.Equal(want) {
			t.Errorf("turn %d is of %v", i, at)
		}
	}
	// The clock jumps back by an hour, and the times of turns follow it.
	step(-time.Hour+time.Second, time.Second, time.Second, 4)
	if want := time.Date(2026, 11, 17, 11, 0, 4, 0, time.UTC); !c.turns[3].Equal(want) {
		t.Errorf("after the jump: %v", c.turns[3])
	}
	answers(t, func() bool { return sink.kinds() == "clock_jumped" })
	// The machine was suspended for a day.
	step(24*time.Hour+time.Second, time.Second, 24*time.Hour+time.Second, 5)
	answers(t, func() bool { return sink.kinds() == "clock_jumped suspended" })
	if want := time.Date(2026, 11, 18, 11, 0, 5, 0, time.UTC); !c.turns[4].Equal(want) {
		t.Errorf("after suspend: %v", c.turns[4])
	}
}

func TestTurnsThatHang(t *testing.T) {
	c := &counting{hang: make(chan struct{})}
	clock, sink, turns := watching(t, c)
	clock.advance(700 * time.Millisecond)
	answers(t, func() bool { return c.count() == 1 })
	for range 6 {
		answers(t, func() bool { return clock.waiting() == 1 }) // the wait of the goroutine that checks the clocks
		clock.advance(time.Second)
	}
	answers(t, func() bool { return sink.kinds() == "collector_stuck" })
	if s := turns.w.Status()[0]; !s.Stuck || s.Name != "counting" {
		t.Errorf("%+v", s)
	}
	hang := c.hang
	c.mu.Lock()
	c.hang = nil
	c.mu.Unlock()
	close(hang)
	answers(t, func() bool { return sink.kinds() == "collector_stuck collector_recovered" && clock.waiting() == 2 })
	clock.advance(time.Second)
	answers(t, func() bool { return c.count() == 2 && clock.waiting() == 2 })
	if s := turns.w.Status()[0]; s.Stuck || s.Skipped < 5 || s.Skipped > 7 {
		t.Errorf("%+v", s)
	}
}

func TestTurnsThatFail(t *testing.T) {
	c := &counting{err: errors.New("no such thing")}
	clock, sink, turns := watching(t, c)
	clock.advance(700 * time.Millisecond)
	for i := range 3 {
		answers(t, func() bool { return c.count() == i+1 && clock.waiting() == 2 })
		clock.advance(time.Second)
	}
	answers(t, func() bool { return c.count() == 4 && clock.waiting() == 2 })
	if got := sink.kinds(); got != "collector_failed" || !strings.Contains(sink.events[0].Text, "counting: no such thing") {
		t.Errorf("events: %s", got)
	}
	if s := turns.w.Status()[0]; s.Error != "no such thing" {
		t.Errorf("%+v", s)
	}
	c.mu.Lock()
	c.err = nil
	c.mu.Unlock()
	clock.advance(time.Second)
	answers(t, func() bool { return sink.kinds() == "collector_failed collector_recovered" })
}
