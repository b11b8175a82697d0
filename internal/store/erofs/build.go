package erofs

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"

	"premix/internal/kit/ondisk"
)

// Builder collects the nodes of a tree in temporary files and writes the metadata of their
// image. It needs a few dozen megabytes of memory for any number of nodes, unless the xattrs
// or extents of a single node need more.
//
// Nodes are added directory by directory: first the root, then the directories below it,
// each before those in it, and those of one directory in the order of their names (the
// order of a depth-first search). The entries of a directory are added after [Builder.Directory], in the
// order of their names. Each entry has an index: the root has 0, and the others count from 1
// in the order in which they are added.
//
// A Builder keeps its first error, which all further calls return.
type Builder struct {
	dir   string
	names *ondisk.File  // the entries, directory by directory
	nodes *ondisk.File  // the nodes of the entries, except directories and further hard links
	dirs  *ondisk.File  // directs
	slots *ondisk.Array // of all entries
	count int64         // entries, the root included
	links bool          // there are hard links

	open *direct    // the current directory
	size int        // bytes in its current block
	list int64      // its entries so far, "." and ".." included
	dots int64      // how many of these are "." and ".."
	name []byte     // its last name
	path []ancestor // to the current directory, which is not in it

	rec []byte
	err error
}

// ancestor is a directory on the path to the current one: its entries are those from first
// to end.
type ancestor struct{ own, first, end int64 }

func (a ancestor) has(index int64) bool { return index >= a.first && index < a.end }

// NewBuilder returns a builder that keeps its files in the directory dir.
func NewBuilder(dir string) (*Builder, error) {
	b := &Builder{dir: dir, count: 1}
	for _, f := range []**ondisk.File{&b.names, &b.nodes, &b.dirs} {
		if *f, b.err = ondisk.NewFile(dir); b.err != nil {
			return nil, errors.Join(b.err, b.Close())
		}
	}
	if b.slots, b.err = ondisk.NewArray(dir, spotBytes); b.err != nil {
		return nil, errors.Join(b.err, b.Close())
	}
	return b, nil
}

// Close removes the files.
func (b *Builder) Close() error {
	return errors.Join(b.names.Close(), b.nodes.Close(), b.dirs.Close(), b.slots.Close())
}

// fail keeps the first error.
func (b *Builder) fail(err error) error {
	if b.err == nil {
		b.err = err
	}
	return b.err
}

// Directory begins the next directory, the entry with the index own.
func (b *Builder) Directory(own int64, n *Node) error {
	if err := b.end(); err != nil {
		return err
	}
	if n.Mode&modeType != modeDir {
		return b.fail(fmt.Errorf("%w: mode %#o of a directory", ErrNode, n.Mode))
	}
	if err := n.check(nullBlock << blockBits); err != nil {
		return b.fail(err)
	}
	for k := len(b.path); k > 0 && !b.path[k-1].has(own); k-- {
		b.path = b.path[:k-1]
	}
	d := &direct{own: own, first: b.count, names: b.names.Size(), nodes: b.nodes.Size(), nlink: 2, lastName: b.names.Size(), node: *n}
	if k := len(b.path); k > 0 {
		d.parent = b.path[k-1].own
	}
	b.open, b.size, b.list, b.dots, b.name = d, 0, 0, 0, b.name[:0]
	return nil
}

var dotNames = [...]string{".", ".."}

// entry measures the place of one more entry of the current directory.
func (b *Builder) entry(name int, at int64) {
	more := direntSize + name
	if b.size+more > BlockSize {
		b.open.bytes += BlockSize
		b.open.last, b.open.dots, b.open.lastName = b.list, b.dots, at
		b.size = 0
	}
	b.size += more
	b.list++
}

// dotsBefore adds "." and ".." if they come before name.
func (b *Builder) dotsBefore(name string) {
	for b.dots < int64(len(dotNames)) && (name == "" || dotNames[b.dots] < name) {
		b.entry(len(dotNames[b.dots]), b.names.Size())
		b.dots++
	}
}

// end ends the current directory.
func (b *Builder) end() error {
	d := b.open
	if b.err != nil || d == nil {
		return b.err
	}
	b.dotsBefore("")
	d.bytes += int64(b.size)
	d.count = b.count - d.first
	if d.bytes >= 1<<32 {
		return b.fail(fmt.Errorf("%w: a directory of %d entries", ErrTooBig, d.count))
	}
	s, err := b.slots.Change(d.own)
	if err != nil {
		return b.fail(err)
	}
	spot(s).setAt(b.dirs.Size())
	spot(s).setExtra(d.bytes)
	spot(s).set(spotDir)
	if len(d.node.Xattrs) > 0 {
		spot(s).set(spotXattrs)
	}
	b.path = append(b.path, ancestor{d.own, d.first, b.count})
	b.open = nil
	return b.record(b.dirs, d.append(b.rec[:0]))
}

