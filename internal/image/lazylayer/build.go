package lazylayer

import (
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"premix/internal/store/erofs"
)

const (
	whiteout    = ".wh."
	opaque      = ".wh..wh..opq"
	opaqueXattr = "trusted.overlay.opaque"

	// pathMost is PATH_MAX of Linux.
	pathMost = 4096
)

// entry is an entry of a layer's archive.
type entry struct {
	name         string
	kind         uint32 // the type as in st_mode; 0 for a hard link
	mode         int64
	uid, gid     int
	sec          int64
	nsec         uint32
	link         string
	major, minor int64
	xattrs       map[string][]byte
	size         int64
	stretches    []stretch // of a regular file, in order and without gaps
}

// builder makes the tree of a layer for overlayfs, by the rules of package
// internal/image/layer, in the order of the archive's entries.
type builder struct {
	root   *node
	files  []*dataFile     // by offset in the data area
	placed int64           // size of the data area
	hidden map[string]bool // names with a whiteout, from "/"
}

// node is a file of the tree. Several names may have the same one.
type node struct {
	erofs.Node
	children map[string]*node // nil unless it is a directory
	white    bool             // it is a whiteout
}

// dataFile is the content of a regular file in the data area.
type dataFile struct {
	off, size int64
	stretches []stretch
}

func newBuilder() *builder {
	return &builder{root: &node{Node: erofs.Node{Mode: unix.S_IFDIR | 0o755}, children: map[string]*node{}}, hidden: map[string]bool{}}
}

// clean returns the parts of a name.
func clean(name string) []string {
	name = path.Clean("/" + name)
	if name == "/" {
		return nil
	}
	return strings.Split(name[1:], "/")
}

// dir returns the directory of a name, which entries before it must have made.
func (b *builder) dir(parts []string) (*node, error) {
	at := b.root
	for _, p := range parts {
		next := at.children[p]
		if next == nil || next.children == nil {
			return nil, unsuitable("%q is not a directory that the layer describes", strings.Join(parts, "/"))
		}
		at = next
	}
	return at, nil
}

func (b *builder) add(e *entry) error {
	if strings.ContainsRune(e.name, 0) || len(e.name) >= pathMost {
		return unsuitable("the name %.40q is not possible", e.name)
	}
	parts := clean(e.name)
	if len(parts) == 0 {
		b.root.Sec, b.root.Nsec = timeOf(e)
		return nil
	}
	dir, err := b.dir(parts[:len(parts)-1])
	if err != nil {
		return err
	}
	base := parts[len(parts)-1]
	switch {
	case base == opaque:
		dir.hide()
		return nil
	case strings.HasPrefix(base, whiteout):
		base = base[len(whiteout):]
		if base == "" || base == "." || base == ".." {
			return unsuitable("%q is a whiteout without a name", e.name)
		}
		b.whiteout(dir, base, path.Join("/", path.Dir(path.Clean("/"+e.name)), base), e)
		return nil
	case e.kind == unix.S_IFCHR && e.major == 0 && e.minor == 0:
		b.whiteout(dir, base, path.Join("/", path.Dir(path.Clean("/"+e.name)), base), e)
		return nil
	}
	was := dir.children[base]
	if e.kind == unix.S_IFDIR && was != nil && was.children != nil {
		return b.describe(was, e)
	}
	made, err := b.make(e)
	if err != nil {
		return err
	}
	if made == was {
		return unsuitable("%q is a hard link of itself", e.name)
	}
	if e.kind == unix.S_IFDIR && b.hidden[path.Clean("/"+e.name)] {
		made.hide()
	}
	dir.children[base] = made
	return b.describe(made, e)
}

// hide makes a directory opaque.
func (n *node) hide() {
	if n.Xattrs == nil {
		n.Xattrs = map[string][]byte{}
	}
	n.Xattrs[opaqueXattr] = []byte("y")
}

