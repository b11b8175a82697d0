package erofs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"sort"
	"sync"
	"sync/atomic"

	"premix/internal/kit/exit"
)

// ErrUnsound is wrapped by every [CheckError].
var ErrUnsound = errors.New("not an image that premix has written")

// CheckError reports metadata that Write would not have written.
type CheckError struct {
	Place  string // "superblock", "inode 36 (byte 2304)"
	Reason string
}

func (e *CheckError) Error() string { return e.Place + ": " + e.Reason }

func (e *CheckError) Unwrap() error { return ErrUnsound }

// ExitCode implements exit.Coded.
func (*CheckError) ExitCode() exit.Code { return exit.Trust }

// Hint returns the hint for the user.
func (*CheckError) Hint() string {
	return "its publisher made this image with another program, or wants to attack the kernel: do not use the tree"
}

// Checker checks the metadata of an image before another reader, the kernel, sees it.
// It accepts images that Write can have written, and refuses all others: with layouts
// that Write does not use, such as compressed files, with structures that overlap or
// lie elsewhere than they may, with names that are illegal, not unique or not sorted,
// with directories that do not form a tree, or with more names for an inode than the
// inode counts.
//
// It works piece by piece. [Checker.Check] is called with bytes that are about to be
// shown. The bytes of a block have no meaning by themselves: a directory that was shown
// gives a meaning to the inodes that it lists, and these to blocks of entries and block
// maps. So the Checker keeps this invariant: every structure that lies in a block that
// was shown, and to which a path of shown structures leads from the superblock, is
// sound. A structure is checked when both are the case, and until then its place is
// kept in mind. When everything has been shown, everything has been checked;
// [Checker.All] checks the totals too.
//
// The memory is a byte for each 32 bytes of the shown metadata and of the places that
// they name, and little for each directory that has not been shown completely and for
// each hard link. A Checker is safe for concurrent use.
type Checker struct {
	meta, size int64

	// shown has a bit for each block of the metadata that passed. Only it is read
	// without mu.
	shown []uint64
	keep  func(word int, value uint64) error // may be nil

	mu       sync.Mutex
	bad      error    // the first unsound structure; then nothing else passes
	started  bool     // the superblock is sound
	seen     []uint64 // as shown, and the blocks that are being checked
	slots    []*[slotsPerBlock]slot
	queue    []int64 // structures to check: positions of inodes, and blocks (as -1-n)
	base     int64   // position of nid 0
	inodes   uint64  // by the superblock
	found    uint64
	numbers  []uint64 // a bit for each inode number in use
	dirs     map[int64]*checkedDir
	hard     map[int64]links
	spills   map[int64]spill // by block
	shared   map[int64]string
	sharedTo int64 // end of the shared xattrs that were read

	window struct {
		r   io.ReaderAt
		p   []byte // bytes of the current call
		off int64
	}
	recent [8]struct {
		block int64 // its number plus one
		b     [BlockSize]byte
	}
	turn int
}

const slotsPerBlock = BlockSize / slotSize

// slot describes 32 bytes of metadata: the type of an inode that begins there (the
// format's number of a file type), slotHead for such an inode, slotTaken for bytes of a
// structure that was checked.
type slot uint8

const (
	slotType  slot = 0x07
	slotHead  slot = 0x08
	slotTaken slot = 0x10
)

// checkedDir is a directory to which a path leads and that was not shown completely.
type checkedDir struct {
	parent   int64 // position of its inode
	depth    int
	size     int64
	blocks   int64 // of entries
	done     int64
	nlink    uint32
	children uint32 // directories
	runs     []run
}

// run is a range of adjacent blocks of a directory that were checked.
type run struct {
	from, to    int64
	first, last string
}

// links counts the names of an inode. nlink is 0 while it is unknown.
type links struct{ refs, nlink uint32 }

// spill is the part of a structure that lies in a block behind its inode's block, or
// elsewhere.
type spill struct {
	kind spillKind
	bits uint8 // of a block map: the size of its chunks
	pos  int64 // of the inode
	at   int64 // of a block map: its offset; of a directory: the number of the block
	size int64 // of the file or link
}

type spillKind uint8

const (
	spillDir spillKind = iota
	spillMap
	spillTarget
	spillXattrs // checked with the inode
)

// ShownWords returns the length of the bitmap of an image with meta bytes of metadata.
func ShownWords(meta int64) int { return int((meta>>blockBits + 63) / 64) }

