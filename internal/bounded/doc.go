// Package bounded bounds the connections that a listener lets in, so that clients who
// open many and say nothing cannot keep out others.
//
// Words:
//
//   - A source is where a connection comes from: an IPv4 address, the /64 network of an
//     IPv6 address, or the user at the other end of a Unix socket.
//   - A connection is waiting when it is new, or between two requests. A waiting
//     connection is closed when another one needs its place: the one that has waited
//     longest goes first.
//   - A connection is busy while a request of it is answered. It is never closed to
//     make room.
//   - A connection is trusted after its client has shown a secret. It is never closed
//     to make room either, and does not count among those of its source.
//
// A connection whose source has as many as it may takes the place of a waiting one of
// the same source, or is closed. A connection beyond the bound of all takes the place
// of any waiting one. Where all are busy, Accept waits.
//
// golang.org/x/net/netutil has a listener with a bound of the total alone. There, idle
// connections of one client keep out everyone else.
//
// Locks: a Listener has one mutex. It is held while connections are closed, which does
// not block, and never while one is read or written.
package bounded
