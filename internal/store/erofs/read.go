package erofs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
)

// Errors of an Image. It wraps errors of its io.ReaderAt.
var (
	// ErrCorrupt means that an image breaks the format.
	ErrCorrupt = errors.New("corrupt EROFS image")
	// ErrUnsupported means that an image has features that the format permits but this
	// package does not read, such as compressed files.
	ErrUnsupported = errors.New("EROFS image with features that are not read here")
	// ErrNotExist means that a directory has no entry of that name; it is
	// fs.ErrNotExist.
	ErrNotExist = fs.ErrNotExist
	// ErrNoXattr means that an inode has no xattr of that name.
	ErrNoXattr = errors.New("no such xattr")
	// ErrNotDir, ErrNotFile and ErrNotLink mean that the method is for another type of
	// inode.
	ErrNotDir  = errors.New("not a directory")
	ErrNotFile = errors.New("not a regular file")
	ErrNotLink = errors.New("not a symbolic link")
)

// Image is an open image. It holds no state but the superblock, and is safe for
// concurrent use if its io.ReaderAt is.
type Image struct {
	r    io.ReaderAt
	size int64

	inodeBase  int64 // offset of nid 0
	xattrBase  int64 // offset of shared xattr 0
	root       uint64
	inodes     uint64
	blocks     int64
	epoch      int64 // time of inodes without a time of their own
	epochNsecs uint32
	uuid       [16]byte
}

// Open reads the superblock of the image that is the first size bytes of r.
func Open(r io.ReaderAt, size int64) (*Image, error) {
	im := &Image{r: r, size: size}
	var b [superSize]byte
	if size < superOffset+superSize {
		return nil, fmt.Errorf("%w: %d bytes are too few", ErrCorrupt, size)
	}
	if err := im.read(b[:], superOffset); err != nil {
		return nil, fmt.Errorf("superblock: %w", err)
	}
	le := binary.LittleEndian
	if magic := le.Uint32(b[0:]); magic != superMagic {
		return nil, fmt.Errorf("%w: the superblock begins with %#x", ErrCorrupt, magic)
	}
	if b[12] != blockBits {
		return nil, fmt.Errorf("%w: blocks of 2^%d bytes", ErrUnsupported, b[12])
	}
	if incompat := le.Uint32(b[80:]); incompat&^(incompatPadding|incompatChunks) != 0 {
		return nil, fmt.Errorf("%w: feature bits %#x", ErrUnsupported, incompat)
	}
	if b[90] != 0 {
		return nil, fmt.Errorf("%w: directory blocks of 2^%d blocks", ErrUnsupported, b[90])
	}
	if le.Uint32(b[8:])&compatChecksum != 0 {
		if size < BlockSize {
			return nil, fmt.Errorf("%w: %d bytes are too few", ErrCorrupt, size)
		}
		block := make([]byte, BlockSize)
		if err := im.read(block, 0); err != nil {
			return nil, fmt.Errorf("superblock: %w", err)
		}
		clear(block[superOffset+4 : superOffset+8])
		if want, sum := le.Uint32(b[4:]), checksum(block); sum != want {
			return nil, fmt.Errorf("%w: checksum %#08x of the first block, not %#08x", ErrCorrupt, sum, want)
		}
	}
	im.root = uint64(le.Uint16(b[14:]))
	im.inodes = le.Uint64(b[16:])
	im.epoch = int64(le.Uint64(b[24:]))
	im.epochNsecs = le.Uint32(b[32:])
	im.blocks = int64(le.Uint32(b[36:]))
	im.inodeBase = int64(le.Uint32(b[40:])) << blockBits
	im.xattrBase = int64(le.Uint32(b[44:])) << blockBits
	copy(im.uuid[:], b[48:])
	if im.epochNsecs >= 1e9 {
		return nil, fmt.Errorf("%w: %d nanoseconds", ErrCorrupt, im.epochNsecs)
	}
	if im.blocks > (size+BlockSize-1)>>blockBits {
		return nil, fmt.Errorf("%w: %d bytes, the superblock says %d blocks", ErrCorrupt, size, im.blocks)
	}
	root, err := im.Inode(im.root)
	if err != nil {
		return nil, err
	}
	if root.Mode&modeType != modeDir {
		return nil, im.corrupt(im.root, "the root is not a directory")
	}
	return im, nil
}

