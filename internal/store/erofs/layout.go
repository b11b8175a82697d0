package erofs

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"path"
	"slices"

	"premix/internal/kit/ondisk"
)

// reach is how far behind the last block, in blocks, an inode may be put into free
// space. It bounds the memory of Write.
const reach = 32

// sharedLimit bounds the bytes of shared xattrs. Their ids are offsets in units of 4
// bytes, and the kernel multiplies them in 32 bits.
const sharedLimit = 1 << 30

// readBuffer is the size of the buffers for reading the files of a Builder.
const readBuffer = 32 << 10

// What the xattrs of an image may take in memory; variable for tests.
var sortMemory, mapRecent = ondisk.SortMemory, ondisk.MapRecent

// writer is the state of one Write: first scan, then place, then emit.
type writer struct {
	*Builder
	dataSize int64
	second   int64 // where the second part of the data begins
	metaSize int64
	uuid     [16]byte

	inodes  uint32
	uses    *ondisk.Sorter // of xattrs; see use
	seen    uint64         // uses so far
	ids     *ondisk.Map    // of shared xattrs, by xattrKey
	shared  *ondisk.File   // the shared xattrs as they are in the image
	metaBlk uint32         // block from which nids count
	next    int64          // first block that is not used
	room    []openBlock    // blocks with free space, in ascending order

	hash    hash.Hash
	scratch []byte
	node    Node   // of readNode
	sub     direct // of readDir
	nodeAt  *ondisk.Reader
	dirAt   *ondisk.Reader
}

func (b *Builder) writer(first, second int64) *writer {
	return &writer{
		Builder: b, dataSize: first + second, second: first, hash: sha256.New(),
		uses: ondisk.NewSorter(b.dir, sortMemory), ids: ondisk.NewMap(b.dir, mapRecent),
		nodeAt: b.nodes.Reader(0, readBuffer), dirAt: b.dirs.Reader(0, readBuffer),
	}
}

// sharedXattr is an xattr in the form of the image.
type sharedXattr struct {
	index uint8
	rest  string
	value []byte
}

// openBlock is a block that has free space behind its first used bytes.
type openBlock struct {
	block int64
	used  int
}

// parseNode reads the next record of r into n.
func (w *writer) parseNode(r *ondisk.Reader, n *Node) error {
	rec := r.Bytes()
	if err := r.Err(); err != nil {
		return err
	}
	if err := ParseNode(rec, n); err != nil {
		return err
	}
	if n.Second {
		for i := range n.Extents {
			n.Extents[i].DataOffset += w.second
		}
	}
	return nil
}

// readNode reads a node by its position. It is valid until the next call.
func (w *writer) readNode(at int64) (*Node, error) {
	w.nodeAt.MoveTo(at)
	return &w.node, w.parseNode(w.nodeAt, &w.node)
}

// readDir reads a directory by its position. It is valid until the next call.
func (w *writer) readDir(at int64) (*direct, error) {
	w.dirAt.MoveTo(at)
	return &w.sub, parseDir(w.dirAt, &w.sub)
}

func parseDir(r *ondisk.Reader, d *direct) error {
	rec := r.Bytes()
	if err := r.Err(); err != nil {
		return err
	}
	return d.parse(rec)
}

// level is a directory that a search has entered.
type level struct {
	names, nodes *ondisk.Reader
	next, left   int64 // index of the next entry, number of those left
	name         []byte
}

