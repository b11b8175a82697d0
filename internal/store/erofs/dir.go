package erofs

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"io/fs"
	"path"
	"sync"
)

// Dirent is one entry of a directory.
type Dirent struct {
	Name string
	Nid  uint64
	Type uint32 // format bits of st_mode, as recorded in the directory; the inode is authoritative
	Next uint64 // cookie of the entry that follows
}

// modeOf is the inverse of direntType; 0 marks an invalid type.
var modeOf = [...]uint32{0, modeRegular, modeDir, modeChar, modeBlock, modeFIFO, modeSocket, modeSymlink}

// dirBlock is one block of a directory: count entries, then their names.
type dirBlock struct {
	b     []byte
	count int
}

// blockPool holds buffers for dirBlocks and for pieces of block maps.
var blockPool = sync.Pool{New: func() any { return new([BlockSize]byte) }}

// dir reads the inode of a directory.
func (im *Image) dir(nid uint64) (*Inode, error) {
	i, err := im.Inode(nid)
	if err != nil {
		return nil, err
	}
	if i.Mode&modeType != modeDir {
		return nil, fmt.Errorf("inode %d: %w", nid, ErrNotDir)
	}
	return i, nil
}

// dirBlock reads a block of a directory, by its number in the directory.
func (im *Image) dirBlock(i *Inode, number int64, buf *[BlockSize]byte) (dirBlock, error) {
	off := number << blockBits
	d := dirBlock{b: buf[:min(BlockSize, i.Size-off)]}
	if _, err := im.readAt(i, d.b, off); err != nil {
		return d, err
	}
	if len(d.b) < direntSize {
		return d, im.corrupt(i.Ino, "directory block %d has %d bytes", number, len(d.b))
	}
	names := int(binary.LittleEndian.Uint16(d.b[8:]))
	if names < direntSize || names%direntSize != 0 || names >= len(d.b) {
		return d, im.corrupt(i.Ino, "directory block %d has its names at %d", number, names)
	}
	d.count = names / direntSize
	return d, nil
}

// name returns the name of entry n, or nil if it is invalid. A name ends where the next
// begins; the last ends with the block or at its first NUL.
func (d *dirBlock) name(n int) []byte {
	start := int(binary.LittleEndian.Uint16(d.b[n*direntSize+8:]))
	end := len(d.b)
	if n+1 < d.count {
		end = int(binary.LittleEndian.Uint16(d.b[(n+1)*direntSize+8:]))
	}
	if start < d.count*direntSize || end > len(d.b) || start >= end {
		return nil
	}
	name := d.b[start:end]
	if n+1 == d.count {
		if nul := bytes.IndexByte(name, 0); nul >= 0 {
			name = name[:nul]
		}
	}
	if len(name) == 0 || len(name) > maxName || bytes.IndexByte(name, '/') >= 0 || bytes.IndexByte(name, 0) >= 0 {
		return nil
	}
	return name
}

func (d *dirBlock) nid(n int) uint64 { return binary.LittleEndian.Uint64(d.b[n*direntSize:]) }

func (d *dirBlock) typ(n int) uint32 {
	if t := int(d.b[n*direntSize+10]); t < len(modeOf) {
		return modeOf[t]
	}
	return 0
}

// Lookup finds an entry of a directory, "." and ".." too, by binary search:
// first for the block, then within it.
func (im *Image) Lookup(dir uint64, name string) (nid uint64, err error) {
	i, err := im.dir(dir)
	if err != nil {
		return 0, err
	}
	buf := blockPool.Get().(*[BlockSize]byte)
	defer blockPool.Put(buf)
	// The entry is in the last block whose first name is not greater than name.
	low, high := int64(0), (i.Size+BlockSize-1)>>blockBits-1
	var d dirBlock
	have := int64(-1)
	for low <= high {
		middle := low + (high-low)/2
		if d, err = im.dirBlock(i, middle, buf); err != nil {
			return 0, err
		}
		have = middle
		c, err := im.compare(i, &d, 0, name)
		if err != nil {
			return 0, err
		}
		if c == 0 {
			return d.nid(0), nil
		}
		if c < 0 {
			low = middle + 1
		} else {
			high = middle - 1
		}
	}
	if high < 0 {
		return 0, ErrNotExist
	}
	if have != high {
		if d, err = im.dirBlock(i, high, buf); err != nil {
			return 0, err
		}
	}
	for first, last := 1, d.count-1; first <= last; {
		middle := first + (last-first)/2
		c, err := im.compare(i, &d, middle, name)
		if err != nil {
			return 0, err
		}
		switch {
		case c == 0:
			return d.nid(middle), nil
		case c < 0:
			first = middle + 1
		default:
			last = middle - 1
		}
	}
	return 0, ErrNotExist
}

