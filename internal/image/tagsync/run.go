package tagsync

import (
	"context"
	"math/rand/v2"
	"os"
	"time"

	"premix/internal/store"
)

// Daemon makes rounds until its context ends.
type Daemon struct {
	Store *store.Store
	File  string // of the list
	Options
	Now <-chan struct{} // requests a round at once; may be nil

	Loaded func(*List)                          // called when a list is loaded; may be nil
	Done   func(*Summary, error) error          // after each round; its error ends the daemon
	Broken func(err error)                      // the list has changed and is invalid; the last one stays in use
	Pause  func(until time.Time)                // the daemon waits; may be nil
	wait   func(time.Duration) <-chan time.Time // of tests
}

// look is the interval at which the list is checked for changes.
const look = 2 * time.Second

// stamp identifies a version of a file.
type stamp struct {
	modified time.Time
	size     int64
	info     os.FileInfo
}

func stampOf(file string) stamp {
	st, err := os.Stat(file)
	if err != nil {
		return stamp{}
	}
	return stamp{st.ModTime(), st.Size(), st}
}

func (s stamp) same(o stamp) bool {
	if s.info == nil || o.info == nil {
		return s.info == nil && o.info == nil
	}
	return s.modified.Equal(o.modified) && s.size == o.size && os.SameFile(s.info, o.info)
}

// Run makes rounds. It returns the cause of ctx' end, or a permanent error: the list is
// invalid at the start, or another process syncs it.
func (d *Daemon) Run(ctx context.Context) error {
	if d.wait == nil {
		d.wait = time.After
	}
	seen := stampOf(d.File) // of the loaded version
	last := seen            // of the version seen last
	w, err := d.take(nil)
	if err != nil {
		return err
	}
	defer func() { w.Close() }()
	for {
		sum, err := w.Round(ctx)
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		next := w.list.Interval
		next += time.Duration((rand.Float64() - 0.5) / 5 * float64(next))
		until := time.Now().Add(next)
		if err == nil && !sum.Retry.IsZero() && sum.Retry.Before(until) {
			until = sum.Retry
		}
		if err := d.Done(sum, err); err != nil {
			return err
		}
		if d.Pause != nil {
			d.Pause(until)
		}
		for waiting := true; waiting; {
			left := time.Until(until)
			if left <= 0 {
				break
			}
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-d.Now:
				waiting = false
			case <-d.wait(min(left, look)):
			}
			// A file that is being written is not read until it stops changing.
			now := stampOf(d.File)
			settled := now.same(last)
			last = now
			if waiting && (now.same(seen) || !settled) {
				continue
			}
			seen = now
			changed, err := d.take(w)
			if err != nil {
				d.Broken(err)
				continue
			}
			w, waiting = changed, false
		}
	}
}

// take loads the list, and takes its lock if its name has changed.
func (d *Daemon) take(old *Watcher) (*Watcher, error) {
	l, err := Load(d.File)
	if err != nil {
		return nil, err
	}
	if old != nil && old.list.Name == l.Name {
		old.list = l
	} else {
		w, err := New(d.Store, l, d.Options)
		if err != nil {
			return nil, err
		}
		if old != nil {
			old.Close()
		}
		old = w
	}
	if d.Loaded != nil {
		d.Loaded(l)
	}
	return old, nil
}