// search visits all nodes depth first, each directory's in the order of names. It calls name
// for each entry, and then node if the entry is the first of its inode in this order. at is
// the position of the node, or of the directory if dir is set; further are hard links of it in
// other places.
func (w *writer) search(name func([]byte), node func(n *Node, index, at int64, dir bool) error) error {
	dirs := w.dirs.Reader(0, readBuffer)
	var d direct
	var stack []*level
	enter := func() error {
		at := dirs.Offset()
		if err := parseDir(dirs, &d); err != nil {
			return err
		}
		if err := node(&d.node, d.own, at, true); err != nil {
			return err
		}
		buffer := readBuffer
		if len(stack) > 32 {
			buffer = 4 << 10 // there may be thousands
		}
		stack = append(stack, &level{w.names.Reader(d.names, buffer), w.nodes.Reader(d.nodes, buffer), d.first, d.count, nil})
		return nil
	}
	if err := enter(); err != nil {
		return err
	}
	var n Node
	for len(stack) > 0 {
		l := stack[len(stack)-1]
		if l.left == 0 {
			stack = stack[:len(stack)-1]
			continue
		}
		e := readName(l.names)
		if err := l.names.Err(); err != nil {
			return err
		}
		index := l.next
		l.next, l.left = l.next+1, l.left-1
		name(e.name)
		if e.mode == modeDir {
			if err := enter(); err != nil {
				return err
			}
			continue
		}
		first, at := index, l.nodes.Offset()
		if e.link == 0 {
			if err := w.parseNode(l.nodes, &n); err != nil {
				return err
			}
		} else {
			first = e.link
		}
		if w.links {
			raw, err := w.slots.Read(first)
			if err != nil {
				return err
			}
			if s := spot(raw); s.links() > 0 {
				if s.is(spotSeen) {
					continue
				}
				at = s.at()
				if raw, err = w.slots.Change(first); err != nil {
					return err
				}
				spot(raw).set(spotSeen)
				if e.link != 0 {
					k, err := w.readNode(at)
					if err != nil {
						return err
					}
					if err := node(k, first, at, false); err != nil {
						return err
					}
					continue
				}
			}
		}
		if err := node(&n, first, at, false); err != nil {
			return err
		}
	}
	return nil
}

// scan counts inodes and the uses of xattrs, and digests everything.
func (w *writer) scan() error {
	err := w.search(func(name []byte) { w.hash.Write(name) }, func(n *Node, _, at int64, dir bool) error {
		if len(n.Extents) > 0 {
			if err := checkExtents(n.Extents, n.Size, w.dataSize); err != nil {
				return err
			}
		}
		w.inodes++
		w.digest(n)
		return w.use(n, at, dir)
	})
	w.uuid = [16]byte(w.hash.Sum(nil))
	// These bits say how the UUID was made: version 8 of RFC 9562 permits any way.
	w.uuid[6] = w.uuid[6]&0x0f | 0x80
	w.uuid[8] = w.uuid[8]&0x3f | 0x80
	return err
}

// pathOf finds the first path of an entry, for an error.
func (b *Builder) pathOf(want int64) string {
	if want == 0 {
		return "."
	}
	dirs := b.dirs.Reader(0, readBuffer)
	for dirs.More() {
		var d direct
		if err := parseDir(dirs, &d); err != nil {
			break
		}
		if want >= d.first && want < d.first+d.count {
			return path.Join(b.pathOf(d.own), b.nameOf(&d, want))
		}
	}
	return "?"
}

// nameOf returns the name of an entry of a directory.
func (b *Builder) nameOf(d *direct, index int64) string {
	r := b.names.Reader(d.names, readBuffer)
	for i := d.first; i < index; i++ {
		readName(r)
	}
	return string(readName(r).name)
}

// digest adds a node to the digest that becomes the image's UUID.
func (w *writer) digest(n *Node) {
	b := w.scratch[:0]
	b = binary.LittleEndian.AppendUint32(b, n.Mode)
	b = binary.LittleEndian.AppendUint32(b, n.UID)
	b = binary.LittleEndian.AppendUint32(b, n.GID)
	b = binary.LittleEndian.AppendUint32(b, n.Nsec)
	b = binary.LittleEndian.AppendUint64(b, uint64(n.Sec))
	b = binary.LittleEndian.AppendUint64(b, n.Rdev)
	b = binary.LittleEndian.AppendUint64(b, uint64(n.Size))
	b = append(b, n.Target...)
	for _, e := range n.Extents {
		b = binary.LittleEndian.AppendUint64(b, uint64(e.FileOffset))
		b = binary.LittleEndian.AppendUint64(b, uint64(e.Length))
		b = binary.LittleEndian.AppendUint64(b, uint64(e.DataOffset))
	}
	for _, name := range n.xattrNames() {
		b = append(b, name...)
		b = append(b, 0)
		b = append(b, n.Xattrs[name]...)
	}
	b = append(b, n.Inline...)
	w.hash.Write(b)
	w.scratch = b
}