func (b *builder) whiteout(dir *node, base, name string, e *entry) {
	b.hidden[name] = true
	switch was := dir.children[base]; {
	case was == nil:
		w := &node{Node: erofs.Node{Mode: unix.S_IFCHR, UID: uint32(e.uid), GID: uint32(e.gid)}, white: true}
		w.Sec, w.Nsec = timeOf(e)
		dir.children[base] = w
	case was.children != nil:
		was.hide() // entries that this layer made in it stay
	}
}

// make returns the node of an entry, without its metadata.
func (b *builder) make(e *entry) (*node, error) {
	n := &node{Node: erofs.Node{Mode: e.kind}}
	switch e.kind {
	case 0:
		parts := clean(e.link)
		if len(parts) == 0 {
			return nil, unsuitable("%q is a hard link of the root", e.name)
		}
		dir, err := b.dir(parts[:len(parts)-1])
		if err != nil {
			return nil, err
		}
		to := dir.children[parts[len(parts)-1]]
		if to == nil || to.children != nil || to.white {
			return nil, unsuitable("%q is a hard link of %q, which is not in the layer", e.name, e.link)
		}
		return to, nil
	case unix.S_IFDIR:
		n.children = map[string]*node{}
	case unix.S_IFREG:
		n.Size = e.size
		if e.size > 0 {
			n.Extents = []erofs.Extent{{Length: e.size, DataOffset: b.placed}}
			b.files = append(b.files, &dataFile{b.placed, e.size, e.stretches})
			b.placed += (e.size + erofs.BlockSize - 1) / erofs.BlockSize * erofs.BlockSize
		}
	case unix.S_IFLNK:
		if e.link == "" || len(e.link) >= pathMost || strings.ContainsRune(e.link, 0) {
			return nil, unsuitable("%q is a symbolic link with a target that is not possible", e.name)
		}
		n.Target = e.link
	case unix.S_IFBLK, unix.S_IFCHR:
		n.Rdev = unix.Mkdev(uint32(e.major), uint32(e.minor))
	case unix.S_IFIFO:
	default:
		return nil, unsuitable("%q has an unknown type", e.name)
	}
	return n, nil
}

// describe sets the metadata of an entry.
func (b *builder) describe(n *node, e *entry) error {
	if e.uid < 0 || e.gid < 0 || e.uid >= 1<<32-1 || e.gid >= 1<<32-1 {
		return unsuitable("%q has an owner out of range", e.name)
	}
	n.UID, n.GID = uint32(e.uid), uint32(e.gid)
	kind := n.Mode & unix.S_IFMT
	for name, value := range e.xattrs {
		if strings.HasPrefix(name, "trusted.overlay.") || strings.HasPrefix(name, "user.overlay.") ||
			strings.HasPrefix(name, "user.") && kind != unix.S_IFREG && kind != unix.S_IFDIR {
			continue
		}
		if err := erofs.CheckXattr(name, value); err != nil {
			return unsuitable("%q has the attribute %q: %v", e.name, name, err)
		}
		if n.Xattrs == nil {
			n.Xattrs = map[string][]byte{}
		}
		n.Xattrs[name] = value
	}
	if kind == unix.S_IFLNK {
		n.Mode = kind | 0o777
	} else {
		n.Mode = kind | uint32(e.mode)&0o7777
	}
	n.Sec, n.Nsec = timeOf(e)
	return nil
}

// timeOf returns the modification time to show.
func timeOf(e *entry) (int64, uint32) {
	if e.sec < 0 || e.sec >= 1<<33 {
		return 0, 0
	}
	return e.sec, e.nsec
}

// tree returns the tree as package erofs writes it.
func (b *builder) tree() (*erofs.Node, error) {
	if err := link(b.root, 0); err != nil {
		return nil, err
	}
	return &b.root.Node, nil
}

func link(n *node, depth int) error {
	if depth > erofs.MaxDepth {
		return fmt.Errorf("more than %d directories in each other", erofs.MaxDepth)
	}
	n.Children = n.Children[:0]
	for name, c := range n.children {
		n.Children = append(n.Children, erofs.Child{Name: name, Node: &c.Node})
		if err := link(c, depth+1); err != nil {
			return err
		}
	}
	return nil
}
