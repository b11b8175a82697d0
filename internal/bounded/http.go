package bounded

import (
	"net"
	"net/http"
)

// State is for http.Server.ConnState: a connection of which the header of a request has
// come is busy until the answer was written. next is called afterwards; it may be nil.
func State(next func(net.Conn, http.ConnState)) func(net.Conn, http.ConnState) {
	return func(c net.Conn, s http.ConnState) {
		inner := c
		for {
			wrapped, ok := inner.(interface{ NetConn() net.Conn }) // as tls.Conn
			if !ok {
				break
			}
			inner = wrapped.NetConn()
		}
		if p, ok := inner.(interface {
			hold()
			release()
		}); ok {
			switch s {
			case http.StateActive, http.StateHijacked:
				p.hold()
			case http.StateIdle:
				p.release()
			}
		}
		if next != nil {
			next(c, s)
		}
	}
}