// With returns the same image read through r, for instance a reader with a request's
// context. Both may be used.
func (im *Image) With(r io.ReaderAt) *Image {
	other := *im
	other.r = r
	return &other
}

// Root returns the nid of the root directory.
func (im *Image) Root() uint64 { return im.root }

// Inodes returns the number of inodes, from the superblock.
func (im *Image) Inodes() uint64 { return im.inodes }

// Blocks returns the number of blocks, from the superblock.
func (im *Image) Blocks() int64 { return im.blocks }

// Position returns the offset of an inode in the image.
func (im *Image) Position(nid uint64) int64 { return im.inodeBase + int64(nid)*slotSize }

// UUID returns the UUID of the image, from the superblock.
func (im *Image) UUID() [16]byte { return im.uuid }

// read fills p from off. All reads of the image go through it.
func (im *Image) read(p []byte, off int64) error {
	if off < 0 || off > im.size || int64(len(p)) > im.size-off {
		return fmt.Errorf("%w: %d bytes at %d are not within its %d bytes", ErrCorrupt, len(p), off, im.size)
	}
	n, err := im.r.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("reading %d bytes at %d: %w", len(p), off, err)
}

func (im *Image) corrupt(nid uint64, format string, args ...any) error {
	return fmt.Errorf("%w: inode %d: %s", ErrCorrupt, nid, fmt.Sprintf(format, args...))
}

func (im *Image) unsupported(nid uint64, format string, args ...any) error {
	return fmt.Errorf("%w: inode %d: %s", ErrUnsupported, nid, fmt.Sprintf(format, args...))
}

// Inode is an inode as read from an image. Its fields are as in Node.
type Inode struct {
	Ino   uint64 // the nid, which is also st_ino
	Mode  uint32
	UID   uint32
	GID   uint32
	Nlink uint32
	Sec   int64
	Nsec  uint32
	Rdev  uint64
	Size  int64 // regular files, directories, symbolic links: bytes

	layout    int
	first     int64 // layouts except layoutChunks: offset in the image of the full blocks
	tail      int64 // layoutInline: offset of the inline bytes
	full      int64 // layoutInline: number of bytes in full blocks
	chunkBits uint  // layoutChunks: a chunk has 2^chunkBits bytes
	entrySize int64 // layoutChunks: size of an entry of the block map
	entries   int64 // layoutChunks: offset of the block map
	xattrs    int64 // offset of the xattrs
	xattrSize int   // their size, 0: none
}

// Blocks returns st_blocks. It counts holes too, as the kernel does.
func (i *Inode) Blocks() int64 { return roundUp(i.Size, BlockSize) / 512 }

