package pilot

import (
	"sync"
	"time"
)

// InFlight publishes the tasks that a dispatcher has given away to other goroutines of the
// process. The zero value is ready, and it is safe for concurrent use.
type InFlight struct {
	mu    sync.Mutex // guards the rest
	list  []Assignment
	moved chan struct{}
}

// Assignment is a share that was given away.
type Assignment struct {
	Ranges [][2]int
	Job    string // the engine's id; "" as long as it is being submitted
	Phase  Phase
	Node   string    // where it runs; "" if unknown
	Since  time.Time // when it was seen to be in this phase
}

// Assignments returns the shares in flight.
func (f *InFlight) Assignments() []Assignment {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.list
}

// Moved returns the channel that receives a value after the dispatcher has seen or done something: it
// has given tasks away, a share is in another phase, or tasks have ended.
func (f *InFlight) Moved() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.channel()
}

// channel returns the channel of Moved. The caller holds mu.
func (f *InFlight) channel() chan struct{} {
	if f.moved == nil {
		f.moved = make(chan struct{}, 1)
	}
	return f.moved
}

// copyState copies the dispatcher's state into f. f may be nil.
func (f *InFlight) copyState(s *dispatcher) {
	if f == nil || !s.moved {
		return
	}
	now := time.Now()
	var list []Assignment
	before := make(map[string]*Assignment)
	for i := range f.list { // written by this goroutine alone
		before[f.list[i].Job] = &f.list[i]
	}
	for _, h := range s.l.open() {
		st := s.status[h.job]
		g := Assignment{Ranges: h.Ranges, Job: h.job, Phase: st.Phase, Node: st.Node, Since: now}
		if b := before[h.job]; b != nil && b.Phase == g.Phase {
			g.Since = b.Since
		}
		list = append(list, g)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = list
	select {
	case f.channel() <- struct{}{}:
	default:
	}
}
