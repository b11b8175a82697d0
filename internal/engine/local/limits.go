package local

import (
	"maps"
	"sync"
	"time"
)

// Limits are timeouts of tasks that differ from those with which they were submitted. They are set
// while the tasks wait or run. It is safe for concurrent use.
type Limits struct {
	changed chan struct{}

	mu    sync.Mutex // guards the rest
	all   map[int]time.Duration
	fresh map[int]time.Duration // that no scheduler has taken
}

// NewLimits returns Limits without any.
func NewLimits() *Limits {
	return &Limits{changed: make(chan struct{}, 1), all: make(map[int]time.Duration), fresh: make(map[int]time.Duration)}
}

// Set sets the timeouts of tasks, from the start of each try; 0: none.
func (l *Limits) Set(timeouts map[int]time.Duration) {
	l.mu.Lock()
	maps.Copy(l.all, timeouts)
	maps.Copy(l.fresh, timeouts)
	l.mu.Unlock()
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// of returns the timeout of a task that was submitted with one.
func (l *Limits) of(task int, timeout time.Duration) time.Duration {
	if l == nil {
		return timeout
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if d, ok := l.all[task]; ok {
		return d
	}
	return timeout
}

// take returns the timeouts that were set since the last call.
func (l *Limits) take() map[int]time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	fresh := l.fresh
	l.fresh = make(map[int]time.Duration)
	return fresh
}

// wake returns the channel that receives a value after timeouts were set.
func (l *Limits) wake() <-chan struct{} {
	if l == nil {
		return nil
	}
	return l.changed
}

// setTimeouts gives the active tasks among those whose timeouts were set their new ones.
func (s *spawners) setTimeouts() {
	s.hand() // a spawner must know a task first
	fresh := s.o.Limits.take()
	for _, a := range s.active {
		d, ok := fresh[a.Number]
		if !ok || a.in == nil {
			continue
		}
		a.allowed = d
		_ = a.in.SetTimeout(a.ID(), d) // if the spawner is gone, its end arrives later
	}
}
