// Package tiers mounts several directories, on faster and slower disks, as one. New files
// are created on the first, and rules move files to slower ones while their paths stay the
// same.
//
// Words:
//
//   - tier: a directory on one kind of disk, the fastest first. All tiers hold parts of
//     the same tree of directories; a file is in one of them.
//   - move: transfers a file from one tier to another, under the same path.
//   - watermarks: files are moved from a tier above the high watermark until it is at the low one.
//   - identity: the inode number of a file in the mount. It is derived from the place where
//     the file was created, and stays the same when it moves.
//   - retired: a retired file is the source of a move that programs which opened it before the
//     move still read.
//
// # A move
//
// The file is copied to a hidden name on its new tier; the copy is synced, read back and
// compared. Then, while no name can change and no file can be opened, the source is checked
// again. If it was opened for writing or changed in any way since the copying began, the
// copy is discarded and the move is tried later. Otherwise the copy gets the file's name,
// and the source loses it.
//
// If programs are reading the file, the source is not deleted but retired, to a name below
// [Private] of its tier. Later readers get the retired file too, because the kernel reads
// an inode through one backing file only. If a program opens the file for writing, the move
// is undone: the retired file, which no program can have changed, gets its name back. So
// all programs with the file open see the same bytes at any time. A file that is open for
// writing, or has several names, is not moved.
//
// # After a crash
//
// Files below [Private] are removed when the tiers are mounted again. A file that is in two
// tiers with equal content keeps the lower copy. With different content (a crash while a
// file replaced one of another tier) the one changed last keeps the name, and the other is
// renamed beside it, with the name of its tier added. No content is lost.
//
// # Requests
//
// A small file that is written costs five: GETATTR of the directory, whose times have
// changed and whose mode the kernel checks; LOOKUP, since the kernel does not know that the
// name is free; CREATE; GETXATTR of the capabilities before the first write; and RELEASE, for
// which no program waits. They are read from /dev/fuse, or come over io_uring; see package
// ring.
//
// Sources: fuse(4); the kernel's documentation of FUSE passthrough; fcntl(2), F_SETLEASE.
package tiers
