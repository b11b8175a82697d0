package bounded

import (
	"net"
	"net/http"
)

// TrackState returns a function for http.Server.ConnState. It marks a connection as busy from
// the header of a request until the response was written, and then calls next, which may
// be nil.
func TrackState(next func(net.Conn, http.ConnState)) func(net.Conn, http.ConnState) {
	return func(c net.Conn, s http.ConnState) {
		inner := c
		for {
			wrapped, ok := inner.(interface{ NetConn() net.Conn }) // such as tls.Conn
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
