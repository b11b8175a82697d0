package store

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"path"

	"golang.org/x/sys/unix"

	"premix/internal/store/erofs"
	"premix/internal/store/object"
	"premix/internal/store/tree"
)

// Kinds of [Change].
const (
	Added   = "added"
	Removed = "removed"
	Changed = "changed"
)

// Change is one entry in which two trees differ.
type Change struct {
	Path string
	Kind string   // Added, Removed or Changed
	What []string // of a changed entry: "type", "mode", "owner", "time", "size", "content", "target", "device", "attributes", "links"
	Dir  bool     // a directory, in the tree that has it, or in both
}

// Difference lists the differences between two trees, and the size of their chunks.
// Bytes count distinct chunks.
type Difference struct {
	Changes []Change
	First   int64 // bytes of the chunks of the first tree
	Second  int64
	Shared  int64 // bytes of the common chunks
}

// Diff compares two trees: names, metadata and contents. It reads contents only if they
// lie in different chunks.
func (s *Store) Diff(ctx context.Context, first, second object.Digest) (*Difference, error) {
	d := &differ{ctx: ctx}
	for i, digest := range []object.Digest{first, second} {
		t, err := s.Tree(digest)
		if err != nil {
			return nil, err
		}
		d.t[i] = t
		if d.im[i], err = t.Image(); err != nil {
			return nil, damage("tree "+digest.Short(), err)
		}
	}
	d.share()
	roots := [2]uint64{d.im[0].Root(), d.im[1].Root()}
	if err := d.entry(".", roots); err != nil {
		return nil, err
	}
	return &d.out, nil
}

type differ struct {
	ctx context.Context
	t   [2]*Tree
	im  [2]*erofs.Image
	out Difference
	buf [2][]byte
}

// share counts the bytes of chunks.
func (d *differ) share() {
	var sizes [2]map[object.Digest]int64
	for i, t := range d.t {
		sizes[i] = make(map[object.Digest]int64, len(t.chunks))
		for _, c := range t.chunks {
			if !c.Hole() {
				sizes[i][c.Digest] = c.Size
			}
		}
	}
	for digest, n := range sizes[0] {
		d.out.First += n
		if _, ok := sizes[1][digest]; ok {
			d.out.Shared += n
		}
	}
	for _, n := range sizes[1] {
		d.out.Second += n
	}
}

// entry compares an entry of both trees, and the entries below it.
func (d *differ) entry(name string, nids [2]uint64) error {
	if err := context.Cause(d.ctx); err != nil {
		return err
	}
	var in [2]*erofs.Inode
	for i := range in {
		var err error
		if in[i], err = d.im[i].Inode(nids[i]); err != nil {
			return d.broken(i, name, err)
		}
	}
	dirs := [2]bool{isDir(in[0]), isDir(in[1])}
	what, err := d.compare(name, in)
	if err != nil {
		return err
	}
	if len(what) > 0 {
		d.out.Changes = append(d.out.Changes, Change{name, Changed, what, dirs[0] && dirs[1]})
	}
	if dirs[0] && dirs[1] {
		return d.directories(name, nids)
	}
	for i, kind := range []string{Removed, Added} {
		if dirs[i] { // a directory in one of the trees only
			if err := d.below(i, name, nids[i], kind); err != nil {
				return err
			}
		}
	}
	return nil
}

func isDir(i *erofs.Inode) bool { return i.Mode&unix.S_IFMT == unix.S_IFDIR }

func (d *differ) broken(i int, name string, err error) error {
	return damage("tree "+d.t[i].digest.Short(), fmt.Errorf("%s: %w", printable(name), err))
}

