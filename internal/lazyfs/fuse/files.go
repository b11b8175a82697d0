package fuse

import (
	"context"
	"errors"
	"maps"
	"math"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Files is a read-only file system that is not in an image. Nodes are numbers: the root
// is RootNode, and the number of any other file stands for the same content and
// attributes as long as the mount exists, whichever process serves it. Only the root may
// change.
//
// An error that is a unix.Errno is the answer to the request. All other errors become
// EIO, whatever they wrap: a missing file of the server must never look like a name that
// does not exist.
type Files interface {
	Attr(ctx context.Context, node uint64) (Attr, error)
	// Lookup returns the zero Attr and no error if the name does not exist.
	Lookup(ctx context.Context, dir uint64, name string) (Attr, error)
	// Read fills p from off, as far as the file extends.
	Read(ctx context.Context, node uint64, p []byte, off int64) (int, error)
	// ReadDir calls emit with the entries from a cookie on (0 is the first, at most
	// MaxInt64), until emit returns false.
	ReadDir(ctx context.Context, node, cookie uint64, emit func(Dirent) bool) error
	Readlink(ctx context.Context, node uint64) (string, error)
	Xattrs(ctx context.Context, node uint64) (map[string][]byte, error)
	// Valid returns how long the kernel may keep names and attributes.
	Valid() time.Duration
}

// RootNode is the node of the root of a Files.
const RootNode = rootID

// Attr has the attributes of a file.
type Attr struct {
	Node     uint64 // 0: there is no such file
	Ino      uint64
	Size     int64
	Time     unix.Timespec
	Mode     uint32 // with the file type
	Nlink    uint32
	UID, GID uint32
	Rdev     uint32
}

func (a *Attr) attr() attr {
	return attr{
		ino: a.Ino, size: uint64(a.Size), blocks: (uint64(a.Size) + 511) / 512, atime: a.Time, mtime: a.Time, ctime: a.Time,
		mode: a.Mode, nlink: a.Nlink, uid: a.UID, gid: a.GID, rdev: a.Rdev, blksize: 4096,
	}
}

// Dirent is a name in a directory.
type Dirent struct {
	Attr Attr   // with Node 0, only Ino and Mode are used: the kernel looks the name up when it is used
	Next uint64 // the cookie of the following entry
	Name string
}

// filesFS serves a Files.
type filesFS struct{ f Files }

// only returns the error of a request.
func only(err error) error {
	if err == nil {
		return nil
	}
	if no, ok := err.(unix.Errno); ok { // a wrapped one is not an answer
		return no
	}
	if errors.Is(err, context.Canceled) {
		return context.Canceled
	}
	return unix.EIO
}

func (t *filesFS) flags() uint64 {
	return initNoOpen | initDoReaddirplus | initReaddirplusAuto | initCacheSymlinks
}

func (t *filesFS) attr(ctx context.Context, node uint64) (attr, error) {
	a, err := t.f.Attr(ctx, node)
	return a.attr(), only(err)
}

func (t *filesFS) lookup(ctx context.Context, dir uint64, name string) (uint64, attr, error) {
	a, err := t.f.Lookup(ctx, dir, name)
	return a.Node, a.attr(), only(err)
}

// openFile: files never change, and the kernel keeps its cached pages.
func (t *filesFS) openFile(context.Context, uint64) (uint32, error) { return 0, unix.ENOSYS }

// openDir: with ENOSYS the kernel would keep the entries of the root.
func (t *filesFS) openDir(context.Context, uint64) error { return nil }

func (t *filesFS) read(ctx context.Context, node uint64, p []byte, off int64) (int, error) {
	n, err := t.f.Read(ctx, node, p, off)
	return n, only(err)
}

func (t *filesFS) readdir(ctx context.Context, node, cookie uint64, emit func(dirent) bool) error {
	return only(t.f.ReadDir(ctx, node, cookie, func(d Dirent) bool {
		a := d.Attr.attr()
		return emit(dirent{node: d.Attr.Node, ino: d.Attr.Ino, next: d.Next, mode: d.Attr.Mode, name: d.Name, attr: &a})
	}))
}

func (t *filesFS) readlink(ctx context.Context, node uint64) (string, error) {
	target, err := t.f.Readlink(ctx, node)
	return target, only(err)
}

func (t *filesFS) xattr(ctx context.Context, node uint64, name string) ([]byte, error) {
	all, err := t.f.Xattrs(ctx, node)
	if err != nil {
		return nil, only(err)
	}
	value, ok := all[name]
	if !ok {
		return nil, unix.ENODATA
	}
	return value, nil
}

func (t *filesFS) xattrs(ctx context.Context, node uint64) ([]string, error) {
	all, err := t.f.Xattrs(ctx, node)
	return slices.Sorted(maps.Keys(all)), only(err)
}

// seek: the kernel treats a file without LSEEK as one without holes.
func (t *filesFS) seek(context.Context, uint64, int64, bool) (int64, error) { return 0, unix.ENOSYS }

func (t *filesFS) statfs(context.Context) (statfs, error) { return statfs{blockSize: 4096}, nil }

// MountFiles shows f at dir.
func MountFiles(dir string, f Files, opts Options) (*Server, error) {
	return mountAs(dir, opts, state{Kind: kindFiles}, &filesFS{f})
}

// ResumeFiles is Resume for a Files. Its nodes are those of the server that has ended.
func ResumeFiles(dev *os.File, st []byte, f Files, opts Options) (*Server, error) {
	return resume(dev, st, 0, opts, func(have state) (fileSystem, error) {
		if have.Kind != kindFiles {
			return nil, &StateError{"it does not serve files without an image"}
		}
		return &filesFS{f}, nil
	})
}

// validity returns the seconds and nanoseconds for which the kernel may keep names and
// attributes.
func (s *Server) validity() (sec uint64, nsec uint32) {
	t, ok := s.fs.(*filesFS)
	if !ok {
		return forever, 0
	}
	d := min(max(0, t.f.Valid()), math.MaxInt32*time.Second)
	return uint64(d / time.Second), uint32(d % time.Second)
}
