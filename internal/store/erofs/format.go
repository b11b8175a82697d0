package erofs

import (
	"fmt"
	"hash/crc32"
	"strings"
)

// BlockSize is the size of a block, in bytes.
const BlockSize = 1 << blockBits

// Sizes and numbers of the format, as in fs/erofs/erofs_fs.h.
const (
	blockBits = 12
	slotSize  = 32 // inodes are aligned to it; unit of a nid

	superOffset = 1024
	superSize   = 128
	superMagic  = 0xe0f5e1e2

	compactSize   = 32
	extendedSize  = 64
	xattrHeadSize = 12 // in front of the xattrs of an inode
	xattrSize     = 4  // in front of each name and its value
	direntSize    = 12
	mapEntrySize  = 4
	indexSize     = 8 // an entry of the long form of a block map, which is read only

	compatChecksum = 0x1 // the superblock has a checksum
	compatMtime    = 0x2 // the times of inodes are mtimes

	incompatPadding = 0x1 // concerns compressed files only
	incompatChunks  = 0x4 // there may be block maps

	nullBlock = 0xffffffff // a hole, in a block map

	invalidID = 0xffffffff // no user or group; the kernel refuses to open such inodes

	maxName      = 255
	maxSize      = 1<<63 - BlockSize // the largest size that can be rounded up to blocks
	maxTarget    = BlockSize - 1
	maxChunkBits = 31 // the largest chunk is BlockSize << 31 bytes

	// maxXattrs is the largest size of the xattrs behind an inode, which the
	// inode counts in 16 bits and units of 4 bytes.
	maxXattrs = xattrHeadSize + 4*(0xffff-1)
	// maxShared is how many shared xattrs an inode can have.
	maxShared = 0xff
)

// Layouts of an inode's data.
const (
	layoutPlain  = 0 // consecutive blocks
	layoutInline = 2 // the same, but the bytes behind the last full block are inline
	layoutChunks = 4 // a block map
)

// chunkIndexes, in the description of a block map, says that its entries have
// the long form. The low five bits are the chunk size.
const (
	chunkBitsMask = 0x1f
	chunkIndexes  = 0x20
)

// File types, the format bits of st_mode (inode(7)).
const (
	modeType    = 0o170000
	modeSocket  = 0o140000
	modeSymlink = 0o120000
	modeRegular = 0o100000
	modeBlock   = 0o060000
	modeDir     = 0o040000
	modeChar    = 0o020000
	modeFIFO    = 0o010000
)

// direntType returns the type of a directory entry for an inode of this mode,
// 0 where mode has no valid type. The types are the kernel's FT_*.
func direntType(mode uint32) uint8 {
	switch mode & modeType {
	case modeRegular:
		return 1
	case modeDir:
		return 2
	case modeChar:
		return 3
	case modeBlock:
		return 4
	case modeFIFO:
		return 5
	case modeSocket:
		return 6
	case modeSymlink:
		return 7
	}
	return 0
}

// xattrPrefixes holds the prefixes of names; the format replaces a prefix by its index
// in this table. Names without one of these prefixes cannot be stored.
var xattrPrefixes = [...]string{
	1: "user.",
	2: "system.posix_acl_access",
	3: "system.posix_acl_default",
	4: "trusted.",
	6: "security.",
}

// splitXattr returns the index of a name's prefix and the rest of the name, or index 0
// if the format cannot store the name.
func splitXattr(name string) (index uint8, rest string) {
	for i, prefix := range xattrPrefixes {
		if prefix == "" || !strings.HasPrefix(name, prefix) {
			continue
		}
		rest = name[len(prefix):]
		// The two ACLs are whole names, the others are prefixes of one.
		if strings.HasSuffix(prefix, ".") != (rest != "") {
			return 0, ""
		}
		return uint8(i), rest
	}
	return 0, ""
}

// joinXattr is the inverse of splitXattr. It returns false for an unknown index.
func joinXattr(index uint8, rest string) (string, bool) {
	if int(index) >= len(xattrPrefixes) || xattrPrefixes[index] == "" {
		return "", false
	}
	name := xattrPrefixes[index] + rest
	again, _ := splitXattr(name)
	return name, again == index && strings.IndexByte(rest, 0) < 0
}

// CheckXattr returns nil if the format can hold the xattr, and an error that wraps
// ErrXattr otherwise. Names are whole: "user.comment".
func CheckXattr(name string, value []byte) error {
	index, rest := splitXattr(name)
	switch {
	case index == 0:
		return fmt.Errorf("%w: the name %q is of no kind that EROFS has", ErrXattr, name)
	case len(rest) > maxName || strings.IndexByte(rest, 0) >= 0:
		return fmt.Errorf("%w: bad name %q", ErrXattr, name)
	case len(value) > 0xffff:
		return fmt.Errorf("%w: the value of %q has %d bytes, EROFS holds 65535", ErrXattr, name, len(value))
	}
	return nil
}

// roundUp rounds n up to a multiple of unit, which is a power of two.
func roundUp[T int | int64](n, unit T) T { return (n + unit - 1) &^ (unit - 1) }

// checksum returns the checksum of the superblock: CRC-32C, without the inversion at
// its end, over the rest of its block, in which the checksum itself is zero.
func checksum(block []byte) uint32 {
	return ^crc32.Checksum(block[superOffset:], crc32.MakeTable(crc32.Castagnoli))
}
