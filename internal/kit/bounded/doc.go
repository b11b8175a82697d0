// Package bounded bounds the connections that a listener accepts, so that a client with
// many idle connections cannot keep out other clients.
//
// Words:
//
//   - A source is where a connection comes from: an IPv4 address, the /64 network of an
//     IPv6 address, or the user at the other end of a Unix socket.
//   - A connection is waiting when it is new, or between two requests. A waiting
//     connection is closed when another one needs its place: the one that has waited
//     longest goes first.
//   - A connection is busy while the server handles a request of it. It is never closed
//     to make room.
//   - A connection is trusted after its client has shown a secret. It is never closed
//     to make room either, and does not count towards the bound of its source.
//
// When a source has reached its bound, a new connection of it replaces a waiting one of
// the same source, or is closed. When the listener has reached its bound, a new
// connection replaces any waiting one. If all are busy, Accept waits.
//
// golang.org/x/net/netutil has a listener that bounds the total only. There, the idle
// connections of one client keep out all others.
//
// Locks: a Listener has one mutex. It is held while a connection is closed, which does
// not block, and never while one is read or written.
package bounded
