package erofs

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
)

// mapBatch is how many entries of a block map are read at once. They fit into a
// buffer of blockPool.
const mapBatch = BlockSize / indexSize

// file reads the inode of a regular file.
func (im *Image) file(nid uint64) (*Inode, error) {
	i, err := im.Inode(nid)
	if err != nil {
		return nil, err
	}
	if i.Mode&modeType != modeRegular {
		return nil, fmt.Errorf("inode %d: %w", nid, ErrNotFile)
	}
	return i, nil
}

// Map returns where in the image the content of a regular file at off is, and the
// number of bytes that are contiguous from there on. If hole is true, these bytes are
// not in the image, and zero. Map may return a long piece in several parts. At the end
// of the file and behind it, length is 0.
func (im *Image) Map(nid uint64, off int64) (imageOff, length int64, hole bool, err error) {
	i, err := im.file(nid)
	if err != nil {
		return 0, 0, false, err
	}
	return im.mapAt(i, off)
}

// mapAt is Map for the contents of any inode.
func (im *Image) mapAt(i *Inode, off int64) (imageOff, length int64, hole bool, err error) {
	if off < 0 {
		return 0, 0, false, fmt.Errorf("inode %d: offset %d", i.Ino, off)
	}
	switch {
	case off >= i.Size:
		return 0, 0, false, nil
	case i.layout == layoutChunks:
		return im.mapChunks(i, off)
	case off < i.full:
		return i.first + off, i.full - off, false, nil
	default:
		return i.tail + off - i.full, i.Size - off, false, nil
	}
}

// mapChunks reads entries of a block map for as long as their blocks are contiguous.
func (im *Image) mapChunks(i *Inode, off int64) (imageOff, length int64, hole bool, err error) {
	chunk := off >> i.chunkBits
	last := (i.Size - 1) >> i.chunkBits
	buf := blockPool.Get().(*[BlockSize]byte)
	defer blockPool.Put(buf)
	b := buf[:min(mapBatch, last-chunk+1)*i.entrySize]
	if err := im.read(b, i.entries+chunk*i.entrySize); err != nil {
		return 0, 0, false, fmt.Errorf("block map of inode %d: %w", i.Ino, err)
	}
	first := i.mapEntry(b)
	hole = first == nullBlock
	count := int64(1)
	for b = b[i.entrySize:]; len(b) > 0; b = b[i.entrySize:] {
		next := i.mapEntry(b)
		if hole && next != nullBlock || !hole && (next == nullBlock || next != first+count<<(i.chunkBits-blockBits)) {
			break
		}
		count++
	}
	within := off - chunk<<i.chunkBits
	length = i.Size - off
	if chunk+count <= last {
		length = count<<i.chunkBits - within
	}
	if hole {
		return 0, length, true, nil
	}
	imageOff = first<<blockBits + within
	if imageOff > im.size || length > im.size-imageOff {
		return 0, 0, false, im.corrupt(i.Ino, "its contents at %d are not within the image", off)
	}
	return imageOff, length, false, nil
}

// mapEntry returns the block number that b begins with.
func (i *Inode) mapEntry(b []byte) int64 {
	if i.entrySize == indexSize {
		b = b[4:]
	}
	return int64(binary.LittleEndian.Uint32(b))
}

// ReadAt reads the content of a regular file. Like io.ReaderAt it returns
// io.EOF with the last bytes of the file or behind them.
func (im *Image) ReadAt(nid uint64, p []byte, off int64) (int, error) {
	i, err := im.file(nid)
	if err != nil {
		return 0, err
	}
	return im.readAt(i, p, off)
}

// readAt is ReadAt for the contents of any inode.
func (im *Image) readAt(i *Inode, p []byte, off int64) (n int, err error) {
	for n < len(p) {
		pos, length, hole, err := im.mapAt(i, off+int64(n))
		if err != nil {
			return n, err
		}
		if length == 0 {
			return n, io.EOF
		}
		part := p[n : n+int(min(length, int64(len(p)-n)))]
		if hole {
			clear(part)
		} else if err := im.read(part, pos); err != nil {
			return n, fmt.Errorf("inode %d: %w", i.Ino, err)
		}
		n += len(part)
	}
	return n, nil
}

// NextData returns the first offset from off on at which a regular file has data, and
// io.EOF if there is none: lseek(2) with SEEK_DATA.
func (im *Image) NextData(nid uint64, off int64) (int64, error) {
	return im.next(nid, off, false)
}

// NextHole returns the first offset from off on at which a regular file has a hole, and
// io.EOF if off is not within the file: lseek(2) with SEEK_HOLE. The end of a file
// counts as a hole.
func (im *Image) NextHole(nid uint64, off int64) (int64, error) {
	return im.next(nid, off, true)
}

func (im *Image) next(nid uint64, off int64, want bool) (int64, error) {
	i, err := im.file(nid)
	if err != nil {
		return 0, err
	}
	if off >= i.Size {
		return 0, io.EOF
	}
	for {
		_, length, hole, err := im.mapAt(i, off)
		switch {
		case err != nil:
			return 0, err
		case length == 0 && want:
			return i.Size, nil
		case length == 0:
			return 0, io.EOF
		case hole == want:
			return off, nil
		}
		off += length
	}
}

// Readlink returns the target of a symbolic link.
func (im *Image) Readlink(nid uint64) (string, error) {
	i, err := im.Inode(nid)
	if err != nil {
		return "", err
	}
	if i.Mode&modeType != modeSymlink {
		return "", fmt.Errorf("inode %d: %w", nid, ErrNotLink)
	}
	b := make([]byte, i.Size) // maxTarget at most
	if _, err := im.readAt(i, b, 0); err != nil {
		return "", err
	}
	if bytes.IndexByte(b, 0) >= 0 {
		return "", im.corrupt(nid, "NUL in the target")
	}
	return string(b), nil
}
