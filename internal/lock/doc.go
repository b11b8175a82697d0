// Package lock takes locks that tell whether somebody else is at work.
//
// The kernel gives a lock of flock(2) back when its holder ends, however it does. But the
// lock belongs to the open file, which a process that was started shares until it is
// executed: one that was killed while it started another seems to be there for a moment
// longer, and so does one that has just given its lock back. Who begins where another one
// was killed therefore waits for a moment before it gives up.
package lock
