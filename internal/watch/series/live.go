package series

import (
	"slices"
	"sync"

	"premix/internal/watch"
)

// Update is newly stored data. One of its fields is set.
type Update struct {
	Samples []watch.Sample // of one call of Samples; shared with others, not to be changed
	Task    *watch.Task
	Event   *watch.Event
	Lost    int // updates that were dropped because the reader was too slow
}

// buffered is the number of updates that wait for a reader.
const buffered = 64

// hub passes updates to readers.
type hub struct {
	mu      sync.Mutex
	closed  bool
	readers []*reader
}

type reader struct {
	c    chan Update
	lost int
}

// Subscribe returns a channel of the data stored from now on. A reader that is too slow
// loses updates and receives their number. The channel is closed by cancel, and when the DB
// is closed.
func (db *DB) Subscribe() (updates <-chan Update, cancel func()) {
	h := &db.live
	r := &reader{c: make(chan Update, buffered)}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		close(r.c)
		return r.c, func() {}
	}
	h.readers = append(h.readers, r)
	return r.c, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if i := slices.Index(h.readers, r); i >= 0 {
			h.readers = slices.Delete(h.readers, i, i+1)
			close(r.c)
		}
	}
}

func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for _, r := range h.readers {
		close(r.c)
	}
	h.readers = nil
}

// send passes on an update. It calls u only if there is a reader.
func (h *hub) send(u func() Update) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.readers) == 0 {
		return
	}
	update := u()
	for _, r := range h.readers {
		if r.lost > 0 {
			select {
			case r.c <- Update{Lost: r.lost}:
				r.lost = 0
			default:
				r.lost++
				continue
			}
		}
		select {
		case r.c <- update:
		default:
			r.lost++
		}
	}
}

func (h *hub) samples(s []watch.Sample) {
	h.send(func() Update { return Update{Samples: slices.Clone(s)} })
}
func (h *hub) task(t watch.Task)   { h.send(func() Update { return Update{Task: &t} }) }
func (h *hub) event(e watch.Event) { h.send(func() Update { return Update{Event: &e} }) }
