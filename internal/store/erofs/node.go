package erofs

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strings"
)

// MaxDepth is the largest depth of nested directories. A path of PATH_MAX bytes has
// 2048 at most.
const MaxDepth = 4096

// Errors of Write about a node, in a NodeError.
var (
	ErrXattr  = errors.New("xattr that EROFS cannot hold")
	ErrInline = errors.New("too large to be inline")
	ErrNode   = errors.New("malformed node")
	ErrTooBig = errors.New("beyond the limits of EROFS")
)

// NodeError names the node that cannot be written.
type NodeError struct {
	Path string // from the root, "." for the root itself
	Err  error
}

func (e *NodeError) Error() string { return e.Path + ": " + e.Err.Error() }

func (e *NodeError) Unwrap() error { return e.Err }

// Node is one inode of a tree to be written.
type Node struct {
	Mode   uint32 // st_mode: type and permission bits (inode(7))
	UID    uint32
	GID    uint32
	Nsec   uint32 // nanoseconds of the time of last modification
	Sec    int64  // its seconds since 1970; any value
	Rdev   uint64 // devices: st_rdev, as stat(2) returns it
	Size   int64  // regular files: bytes
	Target string // symbolic links

	// Xattrs are whole names ("user.comment") and values; ACLs are
	// "system.posix_acl_access" and "system.posix_acl_default" with the value
	// that getxattr(2) returns. See CheckXattr.
	Xattrs map[string][]byte

	// Inline is the whole content of a small regular file, which is then
	// written behind the inode. It has Size bytes, InlineMax at most.
	Inline []byte

	// Extents lists where the content of a regular file lies that is not inline, in
	// ascending order of FileOffset. Between and behind the extents are holes.
	Extents []Extent

	// Second says that the extents lie in the second part of the data area, which
	// begins where the first ends: see [Builder.Write].
	Second bool

	// Children are the entries of a directory, in any order; Write sorts them
	// in place. The same *Node under several names is a hard link. A Builder ignores
	// them.
	Children []Child
}

// Child is one entry of a directory. Name has 1 to 255 bytes, any but '/' and
// NUL, and is not "." or "..".
type Child struct {
	Name string
	Node *Node
}

// Extent is a contiguous part of a file in the data area. Offsets are multiples of
// BlockSize, and so is Length, except where the extent ends at the end of the file. The
// rest of the last block of the data has to be zero then, since a mapping (mmap(2))
// shows it. Extents of the same or of different files may share data.
type Extent struct {
	FileOffset int64
	Length     int64
	DataOffset int64 // within the data area
}

// InlineMax returns the largest content, in bytes, that can be inline in a node with
// its xattrs. It is 4032 without xattrs and may be 0.
func InlineMax(n *Node) int {
	size := extendedSize
	if len(n.Xattrs) > 0 {
		size += xattrHeadSize
		for name, value := range n.Xattrs {
			_, rest := splitXattr(name)
			size += entrySize(rest, value)
		}
	}
	return max(0, BlockSize-size)
}

// MapSize returns the size, in bytes, of the block map that a regular file needs, which
// becomes part of the metadata: 4 bytes a chunk. It is 0 for a file that is contiguous,
// and 4 for a file that is one hole. In other files the chunks are as large as the
// alignment of all borders permits, between data and holes and between data of
// different places.
func MapSize(n *Node) int64 {
	if n.Mode&modeType != modeRegular || len(n.Inline) > 0 {
		return 0
	}
	_, entries := mapping(n)
	return entries * mapEntrySize
}

// mapping returns the chunk size of a file, as the power of two by which it exceeds
// BlockSize, and the number of chunks. It returns 0 chunks if the file is contiguous.
func mapping(n *Node) (chunkBits uint, entries int64) {
	blocks := (n.Size + BlockSize - 1) >> blockBits
	borders := int64(0) // the bits of all borders, in blocks
	var end, data int64 // of the preceding extent, in blocks
	for i, e := range n.Extents {
		start, from := e.FileOffset>>blockBits, e.DataOffset>>blockBits
		if i == 0 && start == 0 || i > 0 && start == end && from == data {
			// Continues the preceding extent, or begins the file.
		} else {
			borders |= start | end
		}
		length := (e.Length + BlockSize - 1) >> blockBits
		end, data = start+length, from+length
	}
	if end < blocks {
		borders |= end
	} else if borders == 0 {
		return 0, 0
	}
	chunkBits = maxChunkBits
	if borders != 0 {
		chunkBits = min(chunkBits, uint(bits.TrailingZeros64(uint64(borders))))
	}
	// Not larger than needed to have the whole file in one chunk.
	chunkBits = min(chunkBits, uint(bits.Len64(uint64(blocks-1))))
	return chunkBits, (blocks-1)>>chunkBits + 1
}

