// Package lock locks files by flock(2), to keep processes apart.
//
// The kernel releases a lock when its holder ends, however that happens. But the lock
// belongs to the open file, and a child process shares the open file until it executes
// its program. So for a moment a lock can seem to be held by a process that was killed,
// or that has just released it. A process that starts where another was killed therefore
// uses Take, which waits for a moment before it gives up.
package lock
