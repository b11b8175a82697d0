package erofs

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"path"
	"slices"
)

// reach is how far behind the last block, in blocks, an inode may be put into free
// space. It bounds the memory of Write.
const reach = 32

// sharedLimit bounds the bytes of shared xattrs. Their ids are offsets in units of 4
// bytes, and the kernel multiplies them in 32 bits.
const sharedLimit = 1 << 30

// writer is the state of one Write: first scan, then place, then emit. A node keeps a
// pointer to the last writer that it belonged to, so the writer is emptied at the end.
type writer struct {
	dataSize int64
	metaSize int64
	uuid     [16]byte

	inodes  uint32
	xattrs  map[[32]byte]*sharedXattr
	shared  []*sharedXattr // the xattrs that are shared, in the order written
	metaBlk uint32         // block from which nids count
	next    int64          // first block that is not used
	open    []openBlock    // blocks with free space, in ascending order

	names   []string // path from the root to the node that scan visits, for errors
	hash    hash.Hash
	scratch []byte
	entries []entry // of the current directory
}

// sharedXattr is an xattr that may be shared.
type sharedXattr struct {
	index uint8
	rest  string
	value []byte
	count int
	id    uint32 // 0: not shared
}

// openBlock is a block that has free space behind its first used bytes.
type openBlock struct {
	block int64
	used  int
}

// entry is one entry of a directory, "." and ".." among them.
type entry struct {
	name string
	node *Node
}

// scan visits every node for the first time: it checks and sorts them, counts
// links and xattrs, and digests everything.
func (w *writer) scan(n, parent *Node) error {
	if n.writer == w {
		if n.Mode&modeType == modeDir {
			return fmt.Errorf("%w: a directory in two places", ErrNode)
		}
		n.nlink++
		return nil
	}
	n.writer, n.nid, n.ino, n.nlink, n.block = w, 0, 0, 1, 0
	if len(w.names) > MaxDepth {
		return fmt.Errorf("%w: more than %d directories below each other", ErrTooBig, MaxDepth)
	}
	if err := n.check(w.dataSize); err != nil {
		return err
	}
	if w.inodes++; w.inodes == 0 {
		return fmt.Errorf("%w: too many nodes", ErrTooBig)
	}
	w.digest(n)
	for _, name := range n.xattrNames() {
		w.countXattr(name, n.Xattrs[name])
	}
	if n.Mode&modeType != modeDir {
		return nil
	}
	if err := n.sortChildren(); err != nil {
		return err
	}
	w.list(n, parent)
	if err := n.measure(w.entries); err != nil {
		return err
	}
	n.nlink = 2
	w.names = append(w.names, "")
	for i := range n.Children {
		c := &n.Children[i]
		w.names[len(w.names)-1] = c.Name
		w.hash.Write(append(w.scratch[:0], c.Name...))
		if err := w.scan(c.Node, n); err != nil {
			return err
		}
		if c.Node.Mode&modeType == modeDir {
			n.nlink++
		}
	}
	w.names = w.names[:len(w.names)-1]
	return nil
}

// path returns the path of the node that scan visits.
func (w *writer) path() string {
	return path.Join(append([]string{"."}, w.names...)...)
}

