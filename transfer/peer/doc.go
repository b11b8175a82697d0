// Package peer is the other end of a link, as far as premix works there: through
// ssh, with nothing but a POSIX shell and coreutils.
//
// Words:
//
//   - A session is one ssh connection with one shell behind it, which executes
//     scripts one after the other. While a copy is measured it only sees from time
//     to time that the peer is there: it ends when the peer is silent for too long.
//     The port that it comes from is known, so that a capture can leave it out.
//   - A server is a script in the background of a session, in a session of its own
//     (setsid). It ends with the session at the latest: when the connection breaks
//     the shell reads the end of its input, and its exit trap kills all servers
//     with their children.
//
// Locks: a session executes one script at a time; its mutex is held meanwhile.
package peer
