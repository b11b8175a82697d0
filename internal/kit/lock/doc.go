// Package lock locks files by flock(2), to keep processes apart.
//
// The kernel releases a lock when its holder ends, even if it was killed. But the lock
// belongs to the open file, and a child process shares the open file until it executes
// its program. So for a moment a process that was killed, or that has just closed the
// file, can seem to hold the lock. A process that may follow a killed one therefore uses
// Take, which waits for a moment before it gives up.
package lock