// directories merges the entries of two directories, which are in order.
func (d *differ) directories(name string, nids [2]uint64) error {
	var lists [2][]erofs.Dirent
	for i := range lists {
		var err error
		if lists[i], err = d.list(i, name, nids[i]); err != nil {
			return err
		}
	}
	a, b := lists[0], lists[1]
	for len(a) > 0 || len(b) > 0 {
		var err error
		switch {
		case len(b) == 0 || len(a) > 0 && a[0].Name < b[0].Name:
			err = d.only(0, path.Join(name, a[0].Name), a[0].Nid, Removed)
			a = a[1:]
		case len(a) == 0 || a[0].Name > b[0].Name:
			err = d.only(1, path.Join(name, b[0].Name), b[0].Nid, Added)
			b = b[1:]
		default:
			err = d.entry(path.Join(name, a[0].Name), [2]uint64{a[0].Nid, b[0].Nid})
			a, b = a[1:], b[1:]
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *differ) list(i int, name string, nid uint64) ([]erofs.Dirent, error) {
	var list []erofs.Dirent
	err := d.im[i].ReadDir(nid, 0, func(e erofs.Dirent) bool {
		if e.Name != "." && e.Name != ".." {
			list = append(list, e)
		}
		return true
	})
	if err != nil {
		return nil, d.broken(i, name, err)
	}
	return list, nil
}

// only records an entry that only one tree has, and all entries below it.
func (d *differ) only(i int, name string, nid uint64, kind string) error {
	in, err := d.im[i].Inode(nid)
	if err != nil {
		return d.broken(i, name, err)
	}
	d.out.Changes = append(d.out.Changes, Change{Path: name, Kind: kind, Dir: isDir(in)})
	if isDir(in) {
		return d.below(i, name, nid, kind)
	}
	return nil
}

func (d *differ) below(i int, name string, nid uint64, kind string) error {
	list, err := d.list(i, name, nid)
	if err != nil {
		return err
	}
	for _, e := range list {
		if err := d.only(i, path.Join(name, e.Name), e.Nid, kind); err != nil {
			return err
		}
	}
	return nil
}

// compare returns the names of the differing properties of two inodes.
func (d *differ) compare(name string, in [2]*erofs.Inode) ([]string, error) {
	var what []string
	x, y := in[0], in[1]
	note := func(differ bool, word string) {
		if differ {
			what = append(what, word)
		}
	}
	kind := x.Mode & unix.S_IFMT
	if kind != y.Mode&unix.S_IFMT {
		return []string{"type"}, nil
	}
	note(x.Mode != y.Mode, "mode")
	note(x.UID != y.UID || x.GID != y.GID, "owner")
	note(x.Sec != y.Sec || x.Nsec != y.Nsec, "time")
	note(x.Rdev != y.Rdev, "device")
	note(kind != unix.S_IFDIR && x.Nlink != y.Nlink, "links")
	var attributes [2]map[string][]byte
	for i := range attributes {
		var err error
		if attributes[i], err = d.im[i].Xattrs(in[i].Ino); err != nil {
			return nil, d.broken(i, name, err)
		}
	}
	note(!maps.EqualFunc(attributes[0], attributes[1], bytes.Equal), "attributes")
	switch kind {
	case unix.S_IFLNK:
		var targets [2]string
		for i := range targets {
			var err error
			if targets[i], err = d.im[i].Readlink(in[i].Ino); err != nil {
				return nil, d.broken(i, name, err)
			}
		}
		note(targets[0] != targets[1], "target")
	case unix.S_IFREG:
		if x.Size != y.Size {
			note(true, "size")
			return what, nil
		}
		equal, err := d.equal(name, in)
		if err != nil {
			return nil, err
		}
		note(!equal, "content")
	}
	return what, nil
}

// place is the source of a run of a file's bytes.
type place struct {
	chunk tree.Chunk
	off   int64 // within the chunk
	n     int64 // bytes of the run
	hole  bool
}

// at returns the source of the bytes of a file at off.
func (d *differ) at(i int, in *erofs.Inode, off int64) (place, error) {
	at, n, hole, err := d.im[i].Map(in.Ino, off)
	switch {
	case err != nil:
		return place{}, err
	case n <= 0:
		return place{}, io.ErrUnexpectedEOF
	case hole:
		return place{n: n, hole: true}, nil
	}
	t := d.t[i]
	c := t.chunkAt(at)
	if c >= len(t.chunks) {
		return place{}, io.ErrUnexpectedEOF
	}
	return place{chunk: t.chunks[c], off: at - t.offsets[c], n: min(n, t.offsets[c+1]-at)}, nil
}

// equal compares the contents of two files of one size.
func (d *differ) equal(name string, in [2]*erofs.Inode) (bool, error) {
	for off := int64(0); off < in[0].Size; {
		if err := context.Cause(d.ctx); err != nil {
			return false, err
		}
		var p [2]place
		for i := range p {
			var err error
			if p[i], err = d.at(i, in[i], off); err != nil {
				return false, d.broken(i, name, err)
			}
		}
		n := min(p[0].n, p[1].n, in[0].Size-off)
		same := p[0].hole && p[1].hole || !p[0].hole && !p[1].hole && p[0].chunk.Digest == p[1].chunk.Digest && p[0].off == p[1].off
		if !same {
			n = min(n, 1<<20)
			for i := range p {
				if d.buf[i] == nil {
					d.buf[i] = make([]byte, 1<<20)
				}
				k, err := d.im[i].ReadAt(in[i].Ino, d.buf[i][:n], off)
				if int64(k) < n {
					return false, d.broken(i, name, fmt.Errorf("byte %d: %w", off, err))
				}
			}
			if !bytes.Equal(d.buf[0][:n], d.buf[1][:n]) {
				return false, nil
			}
		}
		off += n
	}
	return true, nil
}
