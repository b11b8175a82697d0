package bounded

import (
	"container/list"
	"errors"
	"io"
	"math"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// most is the largest number of connections that [Descriptors] returns.
	most = 16384
	// spare is how many descriptors are left for other purposes.
	spare = 64
	// small is the number of connections up to which one source may have all.
	small = 64
	// silence is how long the other end of a TCP connection may leave data or probes
	// without an answer.
	silence = 60 * time.Second
	// pieceSize is how much is written within Options.Stall, bytes.
	pieceSize = 1 << 20
	// scarce is how long Accept waits where the system has run out of descriptors.
	scarce = 10 * time.Millisecond
	// quiet is how long nothing is told after Options.Tell was called.
	quiet = 10 * time.Second
)

// Options are the bounds of a listener.
type Options struct {
	// Total is the number of connections at once. 0 stands for [Descriptors].
	Total int
	// Strangers is the number of connections that are not trusted. The rest of Total
	// is kept for trusted ones. 0 stands for Total: nothing is kept.
	Strangers int
	// Source is the number of connections of one source, without the trusted ones. 0
	// stands for a quarter of Strangers, or for all of them where there are few.
	Source int
	// Kept has every connection be busy from its beginning: none is closed to make room.
	Kept bool
	// Patience is how long a new connection may wait until it is closed. 0 stands for
	// any time: the server has deadlines of its own.
	Patience time.Duration
	// Stall is how long one MiB may take to be written. 0 stands for any time.
	Stall time.Duration
	// Tell is called with the number of connections that were closed to make room, at
	// most once in ten seconds. It may be nil.
	Tell func(closed int)
}

// Descriptors is the number of connections that the limit of open files permits, with
// a file for each: at most 16384.
func Descriptors() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return small // the call fails for no valid resource
	}
	return max(1, min(most, int(min(limit.Cur, math.MaxInt32)-spare)/2))
}

// source is a comparable form of where a connection comes from.
type source struct {
	network netip.Prefix
	user    uint32
}

// room is the connections of one source.
type room struct {
	count   int
	waiting list.List // of *place, oldest first
}

// place is one connection in the books of its listener.
type place struct {
	l       *Listener
	from    source
	conn    net.Conn
	state   state
	inAll   *list.Element // of l.waiting; nil where it does not wait
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

// Listener lets in a bounded number of connections.
type Listener struct {
	net.Listener
	o Options

	mu      sync.Mutex // of the following
	free    sync.Cond  // a connection has gone or waits, or the listener is closed
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

// Conn is a connection that was let in.
type Conn interface {
	net.Conn
	// Trust notes that the client has shown a secret. It returns false where there is
	// no place for a further trusted connection; the caller closes this one then.
	Trust() bool
}

// Accept returns the next connection. It is a [Conn]; one of TCP is a [*TCP].
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
			continue // the client has gone before it was accepted
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

// Close closes the listener. Connections stay.
func (l *Listener) Close() error {
	l.mu.Lock()
	l.closed = true
	l.free.Broadcast()
	l.mu.Unlock()
	return l.Listener.Close()
}

// admit finds a place for a connection, or closes it.
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

// wait notes that a connection waits. The caller holds mu.
func (l *Listener) wait(p *place) {
	p.state = waiting
	p.inAll = l.waiting.PushBack(p)
	p.inRoom = l.rooms[p.from].waiting.PushBack(p)
	l.free.Broadcast()
}

// rouse notes that a connection does not wait any more. The caller holds mu.
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

// evict closes the connection that has waited longest. The caller holds mu.
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

// depart takes a connection from those of its source. The caller holds mu.
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

// hold notes that a request of a connection is answered from now on.
func (p *place) hold() {
	p.l.mu.Lock()
	defer p.l.mu.Unlock()
	if p.state == waiting {
		p.l.rouse(p)
		p.state = busy
	}
}

// release notes that a connection waits for its next request.
func (p *place) release() {
	p.l.mu.Lock()
	defer p.l.mu.Unlock()
	if p.state == busy {
		p.l.wait(p)
	}
}

// TCP is a connection of TCP that was let in.
type TCP struct {
	*net.TCPConn
	*place
	stall time.Duration
}

// Close closes the connection, and gives up its place.
func (c *TCP) Close() error {
	defer c.leave()
	return c.TCPConn.Close()
}

// Write writes within the time that the listener's options give.
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

// ReadFrom is Write of the content of r, without a copy where the system permits it.
func (c *TCP) ReadFrom(r io.Reader) (n int64, err error) {
	if c.stall <= 0 {
		return c.TCPConn.ReadFrom(r)
	}
	left := int64(math.MaxInt64)
	if limited, ok := r.(*io.LimitedReader); ok {
		r, left = limited.R, limited.N // net looks for a file one level below a limit
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

// local is a connection of a Unix socket that was let in.
type local struct {
	*net.UnixConn
	*place
}

// Close closes the connection, and gives up its place.
func (c *local) Close() error {
	defer c.leave()
	return c.UnixConn.Close()
}

// sourceOf returns where a connection comes from.
func sourceOf(c net.Conn) (s source) {
	switch c := c.(type) {
	case *net.TCPConn:
		s.network = network(c.RemoteAddr().(*net.TCPAddr))
	case *net.UnixConn:
		if user, err := User(c); err == nil {
			s.user = user
		}
	}
	return s
}

// network is the part of an address that one client has.
func network(a *net.TCPAddr) netip.Prefix {
	at := a.AddrPort().Addr().Unmap().WithZone("")
	bits := 32
	if at.Is6() {
		bits = 64
	}
	p, _ := at.Prefix(bits) // of a length that the address has
	return p
}

// User is the user at the other end of a Unix socket.
func User(c net.Conn) (uint32, error) {
	socket, ok := c.(syscall.Conn)
	if !ok {
		return 0, errors.New("the connection is not of a socket")
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return 0, err
	}
	var who *unix.Ucred
	var asked error
	if err := raw.Control(func(fd uintptr) { who, asked = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return 0, err
	}
	if asked != nil {
		return 0, asked
	}
	return who.Uid, nil
}

// persist has the kernel end a connection whose other end is gone.
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

// reset closes a connection at once: the kernel keeps nothing of it.
func reset(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	c.Close()
}