// xattrKey identifies an xattr by its content. Values are not copied.
func xattrKey(name string, value []byte) [32]byte {
	h := sha256.New()
	h.Write([]byte(name))
	h.Write([]byte{0})
	h.Write(value)
	return [32]byte(h.Sum(nil))
}

// A use of an xattr is a record of its key, how many uses came before, the size of its entry,
// whether it must be shared, and the position of its node. Numbers are big-endian, so that the
// first use of a key comes first among the sorted.
const (
	useSeen   = 32
	useSize   = useSeen + 8
	useForced = useSize + 4
	useDir    = useForced + 1
	useAt     = useDir + 1
	useBytes  = useAt + 8
)

// use records the xattrs of a node. Where they would be too much for one inode, its largest
// are shared.
func (w *writer) use(n *Node, at int64, dir bool) error {
	if len(n.Xattrs) == 0 {
		return nil
	}
	names := n.xattrNames()
	forced := map[string]bool{}
	size := xattrHeadSize
	for _, name := range names {
		_, rest := splitXattr(name)
		size += entrySize(rest, n.Xattrs[name])
	}
	if size > maxXattrs {
		largest := slices.Clone(names)
		slices.SortStableFunc(largest, func(a, b string) int { return len(n.Xattrs[b]) - len(n.Xattrs[a]) })
		for _, name := range largest {
			if size <= maxXattrs {
				break
			}
			forced[name] = true
			_, rest := splitXattr(name)
			size -= entrySize(rest, n.Xattrs[name]) - 4
		}
	}
	for _, name := range names {
		var rec [useBytes]byte
		key := xattrKey(name, n.Xattrs[name])
		copy(rec[:], key[:])
		binary.BigEndian.PutUint64(rec[useSeen:], w.seen)
		_, rest := splitXattr(name)
		binary.BigEndian.PutUint32(rec[useSize:], uint32(entrySize(rest, n.Xattrs[name])))
		if forced[name] {
			rec[useForced] = 1
		}
		if dir {
			rec[useDir] = 1
		}
		binary.BigEndian.PutUint64(rec[useAt:], uint64(at))
		w.seen++
		if err := w.uses.Add(rec[:]); err != nil {
			return err
		}
	}
	return nil
}

// xattrPlan describes how the xattrs of one node are written.
type xattrPlan struct {
	shared []uint32
	inline []sharedXattr
	size   int // bytes behind the inode
}

// xattrsOf plans the xattrs of a node, after placeShared.
func (w *writer) xattrsOf(n *Node) (xattrPlan, error) {
	var p xattrPlan
	if len(n.Xattrs) == 0 {
		return p, nil
	}
	for _, name := range n.xattrNames() {
		value := n.Xattrs[name]
		if len(p.shared) < maxShared && !w.ids.Empty() {
			id, ok, err := w.ids.Get(xattrKey(name, value))
			if err != nil {
				return p, err
			}
			if ok {
				p.shared = append(p.shared, uint32(id))
				p.size += 4
				continue
			}
		}
		index, rest := splitXattr(name)
		p.inline = append(p.inline, sharedXattr{index, rest, value})
		p.size += entrySize(rest, value)
	}
	p.size += xattrHeadSize
	return p, nil
}

