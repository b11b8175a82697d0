package bounded

import (
	"container/list"
	"errors"
	"io"
	"math"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/unixpeer"
)

const (
	// most is the largest number of connections that [Descriptors] returns.
	most = 16384
	// spare is the number of descriptors that are left for other purposes.
	spare = 64
	// small is the number of connections that one source may always have.
	small = 64
	// silence is how long the other end of a TCP connection may leave data or probes
	// without an answer.
	silence = 60 * time.Second
	// pieceSize is the number of bytes that must be written within Options.Stall.
	pieceSize = 1 << 20
	// scarce is how long Accept waits where the system has run out of descriptors.
	scarce = 10 * time.Millisecond
	// quiet is the least time between two calls of Options.Tell.
	quiet = 10 * time.Second
)

// Options are the bounds of a listener.
type Options struct {
	// Total is the largest number of connections at once. 0 means [Descriptors].
	Total int
	// Strangers is the largest number of connections that are not trusted. The rest of
	// Total is reserved for trusted ones. 0 means Total: nothing is reserved.
	Strangers int
	// Source is the largest number of connections of one source, without the trusted
	// ones. 0 means a quarter of Strangers, but at least 64 if Strangers permits.
	Source int
	// Kept makes every connection busy from its start: none is closed to make room.
	Kept bool
	// Patience is the time after which a new connection that still waits is closed. 0
	// means never: the server has deadlines of its own.
	Patience time.Duration
	// Stall is the longest time in which one MiB must be written. 0 means no limit.
	Stall time.Duration
	// Tell is called with the number of connections that were closed to make room, at
	// most once in ten seconds. It may be nil.
	Tell func(closed int)
}

// Descriptors returns the number of connections that the limit of open files permits, with
// a file for each, but at most 16384.
func Descriptors() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return small // the call does not fail for a valid resource
	}
	return max(1, min(most, int(min(limit.Cur, math.MaxInt32)-spare)/2))
}

// source identifies the source of a connection.
type source struct {
	network netip.Prefix
	user    uint32
}

// room holds the connections of one source that are not trusted.
type room struct {
	count   int
	waiting list.List // of *place, oldest first
}

// place is the state that a listener keeps of one connection.
type place struct {
	l       *Listener
	from    source
	conn    net.Conn
	state   state
	inAll   *list.Element // of l.waiting; nil if the connection does not wait
	inRoom  *list.Element // of its room's waiting
	expires *time.Timer
}

type state int

const (
	waiting state = iota
	busy
	trusted
	gone
)

// Listener accepts a bounded number of connections.
type Listener struct {
	net.Listener
	o Options

	mu      sync.Mutex // guards the fields below
	free    sync.Cond  // a connection was closed or waits, or the listener was closed
	rooms   map[source]*room
	waiting list.List // of *place, oldest first
	count   int       // of all connections
	trusted int
	closed  bool
	evicted int // since Tell was called
	told    time.Time
}

// New bounds a listener of TCP or of a Unix socket.
func New(l net.Listener, o Options) *Listener {
	if o.Total <= 0 {
		o.Total = Descriptors()
	}
	if o.Strangers <= 0 || o.Strangers > o.Total {
		o.Strangers = o.Total
	}
	if o.Source <= 0 {
		o.Source = max(o.Strangers/4, min(o.Strangers, small))
	}
	b := &Listener{Listener: l, o: o, rooms: map[source]*room{}}
	b.free.L = &b.mu
	return b
}

// Conn is an accepted connection.
type Conn interface {
	net.Conn
	// Trust marks the connection as trusted, since its client has shown a secret. It
	// returns false if the listener has as many trusted connections as it may; the
	// caller then closes this one.
	Trust() bool
}

