package erofs

import (
	"encoding/binary"
	"fmt"
)

// eachXattr calls fn for the xattrs of an inode until fn returns false: those behind
// the inode first, then the shared ones, in the kernel's order. It leaves out xattrs
// whose names the kernel would not show. fn calls get to read the value.
func (im *Image) eachXattr(i *Inode, fn func(name string, size int, get func([]byte) error) (bool, error)) error {
	// A body of nothing but its head has no meaning in the format yet.
	if i.xattrSize <= xattrHeadSize {
		return nil
	}
	var head [xattrHeadSize]byte
	if err := im.read(head[:], i.xattrs); err != nil {
		return fmt.Errorf("xattrs of inode %d: %w", i.Ino, err)
	}
	shared := int64(head[4])
	pos, end := i.xattrs+xattrHeadSize, i.xattrs+int64(i.xattrSize)
	if 4*shared > end-pos {
		return im.corrupt(i.Ino, "%d shared xattrs", shared)
	}
	ids := make([]byte, 4*shared) // at most 1020 bytes
	if err := im.read(ids, pos); err != nil {
		return fmt.Errorf("xattrs of inode %d: %w", i.Ino, err)
	}
	for pos += 4 * shared; pos < end; {
		size, more, err := im.xattrAt(i, pos, end, fn)
		if err != nil || !more {
			return err
		}
		pos += size
	}
	for ; len(ids) > 0; ids = ids[4:] {
		pos := im.xattrBase + 4*int64(binary.LittleEndian.Uint32(ids))
		if _, more, err := im.xattrAt(i, pos, im.size, fn); err != nil || !more {
			return err
		}
	}
	return nil
}

// xattrAt calls fn for the xattr at pos, which has to end before end, and returns its
// size.
func (im *Image) xattrAt(i *Inode, pos, end int64, fn func(string, int, func([]byte) error) (bool, error)) (int64, bool, error) {
	var b [xattrSize + maxName]byte
	if err := im.read(b[:xattrSize], pos); err != nil {
		return 0, false, fmt.Errorf("xattrs of inode %d: %w", i.Ino, err)
	}
	length, size := int64(b[0]), int64(binary.LittleEndian.Uint16(b[2:]))
	whole := roundUp(xattrSize+length+size, xattrSize)
	if whole > end-pos {
		return 0, false, im.corrupt(i.Ino, "an xattr is longer than its place")
	}
	rest := b[xattrSize : xattrSize+length]
	if err := im.read(rest, pos+xattrSize); err != nil {
		return 0, false, fmt.Errorf("xattrs of inode %d: %w", i.Ino, err)
	}
	name, ok := joinXattr(b[1], string(rest))
	if !ok {
		return whole, true, nil
	}
	more, err := fn(name, int(size), func(value []byte) error {
		if err := im.read(value, pos+xattrSize+length); err != nil {
			return fmt.Errorf("xattrs of inode %d: %w", i.Ino, err)
		}
		return nil
	})
	return whole, more, err
}

// Xattrs returns all xattrs of an inode. There can be several hundred, of 65535 bytes
// each.
func (im *Image) Xattrs(nid uint64) (map[string][]byte, error) {
	i, err := im.Inode(nid)
	if err != nil {
		return nil, err
	}
	all := make(map[string][]byte)
	err = im.eachXattr(i, func(name string, size int, get func([]byte) error) (bool, error) {
		if _, ok := all[name]; ok {
			return true, nil
		}
		value := make([]byte, size)
		all[name] = value
		return true, get(value)
	})
	return all, err
}

// XattrNames returns the names of an inode's xattrs, in the order in which the
// kernel lists them.
func (im *Image) XattrNames(nid uint64) ([]string, error) {
	i, err := im.Inode(nid)
	if err != nil {
		return nil, err
	}
	var names []string
	err = im.eachXattr(i, func(name string, _ int, _ func([]byte) error) (bool, error) {
		names = append(names, name)
		return true, nil
	})
	return names, err
}

// Xattr returns the value of one xattr, or ErrNoXattr.
func (im *Image) Xattr(nid uint64, name string) ([]byte, error) {
	i, err := im.Inode(nid)
	if err != nil {
		return nil, err
	}
	var value []byte
	found := false
	err = im.eachXattr(i, func(other string, size int, get func([]byte) error) (bool, error) {
		if other != name {
			return true, nil
		}
		value, found = make([]byte, size), true
		return false, get(value)
	})
	if err == nil && !found {
		err = fmt.Errorf("inode %d: %q: %w", nid, name, ErrNoXattr)
	}
	return value, err
}
