package origin

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"
)

const (
	// spares is the number of connections opened ahead.
	spares = 7
	// spareTime is how long such a connection stays open unused.
	spareTime = time.Second
)

// spare dials connections, and opens some ahead of their use when many requests are
// about to follow: connecting takes a round trip, which then is already over.
type spare struct {
	dial func(ctx context.Context, network, address string) (net.Conn, error)

	mu     sync.Mutex
	asked  bool
	ready  map[string][]net.Conn // by network and address
	dialed time.Time             // when the last connection was dialled
}

// want opens spare connections together with the next one that is dialled.
func (s *spare) want() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = true
}

// cold reports whether there is probably no connection to use: none was dialled for so long
// that idle ones are closed.
func (s *spare) cold() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.dialed) > idleTime
}

// DialContext has the form of http.Transport.DialContext.
func (s *spare) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	s.mu.Lock()
	key, asked := network+" "+address, s.asked
	s.asked, s.dialed = false, time.Now()
	if list := s.ready[key]; len(list) > 0 {
		c := list[len(list)-1]
		s.ready[key] = list[:len(list)-1]
		s.mu.Unlock()
		return c, nil
	}
	s.mu.Unlock()
	if asked {
		for range spares {
			go s.open(key, network, address)
		}
	}
	return s.dial(ctx, network, address)
}

func (s *spare) open(key, network, address string) {
	c, err := s.dial(context.Background(), network, address) // the dialer has a timeout
	if err != nil {
		return // the next request that dials gets the error
	}
	s.mu.Lock()
	if s.ready == nil {
		s.ready = map[string][]net.Conn{}
	}
	s.ready[key] = append(s.ready[key], c)
	s.mu.Unlock()
	time.AfterFunc(spareTime, func() {
		if s.take(key, c) {
			_ = c.Close() // no request was sent over it
		}
	})
}

// take removes a connection, and reports whether it was still unused.
func (s *spare) take(key string, c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.ready[key])
	s.ready[key] = slices.DeleteFunc(s.ready[key], func(o net.Conn) bool { return o == c })
	return len(s.ready[key]) < n
}
