// Package erofs writes and reads EROFS images, the read-only file system of
// the Linux kernel that a tree of the store is.
//
// Words used here:
//
//   - An image is one uncompressed EROFS file system: the metadata, then the
//     data area, in blocks of BlockSize bytes.
//   - The metadata is all that Write writes: superblock, shared xattrs, inodes
//     and directories. The data area is the caller's: an Extent says where in
//     it a piece of a file lies, and this package never sees the bytes.
//   - A node is an inode to be written. A nid is the number of an inode in an
//     image, which is also its inode number (st_ino): its offset in units of 32
//     bytes from the start of the block where the inodes begin.
//   - A block map is the array of block numbers of a file that has holes or
//     lies in several places, one entry a chunk. All chunks of a file have the
//     same size, a power of two. A hole is an entry of all ones.
//   - Inline is what lies directly behind its inode: a small file, a symbolic
//     link, the last part of a directory.
//
// # Formats
//
// The format is the kernel's, described in Documentation/filesystems/erofs.rst
// and fs/erofs/erofs_fs.h. Of what it offers the following is written, always
// the same, so that an image can be mounted by Linux 5.15 and later (from a
// plain file: 6.12) and equal nodes give equal bytes:
//
//	byte 0                 unused (1024 bytes)
//	byte 1024              superblock
//	byte 1152              shared xattrs: those that more than two inodes have
//	next multiple of 32    inodes, each followed by its xattrs and by its block
//	                       map or inline bytes; blocks of directories and of
//	                       long symbolic links in between
//	next block             data area
//
// Inodes have the 64-byte form, since the 32-byte form has no times. The root
// comes first. The children of a directory follow in the order of their names,
// then, directory by directory, the children of those; but regular files with inline
// bytes come last, in the same order. So what it takes to find files lies together in
// front: of the root file system of a Linux distribution a tenth of the metadata.
// What does not fit into a block leaves room in it, which a later inode fills as long
// as the block is one of the last few: reading a directory touches adjacent blocks.
//
// The build time is zero, and the UUID is a digest of all nodes. It is there
// for the kernel's overlay file system, which tells its layers by it.
//
// # Limits
//
// 16 TiB of image, 65535 bytes a value of an xattr (Linux permits one byte
// more), 4095 bytes a symbolic link, 255 bytes a name, MaxDepth directories
// below each other. A file whose holes are ill-aligned has a long block map;
// MapSize tells its size beforehand.
//
// # Reading
//
// An Image trusts nothing that it reads: offsets are checked against the size
// of the image, lengths before anything is allocated, and directories have to
// form a tree for Walk. What is wrong is an ErrCorrupt, and what is sound but
// not written by this package, such as compressed files, an ErrUnsupported.
// Images of mkfs.erofs can be read where they use neither compression nor
// further devices.
package erofs