// placeShared decides which xattrs are shared, and where they are. It returns the
// offset behind the last.
//
// An xattr that more than two nodes have is shared to save space, as by mkfs.erofs.
// Where the rest would be too much for one inode, its largest xattrs are shared too.
func (w *writer) placeShared() (int64, error) {
	pos := int64(superOffset + superSize)
	if w.seen == 0 {
		return pos, nil
	}
	chosen := ondisk.NewSorter(w.dir, sortMemory) // the first uses, in their order
	defer chosen.Close()
	var first [useBytes]byte
	count, forced := 0, false
	choose := func() error {
		if count <= 2 && !forced {
			return nil
		}
		return chosen.Add(append(append(make([]byte, 0, 8+useBytes), first[useSeen:useSize]...), first[:]...))
	}
	for rec, err := range w.uses.Sorted() {
		if err != nil {
			return 0, err
		}
		if count == 0 || !bytes.Equal(rec[:useSeen], first[:useSeen]) {
			if err := choose(); err != nil {
				return 0, err
			}
			copy(first[:], rec)
			count, forced = 0, false
		}
		count++
		forced = forced || rec[useForced] != 0
	}
	if err := choose(); err != nil {
		return 0, err
	}
	for rec, err := range chosen.Sorted() {
		if err != nil {
			return 0, err
		}
		rec = rec[8:]
		size := int64(binary.BigEndian.Uint32(rec[useSize:]))
		if pos+size > sharedLimit {
			continue
		}
		key := ondisk.Key(rec[:useSeen])
		if err := w.ids.Put(key, uint64(pos/4)); err != nil {
			return 0, err
		}
		if err := w.share(key, int64(binary.BigEndian.Uint64(rec[useAt:])), rec[useDir] != 0, int(size)); err != nil {
			return 0, err
		}
		pos += size
	}
	return pos, nil
}

// share writes the shared xattr with this key, which the node at this position has.
func (w *writer) share(key ondisk.Key, at int64, dir bool, size int) error {
	if w.shared == nil {
		var err error
		if w.shared, err = ondisk.NewFile(w.dir); err != nil {
			return err
		}
	}
	n := &w.node
	if dir {
		d, err := w.readDir(at)
		if err != nil {
			return err
		}
		n = &d.node
	} else if _, err := w.readNode(at); err != nil {
		return err
	}
	for name, value := range n.Xattrs {
		if xattrKey(name, value) == key {
			b := make([]byte, size)
			index, rest := splitXattr(name)
			putXattr(b, sharedXattr{index, rest, value})
			_, err := w.shared.Write(b)
			return err
		}
	}
	return errRecord
}

// tour visits all inodes in the order in which they are written: the root; then,
// directory by directory, its children except files with inline content; at the end
// these files, directory by directory. It calls inode for each inode once, with the
// directory through which it is reached, and dir for each directory, before the inodes of its
// children. The root is its own parent.
func (w *writer) tour(inode func(index int64, s spot, parent int64) error, dir func(*direct) error) error {
	visit := func(index, parent int64, filled bool) error {
		s, err := w.slots.Read(index)
		if err != nil || spot(s).is(spotLink) || spot(s).is(spotInline) != filled {
			return err
		}
		return inode(index, spot(s), parent)
	}
	if err := visit(0, 0, false); err != nil {
		return err
	}
	for _, filled := range []bool{false, true} {
		dirs := w.dirs.Reader(0, readBuffer)
		var d direct
		for dirs.More() {
			if err := parseDir(dirs, &d); err != nil {
				return err
			}
			if !filled {
				if err := dir(&d); err != nil {
					return err
				}
			}
			for i := d.first; i < d.first+d.count; i++ {
				if err := visit(i, d.own, filled); err != nil {
					return err
				}
			}
		}
		if err := dirs.Err(); err != nil {
			return err
		}
	}
	return nil
}

// place gives every node its position, and so computes the size of the metadata.
func (w *writer) place() error {
	end, err := w.placeShared()
	if err != nil {
		return err
	}
	start := roundUp(end, slotSize)
	w.next = start>>blockBits + 1
	w.room = append(w.room, openBlock{start >> blockBits, int(start % BlockSize)})
	w.metaBlk = uint32(start >> blockBits)
	if start%BlockSize == 0 {
		// readdir(3) may take inode number 0 for a missing entry.
		w.metaBlk--
	}
	err = w.tour(func(index int64, s spot, _ int64) error {
		return w.placeInode(index, s)
	}, func(d *direct) error {
		p, err := w.xattrsOf(&d.node)
		if err != nil {
			return err
		}
		if full := fullBlocks(d.bytes, p.size); full > 0 {
			s, err := w.slots.Change(d.own)
			if err != nil {
				return err
			}
			spot(s).setBlock(uint32(w.blocks(full)))
		}
		return w.full()
	})
	w.metaSize = w.next << blockBits
	if err == nil && w.metaSize+roundUp(w.dataSize, BlockSize) > nullBlock<<blockBits {
		err = fmt.Errorf("%w: %d bytes of metadata and %d of data", ErrTooBig, w.metaSize, w.dataSize)
	}
	return err
}

