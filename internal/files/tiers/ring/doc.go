// Package ring receives the requests of a FUSE mount, and answers them, through io_uring in
// place of read(2) and write(2) on /dev/fuse.
//
// Words:
//
//   - queue: the requests that programs on one processor make. The kernel has one for each
//     possible processor, and a thread on that processor serves it, so that a request need not
//     wake up another processor.
//   - entry: memory for one request and its answer, which the kernel fills when a program
//     makes a request, and reads when the answer is committed.
//
// A queue answers a request in its thread, and other requests of the queue wait. Requests
// that write, or may wait for a disk for long, are answered in goroutines; see [Server.Start].
//
// Requests without an answer and interruptions are still read from /dev/fuse. So the mount
// needs a reader there as well.
//
// The system's administrator permits it for all mounts: writing Y to
// /sys/module/fuse/parameters/enable_uring, from Linux 6.14 on.
//
// Sources: io_uring(7); the kernel's documentation of FUSE over io_uring;
// include/uapi/linux/fuse.h and io_uring.h.
package ring