// compare compares the name of an entry with name.
func (im *Image) compare(i *Inode, d *dirBlock, n int, name string) (int, error) {
	b := d.name(n)
	if b == nil {
		return 0, im.corrupt(i.Ino, "a directory entry has no valid name")
	}
	return cmp.Compare(string(b), name), nil
}

// ReadDir calls fn for the entries of a directory from cookie on, in order, until fn
// returns false. Cookie 0 is the first entry, and Dirent.Next is the cookie of the
// following entry; cookies are the kernel's offsets of EROFS directories. The entries
// "." and ".." are at their places in the order.
func (im *Image) ReadDir(dir, cookie uint64, fn func(Dirent) bool) error {
	i, err := im.dir(dir)
	if err != nil {
		return err
	}
	if cookie >= uint64(i.Size) {
		return nil
	}
	buf := blockPool.Get().(*[BlockSize]byte)
	defer blockPool.Put(buf)
	number := int64(cookie >> blockBits)
	n := (int(cookie%BlockSize) + direntSize - 1) / direntSize
	for ; number<<blockBits < i.Size; number++ {
		d, err := im.dirBlock(i, number, buf)
		if err != nil {
			return err
		}
		for ; n < d.count; n++ {
			name := d.name(n)
			if name == nil {
				return im.corrupt(dir, "a directory entry has no valid name")
			}
			next := number<<blockBits + int64(n+1)*direntSize
			if n+1 == d.count {
				next = (number + 1) << blockBits
			}
			if !fn(Dirent{Name: string(name), Nid: d.nid(n), Type: d.typ(n), Next: uint64(next)}) {
				return nil
			}
		}
		n = 0
	}
	return nil
}

// Walk calls fn for every entry of the tree: for the root, whose path is ".", then for
// the entries below it, parents before children, each directory's in order. Hard links
// have the same Ino. fn may return fs.SkipDir for a directory and fs.SkipAll; Walk
// returns its other errors.
//
// Walk returns an ErrCorrupt where directories do not form a tree, or where entries do
// not have the types of their inodes.
func (im *Image) Walk(fn func(path string, i *Inode) error) error {
	w := &walk{im: im, fn: fn, seen: make(map[uint64]bool)}
	root, err := im.Inode(im.root)
	if err != nil {
		return err
	}
	if err = w.visit(".", root, 0); err == fs.SkipAll || err == fs.SkipDir {
		return nil
	}
	return err
}

type walk struct {
	im    *Image
	fn    func(path string, i *Inode) error
	seen  map[uint64]bool // directories
	bytes int64           // size of the directories seen
}

func (w *walk) visit(name string, i *Inode, depth int) error {
	if i.Mode&modeType == modeDir {
		if w.seen[i.Ino] || depth > MaxDepth {
			return w.im.corrupt(i.Ino, "directories do not form a tree at %q", name)
		}
		w.seen[i.Ino] = true
		// Many inodes could share one long list of entries.
		if w.bytes += i.Size; w.bytes > w.im.size {
			return w.im.corrupt(i.Ino, "directories overlap")
		}
	}
	err := w.fn(name, i)
	if i.Mode&modeType != modeDir || err == fs.SkipDir {
		return err
	}
	if err != nil {
		return err
	}
	readErr := w.im.ReadDir(i.Ino, 0, func(d Dirent) bool {
		if d.Name == "." || d.Name == ".." {
			return true
		}
		var child *Inode
		if child, err = w.im.Inode(d.Nid); err != nil {
			return false
		}
		if child.Mode&modeType != d.Type {
			err = w.im.corrupt(i.Ino, "entry %q does not have the type of its inode", d.Name)
			return false
		}
		err = w.visit(path.Join(name, d.Name), child, depth+1)
		if err == fs.SkipDir && d.Type == modeDir {
			err = nil
		}
		return err == nil
	})
	if readErr != nil {
		return readErr
	}
	return err
}
