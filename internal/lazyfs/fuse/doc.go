// Package fuse is a small read-only FUSE server for images of trees whose bytes may
// have to be fetched first.
//
// Words:
//
//   - device: an open /dev/fuse. One open file is one connection to the kernel,
//     which belongs to one mount.
//   - request: a message from the kernel, which usually waits for a reply: fuse(4)
//     and include/uapi/linux/fuse.h of Linux list them.
//   - node: the number by which the kernel identifies a file of the mount.
//   - reader: a goroutine that takes requests and answers them.
//   - to resume: to take over the connection of a server that has died.
//
// There are two file systems. [MountImage] shows the image as one file, from which the
// kernel's EROFS can be mounted. [MountTree] shows the tree in the image, for kernels
// without EROFS and for users who may not mount it. For stat(2), readdir(3), lseek(2)
// and read(2) both give the same results, including inode numbers and holes.
//
// # Death and succession of a server
//
// A server has no state that the next one needs: nodes are EROFS's own inode numbers
// (plus two; the root is 1), there are no handles, FORGET is ignored, and no request
// changes anything. Requests that a dead server had received and not answered are kept
// by the kernel as long as the device is open in any process, and are sent again on
// request (FUSE_NOTIFY_RESEND, Linux 6.9). So a process that holds the device can start
// another server, which takes over with [Resume]; readers wait, but see no error. When
// no process holds the device any more, all readers get EIO or ENOTCONN.
//
// It follows:
//
//   - All readers share one device. Cloning it (FUSE_DEV_IOC_CLONE) would reduce
//     contention, but requests received through a clone fail when the clone is closed,
//     so the death of a server would be visible.
//   - The memory into which the kernel copies requests is touched beforehand. While
//     a process is being killed, the kernel can no longer allocate a missing page for
//     it, and the request would fail.
//   - A process must neither read from a mount that it serves nor mount something
//     from it: if it were killed at that moment, it would wait for itself and never
//     release the device. The options below avoid even stat(2).
//   - The process that holds the device must not have files of the mount open when
//     it starts the next server: between fork and exec they are closed. If the kernel
//     does not know yet that there is no FLUSH, closing them waits for a server.
//
// # Waiting
//
// A reader answers a request in the goroutine that received it. Three readers wait in
// the kernel; a reader that receives a request while no other waits starts one more, up
// to Options.InFlight. So a slow fetch costs a goroutine and blocks no other request.
// Requests end after Options.Timeout (EIO), or when the process that reads is killed
// (EINTR, which it does not see); both cancel the context with which the image is read.
// Another signal ends no request, as with a file on a disk. Readahead has no process to
// be killed, and ends only by the timeout. Replies above 16 KiB are made in pooled
// memory of at most Options.Memory. They are written, not spliced: an [Image] returns
// bytes in memory, and for a read of 4 KiB, read(2), write(2) and pread(2) already take
// three quarters of the server's time.
//
// If an image returns an error, or too few bytes, the reader gets EIO: never zeros, and
// never ENOENT, whatever the store below returns, since the kernel would remember that
// the name does not exist.
//
// # Negotiated flags
//
//	FUSE_ASYNC_READ           several readaheads of a file at a time
//	FUSE_PARALLEL_DIROPS      several lookups in a directory at a time
//	FUSE_MAX_PAGES            reads of 1 MiB instead of 128 KiB
//	FUSE_EXPLICIT_INVAL_DATA  cached pages stay; files never change
//	FUSE_ABORT_ERROR          an abort can be distinguished from an unmount
//	FUSE_HAS_RESEND           see above
//	FUSE_ALLOW_IDMAP          id-mapped mounts, as containers make them
//	image: FUSE_ASYNC_DIO     EROFS has many concurrent reads; reads with O_DIRECT could not be
//	                          killed, but only EROFS reads the image
//	tree: FUSE_NO_OPEN(DIR)_SUPPORT  open(2) costs no request, keeps the cache
//	tree: FUSE_DO_READDIRPLUS, FUSE_READDIRPLUS_AUTO
//	tree: FUSE_CACHE_SYMLINKS
//	tree: FUSE_POSIX_ACL      the kernel reads and obeys ACLs
//	tree: FUSE_EXPORT_SUPPORT file handles stay valid: NFS, overlayfs
//
// Names, attributes and missing names are valid without time limit.
//
// # EROFS on the image file
//
// Measured on Linux 6.18 on two cores, with other load, for a file of 512 MB in an
// image that is itself in the page cache:
//
//   - Mount EROFS with the option "directio". Without it every byte is cached twice
//     (1,066 MB for the 512), cold sequential reads reach 0.6-0.9 GB/s instead of
//     1.3-2.0, and kernels before 2026 turn a short read below into zeros
//     (erofs_fileio_ki_complete); with it, a failed read is one failed request, and
//     EIO. Kernels that do not know the option (EINVAL) always read that way.
//   - FOPEN_DIRECT_IO on the image file brings no further gain, and would prevent
//     readahead of the metadata, which EROFS reads through the page cache of the image
//     file.
//   - Metadata is read page by page: 2,292 requests of 4 KiB for a walk through
//     5,000 files. A process other than the server can read it ahead with
//     posix_fadvise(2) on the image file: pages in its page cache are not requested
//     again.
//   - EROFS has its own readahead of 128 KiB, in /sys/class/bdi/erofs-N. The ioctl
//     FS_IOC_GETFSSYSFSPATH (Linux 6.9) on the root of the mount returns N. Sequential,
//     cold, with 2 ms for each request: 94 MB/s at 128 KiB, 150-350 at 512, 260-450 at
//     1024, 500-1,350 at 4096; without delay 128 KiB suffice for more than 1.6 GB/s.
//     But a page fault in a mapped program, of which usually little is needed, reads as
//     much around the page. The default here is 256 KiB, the mean size of a chunk, and
//     the cache below fetches ahead.
package fuse
