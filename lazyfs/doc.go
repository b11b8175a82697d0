// Package lazyfs mounts a tree of the store that is not here yet. It shows the
// tree at a directory of the caller's at once; what is read is fetched by the
// [Image] behind it.
//
// Words:
//
//   - image: the tree as one EROFS image of which any part may still be missing;
//     reading a part fetches and verifies it. store/cache has them.
//   - mount: one image, seen at one private directory. Users see it through bind
//     mounts of that, which share one page cache.
//   - backend: how the kernel reads the image. There are three, and [Auto] takes
//     the first that works here:
//
// "file": the image is complete and verified, and the kernel's EROFS reads the
// cached file itself. Nothing of premix runs when somebody reads.
//
// "erofs": lazyfs/fuse shows the image as one file, and the kernel's EROFS reads
// that. Names, attributes and what was read once never leave the kernel; only
// what it has not seen yet becomes a request to this process.
//
// "fuse": lazyfs/fuse shows the whole tree. It needs neither EROFS nor
// privileges, and is slower where many files are opened.
//
// # Below the private directory
//
//	image/image   the FUSE file system of one file ("erofs")
//	tree          what is shown: EROFS, or the FUSE file system of the tree
//
// # Who may wait for whom
//
// An EROFS on top of FUSE makes a process able to wait for itself: mount(2) and
// umount2(2) of it read the image, and the answer comes from this very process.
// That is harmless while it runs. If it is killed in the middle, though, the
// thread in the system call cannot die before its answer comes, so the process's
// descriptors stay open, so nobody ever learns that there will be no answer.
// Such calls are therefore made through [Kernel], by a process that does not
// serve the image. Nothing here ever opens, reads or stats a path inside a mount,
// for the same reason: [Mounts] is what the kernel's own table tells.
//
// A mount fails closed. When the process that serves it is gone and nobody holds
// its descriptor, reads of what the kernel does not have yet give EIO; there is
// no moment in which zeros could be read.
package lazyfs
