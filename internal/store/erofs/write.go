package erofs

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"slices"
)

// flushAt is the number of bytes of metadata that are gathered before they are written.
const flushAt = 1 << 20

// Write writes the metadata of an image of the tree at root, a directory, and returns
// their size, a multiple of BlockSize: the data area of dataSize bytes has to begin
// there. The rest of its last block has to be zero.
//
// Equal trees give equal bytes. Children are sorted in place, and a node belongs to one
// Write at a time. Besides the nodes, Write needs memory for little more than a
// mebibyte of metadata, and 100 bytes for each distinct xattr. If a node is invalid,
// Write returns a NodeError before it writes anything.
func Write(w io.Writer, root *Node, dataSize int64) (metaSize int64, err error) {
	l, err := plan(root, dataSize)
	if err != nil {
		return 0, err
	}
	defer l.drop()
	if err := l.emit(w, root); err != nil {
		return 0, err
	}
	return l.metaSize, nil
}

// drop releases the data that a writer has gathered.
func (w *writer) drop() { *w = writer{} }

func plan(root *Node, dataSize int64) (*writer, error) {
	if root == nil || root.Mode&modeType != modeDir {
		return nil, &NodeError{".", errors.New("not a directory")}
	}
	if dataSize < 0 || dataSize >= nullBlock<<blockBits {
		return nil, &NodeError{".", ErrTooBig}
	}
	l := &writer{dataSize: dataSize, xattrs: make(map[[32]byte]*sharedXattr), hash: sha256.New()}
	if err := l.scan(root, root); err != nil {
		return nil, &NodeError{l.path(), err}
	}
	l.uuid = [16]byte(l.hash.Sum(nil))
	// These bits say how the UUID was made: version 8 of RFC 9562 permits any way.
	l.uuid[6] = l.uuid[6]&0x0f | 0x80
	l.uuid[8] = l.uuid[8]&0x3f | 0x80
	return l, l.place(root)
}

// emit writes the metadata after place.
func (w *writer) emit(to io.Writer, root *Node) error {
	o := &window{to: to}
	w.putSuper(o, root)
	for _, x := range w.shared {
		putXattr(o.at(int64(x.id)*4, entrySize(x.rest, x.value)), x)
	}
	err := w.tour(root, func(n, parent *Node) error {
		w.putInode(o, n, parent)
		return o.err
	}, func(n, parent *Node) error {
		w.putBlocks(o, n, parent)
		return o.err
	})
	if err != nil {
		return err
	}
	o.at(w.metaSize, 0)
	o.flush(w.metaSize)
	return o.err
}

func (w *writer) putSuper(o *window, root *Node) {
	b := o.at(superOffset, superSize)
	le := binary.LittleEndian
	le.PutUint32(b, superMagic)
	le.PutUint32(b[8:], compatChecksum|compatMtime)
	b[12] = blockBits
	le.PutUint16(b[14:], uint16(root.nid))
	le.PutUint64(b[16:], uint64(w.inodes))
	le.PutUint32(b[36:], uint32((w.metaSize+w.dataSize+BlockSize-1)>>blockBits))
	le.PutUint32(b[40:], w.metaBlk)
	copy(b[48:], w.uuid[:])
	le.PutUint32(b[80:], incompatChunks)
}

func (w *writer) putInode(o *window, n, parent *Node) {
	xattrs := w.xattrsOf(n)
	layout, data, size := layoutPlain, uint32(0), n.Size
	var behind []byte // the inline bytes
	chunkBits, chunks := uint(0), int64(0)
	switch n.Mode & modeType {
	case modeRegular:
		if chunkBits, chunks = mapping(n); len(n.Inline) > 0 {
			layout, behind, chunks = layoutInline, n.Inline, 0
		} else if chunks > 0 {
			layout, data = layoutChunks, uint32(chunkBits)
		} else if len(n.Extents) > 0 {
			data = w.dataBlock(n.Extents[0].DataOffset)
		}
	case modeDir:
		size, data = n.bytes, n.block
		if tail := n.bytes % BlockSize; tail > 0 && n.fullBlocks(xattrs.size) == n.bytes>>blockBits {
			layout, behind = layoutInline, slices.Grow(w.scratch[:0], int(tail))[:tail]
			w.list(n, parent)
			putEntries(behind, w.entries[n.last:])
			w.scratch = behind
		}
	case modeSymlink:
		size, data = int64(len(n.Target)), n.block
		if n.longTarget(xattrs.size) {
			copy(o.at(int64(n.block)<<blockBits, BlockSize), n.Target)
		} else {
			layout, behind = layoutInline, []byte(n.Target)
		}
	case modeBlock, modeChar:
		data = uint32(n.Rdev)
	}

	pos := int64(w.metaBlk)<<blockBits + int64(n.nid)*slotSize
	b := o.at(pos, extendedSize)
	le := binary.LittleEndian
	le.PutUint16(b, uint16(1|layout<<1))
	if xattrs.size > 0 {
		le.PutUint16(b[2:], uint16((xattrs.size-xattrHeadSize)/xattrSize+1))
	}
	le.PutUint16(b[4:], uint16(n.Mode))
	le.PutUint64(b[8:], uint64(size))
	le.PutUint32(b[16:], data)
	le.PutUint32(b[20:], n.ino)
	le.PutUint32(b[24:], n.UID)
	le.PutUint32(b[28:], n.GID)
	le.PutUint64(b[32:], uint64(n.Sec))
	le.PutUint32(b[40:], n.Nsec)
	le.PutUint32(b[44:], n.nlink)
	pos += extendedSize
	if xattrs.size > 0 {
		pos = putXattrs(o, pos, xattrs)
	}
	if chunks > 0 {
		w.putMap(o, pos, n, chunkBits, chunks)
	} else if len(behind) > 0 {
		copy(o.at(pos, len(behind)), behind)
	}
}

