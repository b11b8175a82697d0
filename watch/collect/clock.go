package collect

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"premix/watch"
)

// Moment is one moment by several clocks.
type Moment struct {
	Wall time.Time     // what people call the time; it may jump
	Mono time.Duration // CLOCK_MONOTONIC from some beginning: it does not jump, and stands still in suspend
	Boot time.Duration // CLOCK_BOOTTIME: as Mono, and runs in suspend
}

// Clock tells the time, and waits. Tests have one that jumps.
type Clock interface {
	Now() Moment
	// Wait returns when a time has passed by the monotonic clock, or the context has
	// ended.
	Wait(ctx context.Context, d time.Duration)
}

// realClock is that of the machine.
type realClock struct{ begun time.Time }

func (c realClock) Now() Moment {
	for {
		// One call reads wall and monotonic clock; between it and the other a loaded
		// machine may do something else.
		now := time.Now()
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
			ts = unix.Timespec{}
		}
		if time.Since(now) < 50*time.Millisecond {
			return Moment{Wall: now.Round(0), Mono: now.Sub(c.begun), Boot: time.Duration(ts.Nano())}
		}
	}
}

func (c realClock) Wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// By how much clocks may differ until it is a jump. Time servers move a clock that is
// wrong by less than an eighth of a second slowly, and set it otherwise.
const (
	jump    = 125 * time.Millisecond
	suspend = time.Second
)

// difference tells of what happened to the clocks between two moments; ok is false
// where nothing did.
func difference(before, now Moment) (kind, text string, ok bool) {
	mono := now.Mono - before.Mono
	asleep := now.Boot - before.Boot - mono
	wall := now.Wall.Sub(before.Wall) - mono
	if asleep >= suspend {
		kind, text = "suspended", fmt.Sprintf("The machine was suspended for %s.", spanText(asleep))
		// The wall clock runs on in suspend.
		if wall -= asleep; wall > -suspend && wall < suspend {
			return kind, text, true
		}
	}
	switch {
	case wall >= jump:
		text += fmt.Sprintf(" The clock jumped forward by %s.", spanText(wall))
	case wall <= -jump:
		text += fmt.Sprintf(" The clock jumped back by %s.", spanText(-wall))
	default:
		return kind, text, kind != ""
	}
	if text[0] == ' ' {
		kind, text = "clock_jumped", text[1:]
	}
	return kind, text, true
}

func spanText(d time.Duration) string {
	if d < time.Minute {
		return fmt.Sprintf("%.3g s", d.Seconds())
	}
	return d.Round(time.Second).String()
}

// watchClock tells of jumps of the clock until the context ends.
func (w *Watcher) watchClock(ctx context.Context) {
	before := w.clock.Now()
	for {
		w.clock.Wait(ctx, w.o.Interval)
		if ctx.Err() != nil {
			return
		}
		now := w.clock.Now()
		if kind, text, ok := difference(before, now); ok {
			w.o.Sink.Event(watch.Event{Time: now.Wall, Node: w.m.node, Layer: watch.LayerNode, Kind: kind, Text: text})
		}
		before = now
		w.lookAfter(now)
	}
}
