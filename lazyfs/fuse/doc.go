// Package fuse is a small read-only FUSE server, written for what it serves: an
// image of a tree whose bytes may have to be fetched first.
//
// Words:
//
//   - device: an open /dev/fuse. One open file is one connection to the kernel,
//     which belongs to one mount.
//   - request: a message that the kernel sends and mostly waits for: fuse(4) and
//     include/uapi/linux/fuse.h of Linux say which there are.
//   - node: the number by which the kernel names a file of ours.
//   - reader: a goroutine that takes requests and answers them.
//   - to resume: to go on with the connection of a server that has died.
//
// There are two file systems. [MountImage] shows the image as one file, for the
// kernel's EROFS to be mounted from. [MountTree] shows the tree in the image, for
// where there is no EROFS, or no privilege to mount it. To stat(2), readdir(3),
// lseek(2) and read(2) both give the same, down to inode numbers and holes.
//
// # Surviving
//
// A server keeps nothing that the next one needs: nodes are EROFS's own inode
// numbers (plus two; the root is 1), there are no handles, FORGET is ignored,
// and no request changes anything. What a dead server had taken and not answered
// the kernel keeps for as long as the device is open somewhere, and sends again
// when asked to (FUSE_NOTIFY_RESEND, Linux 6.9). So a process that holds the
// device can have another server go on with [Resume], and those who read wait,
// but see no error. When nobody holds the device any more, everybody gets EIO
// or ENOTCONN.
//
// What follows from that:
//
//   - All readers share one device. Cloning it (FUSE_DEV_IOC_CLONE) would spread
//     a lock, but requests taken through a clone end with an error when the
//     clone is closed, so a death would be seen.
//   - Memory that the kernel copies requests into is touched beforehand. A page
//     that is missing cannot be had any more once the process is being killed,
//     and the request would end with an error.
//   - A process must not read from a mount that it serves itself, nor mount
//     something from it: killed in the middle, it would wait for itself and
//     never let go of the device. The options below avoid even stat(2).
//   - Whoever holds the device must not have files of the mount open when it
//     starts the next server: between fork and exec they are closed, and where
//     the kernel has not yet learned that there is no FLUSH, that waits for
//     a server.
//
// # Waiting
//
// A reader answers what it took itself, without handing it over. There are three
// waiting in the kernel; whoever takes a request when no other is left waiting
// starts one more, up to Options.InFlight. So a fetch that takes long costs
// a goroutine, and holds up nobody. Requests end with Options.Timeout (EIO), or
// when their reader is killed (EINTR, which nobody sees); both cancel the context
// with which the image is read. Another signal ends nothing, as with a file on
// a disk. Readahead has nobody to be killed, and only ends with its time. Replies above 16 KiB are made in pooled memory of at most Options.Memory.
// They are written, not spliced: an [Image] gives bytes in memory, and of a 4 KiB
// read three quarters of the server's time are read(2), write(2) and pread(2)
// already.
//
// An image that gives an error, or too few bytes, is EIO to whoever reads; never
// zeros, and never ENOENT, whatever the store below may say: the kernel would
// remember for ever that a name is not there.
//
// # What is agreed with the kernel
//
//	FUSE_ASYNC_READ           several readaheads of a file at a time
//	FUSE_PARALLEL_DIROPS      several lookups in a directory at a time
//	FUSE_MAX_PAGES            reads of 1 MiB, not of 128 KiB
//	FUSE_EXPLICIT_INVAL_DATA  cached pages stay; nothing ever changes
//	FUSE_ABORT_ERROR          an abort can be told from an unmount
//	FUSE_HAS_RESEND           see above
//	FUSE_ALLOW_IDMAP          id-mapped mounts, as containers make them
//	image: FUSE_ASYNC_DIO     EROFS has many reads under way; O_DIRECT would not be
//	                          killable, which does not matter as nobody else reads
//	tree: FUSE_NO_OPEN(DIR)_SUPPORT  open(2) costs no request, keeps the cache
//	tree: FUSE_DO_READDIRPLUS, FUSE_READDIRPLUS_AUTO
//	tree: FUSE_CACHE_SYMLINKS
//	tree: FUSE_POSIX_ACL      the kernel reads and obeys ACLs
//	tree: FUSE_EXPORT_SUPPORT file handles last: NFS, overlayfs
//
// Names, attributes and the absence of names are valid for ever.
//
// # EROFS on the image file
//
// Measured on Linux 6.18, two cores, a file of 512 MB in an image that is itself
// in the page cache, other load on the machine:
//
//   - mount(2) EROFS with the option "directio". Without it every byte is cached
//     twice (1,066 MB for the 512), cold sequential reads are 0.6-0.9 GB/s
//     instead of 1.3-2.0, and a short read below becomes zeros in kernels before
//     2026 (erofs_fileio_ki_complete); with it a failed read is one failed
//     request, and EIO. Kernels that do not know the option (EINVAL) always read
//     that way.
//   - FOPEN_DIRECT_IO on the image file gains nothing beyond that, and would
//     keep the metadata, which EROFS reads through the page cache of the image
//     file, from being read ahead.
//   - Metadata comes page by page: 2,292 requests of 4 KiB for a walk through
//     5,000 files. A process other than the server can read it ahead with
//     posix_fadvise(2) on the image file: what is in its page cache is not asked
//     for again.
//   - Readahead of EROFS is its own, 128 KiB, in /sys/class/bdi/erofs-N. Which
//     N, the ioctl FS_IOC_GETFSSYSFSPATH (Linux 6.9) on the root of the mount
//     tells. Sequential, cold, with 2 ms for each request: 94 MB/s at 128 KiB,
//     150-350 at 512, 260-450 at 1024, 500-1,350 at 4096; without delay 128 KiB
//     suffice for more than 1.6 GB/s. But a page fault in a mapping reads as
//     much around it, of a program of which little is needed, too. 256 KiB, the
//     mean of a chunk, is the default here, and the cache below fetches ahead.
package fuse