// Inode reads an inode, and checks that its content is within the image.
func (im *Image) Inode(nid uint64) (*Inode, error) {
	if im.inodeBase > im.size || nid > uint64(im.size-im.inodeBase)/slotSize {
		return nil, im.corrupt(nid, "it is not within the image")
	}
	pos := im.inodeBase + int64(nid)*slotSize
	var b [extendedSize]byte
	n := min(im.size-pos, extendedSize)
	if err := im.read(b[:n], pos); err != nil {
		return nil, fmt.Errorf("inode %d: %w", nid, err)
	}
	le := binary.LittleEndian
	format := le.Uint16(b[0:])
	if format > 0xf {
		return nil, im.unsupported(nid, "format %#x", format)
	}
	i := &Inode{Ino: nid, Mode: uint32(le.Uint16(b[4:])), layout: int(format >> 1)}
	head := int64(compactSize)
	if format&1 != 0 {
		head = extendedSize
	}
	if n < head {
		return nil, im.corrupt(nid, "it is not within the image")
	}
	if format&1 != 0 {
		i.Size = int64(le.Uint64(b[8:]))
		i.UID, i.GID = le.Uint32(b[24:]), le.Uint32(b[28:])
		i.Sec, i.Nsec = int64(le.Uint64(b[32:])), le.Uint32(b[40:])
		i.Nlink = le.Uint32(b[44:])
	} else {
		i.Nlink = uint32(le.Uint16(b[6:]))
		i.Size = int64(le.Uint32(b[8:]))
		i.Sec, i.Nsec = im.epoch+int64(le.Uint32(b[12:])), im.epochNsecs
		i.UID, i.GID = uint32(le.Uint16(b[24:])), uint32(le.Uint16(b[26:]))
	}
	if i.Nsec >= 1e9 {
		return nil, im.corrupt(nid, "%d nanoseconds", i.Nsec)
	}
	pos += head
	if count := le.Uint16(b[2:]); count > 0 {
		i.xattrs, i.xattrSize = pos, xattrHeadSize+4*int(count-1)
		pos += int64(i.xattrSize)
	}
	if pos > im.size {
		return nil, im.corrupt(nid, "its xattrs are not within the image")
	}
	return i, im.locate(i, le.Uint32(b[16:]), pos)
}

// locate finds the contents of an inode. data is the field of the inode that describes
// their location, behind is the offset of the bytes after the xattrs.
func (im *Image) locate(i *Inode, data uint32, behind int64) error {
	switch i.Mode & modeType {
	case modeRegular, modeDir, modeSymlink:
	case modeChar, modeBlock:
		i.Rdev = uint64(data)
		fallthrough
	case modeFIFO, modeSocket:
		i.Size = 0
		return nil
	default:
		return im.corrupt(i.Ino, "mode %#o", i.Mode)
	}
	if i.Size < 0 || i.Size > maxSize {
		return im.corrupt(i.Ino, "size %d", i.Size)
	}
	if i.Mode&modeType == modeSymlink && (i.Size == 0 || i.Size > maxTarget) {
		return im.corrupt(i.Ino, "a target of %d bytes", i.Size)
	}
	switch i.layout {
	case layoutPlain, layoutInline:
		i.first, i.full = int64(data)<<blockBits, i.Size
		if i.layout == layoutInline && i.Size > 0 {
			// The last block, which may be partial.
			i.tail, i.full = behind, (i.Size-1)&^(BlockSize-1)
			if size := i.Size - i.full; i.tail%BlockSize+size > BlockSize || size > im.size-i.tail {
				return im.corrupt(i.Ino, "inline bytes cross the border of a block")
			}
		}
		if i.full > 0 && (i.first > im.size || i.full > im.size-i.first) {
			return im.corrupt(i.Ino, "its contents are not within the image")
		}
	case layoutChunks:
		if i.Mode&modeType != modeRegular {
			return im.unsupported(i.Ino, "a block map, but not a regular file")
		}
		if data&0xffff&^(chunkBitsMask|chunkIndexes) != 0 {
			return im.unsupported(i.Ino, "block map of format %#x", data)
		}
		i.chunkBits = blockBits + uint(data&chunkBitsMask)
		i.entrySize = mapEntrySize
		if data&chunkIndexes != 0 {
			i.entrySize = indexSize
		}
		i.entries = roundUp(behind, i.entrySize)
		if i.Size > 0 && (i.entries > im.size || (i.Size-1)>>i.chunkBits >= (im.size-i.entries)/i.entrySize) {
			return im.corrupt(i.Ino, "its block map is not within the image")
		}
	default:
		return im.unsupported(i.Ino, "data layout %d", i.layout)
	}
	return nil
}