// pathOf finds the first path of a node, for an error.
func pathOf(n, want *Node) string {
	if n == want {
		return "."
	}
	for _, c := range n.Children {
		if p := pathOf(c.Node, want); p != "" {
			return path.Join(c.Name, p)
		}
	}
	return ""
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

// list sets w.entries to the entries of a directory, in their order.
func (w *writer) list(n, parent *Node) {
	dots := [...]entry{{".", n}, {"..", parent}}
	d := 0
	w.entries = w.entries[:0]
	for _, c := range n.Children {
		for d < len(dots) && dots[d].name < c.Name {
			w.entries = append(w.entries, dots[d])
			d++
		}
		w.entries = append(w.entries, entry{c.Name, c.Node})
	}
	w.entries = append(w.entries, dots[d:]...)
}

// fill returns the number of entries that fit into one block, and their size in bytes.
func fill(entries []entry) (count, size int) {
	for _, e := range entries {
		more := direntSize + len(e.name)
		if size+more > BlockSize {
			break
		}
		count++
		size += more
	}
	return count, size
}

// measure sets the size of a directory with these entries.
func (n *Node) measure(entries []entry) error {
	n.bytes, n.last = 0, 0
	for {
		count, size := fill(entries[n.last:])
		if int(n.last)+count == len(entries) {
			n.bytes += int64(size)
			break
		}
		n.last += uint32(count)
		n.bytes += BlockSize
	}
	if n.bytes >= 1<<32 {
		return fmt.Errorf("%w: a directory of %d entries", ErrTooBig, len(entries))
	}
	return nil
}

// xattrKey identifies an xattr by its content. Values are not copied.
func xattrKey(name string, value []byte) [32]byte {
	h := sha256.New()
	h.Write([]byte(name))
	h.Write([]byte{0})
	h.Write(value)
	return [32]byte(h.Sum(nil))
}

func (w *writer) countXattr(name string, value []byte) {
	key := xattrKey(name, value)
	x := w.xattrs[key]
	if x == nil {
		index, rest := splitXattr(name)
		x = &sharedXattr{index: index, rest: rest, value: value}
		w.xattrs[key] = x
		w.shared = append(w.shared, x)
	}
	x.count++
}

// xattrPlan describes how the xattrs of one node are written.
type xattrPlan struct {
	shared []uint32
	inline []*sharedXattr
	size   int // bytes behind the inode
}

// xattrsOf plans the xattrs of a node. Before shared xattrs have been placed, it
// computes their size as if none were shared.
func (w *writer) xattrsOf(n *Node) xattrPlan {
	var p xattrPlan
	if len(n.Xattrs) == 0 {
		return p
	}
	for _, name := range n.xattrNames() {
		x := w.xattrs[xattrKey(name, n.Xattrs[name])]
		if x.id != 0 && len(p.shared) < maxShared {
			p.shared = append(p.shared, x.id)
			p.size += 4
		} else {
			p.inline = append(p.inline, x)
			p.size += entrySize(x.rest, x.value)
		}
	}
	if p.size > 0 {
		p.size += xattrHeadSize
	}
	return p
}

// placeShared decides which xattrs are shared, and where they are. It returns the
// offset behind the last.
//
// An xattr that more than two nodes have is shared to save space, as by mkfs.erofs.
// Where the rest would be too much for one inode, its largest xattrs are shared too;
// forced holds them.
func (w *writer) placeShared(forced map[*sharedXattr]bool) int64 {
	pos := int64(superOffset + superSize)
	kept := w.shared[:0]
	for _, x := range w.shared {
		size := int64(entrySize(x.rest, x.value))
		if x.count <= 2 && !forced[x] || pos+size > sharedLimit {
			continue
		}
		x.id = uint32(pos / 4)
		pos += size
		kept = append(kept, x)
	}
	clear(w.shared[len(kept):])
	w.shared = kept
	return pos
}

// force returns the xattrs that have to be shared because a node has too many to keep
// behind its inode.
func (w *writer) force(root *Node) map[*sharedXattr]bool {
	forced := make(map[*sharedXattr]bool)
	if len(w.shared) == 0 {
		return forced
	}
	nothing := func(_, _ *Node) error { return nil }
	w.tour(root, func(n, _ *Node) error {
		if p := w.xattrsOf(n); p.size > maxXattrs {
			slices.SortStableFunc(p.inline, func(a, b *sharedXattr) int { return len(b.value) - len(a.value) })
			for _, x := range p.inline {
				if p.size <= maxXattrs {
					break
				}
				forced[x] = true
				p.size -= entrySize(x.rest, x.value) - 4
			}
		}
		return nil
	}, nothing)
	return forced
}

// tour visits all nodes in the order in which they are written: the root; then,
// directory by directory, its children except files with inline content; at the end
// these files, directory by directory. It calls inode for each node once, and dir for
// each directory, before the inodes of its children. The parent is the directory
// through which a node is reached; the root is its own parent.
func (w *writer) tour(root *Node, inode, dir func(n, parent *Node) error) error {
	type pending struct{ dir, parent *Node }
	var last uint32
	filled := false // files with inline content have been visited
	visit := func(n, parent *Node) error {
		if len(n.Inline) > 0 != filled {
			return nil
		}
		// The first tour assigns the numbers. In every tour, a node is visited for the
		// first time when last is one below its number.
		if n.ino == 0 {
			n.ino = last + 1
		}
		if n.ino != last+1 {
			return nil
		}
		last++
		return inode(n, parent)
	}
	if err := visit(root, root); err != nil {
		return err
	}
	for _, filled = range []bool{false, true} {
		stack := []pending{{root, root}}
		for len(stack) > 0 {
			p := stack[len(stack)-1]
			stack = stack[:len(stack)-1]
			if !filled {
				if err := dir(p.dir, p.parent); err != nil {
					return err
				}
			}
			for _, c := range p.dir.Children {
				if err := visit(c.Node, p.dir); err != nil {
					return err
				}
			}
			for _, c := range slices.Backward(p.dir.Children) {
				if c.Node.Mode&modeType == modeDir {
					stack = append(stack, pending{c.Node, p.dir})
				}
			}
		}
	}
	return nil
}

// place gives every node its position, and so computes the size of the metadata.
func (w *writer) place(root *Node) error {
	start := roundUp(w.placeShared(w.force(root)), slotSize)
	w.next = start>>blockBits + 1
	w.open = append(w.open, openBlock{start >> blockBits, int(start % BlockSize)})
	w.metaBlk = uint32(start >> blockBits)
	if start%BlockSize == 0 {
		// readdir(3) may take inode number 0 for a missing entry.
		w.metaBlk--
	}
	err := w.tour(root, func(n, _ *Node) error {
		if err := w.placeInode(n); err != nil {
			return &NodeError{pathOf(root, n), err}
		}
		return nil
	}, func(n, _ *Node) error {
		if full := n.fullBlocks(w.xattrsOf(n).size); full > 0 {
			n.block = uint32(w.blocks(full))
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

// fullBlocks returns the number of blocks of a directory that are not inline: all of
// them if the last does not fit behind the inode and xattrs of this size.
func (n *Node) fullBlocks(xattrs int) int64 {
	tail := int(n.bytes % BlockSize)
	if tail == 0 || extendedSize+xattrs+tail > BlockSize {
		return (n.bytes + BlockSize - 1) >> blockBits
	}
	return n.bytes >> blockBits
}

// longTarget reports whether a symbolic link does not fit behind its inode.
func (n *Node) longTarget(xattrs int) bool {
	return extendedSize+xattrs+len(n.Target) > BlockSize
}

// placeInode gives an inode its position: in a block with space for it and for the
// bytes that belong to it, or in new blocks. Only xattrs and block maps may cross a
// block boundary, and they do if they are larger than a block.
func (w *writer) placeInode(n *Node) error {
	xattrs := w.xattrsOf(n).size
	if xattrs > maxXattrs {
		return fmt.Errorf("%w: %d bytes of xattrs", ErrXattr, xattrs)
	}
	size := int64(extendedSize + xattrs)
	switch n.Mode & modeType {
	case modeRegular:
		if len(n.Inline) > 0 {
			size += int64(len(n.Inline))
		} else {
			size += MapSize(n)
		}
	case modeDir:
		if n.fullBlocks(xattrs) == n.bytes>>blockBits {
			size += n.bytes % BlockSize
		}
	case modeSymlink:
		if n.longTarget(xattrs) {
			n.block = uint32(w.blocks(1))
		} else {
			size += int64(len(n.Target))
		}
	}
	n.nid = uint64(w.allocate(size)-int64(w.metaBlk)<<blockBits) / slotSize
	return w.full()
}

// allocate returns the position of size new bytes: in the open block in which they
// leave the least space, or in new blocks.
func (w *writer) allocate(size int64) int64 {
	best := -1
	for i, b := range w.open {
		if int64(BlockSize-b.used) >= size && (best < 0 || b.used > w.open[best].used) {
			best = i
		}
	}
	if best >= 0 {
		b := &w.open[best]
		pos := b.block<<blockBits + int64(b.used)
		b.used = roundUp(b.used+int(size), slotSize)
		if BlockSize-b.used < extendedSize {
			w.open = slices.Delete(w.open, best, best+1)
		}
		return pos
	}
	first := w.blocks((size + BlockSize - 1) >> blockBits)
	used := int(roundUp(size, slotSize) % BlockSize)
	if used != 0 && BlockSize-used >= extendedSize {
		w.open = append(w.open, openBlock{w.next - 1, used})
	}
	return first << blockBits
}

// blocks returns the first of count new blocks, and drops open blocks that are now too
// far behind.
func (w *writer) blocks(count int64) int64 {
	first := w.next
	w.next += count
	w.open = slices.DeleteFunc(w.open, func(b openBlock) bool { return b.block < w.next-reach })
	return first
}
