package collect

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/watch"
)

// Moment is one moment, as several clocks show it.
type Moment struct {
	Wall time.Time     // the system time; it may jump
	Mono time.Duration // CLOCK_MONOTONIC since some moment: it does not jump, and stops in suspend
	Boot time.Duration // CLOCK_BOOTTIME: like Mono, but runs in suspend
}

// Clock returns the time, and waits. The clock of tests jumps.
type Clock interface {
	Now() Moment
	// Wait returns after a time by the monotonic clock, or when the context ends.
	Wait(ctx context.Context, d time.Duration)
}

// realClock is the clock of the machine.
type realClock struct{ started time.Time }

func (c realClock) Now() Moment {
	for {
		// One call reads the wall and the monotonic clock; the second reads CLOCK_BOOTTIME.
		// If the machine paused between them, the moment is read again.
		now := time.Now()
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
			ts = unix.Timespec{}
		}
		if time.Since(now) < 50*time.Millisecond {
			return Moment{Wall: now.Round(0), Mono: now.Sub(c.started), Boot: time.Duration(ts.Nano())}
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

// The differences between clocks from which on they count as a jump. Time servers correct a
// clock slowly if it is wrong by less than an eighth of a second, and set it otherwise.
const (
	jump    = 125 * time.Millisecond
	suspend = time.Second
)

// difference describes a jump or a suspend between two moments; ok is false if there was
// none.
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

// watchClock reports jumps of the clock until the context ends.
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