// check returns an error if a node itself, without its children, is invalid.
func (n *Node) check(dataSize int64) error {
	if n.Mode > 0xffff || direntType(n.Mode) == 0 {
		return fmt.Errorf("%w: mode %#o", ErrNode, n.Mode)
	}
	if n.Nsec >= 1e9 {
		return fmt.Errorf("%w: %d nanoseconds", ErrNode, n.Nsec)
	}
	if n.UID == invalidID || n.GID == invalidID {
		return fmt.Errorf("%w: owner %d:%d", ErrNode, n.UID, n.GID)
	}
	kind := n.Mode & modeType
	switch {
	case kind != modeRegular && (n.Size != 0 || len(n.Inline) > 0 || len(n.Extents) > 0):
		return fmt.Errorf("%w: content, but not a regular file", ErrNode)
	case kind != modeDir && len(n.Children) > 0:
		return fmt.Errorf("%w: children, but not a directory", ErrNode)
	case (kind == modeSymlink) != (n.Target != ""):
		return fmt.Errorf("%w: symbolic links, and only they, have a target", ErrNode)
	case len(n.Target) > maxTarget:
		return fmt.Errorf("%w: a target of %d bytes", ErrTooBig, len(n.Target))
	case strings.IndexByte(n.Target, 0) >= 0:
		return fmt.Errorf("%w: NUL in the target", ErrNode)
	case (kind == modeBlock || kind == modeChar) && n.Rdev > 0xffffffff:
		return fmt.Errorf("%w: device %#x", ErrTooBig, n.Rdev)
	}
	for name, value := range n.Xattrs {
		if err := CheckXattr(name, value); err != nil {
			return err
		}
	}
	if kind != modeRegular {
		return nil
	}
	if len(n.Inline) > 0 {
		if int64(len(n.Inline)) != n.Size || len(n.Extents) > 0 {
			return fmt.Errorf("%w: inline content of %d bytes and %d extents for %d bytes", ErrNode, len(n.Inline), len(n.Extents), n.Size)
		}
		if most := InlineMax(n); len(n.Inline) > most {
			return fmt.Errorf("%w: %d bytes of %d", ErrInline, len(n.Inline), most)
		}
		return nil
	}
	return checkExtents(n.Extents, n.Size, dataSize)
}

func checkExtents(extents []Extent, size, dataSize int64) error {
	if size < 0 {
		return fmt.Errorf("%w: size %d", ErrNode, size)
	}
	if size > maxSize {
		return fmt.Errorf("%w: size %d", ErrTooBig, size)
	}
	end := int64(0)
	for _, e := range extents {
		switch {
		case (e.FileOffset|e.DataOffset)%BlockSize != 0 || e.FileOffset < end || e.DataOffset < 0 || e.Length <= 0,
			e.Length > size-e.FileOffset && e.Length > roundUp(size-e.FileOffset, BlockSize),
			e.Length%BlockSize != 0 && e.FileOffset+e.Length != size,
			e.Length > dataSize-e.DataOffset:
			return fmt.Errorf("%w: extent %+v of a file of %d bytes, %d bytes of data", ErrNode, e, size, dataSize)
		}
		end = e.FileOffset + e.Length
	}
	return nil
}

// sortChildren sorts the entries of a directory as the format demands, byte by
// byte, and checks their names.
func (n *Node) sortChildren() error {
	byName := func(a, b Child) int { return cmp.Compare(a.Name, b.Name) }
	if !slices.IsSortedFunc(n.Children, byName) {
		slices.SortFunc(n.Children, byName)
	}
	for i, c := range n.Children {
		switch {
		case !validName(c.Name):
			return fmt.Errorf("%w: bad name %q", ErrNode, c.Name)
		case i > 0 && c.Name == n.Children[i-1].Name:
			return fmt.Errorf("%w: two entries named %q", ErrNode, c.Name)
		case c.Node == nil:
			return fmt.Errorf("%w: no node for %q", ErrNode, c.Name)
		}
	}
	return nil
}

// validName reports whether a child may have this name.
func validName(name string) bool {
	return name != "" && len(name) <= maxName && name != "." && name != ".." &&
		strings.IndexByte(name, '/') < 0 && strings.IndexByte(name, 0) < 0
}

// xattrNames returns the names of a node's xattrs in order.
func (n *Node) xattrNames() []string {
	if len(n.Xattrs) == 0 {
		return nil
	}
	return slices.Sorted(maps.Keys(n.Xattrs))
}

// entrySize returns the size of an xattr in bytes. rest is its name without the prefix.
func entrySize(rest string, value []byte) int {
	return roundUp(xattrSize+len(rest)+len(value), xattrSize)
}