func (w *writer) full() error {
	if w.next >= nullBlock {
		return fmt.Errorf("%w: metadata of more than 16 TiB", ErrTooBig)
	}
	return nil
}

// fullBlocks returns the number of blocks of a directory of this size that are not inline:
// all of them if the last does not fit behind the inode and xattrs of this size.
func fullBlocks(size int64, xattrs int) int64 {
	tail := int(size % BlockSize)
	if tail == 0 || extendedSize+xattrs+tail > BlockSize {
		return (size + BlockSize - 1) >> blockBits
	}
	return size >> blockBits
}

// longTarget reports whether a symbolic link does not fit behind its inode.
func longTarget(target, xattrs int) bool { return extendedSize+xattrs+target > BlockSize }

// placeInode gives an inode its position: in a block with space for it and for the
// bytes that belong to it, or in new blocks. Only xattrs and block maps may cross a
// block boundary, and they do if they are larger than a block.
func (w *writer) placeInode(index int64, s spot) error {
	xattrs := 0
	if s.is(spotXattrs) {
		n := &w.node
		if s.is(spotDir) {
			d, err := w.readDir(s.at())
			if err != nil {
				return err
			}
			n = &d.node
		} else if _, err := w.readNode(s.at()); err != nil {
			return err
		}
		p, err := w.xattrsOf(n)
		if err != nil {
			return err
		}
		if xattrs = p.size; xattrs > maxXattrs {
			return &NodeError{w.pathOf(index), fmt.Errorf("%w: %d bytes of xattrs", ErrXattr, xattrs)}
		}
		again, err := w.slots.Read(index) // the lookups may have taken its block
		if err != nil {
			return err
		}
		s = again
	}
	size, block := int64(extendedSize+xattrs), uint32(0)
	switch extra := s.extra(); {
	case s.is(spotDir):
		if fullBlocks(extra, xattrs) == extra>>blockBits {
			size += extra % BlockSize
		}
	case s.is(spotSymlink) && longTarget(int(extra), xattrs):
		block = uint32(w.blocks(1))
	default:
		size += extra
	}
	nid := uint64(w.allocate(size)-int64(w.metaBlk)<<blockBits) / slotSize
	raw, err := w.slots.Change(index)
	if err != nil {
		return err
	}
	spot(raw).setNid(nid)
	if block > 0 {
		spot(raw).setBlock(block)
	}
	return w.full()
}

// allocate returns the position of size new bytes: in the open block in which they
// leave the least space, or in new blocks.
func (w *writer) allocate(size int64) int64 {
	best := -1
	for i, b := range w.room {
		if int64(BlockSize-b.used) >= size && (best < 0 || b.used > w.room[best].used) {
			best = i
		}
	}
	if best >= 0 {
		b := &w.room[best]
		pos := b.block<<blockBits + int64(b.used)
		b.used = roundUp(b.used+int(size), slotSize)
		if BlockSize-b.used < extendedSize {
			w.room = slices.Delete(w.room, best, best+1)
		}
		return pos
	}
	first := w.blocks((size + BlockSize - 1) >> blockBits)
	used := int(roundUp(size, slotSize) % BlockSize)
	if used != 0 && BlockSize-used >= extendedSize {
		w.room = append(w.room, openBlock{w.next - 1, used})
	}
	return first << blockBits
}

// blocks returns the first of count new blocks, and drops open blocks that are now too
// far behind.
func (w *writer) blocks(count int64) int64 {
	first := w.next
	w.next += count
	w.room = slices.DeleteFunc(w.room, func(b openBlock) bool { return b.block < w.next-reach })
	return first
}