// record writes a record and its length.
func (b *Builder) record(f *ondisk.File, rec []byte) error {
	b.rec = rec
	var length [binary.MaxVarintLen64]byte
	if _, err := f.Write(length[:binary.PutUvarint(length[:], uint64(len(rec)))]); err != nil {
		return b.fail(err)
	}
	_, err := f.Write(rec)
	if err != nil {
		return b.fail(err)
	}
	return nil
}

// Bits of the byte that follows a name in Builder.names; the others are the type.
const nameLink = 0x80 // the index of the first hard link follows

// addName writes an entry of the current directory.
func (b *Builder) addName(name string, mode uint32, link int64) error {
	if b.err != nil {
		return b.err
	}
	if len(b.path) >= MaxDepth {
		return b.fail(fmt.Errorf("%w: more than %d directories below each other", ErrTooBig, MaxDepth))
	}
	if !validName(name) {
		return b.fail(fmt.Errorf("%w: bad name %q", ErrNode, name))
	}
	if c := cmp.Compare(string(b.name), name); c >= 0 {
		if c == 0 {
			return b.fail(fmt.Errorf("%w: two entries named %q", ErrNode, name))
		}
		return b.fail(fmt.Errorf("%w: %q after %q", ErrNode, name, b.name))
	}
	b.dotsBefore(name)
	b.entry(len(name), b.names.Size())
	b.name = append(b.name[:0], name...)
	rec := append(binary.AppendUvarint(b.rec[:0], uint64(len(name))), name...)
	kind := byte(mode & modeType >> 12)
	if link > 0 {
		rec = binary.AppendUvarint(append(rec, kind|nameLink), uint64(link))
	} else {
		rec = append(rec, kind)
	}
	b.rec = rec
	if _, err := b.names.Write(rec); err != nil {
		return b.fail(err)
	}
	b.count++
	if b.count > 1<<32-1 {
		return b.fail(fmt.Errorf("%w: too many nodes", ErrTooBig))
	}
	return nil
}

// Add adds an entry to the current directory, and returns its index. Of a directory only the
// mode matters here: its node is given to [Builder.Directory].
func (b *Builder) Add(name string, n *Node) (index int64, err error) {
	index = b.count
	if b.err == nil && n.Mode&modeType != modeDir {
		if err := n.check(nullBlock << blockBits); err != nil {
			return 0, b.fail(err)
		}
	}
	if err := b.addName(name, n.Mode, 0); err != nil {
		return 0, err
	}
	raw, err := b.slots.Change(index)
	if err != nil {
		return 0, b.fail(err)
	}
	s := spot(raw)
	s.setAt(b.nodes.Size())
	switch n.Mode & modeType {
	case modeDir:
		b.open.nlink++
		return index, nil
	case modeSymlink:
		s.set(spotSymlink)
		s.setExtra(int64(len(n.Target)))
	case modeRegular:
		if len(n.Inline) > 0 {
			s.set(spotInline)
			s.setExtra(int64(len(n.Inline)))
		} else {
			s.setExtra(MapSize(n))
		}
	}
	if len(n.Xattrs) > 0 {
		s.set(spotXattrs)
	}
	return index, b.record(b.nodes, AppendNode(b.rec[:0], n))
}

// Link adds an entry that is a hard link of an earlier entry, which is not a directory.
func (b *Builder) Link(name string, mode uint32, to int64) (index int64, err error) {
	index = b.count
	if err := b.addName(name, mode, to); err != nil {
		return 0, err
	}
	s, err := b.slots.Change(to)
	if err != nil {
		return 0, b.fail(err)
	}
	spot(s).setLinks(spot(s).links() + 1)
	if s, err = b.slots.Change(index); err != nil {
		return 0, b.fail(err)
	}
	spot(s).set(spotLink)
	spot(s).setAt(to)
	b.links = true
	return index, nil
}

// nameEntry is an entry in Builder.names.
type nameEntry struct {
	name []byte // valid until the next is read
	mode uint32 // the type
	link int64  // of a further hard link: the index of the first; otherwise 0
}

func readName(r *ondisk.Reader) nameEntry {
	n := int(r.Uvarint())
	b := r.Next(n + 1)
	if b == nil {
		return nameEntry{}
	}
	e := nameEntry{name: b[:n], mode: uint32(b[n]&^nameLink) << 12}
	if b[n]&nameLink != 0 {
		e.name = append([]byte(nil), e.name...)
		e.link = int64(r.Uvarint())
	}
	return e
}
