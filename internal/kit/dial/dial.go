package dial

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"
)

// Spares is the number of connections opened ahead.
const Spares = 7

// spareTime is how long such a connection stays open unused.
const spareTime = time.Second

// Dialer dials connections, and opens some ahead of their use when many requests are
// about to follow: connecting takes a round trip, which then is already over.
type Dialer struct {
	dial func(ctx context.Context, network, address string) (net.Conn, error)

	mu     sync.Mutex
	asked  bool
	ready  map[string][]net.Conn // by network and address
	dialed time.Time             // when the last connection was dialled
}

// New returns a dialer whose connections come from dial, which must have a timeout of its own.
func New(dial func(ctx context.Context, network, address string) (net.Conn, error)) *Dialer {
	return &Dialer{dial: dial}
}

// Want opens spare connections together with the next one that is dialled.
func (d *Dialer) Want() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked = true
}

// Since returns the time since the last connection was dialled.
func (d *Dialer) Since() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Since(d.dialed)
}

// DialContext has the form of http.Transport.DialContext.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	d.mu.Lock()
	key, asked := network+" "+address, d.asked
	d.asked, d.dialed = false, time.Now()
	if list := d.ready[key]; len(list) > 0 {
		c := list[len(list)-1]
		d.ready[key] = list[:len(list)-1]
		d.mu.Unlock()
		return c, nil
	}
	d.mu.Unlock()
	if asked {
		for range Spares {
			go d.open(key, network, address)
		}
	}
	return d.dial(ctx, network, address)
}

func (d *Dialer) open(key, network, address string) {
	c, err := d.dial(context.Background(), network, address) // it has a timeout
	if err != nil {
		return // the next request that dials gets the error
	}
	d.mu.Lock()
	if d.ready == nil {
		d.ready = map[string][]net.Conn{}
	}
	d.ready[key] = append(d.ready[key], c)
	d.mu.Unlock()
	time.AfterFunc(spareTime, func() {
		if d.take(key, c) {
			_ = c.Close() // no request was sent over it
		}
	})
}

// take removes a connection, and reports whether it was still unused.
func (d *Dialer) take(key string, c net.Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := len(d.ready[key])
	d.ready[key] = slices.DeleteFunc(d.ready[key], func(o net.Conn) bool { return o == c })
	return len(d.ready[key]) < n
}