// dataBlock returns the block of the image at this offset of the data area.
func (w *writer) dataBlock(offset int64) uint32 {
	return uint32((w.metaSize + offset) >> blockBits)
}

// putMap writes a block map.
func (w *writer) putMap(o *window, pos int64, n *Node, chunkBits uint, chunks int64) {
	const batch = 1024 // entries written at once
	chunk := int64(BlockSize) << chunkBits
	extents := n.Extents
	for first := int64(0); first < chunks; first += batch {
		count := min(batch, chunks-first)
		b := o.at(pos, int(count)*mapEntrySize)
		for i := range count {
			// Chunks are chosen so that no border between data and holes lies within
			// one.
			offset := (first + i) * chunk
			for len(extents) > 0 && extents[0].FileOffset+extents[0].Length <= offset {
				extents = extents[1:]
			}
			block := uint32(nullBlock)
			if len(extents) > 0 && extents[0].FileOffset <= offset {
				block = w.dataBlock(extents[0].DataOffset + offset - extents[0].FileOffset)
			}
			binary.LittleEndian.PutUint32(b[i*mapEntrySize:], block)
		}
		pos += count * mapEntrySize
	}
}

// putBlocks writes the blocks of a directory that are not inline.
func (w *writer) putBlocks(o *window, n, parent *Node) {
	full := n.fullBlocks(w.xattrsOf(n).size)
	if full == 0 {
		return
	}
	w.list(n, parent)
	rest := w.entries
	for i := range full {
		count, _ := fill(rest)
		putEntries(o.at((int64(n.block)+i)<<blockBits, BlockSize), rest[:count])
		rest = rest[count:]
	}
}

// putEntries writes the entries of one block of a directory.
func putEntries(b []byte, entries []entry) {
	name := len(entries) * direntSize
	for i, e := range entries {
		d := b[i*direntSize:]
		binary.LittleEndian.PutUint64(d, e.node.nid)
		binary.LittleEndian.PutUint16(d[8:], uint16(name))
		d[10], d[11] = direntType(e.node.Mode), 0
		name += copy(b[name:], e.name)
	}
}

// putXattrs writes the xattrs of an inode and returns the offset behind them.
func putXattrs(o *window, pos int64, p xattrPlan) int64 {
	o.at(pos, xattrHeadSize)[4] = uint8(len(p.shared))
	pos += xattrHeadSize
	b := o.at(pos, 4*len(p.shared))
	for i, id := range p.shared {
		binary.LittleEndian.PutUint32(b[4*i:], id)
	}
	pos += int64(len(b))
	for _, x := range p.inline {
		size := entrySize(x.rest, x.value)
		putXattr(o.at(pos, size), x)
		pos += int64(size)
	}
	return pos
}

func putXattr(b []byte, x *sharedXattr) {
	b[0], b[1] = uint8(len(x.rest)), x.index
	binary.LittleEndian.PutUint16(b[2:], uint16(len(x.value)))
	copy(b[xattrSize+copy(b[xattrSize:], x.rest):], x.value)
}

// window holds the last blocks of the metadata until they are complete.
type window struct {
	to   io.Writer
	base int64  // position of buf
	buf  []byte // bytes not yet written
	err  error
}

// at returns the n bytes at pos, which are zero at first. The caller may change them
// until the next call.
func (o *window) at(pos int64, n int) []byte {
	if end := int(pos-o.base) + n; end > len(o.buf) {
		if len(o.buf) > flushAt {
			// Nothing is put farther behind than reach; see writer.blocks.
			o.flush((o.base+int64(len(o.buf)))&^(BlockSize-1) - reach<<blockBits)
		}
		end = int(pos-o.base) + n
		had := len(o.buf)
		o.buf = slices.Grow(o.buf, end-had)[:end]
		clear(o.buf[had:])
	}
	from := int(pos - o.base)
	return o.buf[from : from+n]
}

// flush writes everything before end.
func (o *window) flush(end int64) {
	b := o.buf[:end-o.base]
	if o.base == 0 {
		binary.LittleEndian.PutUint32(b[superOffset+4:], checksum(b[:BlockSize]))
	}
	if o.err == nil {
		_, o.err = o.to.Write(b)
	}
	o.base = end
	o.buf = o.buf[:copy(o.buf, o.buf[len(b):])]
}
