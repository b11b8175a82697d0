package serve

import (
	"net"
	"sync"
)

// limited is a TCP listener that accepts only so many connections at once. Others
// do this too, but give connections that hide the socket, and with it sendfile(2).
type limited struct {
	*net.TCPListener
	slots  chan struct{}
	closed chan struct{}
	once   sync.Once
}

func newLimited(l *net.TCPListener, n int) net.Listener {
	return &limited{TCPListener: l, slots: make(chan struct{}, n), closed: make(chan struct{})}
}

// Accept implements net.Listener.
func (l *limited) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	c, err := l.AcceptTCP()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &limitedConn{c, sync.OnceFunc(func() { <-l.slots })}, nil
}

// Close implements net.Listener.
func (l *limited) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.TCPListener.Close()
}

type limitedConn struct {
	*net.TCPConn
	release func()
}

func (c *limitedConn) Close() error {
	defer c.release()
	return c.TCPConn.Close()
}