// NewChecker returns a Checker of an image of size bytes whose metadata are the first
// meta bytes. shown is a bitmap of ShownWords words with the blocks that were shown
// already, or nil. The Checker keeps it up to date, and calls keep, if it is not nil,
// for each word before the blocks are shown. So the process that serves a mount after
// the first has died knows what the kernel has.
func NewChecker(meta, size int64, shown []uint64, keep func(word int, value uint64) error) *Checker {
	words := ShownWords(meta)
	c := &Checker{meta: meta, size: size, shown: shown, keep: keep, dirs: map[int64]*checkedDir{}, hard: map[int64]links{}, spills: map[int64]spill{}, shared: map[int64]string{}}
	if meta < BlockSize || meta%BlockSize != 0 || meta > size || meta>>blockBits >= nullBlock || size > nullBlock<<blockBits {
		c.bad = c.refuse(atSuper, "%d bytes of metadata, %d in all", meta, size)
		c.meta = 0
		return c
	}
	if c.shown == nil {
		c.shown = make([]uint64, words)
	}
	c.seen = make([]uint64, words)
	for i := range c.seen {
		c.seen[i] = atomic.LoadUint64(&c.shown[i])
	}
	c.slots = make([]*[slotsPerBlock]slot, meta>>blockBits)
	return c
}

