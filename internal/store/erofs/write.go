package erofs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"

	"premix/internal/kit/ondisk"
)

// flushAt is the number of bytes of metadata that are gathered before they are written.
const flushAt = 1 << 20

// Write writes the metadata of the image, and returns their size, a multiple of BlockSize:
// the data area has to begin there. It has two parts of first and second bytes; the first is
// a multiple of BlockSize. The rest of the last block of the data has to be zero.
//
// Equal trees give equal bytes. If a node is invalid, Write returns a NodeError before it
// writes anything. A Builder writes one image.
func (b *Builder) Write(to io.Writer, first, second int64) (metaSize int64, err error) {
	if first < 0 || second < 0 || first+second >= nullBlock<<blockBits {
		return 0, &NodeError{".", ErrTooBig}
	}
	if err := b.end(); err != nil {
		return 0, err
	}
	w := b.writer(first, second)
	defer func() { err = errors.Join(err, w.uses.Close(), w.ids.Close(), w.shared.Close()) }()
	if err := w.scan(); err != nil {
		return 0, err
	}
	if err := w.place(); err != nil {
		return 0, err
	}
	if err := w.emit(to); err != nil {
		return 0, err
	}
	return w.metaSize, nil
}

// Write writes the metadata of an image of the tree at root, a directory, and returns
// their size, like [Builder.Write]. Children are sorted in place. The builder's files are in
// the system's directory for temporary files.
func Write(w io.Writer, root *Node, dataSize int64) (metaSize int64, err error) {
	if root == nil || root.Mode&modeType != modeDir {
		return 0, &NodeError{".", errors.New("not a directory")}
	}
	if dataSize < 0 || dataSize >= nullBlock<<blockBits {
		return 0, &NodeError{".", ErrTooBig}
	}
	a := &adder{dataSize: dataSize, indexes: map[*Node]int64{root: 0}}
	if err := a.check(root); err != nil {
		return 0, &NodeError{path.Join(append([]string{"."}, a.names...)...), err}
	}
	if a.b, err = NewBuilder(os.TempDir()); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, a.b.Close()) }()
	if err := a.add(root); err != nil {
		return 0, err
	}
	return a.b.Write(w, dataSize, 0)
}

// adder gives a tree in memory to a Builder.
type adder struct {
	b        *Builder
	dataSize int64
	indexes  map[*Node]int64 // of the nodes that were seen
	names    []string        // path from the root to the node that check visits
}

// check returns the error of the first invalid node.
func (a *adder) check(n *Node) error {
	if len(a.names) > MaxDepth {
		return fmt.Errorf("%w: more than %d directories below each other", ErrTooBig, MaxDepth)
	}
	if err := n.check(a.dataSize); err != nil {
		return err
	}
	if err := n.sortChildren(); err != nil {
		return err
	}
	a.names = append(a.names, "")
	for _, c := range n.Children {
		a.names[len(a.names)-1] = c.Name
		if _, ok := a.indexes[c.Node]; ok {
			if c.Node.Mode&modeType == modeDir {
				return fmt.Errorf("%w: a directory in two places", ErrNode)
			}
			continue
		}
		a.indexes[c.Node] = 0
		if err := a.check(c.Node); err != nil {
			return err
		}
	}
	a.names = a.names[:len(a.names)-1]
	return nil
}

// add adds a directory and those below it.
func (a *adder) add(dir *Node) error {
	if err := a.b.Directory(a.indexes[dir], dir); err != nil {
		return err
	}
	for _, c := range dir.Children {
		var err error
		if first := a.indexes[c.Node]; first != 0 {
			_, err = a.b.Link(c.Name, c.Node.Mode, first)
		} else {
			a.indexes[c.Node], err = a.b.Add(c.Name, c.Node)
		}
		if err != nil {
			return err
		}
	}
	for _, c := range dir.Children {
		if c.Node.Mode&modeType == modeDir {
			if err := a.add(c.Node); err != nil {
				return err
			}
		}
	}
	return nil
}

// emit writes the metadata after place.
func (w *writer) emit(to io.Writer) error {
	o := &window{to: to}
	if err := w.putSuper(o); err != nil {
		return err
	}
	if w.shared != nil {
		r := w.shared.Reader(0, readBuffer)
		for pos, left := int64(superOffset+superSize), w.shared.Size(); left > 0; {
			n := int(min(left, readBuffer))
			copy(o.at(pos, n), r.Next(n))
			pos, left = pos+int64(n), left-int64(n)
		}
		if err := r.Err(); err != nil {
			return err
		}
	}
	var ino uint32
	blocks := w.names.Reader(0, readBuffer)
	tail := w.names.Reader(0, readBuffer)
	err := w.tour(func(index int64, s spot, parent int64) error {
		ino++
		if err := w.putInode(o, ino, s, parent, tail); err != nil {
			return err
		}
		return o.err
	}, func(d *direct) error {
		if err := w.putBlocks(o, d, blocks); err != nil {
			return err
		}
		return o.err
	})
	if err != nil {
		return err
	}
	o.at(w.metaSize, 0)
	o.flush(w.metaSize)
	return o.err
}

func (w *writer) putSuper(o *window) error {
	root, err := w.slots.Read(0)
	if err != nil {
		return err
	}
	b := o.at(superOffset, superSize)
	le := binary.LittleEndian
	le.PutUint32(b, superMagic)
	le.PutUint32(b[8:], compatChecksum|compatMtime)
	b[12] = blockBits
	le.PutUint16(b[14:], uint16(spot(root).nid()))
	le.PutUint64(b[16:], uint64(w.inodes))
	le.PutUint32(b[36:], uint32((w.metaSize+w.dataSize+BlockSize-1)>>blockBits))
	le.PutUint32(b[40:], w.metaBlk)
	copy(b[48:], w.uuid[:])
	le.PutUint32(b[80:], incompatChunks)
	return nil
}

