// Package lazyfs mounts a tree of the store before its content has been fetched. The
// tree appears at the caller's directory at once; reads fetch content through the
// [Image] behind it.
//
// Words:
//
//   - image: the tree as one EROFS image of which any part may not be cached yet;
//     reading a part fetches and verifies it. internal/store/cache provides images.
//   - mount: one image, mounted at one private directory. Users see it through bind
//     mounts of that directory, which share one page cache.
//   - backend: the way in which the kernel reads the image. There are three, and
//     [Auto] selects the first that works on this machine:
//
// "file": the image is complete and verified, and the kernel's EROFS reads the cached
// file itself. Reads do not involve premix.
//
// "erofs": internal/lazyfs/fuse shows the image as one file, and the kernel's EROFS reads that
// file. The kernel caches names, attributes and contents; only reads of parts that are
// not in its cache become requests to this process.
//
// "fuse": internal/lazyfs/fuse shows the whole tree. It needs neither EROFS nor privileges, and
// is slower if many files are opened.
//
// # Below the private directory
//
//	image/image   the FUSE file system of one file ("erofs")
//	tree          the mounted tree: EROFS, or the FUSE file system of the tree
//	shown         see ShownPath
//	catalogs      see CatalogsPath
//
// # Deadlocks
//
// With EROFS on top of FUSE a process can wait for itself: mount(2) and umount2(2) of
// it read the image, and the answer comes from the process that serves it. This is
// harmless while the process runs. But if it is killed at that moment, the thread in
// the system call cannot die before its answer comes; so the process's descriptors stay
// open, and the kernel does not learn that there will be no answer. Such calls are
// therefore made through [Kernel], by a process that does not serve the image. For the
// same reason nothing here opens, reads or stats a path inside a mount: [Mounts] uses
// the kernel's table of mounts.
//
// A mount fails closed. When the process that serves it is gone and no process holds
// its descriptor, reads of content that the kernel has not cached give EIO; they never
// return zeros.
package lazyfs
