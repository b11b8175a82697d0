package erofs

import (
	"encoding/binary"
	"errors"
)

var errRecord = errors.New("erofs: damaged record of a node")

// AppendNode appends a node, without its children, in a form that [ParseNode] reads.
func AppendNode(b []byte, n *Node) []byte {
	b = binary.LittleEndian.AppendUint32(b, n.Mode)
	b = binary.LittleEndian.AppendUint32(b, n.UID)
	b = binary.LittleEndian.AppendUint32(b, n.GID)
	b = binary.LittleEndian.AppendUint32(b, n.Nsec)
	b = binary.LittleEndian.AppendUint64(b, uint64(n.Sec))
	b = binary.AppendUvarint(b, n.Rdev)
	b = binary.AppendUvarint(b, uint64(n.Size))
	b = appendBytes(b, n.Target)
	names := n.xattrNames()
	b = binary.AppendUvarint(b, uint64(len(names)))
	for _, name := range names {
		b = appendBytes(b, name)
		b = appendBytes(b, n.Xattrs[name])
	}
	extents := uint64(len(n.Extents)) << 1
	if n.Second {
		extents |= 1
	}
	b = binary.AppendUvarint(b, extents)
	for _, e := range n.Extents {
		b = binary.AppendUvarint(b, uint64(e.FileOffset))
		b = binary.AppendUvarint(b, uint64(e.Length))
		b = binary.AppendUvarint(b, uint64(e.DataOffset))
	}
	return appendBytes(b, n.Inline)
}

func appendBytes[T string | []byte](b []byte, s T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// fields takes fields from a record. The first that is not whole sets bad.
type fields struct {
	b   []byte
	bad bool
}

func (f *fields) take(n uint64) []byte {
	if n > uint64(len(f.b)) {
		f.b, f.bad = nil, true
		return nil
	}
	out := f.b[:n:n]
	f.b = f.b[n:]
	return out
}

func (f *fields) uvarint() uint64 {
	v, n := binary.Uvarint(f.b)
	if n <= 0 {
		f.b, f.bad = nil, true
		return 0
	}
	f.b = f.b[n:]
	return v
}

func (f *fields) bytes() []byte { return f.take(f.uvarint()) }

// ParseNode reads a node from a record of [AppendNode] into n. Values and inline bytes of n
// are parts of b.
func ParseNode(b []byte, n *Node) error {
	const fixed = 4*4 + 8
	if len(b) < fixed {
		return errRecord
	}
	le := binary.LittleEndian
	*n = Node{
		Mode: le.Uint32(b), UID: le.Uint32(b[4:]), GID: le.Uint32(b[8:]), Nsec: le.Uint32(b[12:]), Sec: int64(le.Uint64(b[16:])),
		Extents: n.Extents[:0],
	}
	f := fields{b: b[fixed:]}
	n.Rdev, n.Size = f.uvarint(), int64(f.uvarint())
	n.Target = string(f.bytes())
	if count := f.uvarint(); count > 0 && !f.bad {
		n.Xattrs = map[string][]byte{}
		for ; count > 0 && !f.bad; count-- {
			name := string(f.bytes())
			n.Xattrs[name] = f.bytes()
		}
	}
	extents := f.uvarint()
	n.Second = extents&1 != 0
	for count := extents >> 1; count > 0 && !f.bad; count-- {
		n.Extents = append(n.Extents, Extent{int64(f.uvarint()), int64(f.uvarint()), int64(f.uvarint())})
	}
	if in := f.bytes(); len(in) > 0 {
		n.Inline = in
	}
	if f.bad || len(f.b) > 0 {
		return errRecord
	}
	return nil
}

// direct is a directory in the records of a Builder.
type direct struct {
	own, parent int64 // indexes of the entry of the directory, and of the parent's
	first       int64 // index of the first entry in it
	count       int64
	names       int64 // position of the first entry in Builder.names
	nodes       int64 // position in Builder.nodes from which on its nodes lie
	bytes       int64 // size
	nlink       uint32

	// The last block begins with this entry of the directory, "." and ".." included, of
	// which dots come before.
	last     int64
	dots     int64
	lastName int64 // position in Builder.names of the first entry in the last block, except "." and ".."

	node Node
}

func (d *direct) append(b []byte) []byte {
	for _, v := range []int64{d.own, d.parent, d.first, d.count, d.names, d.nodes, d.bytes, int64(d.nlink), d.last, d.dots, d.lastName} {
		b = binary.AppendUvarint(b, uint64(v))
	}
	return AppendNode(b, &d.node)
}

func (d *direct) parse(b []byte) error {
	f := fields{b: b}
	for _, v := range []*int64{&d.own, &d.parent, &d.first, &d.count, &d.names, &d.nodes, &d.bytes} {
		*v = int64(f.uvarint())
	}
	d.nlink = uint32(f.uvarint())
	for _, v := range []*int64{&d.last, &d.dots, &d.lastName} {
		*v = int64(f.uvarint())
	}
	if f.bad {
		return errRecord
	}
	return ParseNode(f.b, &d.node)
}

// spot is what place decides about an entry, and what it needs for that. It is a record of
// an Array; the entries of hard links but the first have only a link.
type spot []byte

const spotBytes = 40

// Flags of a slot.
const (
	spotDir     = 1 << iota
	spotSymlink // a symbolic link
	spotInline  // a regular file with inline content
	spotXattrs  // with xattrs
	spotLink    // a further hard link
	spotSeen    // digested by scan; kept only of files with several names
)

func (s spot) at() int64         { return int64(binary.LittleEndian.Uint64(s)) } // of the node in Builder.nodes, of a directory in Builder.dirs; of a further hard link, the index of the first
func (s spot) nid() uint64       { return binary.LittleEndian.Uint64(s[8:]) }
func (s spot) extra() int64      { return int64(binary.LittleEndian.Uint64(s[16:])) } // bytes behind the inode and its xattrs; of a directory, its size
func (s spot) block() uint32     { return binary.LittleEndian.Uint32(s[24:]) }        // first block of a directory's full blocks, or of a long symbolic link
func (s spot) links() uint32     { return binary.LittleEndian.Uint32(s[28:]) }        // further hard links
func (s spot) is(flag byte) bool { return s[32]&flag != 0 }

func (s spot) setAt(v int64)     { binary.LittleEndian.PutUint64(s, uint64(v)) }
func (s spot) setNid(v uint64)   { binary.LittleEndian.PutUint64(s[8:], v) }
func (s spot) setExtra(v int64)  { binary.LittleEndian.PutUint64(s[16:], uint64(v)) }
func (s spot) setBlock(v uint32) { binary.LittleEndian.PutUint32(s[24:], v) }
func (s spot) setLinks(v uint32) { binary.LittleEndian.PutUint32(s[28:], v) }
func (s spot) set(flag byte)     { s[32] |= flag }
