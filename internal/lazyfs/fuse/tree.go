package fuse

import (
	"context"
	"errors"
	"io"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"premix/internal/store/erofs"
)

// treeFS is the file system of the tree in an image.
type treeFS struct {
	img  Image
	own  bool                        // all files belong to this user
	open atomic.Pointer[erofs.Image] // its superblock, once read
}

// contextReader reads an image for one request.
type contextReader struct {
	ctx context.Context
	img Image
}

// ReadAt reads all of p; package erofs reads only within the image.
func (r contextReader) ReadAt(p []byte, off int64) (int, error) {
	if err := readFull(r.ctx, r.img, p, off); err != nil {
		return 0, err
	}
	return len(p), nil
}

// image returns the image as one request reads it. If the superblock could not be read,
// the next request tries again: a resumed server may begin while the origin is down.
func (t *treeFS) image(ctx context.Context) (*erofs.Image, error) {
	r := contextReader{ctx, t.img}
	if im := t.open.Load(); im != nil {
		return im.With(r), nil
	}
	im, err := erofs.Open(r, t.img.Size())
	if err != nil {
		return nil, treeErr(err)
	}
	t.open.Store(im)
	return im, nil
}

// treeErr converts the errors of package erofs that are not EIO.
func treeErr(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, erofs.ErrCorrupt):
		return unix.EUCLEAN // like the kernel's EROFS
	case errors.Is(err, erofs.ErrUnsupported):
		return unix.EOPNOTSUPP
	case errors.Is(err, erofs.ErrNoXattr):
		return unix.ENODATA
	case errors.Is(err, erofs.ErrNotDir):
		return unix.ENOTDIR
	case errors.Is(err, erofs.ErrNotFile), errors.Is(err, erofs.ErrNotLink):
		return unix.EINVAL
	}
	return err
}

// A node is the nid plus nidOffset, which avoids 0, "no such name", and the number of
// the root, which is always rootID.
const nidOffset = 2

func nodeOf(im *erofs.Image, nid uint64) uint64 {
	if nid == im.Root() {
		return rootID
	}
	return nid + nidOffset
}

func nidOf(im *erofs.Image, node uint64) uint64 {
	if node == rootID {
		return im.Root()
	}
	return node - nidOffset
}

func (t *treeFS) flags() uint64 {
	return initNoOpen | initNoOpendir | initDoReaddirplus | initReaddirplusAuto |
		initCacheSymlinks | initPosixACL | initExportSupport
}

func (t *treeFS) attr(ctx context.Context, node uint64) (attr, error) {
	im, err := t.image(ctx)
	if err != nil {
		return attr{}, err
	}
	return t.attrOf(im, nidOf(im, node))
}

func (t *treeFS) attrOf(im *erofs.Image, nid uint64) (attr, error) {
	i, err := im.Inode(nid)
	if err != nil {
		return attr{}, treeErr(err)
	}
	if t.own {
		i.UID, i.GID = uint32(os.Geteuid()), uint32(os.Getegid())
	}
	ts := unix.Timespec{Sec: i.Sec, Nsec: int64(i.Nsec)}
	return attr{
		ino:  i.Ino,
		size: uint64(i.Size),
		// EROFS has one time, and counts holes as blocks; both mounts of a tree should
		// look alike.
		blocks: uint64(i.Blocks()),
		atime:  ts, mtime: ts, ctime: ts,
		mode:    i.Mode,
		nlink:   i.Nlink,
		uid:     i.UID,
		gid:     i.GID,
		rdev:    uint32(i.Rdev),
		blksize: erofs.BlockSize,
	}, nil
}

func (t *treeFS) lookup(ctx context.Context, dir uint64, name string) (uint64, attr, error) {
	im, err := t.image(ctx)
	if err != nil {
		return 0, attr{}, err
	}
	nid := nidOf(im, dir)
	// "." may be looked up in any node, when a file handle is turned into a file; ".."
	// only in directories (FUSE_EXPORT_SUPPORT).
	if name != "." {
		nid, err = im.Lookup(nid, name)
		if errors.Is(err, erofs.ErrNotExist) {
			return 0, attr{}, nil
		}
		if err != nil {
			return 0, attr{}, treeErr(err)
		}
	}
	a, err := t.attrOf(im, nid)
	return nodeOf(im, nid), a, err
}

// Neither files nor directories need to be opened: opening has no state, and the kernel
// keeps its cached pages.
func (t *treeFS) openFile(context.Context, uint64) (uint32, error) { return 0, unix.ENOSYS }
func (t *treeFS) openDir(context.Context, uint64) error            { return unix.ENOSYS }

func (t *treeFS) read(ctx context.Context, node uint64, p []byte, off int64) (int, error) {
	im, err := t.image(ctx)
	if err != nil {
		return 0, err
	}
	n, err := im.ReadAt(nidOf(im, node), p, off)
	if err == io.EOF || n == len(p) {
		return n, nil
	}
	return 0, treeErr(err)
}

func (t *treeFS) readdir(ctx context.Context, node, cookie uint64, emit func(dirent) bool) error {
	im, err := t.image(ctx)
	if err != nil {
		return err
	}
	return treeErr(im.ReadDir(nidOf(im, node), cookie, func(d erofs.Dirent) bool {
		return emit(dirent{node: nodeOf(im, d.Nid), ino: d.Nid, next: d.Next, mode: d.Type, name: d.Name})
	}))
}

func (t *treeFS) readlink(ctx context.Context, node uint64) (string, error) {
	im, err := t.image(ctx)
	if err != nil {
		return "", err
	}
	target, err := im.Readlink(nidOf(im, node))
	return target, treeErr(err)
}

func (t *treeFS) xattr(ctx context.Context, node uint64, name string) ([]byte, error) {
	im, err := t.image(ctx)
	if err != nil {
		return nil, err
	}
	value, err := im.Xattr(nidOf(im, node), name)
	return value, treeErr(err)
}

func (t *treeFS) xattrs(ctx context.Context, node uint64) ([]string, error) {
	im, err := t.image(ctx)
	if err != nil {
		return nil, err
	}
	names, err := im.XattrNames(nidOf(im, node))
	return names, treeErr(err)
}

func (t *treeFS) seek(ctx context.Context, node uint64, off int64, hole bool) (int64, error) {
	im, err := t.image(ctx)
	if err != nil {
		return 0, err
	}
	find := im.NextData
	if hole {
		find = im.NextHole
	}
	at, err := find(nidOf(im, node), off)
	if err == io.EOF {
		return 0, unix.ENXIO
	}
	return at, treeErr(err)
}

func (t *treeFS) statfs(ctx context.Context) (statfs, error) {
	im, err := t.image(ctx)
	if err != nil {
		return statfs{}, err
	}
	return statfs{blocks: uint64(im.Blocks()), files: im.Inodes(), blockSize: erofs.BlockSize}, nil
}