func (w *writer) putInode(o *window, ino uint32, s spot, parent int64, tail *ondisk.Reader) error {
	// The spot is valid only until the next access.
	nid, block, nlink, at, dir := s.nid(), s.block(), s.links()+1, s.at(), s.is(spotDir)
	n, d := &w.node, &w.sub
	if dir {
		if _, err := w.readDir(at); err != nil {
			return err
		}
		n = &d.node
	} else if _, err := w.readNode(at); err != nil {
		return err
	}
	xattrs, err := w.xattrsOf(n)
	if err != nil {
		return err
	}
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
		size, data, nlink = d.bytes, block, d.nlink
		if rest := d.bytes % BlockSize; rest > 0 && fullBlocks(d.bytes, xattrs.size) == d.bytes>>blockBits {
			layout, behind = layoutInline, slices.Grow(w.scratch[:0], int(rest))[:rest]
			w.scratch = behind
			tail.MoveTo(d.lastName)
			l := &lister{w: w, r: tail, d: d, parent: parent, next: d.first + d.last - d.dots, dots: d.dots}
			if err := l.block(behind); err != nil {
				return err
			}
		}
	case modeSymlink:
		size, data = int64(len(n.Target)), block
		if longTarget(len(n.Target), xattrs.size) {
			copy(o.at(int64(block)<<blockBits, BlockSize), n.Target)
		} else {
			layout, behind = layoutInline, []byte(n.Target)
		}
	case modeBlock, modeChar:
		data = uint32(n.Rdev)
	}

	pos := int64(w.metaBlk)<<blockBits + int64(nid)*slotSize
	b := o.at(pos, extendedSize)
	le := binary.LittleEndian
	le.PutUint16(b, uint16(1|layout<<1))
	if xattrs.size > 0 {
		le.PutUint16(b[2:], uint16((xattrs.size-xattrHeadSize)/xattrSize+1))
	}
	le.PutUint16(b[4:], uint16(n.Mode))
	le.PutUint64(b[8:], uint64(size))
	le.PutUint32(b[16:], data)
	le.PutUint32(b[20:], ino)
	le.PutUint32(b[24:], n.UID)
	le.PutUint32(b[28:], n.GID)
	le.PutUint64(b[32:], uint64(n.Sec))
	le.PutUint32(b[40:], n.Nsec)
	le.PutUint32(b[44:], nlink)
	pos += extendedSize
	if xattrs.size > 0 {
		pos = putXattrs(o, pos, xattrs)
	}
	if chunks > 0 {
		w.putMap(o, pos, n, chunkBits, chunks)
	} else if len(behind) > 0 {
		copy(o.at(pos, len(behind)), behind)
	}
	return nil
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
func (w *writer) putBlocks(o *window, d *direct, r *ondisk.Reader) error {
	xattrs, err := w.xattrsOf(&d.node)
	if err != nil {
		return err
	}
	full := fullBlocks(d.bytes, xattrs.size)
	if full == 0 {
		return nil
	}
	s, err := w.slots.Read(d.own)
	if err != nil {
		return err
	}
	first := int64(spot(s).block())
	r.MoveTo(d.names)
	l := &lister{w: w, r: r, d: d, parent: d.parent, next: d.first}
	for i := range full {
		if err := l.block(o.at((first+i)<<blockBits, BlockSize)); err != nil {
			return err
		}
	}
	return nil
}

// lister lists the entries of a directory, with "." and ".." in their places.
type lister struct {
	w      *writer
	r      *ondisk.Reader // at the entry next
	d      *direct
	parent int64
	next   int64 // index of the next entry but "." and ".."
	dots   int64 // how many of these two are done
	names  []byte
	listed []dirent
	read   bool // ahead is read, and not yet listed
	ahead  nameEntry
}

type dirent struct {
	nid  uint64
	kind uint8
	end  int // of its name
}

// block writes the next block of the directory, or the last one into less.
func (l *lister) block(b []byte) error {
	l.names, l.listed = l.names[:0], l.listed[:0]
	size := 0
	for {
		if !l.read && l.next < l.d.first+l.d.count {
			l.ahead, l.read = readName(l.r), true
			if err := l.r.Err(); err != nil {
				return err
			}
		}
		var name string
		var index int64
		kind := uint32(modeDir)
		dot := l.dots < int64(len(dotNames)) && (!l.read || dotNames[l.dots] < string(l.ahead.name))
		switch {
		case dot:
			name, index = dotNames[l.dots], []int64{l.d.own, l.parent}[l.dots]
		case l.read:
			name, index, kind = string(l.ahead.name), l.next, l.ahead.mode
			if l.ahead.link != 0 {
				index = l.ahead.link
			}
		default: // the end
			l.put(b)
			return nil
		}
		if size += direntSize + len(name); size > BlockSize {
			l.put(b)
			return nil
		}
		s, err := l.w.slots.Read(index)
		if err != nil {
			return err
		}
		l.names = append(l.names, name...)
		l.listed = append(l.listed, dirent{spot(s).nid(), direntType(kind), len(l.names)})
		if dot {
			l.dots++
		} else {
			l.next++
			l.read = false
		}
	}
}

// put writes the entries of one block of a directory.
func (l *lister) put(b []byte) {
	name, from := len(l.listed)*direntSize, 0
	for i, e := range l.listed {
		d := b[i*direntSize:]
		binary.LittleEndian.PutUint64(d, e.nid)
		binary.LittleEndian.PutUint16(d[8:], uint16(name))
		d[10], d[11] = e.kind, 0
		name += copy(b[name:], l.names[from:e.end])
		from = e.end
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

func putXattr(b []byte, x sharedXattr) {
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
