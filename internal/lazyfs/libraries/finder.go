package libraries

import (
	"context"
	"errors"
	"io"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"premix/internal/store/erofs"
)

const (
	// whole is the size of the largest library that is requested whole. Of a larger one
	// only the head and the end are, which relocation touches: the rest is code and
	// tables of which most programs need little. The C library, of which all programs
	// need much, is smaller.
	whole   = 2 << 20
	headOf  = 256 << 10
	endOf   = 512 << 10
	maxSeen = 4096 // files followed in an image
	maxHops = 16   // symbolic links in a path
)

// Dirs lists the directories of libraries, relative to the root.
var Dirs = []string{
	"lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu", "lib64", "usr/lib64", "lib", "usr/lib", "usr/local/lib",
}

// Image is a tree's image.
type Image interface {
	// ReadAt reads from the image, and fetches missing parts.
	ReadAt(ctx context.Context, p []byte, off int64) (int, error)
	// Ask requests a range, after the ranges that readers wait for. It does not block.
	Ask(from, to int64)
	Size() int64
}

// Finder follows the programs in one image.
type Finder struct {
	ctx         context.Context
	img         Image
	otherLayers func(name string, dirs []string) bool // may be nil

	mu      sync.Mutex
	seen    map[int64]bool // offsets of files seen
	todo    []int64
	running bool

	tree atomic.Pointer[erofs.Image] // nil until its superblock is read
}

// New returns a finder, which ends with ctx. If the image is one of several layers,
// otherLayers searches the others for a library, with their Find.
func New(ctx context.Context, img Image, otherLayers func(name string, dirs []string) bool) *Finder {
	return &Finder{ctx: ctx, img: img, otherLayers: otherLayers, seen: map[int64]bool{}}
}

// Find searches directories of the image for a library or, if the name contains a
// slash, looks it up as a path. If the library exists, Find requests it and the
// libraries it needs, and returns true. It may wait for metadata.
func (f *Finder) Find(name string, dirs []string) bool {
	tree, err := f.open()
	if err != nil {
		return false
	}
	if strings.Contains(name, "/") {
		return f.want(tree, name)
	}
	return slices.ContainsFunc(dirs, func(dir string) bool { return f.want(tree, path.Join(dir, name)) })
}

// open returns the tree in the image.
func (f *Finder) open() (*erofs.Image, error) {
	if tree := f.tree.Load(); tree != nil {
		return tree, nil
	}
	tree, err := erofs.Open(reader{f}, f.img.Size())
	if err == nil {
		f.tree.Store(tree)
	}
	return tree, err
}

// Read is called with the bytes that a reader has read at off. It never blocks.
func (f *Finder) Read(p []byte, off int64) {
	if off%erofs.BlockSize == 0 && isHead(p) {
		f.follow(off)
	}
}

// follow queues the file at off to be examined, once.
func (f *Finder) follow(off int64) (first bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.seen[off] || len(f.seen) >= maxSeen || f.ctx.Err() != nil {
		return false
	}
	f.seen[off] = true
	f.todo = append(f.todo, off)
	if !f.running {
		f.running = true
		go f.run()
	}
	return true
}

// run examines files until the queue is empty. Before it waits for a file, it has
// requested all files found so far: so it waits once for each level of dependencies,
// and not for each library.
func (f *Finder) run() {
	for {
		f.mu.Lock()
		if len(f.todo) == 0 || f.ctx.Err() != nil {
			f.running, f.todo = false, nil
			f.mu.Unlock()
			return
		}
		off := f.todo[0]
		f.todo = f.todo[1:]
		f.mu.Unlock()
		// Errors are left to the readers of the file.
		_ = f.look(off)
	}
}

// look requests the libraries that the file at off needs.
func (f *Finder) look(off int64) error {
	n, err := readNeeds(io.NewSectionReader(reader{f}, off, f.img.Size()-off))
	if err != nil {
		return err
	}
	dirs := append(n.directories, Dirs...)
	if n.interpreter != "" {
		n.names = append(n.names, n.interpreter)
	}
	for _, name := range n.names {
		if !f.Find(name, dirs) && f.otherLayers != nil {
			f.otherLayers(name, dirs)
		}
	}
	return nil
}

// want requests a library and queues it. It reports whether the library exists.
func (f *Finder) want(tree *erofs.Image, name string) bool {
	i, err := resolve(tree, name)
	if err != nil || i.Size == 0 {
		return false
	}
	at, _, hole, err := tree.Map(i.Ino, 0)
	if err != nil || hole || at%erofs.BlockSize != 0 {
		return false // no library is this small, or begins with zeros
	}
	last, _, hole, err := tree.Map(i.Ino, i.Size-1)
	if err != nil || hole || last-at != i.Size-1 {
		return false // it is not contiguous, so that offsets in it are not offsets in the image
	}
	switch end := at + i.Size; {
	case !f.follow(at):
	case i.Size <= whole:
		f.img.Ask(at, end)
	default:
		f.img.Ask(at, at+headOf)
		f.img.Ask(end-endOf, end)
	}
	return true
}

var errTooManyLinks = errors.New("too many symbolic links")

// resolve returns the regular file at a path, from the tree's root.
func resolve(tree *erofs.Image, name string) (*erofs.Inode, error) {
	rest := strings.Split(strings.Trim(path.Clean("/"+name), "/"), "/")
	var at []string // the path so far, without symbolic links
	nid := tree.Root()
	for hops := 0; len(rest) > 0; {
		child, err := tree.Lookup(nid, rest[0])
		if err != nil {
			return nil, err
		}
		i, err := tree.Inode(child)
		if err != nil {
			return nil, err
		}
		if i.Mode&unix.S_IFMT != unix.S_IFLNK {
			at, rest, nid = append(at, rest[0]), rest[1:], child
			if len(rest) == 0 && i.Mode&unix.S_IFMT == unix.S_IFREG {
				return i, nil
			}
			continue
		}
		if hops++; hops > maxHops {
			return nil, errTooManyLinks
		}
		target, err := tree.Readlink(child)
		if err != nil {
			return nil, err
		}
		if !path.IsAbs(target) {
			target = path.Join("/"+strings.Join(at, "/"), target)
		}
		target = path.Join(target, strings.Join(rest[1:], "/"))
		rest = strings.Split(strings.Trim(path.Clean("/"+target), "/"), "/")
		at, nid = nil, tree.Root()
	}
	return nil, erofs.ErrNotFile
}

// reader reads the image until the finder's context ends.
type reader struct{ f *Finder }

func (r reader) ReadAt(p []byte, off int64) (int, error) { return r.f.img.ReadAt(r.f.ctx, p, off) }
