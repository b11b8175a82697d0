// Package peer runs scripts at the other end of a link, through ssh. The peer needs only a
// POSIX shell and coreutils.
//
// Words:
//
//   - A session is one ssh connection with one shell behind it, which executes
//     scripts one after the other. During a measured copy it only checks from time
//     to time that the peer answers: it ends when the peer is silent for too long.
//     Its local port is known, so that a capture can exclude it.
//   - A server is a script in the background of a session, in a session of its own
//     (setsid). It ends with the session at the latest: when the connection breaks
//     the shell reads the end of its input, and its exit trap kills all servers
//     with their children.
//
// Locks: a session executes one script at a time, and holds its mutex during that time.
package peer