// Accept returns the next connection. It is a [Conn]; for TCP it is a [*TCP].
func (l *Listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ENOMEM) {
			l.mu.Lock()
			freed := l.evict(&l.waiting)
			l.mu.Unlock()
			if !freed {
				time.Sleep(scarce)
			}
			continue
		}
		if errors.Is(err, unix.ECONNABORTED) {
			continue // the client has disconnected before it was accepted
		}
		if err != nil {
			return nil, err
		}
		if p := l.admit(c); p != nil {
			switch c := c.(type) {
			case *net.TCPConn:
				persist(c)
				return &TCP{TCPConn: c, place: p, stall: l.o.Stall}, nil
			case *net.UnixConn:
				return &local{UnixConn: c, place: p}, nil
			}
			p.leave()
			c.Close()
			return nil, errors.New("connections of this network cannot be bounded")
		}
	}
}

// Close closes the listener. Its connections stay open.
func (l *Listener) Close() error {
	l.mu.Lock()
	l.closed = true
	l.free.Broadcast()
	l.mu.Unlock()
	return l.Listener.Close()
}

// admit makes room for a connection, or closes it and returns nil.
func (l *Listener) admit(c net.Conn) *place {
	from := sourceOf(c)
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		r := l.rooms[from]
		switch {
		case l.closed:
			c.Close()
			return nil
		case r != nil && r.count >= l.o.Source:
			if !l.evict(&r.waiting) {
				reset(c)
				l.note()
				return nil
			}
		case l.count-l.trusted >= l.o.Strangers || l.count >= l.o.Total:
			if !l.evict(&l.waiting) {
				l.free.Wait()
			}
		default:
			if r == nil {
				r = &room{}
				l.rooms[from] = r
			}
			p := &place{l: l, from: from, conn: c}
			r.count++
			l.count++
			if p.state = busy; !l.o.Kept {
				l.wait(p)
			}
			if l.o.Patience > 0 {
				p.expires = time.AfterFunc(l.o.Patience, p.expire)
			}
			return p
		}
	}
}

// wait marks a connection as waiting. The caller holds mu.
func (l *Listener) wait(p *place) {
	p.state = waiting
	p.inAll = l.waiting.PushBack(p)
	p.inRoom = l.rooms[p.from].waiting.PushBack(p)
	l.free.Broadcast()
}

// rouse removes a connection from the waiting ones. The caller holds mu.
func (l *Listener) rouse(p *place) {
	if p.inAll != nil {
		l.waiting.Remove(p.inAll)
		l.rooms[p.from].waiting.Remove(p.inRoom)
		p.inAll, p.inRoom = nil, nil
	}
	if p.expires != nil {
		p.expires.Stop()
	}
}

// evict closes the connection of a list that has waited longest, and reports whether there
// was one. The caller holds mu.
func (l *Listener) evict(from *list.List) bool {
	e := from.Front()
	if e == nil {
		return false
	}
	p := e.Value.(*place)
	l.remove(p)
	reset(p.conn)
	l.note()
	return true
}

// note counts a connection that was closed to make room. The caller holds mu.
func (l *Listener) note() {
	l.evicted++
	if l.o.Tell != nil && time.Since(l.told) >= quiet {
		go l.o.Tell(l.evicted)
		l.told, l.evicted = time.Now(), 0
	}
}

// remove forgets a connection. The caller holds mu.
func (l *Listener) remove(p *place) {
	if p.state == gone {
		return
	}
	l.rouse(p)
	if p.state == trusted {
		l.trusted--
	} else {
		l.depart(p.from)
	}
	p.state = gone
	l.count--
	l.free.Broadcast()
}

// depart reduces the number of connections of a source. The caller holds mu.
func (l *Listener) depart(from source) {
	r := l.rooms[from]
	if r.count--; r.count == 0 {
		delete(l.rooms, from)
	}
}

// expire closes a connection that has waited for too long.
func (p *place) expire() {
	p.l.mu.Lock()
	defer p.l.mu.Unlock()
	if p.state == waiting {
		p.l.remove(p)
		reset(p.conn)
	}
}