// Check returns an error unless the bytes p of the image, which begin at off, may be
// shown. r reads the image, and is used for further bytes that have to be read. An
// unsound image gives a [CheckError]; other errors are r's, and Check may be called
// again.
func (c *Checker) Check(r io.ReaderAt, p []byte, off int64) error {
	if c.bad != nil && c.meta == 0 {
		return c.bad
	}
	if off >= c.meta || len(p) == 0 {
		return nil
	}
	first, last := off>>blockBits, (min(off+int64(len(p)), c.meta)-1)>>blockBits
	if c.passed(first, last) {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bad != nil {
		return c.bad
	}
	c.window.r, c.window.p, c.window.off = r, p, off
	defer func() { c.window.r, c.window.p = nil, nil }()
	err := c.check(first, last)
	if errors.Is(err, ErrUnsound) {
		c.bad = err
	}
	if err != nil {
		return err
	}
	return c.show(first, last)
}

// show notes that blocks are being shown.
func (c *Checker) show(first, last int64) error {
	for w := first / 64; w <= last/64; w++ {
		value := atomic.LoadUint64(&c.shown[w])
		for b := max(first, 64*w); b <= min(last, 64*w+63); b++ {
			value |= 1 << (b % 64)
		}
		if c.keep != nil {
			if err := c.keep(int(w), value); err != nil {
				return err
			}
		}
		atomic.StoreUint64(&c.shown[w], value)
	}
	return nil
}

// passed reports whether blocks have been shown before.
func (c *Checker) passed(first, last int64) bool {
	for b := first; b <= last; b++ {
		if atomic.LoadUint64(&c.shown[b/64])&(1<<(b%64)) == 0 {
			return false
		}
	}
	return true
}

// All checks all metadata, and the totals that are only known then.
func (c *Checker) All(r io.ReaderAt) error {
	buf := make([]byte, min(c.meta, 1<<20))
	for off := int64(0); off < c.meta; off += int64(len(buf)) {
		p := buf[:min(int64(len(buf)), c.meta-off)]
		if n, err := r.ReadAt(p, off); n < len(p) {
			return fmt.Errorf("reading %d bytes at %d: %w", len(p), off, err)
		}
		if err := c.Check(r, p, off); err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bad != nil {
		return c.bad
	}
	c.bad = c.totals()
	return c.bad
}

func (c *Checker) totals() error {
	if c.found != c.inodes {
		return c.refuse(atSuper, "%d inodes, but names lead to %d", c.inodes, c.found)
	}
	for pos, l := range c.hard {
		if l.refs != l.nlink {
			return c.refuse(place{pos, true}, "%d links, but %d names", l.nlink, l.refs)
		}
	}
	for pos := range c.dirs {
		return c.refuse(place{pos, true}, "a directory that is not complete")
	}
	return nil
}

// place is a position in the image, for an error: of an inode, of the superblock, or
// of other bytes.
type place struct {
	pos   int64
	inode bool
}

// atSuper is the place of the superblock.
var atSuper = place{pos: superOffset}

func (c *Checker) refuse(p place, format string, args ...any) error {
	e := &CheckError{Place: fmt.Sprintf("byte %d", p.pos), Reason: fmt.Sprintf(format, args...)}
	switch {
	case p == atSuper:
		e.Place = "superblock"
	case p.inode:
		e.Place = c.number(p.pos)
	}
	return e
}

// number describes the inode at pos.
func (c *Checker) number(pos int64) string {
	return fmt.Sprintf("inode %d (byte %d)", (pos-c.base)/slotSize, pos)
}

// check checks every known structure in the blocks first to last. What an error of the
// reader interrupts stays in the queue for the next call.
func (c *Checker) check(first, last int64) error {
	if !c.started {
		if err := c.begin(); err != nil {
			return err
		}
	}
	for b := last; b >= first; b-- {
		c.see(b)
	}
	for len(c.queue) > 0 {
		n := len(c.queue) - 1
		next := c.queue[n]
		c.queue = c.queue[:n]
		var err error
		if next >= 0 {
			err = c.inode(next)
		} else {
			err = c.spilled(-1 - next)
		}
		if err != nil {
			c.queue = append(c.queue, next)
			return err
		}
	}
	return nil
}

// see puts the known structures of a block into the queue, once.
func (c *Checker) see(b int64) {
	if c.has(b) {
		return
	}
	c.seen[b/64] |= 1 << (b % 64)
	if _, ok := c.spills[b]; ok {
		c.queue = append(c.queue, -1-b)
	}
	if s := c.slots[b]; s != nil {
		for i := slotsPerBlock - 1; i >= 0; i-- {
			if s[i]&(slotHead|slotTaken) == slotHead {
				c.queue = append(c.queue, b<<blockBits+int64(i)*slotSize)
			}
		}
	}
}

func (c *Checker) has(b int64) bool { return c.seen[b/64]&(1<<(b%64)) != 0 }

func (c *Checker) slot(pos int64) *slot {
	b := pos >> blockBits
	if c.slots[b] == nil {
		c.slots[b] = new([slotsPerBlock]slot)
	}
	return &c.slots[b][pos%BlockSize/slotSize]
}

// claim takes the bytes from pos to end for one structure. head permits that it begins
// with an inode.
func (c *Checker) claim(pos, end int64, head bool) error {
	if pos < 0 || end > c.meta || pos > end {
		return c.refuse(place{pos, true}, "it leads to bytes %d to %d, and the metadata have %d", pos, end, c.meta)
	}
	for at := pos &^ (slotSize - 1); at < end; at += slotSize {
		s := c.slot(at)
		if *s&slotTaken != 0 || *s&slotHead != 0 && !(head && at == pos) {
			return c.refuse(place{pos: at}, "structures overlap")
		}
		*s |= slotTaken
	}
	return nil
}

// bytes returns n bytes of the metadata. They are valid until the next call.
func (c *Checker) bytes(pos int64, n int) ([]byte, error) {
	if pos < 0 || int64(n) > c.meta-pos {
		return nil, c.refuse(place{pos: pos}, "%d bytes there are not within the metadata", n)
	}
	w := &c.window
	if at := pos - w.off; at >= 0 && at+int64(n) <= int64(len(w.p)) {
		return w.p[at : at+int64(n)], nil
	}
	if pos>>blockBits != (pos+int64(n)-1)>>blockBits {
		b := make([]byte, n)
		return b, c.fill(b, pos)
	}
	block := pos >> blockBits
	for i := range c.recent {
		if r := &c.recent[i]; r.block == block+1 {
			return r.b[pos%BlockSize:][:n], nil
		}
	}
	r := &c.recent[c.turn]
	c.turn = (c.turn + 1) % len(c.recent)
	r.block = 0
	if err := c.fill(r.b[:], block<<blockBits); err != nil {
		return nil, err
	}
	r.block = block + 1
	return r.b[pos%BlockSize:][:n], nil
}

func (c *Checker) fill(b []byte, pos int64) error {
	n, err := c.window.r.ReadAt(b, pos)
	if n == len(b) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("reading %d bytes at %d: %w", len(b), pos, err)
}

func zero(b []byte) bool { return len(bytes.TrimLeft(b, "\x00")) == 0 }

// begin checks the superblock, and finds the root.
func (c *Checker) begin() error {
	block, err := c.bytes(0, BlockSize)
	if err != nil {
		return err
	}
	block = bytes.Clone(block)
	bad := func(format string, args ...any) error { return c.refuse(atSuper, format, args...) }
	b, le := block[superOffset:superOffset+superSize], binary.LittleEndian
	switch magic, incompat := le.Uint32(b), le.Uint32(b[80:]); {
	case magic != superMagic:
		return bad("it begins with %#x", magic)
	case b[12] != blockBits:
		return bad("blocks of 2^%d bytes", b[12])
	case le.Uint32(b[8:]) != compatChecksum|compatMtime, incompat != incompatChunks:
		return bad("feature bits %#x and %#x: premix writes neither compression nor further devices", le.Uint32(b[8:]), incompat)
	case !zero(block[:superOffset]), b[13] != 0, !zero(b[24:36]), !zero(b[44:48]), !zero(b[64:80]), !zero(b[84:]):
		return bad("it has values that premix does not write")
	case int64(le.Uint32(b[36:])) != (c.size+BlockSize-1)>>blockBits:
		return bad("%d blocks, and the image has %d bytes", le.Uint32(b[36:]), c.size)
	}
	sum := le.Uint32(b[4:])
	clear(b[4:8])
	if want := checksum(block); sum != want {
		return bad("checksum %#08x of the first block, not %#08x", sum, want)
	}
	c.base = int64(le.Uint32(b[40:])) << blockBits
	c.inodes = le.Uint64(b[16:])
	if c.inodes == 0 || c.inodes > uint64(c.meta/extendedSize) {
		return bad("%d inodes in %d bytes", c.inodes, c.meta)
	}
	root := c.position(uint64(le.Uint16(b[14:])))
	if root < 0 {
		return bad("no inode %d", le.Uint16(b[14:]))
	}
	c.numbers = make([]uint64, c.inodes/64+1)
	c.sharedTo = superOffset + superSize
	if err := c.claim(0, c.sharedTo, false); err != nil {
		return err
	}
	c.started = true
	return c.name(nil, root, root, modeDir, 0)
}

// position returns the position of an inode. It is negative if no inode can be there.
func (c *Checker) position(nid uint64) int64 {
	if nid > uint64(c.meta)/slotSize {
		return -1
	}
	pos := c.base + int64(nid)*slotSize
	if pos < superOffset+superSize || pos > c.meta-extendedSize || pos%BlockSize > BlockSize-extendedSize {
		return -1
	}
	return pos
}

// name counts a name of the inode at pos, in the directory at parent.
func (c *Checker) name(name []byte, pos, parent int64, mode uint32, depth int) error {
	s, typ := c.slot(pos), slot(direntType(mode))
	bad := func(format string, args ...any) error {
		return c.refuse(place{parent, true}, "entry %q: %s", name, fmt.Sprintf(format, args...))
	}
	switch {
	case *s&slotHead == 0 && *s&slotTaken != 0:
		return bad("%s is part of something else", c.number(pos))
	case *s&slotHead == 0:
		*s |= slotHead | typ
		if c.found++; c.found > c.inodes {
			return bad("names lead to more than %d inodes", c.inodes)
		}
		if mode == modeDir {
			if depth > MaxDepth {
				return bad("more than %d directories below each other", MaxDepth)
			}
			c.dirs[pos] = &checkedDir{parent: parent, depth: depth}
		}
		if c.has(pos >> blockBits) {
			c.queue = append(c.queue, pos)
		}
		return nil
	case mode == modeDir || *s&slotType == 2:
		return bad("directories do not form a tree: %s has a second name", c.number(pos))
	case *s&slotType != typ:
		return bad("%s is listed with two types", c.number(pos))
	}
	l, ok := c.hard[pos]
	if !ok {
		l.refs = 1
		if *s&slotTaken != 0 {
			l.nlink = 1 // others are in the map since they were checked
		}
	}
	l.refs++
	c.hard[pos] = l
	return c.enough(pos, l)
}

// enough returns an error if an inode has more names than it counts.
func (c *Checker) enough(pos int64, l links) error {
	if l.nlink != 0 && l.refs > l.nlink {
		return c.refuse(place{pos, true}, "%d links, but more names", l.nlink)
	}
	return nil
}

// head is an inode that Write can have written.
type head struct {
	mode   uint32
	layout int
	data   uint32
	nlink  uint32
	size   int64
	number uint32
	xattrs int
}

// inode checks the inode at pos, its xattrs and its inline bytes.
func (c *Checker) inode(pos int64) error {
	at := place{pos, true}
	bad := func(format string, args ...any) error { return c.refuse(at, format, args...) }
	b, err := c.bytes(pos, extendedSize)
	if err != nil {
		return err
	}
	h, err := c.head(at, b, *c.slot(pos)&slotType)
	if err != nil {
		return err
	}
	behind := pos + extendedSize + int64(h.xattrs)
	tail, mapped, blocks, err := c.shape(at, h)
	if err != nil {
		return err
	}
	if tail > 0 && behind>>blockBits != (behind+tail-1)>>blockBits {
		return bad("inline bytes cross the border of a block")
	}
	// Everything is read before anything is noted, so that an error of the reader
	// changes nothing.
	if h.xattrs > 0 {
		if b, err = c.bytes(pos+extendedSize, h.xattrs); err == nil {
			err = c.xattrs(at, bytes.Clone(b))
		}
		if err != nil {
			return err
		}
	}
	var inline []byte
	if tail > 0 {
		if inline, err = c.bytes(behind, int(tail)); err != nil {
			return err
		}
	}
	blockMap := spill{kind: spillMap, bits: uint8(h.data & chunkBitsMask), pos: pos, at: behind, size: h.size}
	if mapped > 0 && behind>>blockBits == pos>>blockBits {
		if err := c.blockMap(pos>>blockBits, blockMap); err != nil {
			return err
		}
	}
	end := behind + tail + mapped
	if err := c.claim(pos, end, true); err != nil {
		return err
	}
	if n := uint64(h.number); c.numbers[n/64]&(1<<(n%64)) != 0 {
		return bad("another inode has its number %d", n)
	} else {
		c.numbers[n/64] |= 1 << (n % 64)
	}
	for b := pos>>blockBits + 1; b<<blockBits < end; b++ {
		s := spill{kind: spillXattrs}
		if mapped > 0 && (b+1)<<blockBits > behind {
			s = blockMap
		}
		c.spill(b, s)
	}
	switch h.mode & modeType {
	case modeDir:
		return c.dir(pos, h, blocks, inline)
	case modeSymlink:
		if blocks == 0 {
			if err := c.target(at, inline); err != nil {
				return err
			}
			break
		}
		first := int64(h.data)
		if err := c.claim(first<<blockBits, (first+1)<<blockBits, false); err != nil {
			return err
		}
		c.spill(first, spill{kind: spillTarget, pos: pos, size: h.size})
	}
	return c.linked(pos, h.nlink)
}

// linked notes the number of links of an inode that is not a directory.
func (c *Checker) linked(pos int64, nlink uint32) error {
	l, ok := c.hard[pos]
	if nlink == 1 && !ok {
		return nil
	}
	if !ok {
		l.refs = 1
	}
	l.nlink = nlink
	c.hard[pos] = l
	return c.enough(pos, l)
}

// spill notes that a structure lies in block b.
func (c *Checker) spill(b int64, s spill) {
	c.spills[b] = s
	if c.has(b) {
		c.queue = append(c.queue, -1-b)
	}
}

// head checks the 64 bytes of an inode by themselves.
func (c *Checker) head(at place, b []byte, typ slot) (head, error) {
	le := binary.LittleEndian
	h := head{
		mode: uint32(le.Uint16(b[4:])), layout: int(le.Uint16(b)) >> 1, data: le.Uint32(b[16:]),
		number: le.Uint32(b[20:]), nlink: le.Uint32(b[44:]), size: int64(le.Uint64(b[8:])),
	}
	if count := int(le.Uint16(b[2:])); count > 0 {
		h.xattrs = xattrHeadSize + 4*(count-1)
	}
	bad := func(format string, args ...any) (head, error) { return h, c.refuse(at, format, args...) }
	switch format := le.Uint16(b); {
	case format != 1|layoutPlain<<1 && format != 1|layoutInline<<1 && format != 1|layoutChunks<<1:
		return bad("format %#x: premix writes neither compressed files nor short inodes", format)
	case direntType(h.mode) == 0 || slot(direntType(h.mode)) != typ:
		return bad("mode %#o is not the type in its directory", h.mode)
	case !zero(b[6:8]), !zero(b[48:extendedSize]):
		return bad("it has values that premix does not write")
	case le.Uint32(b[24:]) == invalidID, le.Uint32(b[28:]) == invalidID:
		return bad("an invalid owner")
	case le.Uint32(b[40:]) >= 1e9:
		return bad("%d nanoseconds", le.Uint32(b[40:]))
	case h.nlink == 0:
		return bad("no links")
	case h.number == 0 || uint64(h.number) > c.inodes:
		return bad("number %d of %d inodes", h.number, c.inodes)
	case h.xattrs == xattrHeadSize:
		return bad("an empty list of xattrs")
	}
	return h, nil
}

// shape checks the size, the layout and the places of an inode's content. It returns the
// sizes of the inline bytes and of the block map, and the number of blocks of metadata.
func (c *Checker) shape(at place, h head) (tail, mapped, blocks int64, err error) {
	bad := func(format string, args ...any) (int64, int64, int64, error) {
		return 0, 0, 0, c.refuse(at, format, args...)
	}
	if h.size < 0 || h.size > maxSize {
		return bad("size %d", h.size)
	}
	kind := h.mode & modeType
	if h.layout == layoutChunks && kind != modeRegular {
		return bad("a block map, but not a regular file")
	}
	switch kind {
	case modeRegular:
		switch h.layout {
		case layoutInline:
			if h.size == 0 || h.size > BlockSize-extendedSize || h.data != 0 {
				return bad("an inline file of %d bytes, block %d", h.size, h.data)
			}
			return h.size, 0, 0, nil
		case layoutPlain:
			if h.size == 0 && h.data != 0 {
				return bad("an empty file at block %d", h.data)
			}
			if h.size > 0 && !c.within(int64(h.data), h.size) {
				return bad("its %d bytes at block %d are not within the data", h.size, h.data)
			}
			return 0, 0, 0, nil
		}
		most := uint32(bits.Len64(uint64((h.size + BlockSize - 1) >> blockBits)))
		if h.size == 0 || h.data > maxChunkBits || h.data > most {
			return bad("a block map of format %#x for %d bytes", h.data, h.size)
		}
		entries := (h.size-1)>>(blockBits+h.data) + 1
		if entries > c.meta/mapEntrySize {
			return bad("a block map of %d entries", entries)
		}
		return 0, entries * mapEntrySize, 0, nil
	case modeDir:
		if h.size < direntSize || h.size > c.meta {
			return bad("a directory of %d bytes", h.size)
		}
		blocks = (h.size + BlockSize - 1) >> blockBits
		if h.layout == layoutInline {
			if tail = h.size % BlockSize; tail == 0 {
				return bad("a directory of %d bytes without inline bytes", h.size)
			}
			blocks--
		}
		if blocks == 0 && h.data != 0 {
			return bad("block %d for no entries", h.data)
		}
		return tail, 0, blocks, nil
	case modeSymlink:
		switch {
		case h.size == 0 || h.size > maxTarget:
			return bad("a target of %d bytes", h.size)
		case h.layout == layoutPlain:
			return 0, 0, 1, nil
		case h.data != 0:
			return bad("block %d for an inline target", h.data)
		}
		return h.size, 0, 0, nil
	}
	device := kind == modeBlock || kind == modeChar
	if h.layout != layoutPlain || h.size != 0 || h.data != 0 && !device {
		return bad("content, but not a regular file")
	}
	return 0, 0, 0, nil
}

// within reports whether n bytes from a block on are within the data.
func (c *Checker) within(block, n int64) bool {
	return block<<blockBits >= c.meta && n <= c.size && block<<blockBits <= c.size-n
}

// target checks the target of a symbolic link.
func (c *Checker) target(at place, b []byte) error {
	if bytes.IndexByte(b, 0) >= 0 {
		return c.refuse(at, "NUL in the target")
	}
	return nil
}

// xattrs checks the xattrs of an inode.
func (c *Checker) xattrs(at place, b []byte) error {
	bad := func(format string, args ...any) error { return c.refuse(at, format, args...) }
	count := int(b[4])
	if !zero(b[:4]) || !zero(b[5:xattrHeadSize]) || 4*count > len(b)-xattrHeadSize {
		return bad("a list of xattrs that premix does not write")
	}
	ids := b[xattrHeadSize : xattrHeadSize+4*count]
	names := map[string]bool{}
	add := func(name string) error {
		if names[name] {
			return bad("two xattrs named %q", name)
		}
		names[name] = true
		return nil
	}
	for b = b[xattrHeadSize+4*count:]; len(b) > 0; {
		name, size, err := c.xattr(at, b)
		if err != nil {
			return err
		}
		if size > len(b) {
			return bad("an xattr is longer than its place")
		}
		if err := add(name); err != nil {
			return err
		}
		b = b[size:]
	}
	for ; len(ids) > 0; ids = ids[4:] {
		name, err := c.sharedXattr(at, 4*int64(binary.LittleEndian.Uint32(ids)))
		if err != nil {
			return err
		}
		if err := add(name); err != nil {
			return err
		}
	}
	return nil
}

// xattr returns the name of the xattr at the beginning of b, and the size of the xattr. It
// refuses a name that does not end within b. b has at least four bytes.
func (c *Checker) xattr(at place, b []byte) (name string, size int, err error) {
	length := xattrSize + int(b[0])
	if length > len(b) {
		return "", 0, c.refuse(at, "the name of an xattr is longer than its place")
	}
	name, ok := joinXattr(b[1], string(b[xattrSize:length]))
	if !ok {
		return "", 0, c.refuse(at, "an xattr without a valid name")
	}
	return name, roundUp(length+int(binary.LittleEndian.Uint16(b[2:])), xattrSize), nil
}

// sharedXattr returns the name of the shared xattr at pos. Shared xattrs lie one behind
// the other.
func (c *Checker) sharedXattr(at place, pos int64) (string, error) {
	for pos >= c.sharedTo {
		n := min(xattrSize+maxName, c.meta-c.sharedTo)
		b, err := c.bytes(c.sharedTo, int(n))
		if err != nil {
			return "", err
		}
		if n < xattrSize {
			break
		}
		name, size, err := c.xattr(at, b)
		if err != nil {
			return "", err
		}
		end := c.sharedTo + int64(size)
		if err := c.claim(roundUp(c.sharedTo, slotSize), max(end, roundUp(c.sharedTo, slotSize)), false); err != nil {
			return "", err
		}
		c.shared[c.sharedTo] = name
		c.sharedTo = end
	}
	name, ok := c.shared[pos]
	if !ok {
		return "", c.refuse(at, "no shared xattr at byte %d", pos)
	}
	return name, nil
}

// spilled checks the structure in block b that does not begin with an inode there.
func (c *Checker) spilled(b int64) error {
	s := c.spills[b]
	var err error
	switch s.kind {
	case spillDir:
		d := c.dirs[s.pos]
		var p []byte
		if p, err = c.bytes(b<<blockBits, BlockSize); err != nil {
			return err
		}
		// Linux 6.1 takes the bytes behind the last name for a part of it, up to a zero.
		end := min(BlockSize, d.size-s.at<<blockBits)
		if !zero(p[end:]) {
			return c.refuse(place{s.pos, true}, "bytes behind the names of a block of entries")
		}
		err = c.entries(s.pos, d, s.at, p[:end])
	case spillMap:
		err = c.blockMap(b, s)
	case spillTarget:
		var p []byte
		if p, err = c.bytes(b<<blockBits, int(s.size)); err == nil {
			err = c.target(place{s.pos, true}, p)
		}
	}
	return err
}

// blockMap checks the entries of a block map that lie in block b. An entry does not
// cross the border of a block.
func (c *Checker) blockMap(b int64, s spill) error {
	chunk := int64(BlockSize) << s.bits
	count := (s.size-1)>>(blockBits+s.bits) + 1
	from := max(0, (b<<blockBits-s.at)/mapEntrySize)
	to := min(count, ((b+1)<<blockBits-s.at)/mapEntrySize)
	if from >= to {
		return nil
	}
	p, err := c.bytes(s.at+from*mapEntrySize, int(to-from)*mapEntrySize)
	if err != nil {
		return err
	}
	for i := from; i < to; i++ {
		block := binary.LittleEndian.Uint32(p[(i-from)*mapEntrySize:])
		if block != nullBlock && !c.within(int64(block), min(chunk, s.size-i*chunk)) {
			return c.refuse(place{s.pos, true}, "chunk %d at block %d is not within the data", i, block)
		}
	}
	return nil
}

// dir checks a directory of which the inode has been checked.
func (c *Checker) dir(pos int64, h head, blocks int64, inline []byte) error {
	d := c.dirs[pos]
	d.size, d.nlink, d.blocks = h.size, h.nlink, (h.size+BlockSize-1)>>blockBits
	first := int64(h.data)
	if blocks > 0 {
		if first > c.meta>>blockBits-blocks {
			return c.refuse(place{pos, true}, "its entries are not within the metadata")
		}
		if err := c.claim(first<<blockBits, (first+blocks)<<blockBits, false); err != nil {
			return err
		}
		for i := range blocks {
			c.spill(first+i, spill{kind: spillDir, pos: pos, at: i})
		}
	}
	if len(inline) > 0 {
		return c.entries(pos, d, blocks, inline)
	}
	return nil
}

// entries checks one block of a directory.
func (c *Checker) entries(pos int64, d *checkedDir, number int64, b []byte) error {
	at := place{pos, true}
	bad := func(format string, args ...any) error { return c.refuse(at, format, args...) }
	if len(b) < direntSize {
		return bad("%d bytes of entries", len(b))
	}
	le := binary.LittleEndian
	names := int(le.Uint16(b[8:]))
	if names < direntSize || names%direntSize != 0 || names >= len(b) {
		return bad("names at byte %d of a block of entries", names)
	}
	var first, last []byte
	count, start := names/direntSize, names
	for i := range count {
		e := b[i*direntSize:]
		end := len(b)
		if i+1 < count {
			end = int(le.Uint16(b[(i+1)*direntSize+8:]))
		}
		if int(le.Uint16(e[8:])) != start || end <= start || end > len(b) {
			return bad("the names of its entries do not lie one behind the other")
		}
		name := b[start:end]
		if i+1 == count && number+1 < d.blocks {
			if nul := bytes.IndexByte(name, 0); nul >= 0 {
				if !zero(name[nul:]) {
					return bad("bytes behind the names of a block of entries")
				}
				name = name[:nul]
			}
		}
		if len(name) == 0 || len(name) > maxName || bytes.IndexByte(name, '/') >= 0 || bytes.IndexByte(name, 0) >= 0 {
			return bad("an entry is named %q", name)
		}
		if i > 0 && bytes.Compare(last, name) >= 0 {
			return bad("the names %q and %q are not in order", last, name)
		}
		if err := c.dots(at, last, name, number == 0 && i == 0 || i > 0); err != nil {
			return err
		}
		if err := c.entry(at, pos, d, e, name); err != nil {
			return err
		}
		if i == 0 {
			first = name
		}
		last, start = name, end
	}
	if number+1 == d.blocks && string(last) < ".." {
		return bad("no entry %q", "..")
	}
	if err := c.join(at, d, run{number, number + 1, string(first), string(last)}); err != nil {
		return err
	}
	if d.done++; d.done < d.blocks {
		return nil
	}
	if d.nlink != 2+d.children {
		return bad("%d links, and %d directories in it", d.nlink, d.children)
	}
	delete(c.dirs, pos)
	return nil
}

// dots returns an error if "." or ".." is missing between two names that follow each
// other. A nil name is before all others.
func (c *Checker) dots(at place, a, b []byte, adjacent bool) error {
	if !adjacent {
		return nil
	}
	for _, dot := range []string{".", ".."} {
		if string(a) < dot && dot < string(b) {
			return c.refuse(at, "no entry %q", dot)
		}
	}
	return nil
}

// entry checks one entry of a directory.
func (c *Checker) entry(at place, pos int64, d *checkedDir, e, name []byte) error {
	nid, typ := binary.LittleEndian.Uint64(e), int(e[10])
	if typ == 0 || typ >= len(modeOf) || e[11] != 0 {
		return c.refuse(at, "entry %q has type %d", name, typ)
	}
	to := c.position(nid)
	if to < 0 {
		return c.refuse(at, "entry %q: no inode %d within the metadata", name, nid)
	}
	special := int64(-1)
	switch string(name) {
	case ".":
		special = pos
	case "..":
		special = d.parent
	}
	if special >= 0 {
		if to != special || modeOf[typ] != modeDir {
			return c.refuse(at, "entry %q leads to inode %d", name, nid)
		}
		return nil
	}
	if modeOf[typ] == modeDir {
		d.children++
	}
	return c.name(name, to, pos, modeOf[typ], d.depth+1)
}

// join adds a block to the checked blocks of a directory, and compares names across the
// borders of blocks.
func (c *Checker) join(at place, d *checkedDir, r run) error {
	i := sort.Search(len(d.runs), func(i int) bool { return d.runs[i].from >= r.from })
	if i > 0 {
		before := &d.runs[i-1]
		if before.last >= r.first {
			return c.refuse(at, "the names %q and %q are not in order", before.last, r.first)
		}
		if before.to == r.from {
			if err := c.dots(at, []byte(before.last), []byte(r.first), true); err != nil {
				return err
			}
			r.from, r.first = before.from, before.first
			i--
			d.runs = append(d.runs[:i], d.runs[i+1:]...)
		}
	}
	if i < len(d.runs) {
		behind := &d.runs[i]
		if r.last >= behind.first {
			return c.refuse(at, "the names %q and %q are not in order", r.last, behind.first)
		}
		if behind.from == r.to {
			if err := c.dots(at, []byte(r.last), []byte(behind.first), true); err != nil {
				return err
			}
			r.to, r.last = behind.to, behind.last
			d.runs = append(d.runs[:i], d.runs[i+1:]...)
		}
	}
	d.runs = append(d.runs, run{})
	copy(d.runs[i+1:], d.runs[i:])
	d.runs[i] = r
	return nil
}
