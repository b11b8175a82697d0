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

	"premix/store/erofs"
)

const (
	// whole is the longest library that is asked for whole. Of a longer one its head and
	// its end are what relocation touches: the rest of it is code and tables of which
	// most programs need little. The C library, of which all need much, is shorter.
	whole   = 2 << 20
	headOf  = 256 << 10
	endOf   = 512 << 10
	maxSeen = 4096 // files that are followed in an image
	maxHops = 16   // symbolic links in a path
)

// Dirs are where libraries are looked for, relative to the root.
var Dirs = []string{
	"lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu", "lib64", "usr/lib64", "lib", "usr/lib", "usr/local/lib",
}

// Image is a tree's image.
type Image interface {
	// ReadAt waits for what is missing.
	ReadAt(ctx context.Context, p []byte, off int64) (int, error)
	// Ask has a part fetched behind what readers wait for, and does not wait.
	Ask(from, to int64)
	Size() int64
}

// Finder follows the programs of one image.
type Finder struct {
	ctx       context.Context
	img       Image
	elsewhere func(name string, dirs []string) bool // may be nil

	mu      sync.Mutex
	seen    map[int64]bool // where files begin
	todo    []int64
	running bool

	tree atomic.Pointer[erofs.Image] // nil until its superblock was read
}

// New returns a finder, which ends with ctx. Where the image is a layer among others,
// elsewhere looks in those for what it has not, by their Find.
func New(ctx context.Context, img Image, elsewhere func(name string, dirs []string) bool) *Finder {
	return &Finder{ctx: ctx, img: img, elsewhere: elsewhere, seen: map[int64]bool{}}
}

// Find looks for a library in directories of the image, or, where the name has a slash,
// at that path. If it is there it is asked for, and what it needs; Find tells whether
// it is. It may wait for metadata.
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

// open returns the tree that the image holds.
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

// Read tells of what somebody has read at off. It never waits.
func (f *Finder) Read(p []byte, off int64) {
	if off%erofs.BlockSize == 0 && isHead(p) {
		f.follow(off)
	}
}

// follow has the file that begins at off looked at, once.
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

// run looks at files until there are no more. What they lead to has been asked for
// when it waits for one: it waits once for each step from a program down, and not for
// each library.
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
		// Whatever is wrong, readers find out for themselves.
		_ = f.look(off)
	}
}

// look asks for what the file that begins at off needs.
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
		if !f.Find(name, dirs) && f.elsewhere != nil {
			f.elsewhere(name, dirs)
		}
	}
	return nil
}

// want asks for a library, and has it looked at. It tells whether there is one.
func (f *Finder) want(tree *erofs.Image, name string) bool {
	i, err := resolve(tree, name)
	if err != nil || i.Size == 0 {
		return false
	}
	at, _, hole, err := tree.Map(i.Ino, 0)
	if err != nil || hole || at%erofs.BlockSize != 0 {
		return false // no library is so small, or begins with zeros
	}
	last, _, hole, err := tree.Map(i.Ino, i.Size-1)
	if err != nil || hole || last-at != i.Size-1 {
		return false // it does not lie in one piece, so that places in it are not those in the image
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

// resolve finds the regular file of a path, from the tree's root.
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

// reader reads the image for as long as the finder is wanted.
type reader struct{ f *Finder }

func (r reader) ReadAt(p []byte, off int64) (int, error) { return r.f.img.ReadAt(r.f.ctx, p, off) }