func (p *place) leave() {
	p.l.mu.Lock()
	defer p.l.mu.Unlock()
	p.l.remove(p)
}

// Trust implements [Conn].
func (p *place) Trust() bool {
	p.l.mu.Lock()
	defer p.l.mu.Unlock()
	switch {
	case p.state == trusted:
		return true
	case p.state == gone || p.l.trusted >= p.l.o.Total-p.l.o.Strangers:
		return false
	}
	p.l.rouse(p)
	p.l.depart(p.from)
	p.state = trusted
	p.l.trusted++
	p.l.free.Broadcast()
	return true
}

// hold marks a connection as busy: a request has arrived.
func (p *place) hold() {
	p.l.mu.Lock()
	defer p.l.mu.Unlock()
	if p.state == waiting {
		p.l.rouse(p)
		p.state = busy
	}
}

// release marks a connection as waiting for its next request.
func (p *place) release() {
	p.l.mu.Lock()
	defer p.l.mu.Unlock()
	if p.state == busy {
		p.l.wait(p)
	}
}

// TCP is an accepted TCP connection.
type TCP struct {
	*net.TCPConn
	*place
	stall time.Duration
}

// Close closes the connection, and makes room for another.
func (c *TCP) Close() error {
	defer c.leave()
	return c.TCPConn.Close()
}

// Write writes with the deadline of Options.Stall for each MiB.
func (c *TCP) Write(b []byte) (n int, err error) {
	if c.stall <= 0 {
		return c.TCPConn.Write(b)
	}
	for {
		if err := c.SetWriteDeadline(time.Now().Add(c.stall)); err != nil {
			return n, err
		}
		m, err := c.TCPConn.Write(b[n:min(len(b), n+pieceSize)])
		if n += m; err != nil || n == len(b) {
			return n, err
		}
	}
}

// ReadFrom writes the content of r with the same deadline, without copying it where the
// system permits that.
func (c *TCP) ReadFrom(r io.Reader) (n int64, err error) {
	if c.stall <= 0 {
		return c.TCPConn.ReadFrom(r)
	}
	left := int64(math.MaxInt64)
	if limited, ok := r.(*io.LimitedReader); ok {
		r, left = limited.R, limited.N // net looks for a file within a LimitedReader
		defer func() { limited.N -= n }()
	}
	for n < left {
		if err := c.SetWriteDeadline(time.Now().Add(c.stall)); err != nil {
			return n, err
		}
		size := min(left-n, pieceSize)
		m, err := c.TCPConn.ReadFrom(&io.LimitedReader{R: r, N: size})
		if n += m; err != nil || m < size {
			return n, err
		}
	}
	return n, nil
}

// local is an accepted connection of a Unix socket.
type local struct {
	*net.UnixConn
	*place
}

// Close closes the connection, and makes room for another.
func (c *local) Close() error {
	defer c.leave()
	return c.UnixConn.Close()
}

// sourceOf returns the source of a connection.
func sourceOf(c net.Conn) (s source) {
	switch c := c.(type) {
	case *net.TCPConn:
		s.network = network(c.RemoteAddr().(*net.TCPAddr))
	case *net.UnixConn:
		if user, err := unixpeer.UID(c); err == nil {
			s.user = user
		}
	}
	return s
}

// network returns an IPv4 address, or the /64 network of an IPv6 address.
func network(a *net.TCPAddr) netip.Prefix {
	at := a.AddrPort().Addr().Unmap().WithZone("")
	bits := 32
	if at.Is6() {
		bits = 64
	}
	p, _ := at.Prefix(bits) // bits is valid for the address
	return p
}

// persist makes the kernel end a connection whose other end does not respond.
func persist(c *net.TCPConn) {
	_ = c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: silence / 4, Interval: silence / 4, Count: 3})
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silence/time.Millisecond))
	})
}

// reset closes a connection at once by a reset: the kernel keeps no state of it.
func reset(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	c.Close()
}
