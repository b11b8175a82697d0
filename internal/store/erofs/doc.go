// Package erofs writes and reads EROFS images. EROFS is a read-only file system of the
// Linux kernel, and each tree of the store is such an image.
//
// Words used here:
//
//   - An image is one uncompressed EROFS file system: the metadata, then the
//     data area, in blocks of BlockSize bytes.
//   - The metadata is everything that Write writes: superblock, shared xattrs,
//     inodes and directories. The data area is written by the caller: an Extent says
//     where in it a piece of a file lies, and this package never sees the bytes.
//   - A node is an inode to be written. A nid is the number of an inode in an
//     image, which is also its inode number (st_ino): its offset in units of 32
//     bytes from the start of the block where the inodes begin.
//   - A block map is the array of block numbers of a file that has holes or
//     lies in several places, one entry a chunk. All chunks of a file have the
//     same size, a power of two. A hole is an entry of all ones.
//   - Inline bytes lie directly behind their inode: a small file, a symbolic link,
//     the last part of a directory.
//
// # Formats
//
// The format is the kernel's, described in Documentation/filesystems/erofs.rst and
// fs/erofs/erofs_fs.h. Only the following subset is written, always in the same way, so
// that Linux 5.15 and later can mount an image (from a plain file: 6.12) and equal
// nodes give equal bytes:
//
//	byte 0                 unused (1024 bytes)
//	byte 1024              superblock
//	byte 1152              shared xattrs: those that more than two inodes have
//	next multiple of 32    inodes, each followed by its xattrs and by its block
//	                       map or inline bytes; blocks of directories and of
//	                       long symbolic links in between
//	next block             data area
//
// Inodes have the 64-byte form, since the 32-byte form has no times. The root comes
// first. The children of a directory follow in the order of their names; then,
// directory by directory, come their children. Regular files with inline bytes come
// last, in the same order. So the bytes needed to find files lie together at the front:
// for the root file system of a Linux distribution they are a tenth of the metadata.
// Where something does not fit into the rest of a block, a later inode fills that space
// as long as the block is one of the last few: reading a directory touches adjacent
// blocks.
//
// The build time is zero, and the UUID is a digest of all nodes. The kernel's overlay
// file system needs the UUID to tell its layers apart.
//
// # Limits
//
// An image has at most 16 TiB, the value of an xattr 65535 bytes (Linux permits one
// byte more), a symbolic link 4095 bytes, a name 255 bytes, and directories nest
// MaxDepth deep. A file whose holes are ill-aligned has a long block map; MapSize
// returns its size beforehand.
//
// # Reading
//
// An Image trusts nothing that it reads. It checks offsets against the size of the
// image, and lengths before it allocates anything; Walk checks that directories form a
// tree. An image that breaks the format gives an ErrCorrupt. A sound image with
// features that this package does not write, such as compressed files, gives an
// ErrUnsupported. Images of mkfs.erofs can be read if they use neither compression nor
// further devices.
//
// # Checking
//
// A [Checker] is stricter than an Image: it accepts only what Write can have written.
// It stands between an image from an origin and the kernel, which is less careful than
// an Image.
package erofs
