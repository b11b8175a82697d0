package tiers

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// node is a file or directory of the mount. It knows nothing but its name and its
// identity: where it is, is looked up each time, because others may move it, too.
type node struct {
	fs.Inode
	t *tree
}

var (
	_ = (fs.NodeLookuper)((*node)(nil))
	_ = (fs.NodeGetattrer)((*node)(nil))
	_ = (fs.NodeSetattrer)((*node)(nil))
	_ = (fs.NodeStatfser)((*node)(nil))
	_ = (fs.NodeReaddirer)((*node)(nil))
	_ = (fs.NodeCreater)((*node)(nil))
	_ = (fs.NodeOpener)((*node)(nil))
	_ = (fs.NodeMkdirer)((*node)(nil))
	_ = (fs.NodeMknoder)((*node)(nil))
	_ = (fs.NodeSymlinker)((*node)(nil))
	_ = (fs.NodeLinker)((*node)(nil))
	_ = (fs.NodeReadlinker)((*node)(nil))
	_ = (fs.NodeUnlinker)((*node)(nil))
	_ = (fs.NodeRmdirer)((*node)(nil))
	_ = (fs.NodeRenamer)((*node)(nil))
	_ = (fs.NodeGetxattrer)((*node)(nil))
	_ = (fs.NodeSetxattrer)((*node)(nil))
	_ = (fs.NodeRemovexattrer)((*node)(nil))
	_ = (fs.NodeListxattrer)((*node)(nil))
	_ = (fs.NodeCopyFileRanger)((*node)(nil))
)

func (n *node) rel() string { return n.Path(nil) }

func (n *node) child(name string) string {
	if dir := n.rel(); dir != "" {
		return dir + "/" + name
	}
	return name
}

// errno is what the kernel is told of an error, which may be several joined.
func errno(err error) syscall.Errno {
	var number syscall.Errno
	switch {
	case err == nil:
		return 0
	case errors.As(err, &number):
		return number
	}
	return fs.ToErrno(err)
}

func fill(out *fuse.Attr, f *found) {
	st := &f.st
	*out = fuse.Attr{
		Ino: f.id, Size: st.Size, Blocks: st.Blocks, Blksize: st.Blksize, Mode: uint32(st.Mode), Nlink: st.Nlink,
		Atime: uint64(st.Atime.Sec), Atimensec: st.Atime.Nsec, Mtime: uint64(st.Mtime.Sec), Mtimensec: st.Mtime.Nsec,
		Ctime: uint64(st.Ctime.Sec), Ctimensec: st.Ctime.Nsec,
		Owner: fuse.Owner{Uid: st.Uid, Gid: st.Gid}, Rdev: uint32(unix.Mkdev(st.Rdev_major, st.Rdev_minor)),
	}
}

func (n *node) inode(ctx context.Context, f *found, out *fuse.EntryOut) *fs.Inode {
	fill(&out.Attr, f)
	return n.NewInode(ctx, &node{t: n.t}, fs.StableAttr{Mode: uint32(f.st.Mode) & unix.S_IFMT, Ino: f.id})
}

func (n *node) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	n.t.names.RLock()
	f, err := n.t.find(n.child(name))
	n.t.names.RUnlock()
	if err != nil {
		return nil, errno(err)
	}
	return n.inode(ctx, &f, out), 0
}

// find looks for the node's path. ESTALE, upon which the kernel looks the name up again, is
// for a path that has become that of another file. Callers hold names.
func (n *node) find(rel string) (found, error) {
	f, err := n.t.find(rel)
	if absent(err) {
		return f, unix.ESTALE
	}
	id := n.StableAttr()
	if err == nil && id.Mode != unix.S_IFDIR && (f.id != id.Ino || uint32(f.st.Mode)&unix.S_IFMT != id.Mode) {
		err = unix.ESTALE
	}
	return f, err
}

func (n *node) Getattr(_ context.Context, fh fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	n.t.names.RLock()
	f, err := n.find(n.rel())
	n.t.names.RUnlock()
	// A file that is open may have lost its name, or another one may have it.
	if h, ok := fh.(*handle); ok && err != nil {
		st, bad := h.stat()
		f, err = found{st: st, id: h.id}, bad
	}
	if err != nil {
		return errno(err)
	}
	if n.IsRoot() {
		f.id = fuse.FUSE_ROOT_ID
	}
	fill(&out.Attr, &f)
	return 0
}

// withWriter calls do with where a path is. A move that its writing would miss is taken back.
func (n *node) withWriter(rel string, do func(f *found) error) error {
	n.t.names.RLock()
	f, err := n.find(rel)
	if err != nil || n.t.retiredOf(f.id) == nil {
		defer n.t.names.RUnlock()
		if err == nil {
			err = do(&f)
		}
		return err
	}
	n.t.names.RUnlock()
	n.t.names.Lock()
	defer n.t.names.Unlock()
	if f, err = n.find(rel); err == nil {
		if err = n.t.takeBack(rel, &f); err == nil {
			if f, err = n.find(rel); err == nil {
				err = do(&f)
			}
		}
	}
	return err
}

func (n *node) Setattr(ctx context.Context, fh fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	rel := n.rel()
	h, _ := fh.(*handle)
	if size, ok := in.GetSize(); ok {
		var err error
		if h != nil && h.write {
			err = unix.Ftruncate(h.fd, int64(size))
		} else {
			err = n.withWriter(rel, func(f *found) error {
				n.t.opened(f.id, true)
				defer n.t.closed(f.id, true)
				fd, err := n.t.tiers[f.tier].openat(rel, unix.O_WRONLY, 0)
				if err != nil {
					return err
				}
				defer unix.Close(fd)
				return unix.Ftruncate(fd, int64(size))
			})
		}
		if err != nil {
			return errno(err)
		}
	}
	n.t.names.RLock()
	_, err := n.find(rel)
	switch {
	case h != nil && err != nil: // the file has lost its name
		err = h.setattr(in)
	case err == nil:
		err = n.t.each(rel, func(_ int, p place) error { return setattr(p, in) })
	}
	n.t.names.RUnlock()
	if err != nil {
		return errno(err)
	}
	return n.Getattr(ctx, fh, out)
}

// setattr changes all but the size.
func setattr(p place, in *fuse.SetAttrIn) error {
	uid, gid, owner := owners(in)
	if owner {
		if err := unix.Fchownat(p.dir, p.name, uid, gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	if mode, ok := in.GetMode(); ok {
		// No system call of this kernel's age changes the mode of a link itself.
		st, err := p.stat()
		if err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT == unix.S_IFLNK {
			return unix.EOPNOTSUPP
		}
		if err := unix.Fchmodat(p.dir, p.name, mode&0o7777, 0); err != nil {
			return err
		}
	}
	if ts := times(in); ts != nil {
		return unix.UtimesNanoAt(p.dir, p.name, ts, unix.AT_SYMLINK_NOFOLLOW)
	}
	return nil
}

func owners(in *fuse.SetAttrIn) (uid, gid int, any bool) {
	uid, gid = -1, -1
	if u, ok := in.GetUID(); ok {
		uid, any = int(u), true
	}
	if g, ok := in.GetGID(); ok {
		gid, any = int(g), true
	}
	return uid, gid, any
}

func times(in *fuse.SetAttrIn) []unix.Timespec {
	ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Nsec: unix.UTIME_OMIT}}
	any := false
	if at, ok := in.GetATime(); ok {
		ts[0], any = unix.NsecToTimespec(at.UnixNano()), true
	}
	if mt, ok := in.GetMTime(); ok {
		ts[1], any = unix.NsecToTimespec(mt.UnixNano()), true
	}
	if !any {
		return nil
	}
	return ts
}

// Statfs adds the tiers up; two on one file system count once.
func (n *node) Statfs(_ context.Context, out *fuse.StatfsOut) syscall.Errno {
	seen := map[unix.Fsid]bool{}
	for _, ti := range n.t.tiers {
		var s syscall.Statfs_t
		if err := syscall.Fstatfs(ti.fd, &s); err != nil {
			return errno(err)
		}
		id := unix.Fsid{Val: s.Fsid.X__val}
		if seen[id] {
			continue
		}
		seen[id] = true
		var one fuse.StatfsOut
		one.FromStatfsT(&s)
		if len(seen) == 1 {
			*out = one
			continue
		}
		scale := func(blocks uint64) uint64 { return blocks * uint64(s.Bsize) / uint64(out.Bsize) }
		out.Blocks += scale(one.Blocks)
		out.Bfree += scale(one.Bfree)
		out.Bavail += scale(one.Bavail)
		out.Files += one.Files
		out.Ffree += one.Ffree
	}
	return 0
}

func (n *node) Readdir(context.Context) (fs.DirStream, syscall.Errno) {
	n.t.names.RLock()
	all, err := n.t.entries(n.rel())
	n.t.names.RUnlock()
	if err != nil {
		return nil, errno(err)
	}
	list := make([]fuse.DirEntry, 0, len(all))
	for name, mode := range all {
		list = append(list, fuse.DirEntry{Name: name, Mode: mode})
	}
	slices.SortFunc(list, func(a, b fuse.DirEntry) int { return cmp.Compare(a.Name, b.Name) })
	for i := range list {
		list[i].Off = uint64(i + 1)
	}
	return fs.NewListDirStream(list), 0
}

// own gives something new to who made it. As root the mount makes files for others. In a
// directory with the set-group-ID bit they keep the group of the directory.
func (n *node) own(ctx context.Context, i int, rel string, p place) error {
	caller, ok := fuse.FromContext(ctx)
	if !n.t.root || !ok || caller.Uid == 0 && caller.Gid == 0 {
		return nil
	}
	gid := int(caller.Gid)
	if dir, err := n.t.findIn(i, parent(rel)); err != nil {
		return err
	} else if dir.st.Mode&unix.S_ISGID != 0 {
		gid = -1
	}
	return unix.Fchownat(p.dir, p.name, int(caller.Uid), gid, unix.AT_SYMLINK_NOFOLLOW|unix.AT_EMPTY_PATH)
}

func (n *node) Create(ctx context.Context, name string, flags uint32, mode uint32, out *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	rel := n.child(name)
	var h *handle
	var f found
	err := n.t.make(rel, func(i int) error {
		fd, err := n.t.tiers[i].openat(rel, openFlags(flags)|unix.O_CREAT, mode&0o7777)
		if err != nil {
			return err
		}
		h = &handle{t: n.t, fd: fd, write: true}
		if err := n.own(ctx, i, rel, place{dir: fd}); err != nil {
			return errors.Join(err, unix.Close(fd))
		}
		st, err := h.stat()
		if err != nil {
			return errors.Join(err, unix.Close(fd))
		}
		f = found{i, st, n.t.identity(i, place{dir: n.t.tiers[i].fd, name: rel}, &st)}
		h.id = f.id
		n.t.opened(h.id, true)
		return nil
	})
	if err != nil {
		return nil, nil, 0, errno(err)
	}
	return n.inode(ctx, &f, out), h, 0, 0
}

// openFlags are the flags with which a tier's file is opened for one of the mount. What is
// appended comes with its offset, and O_DIRECT is between the kernel and its callers.
func openFlags(flags uint32) int {
	return int(flags) & (unix.O_ACCMODE | unix.O_TRUNC | unix.O_EXCL | unix.O_SYNC | unix.O_DSYNC | unix.O_NONBLOCK)
}

func (n *node) Open(_ context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	rel := n.rel()
	h := &handle{t: n.t, write: flags&unix.O_ACCMODE != unix.O_RDONLY || flags&unix.O_TRUNC != 0}
	open := func(f *found) (err error) {
		h.id = f.id
		n.t.opened(h.id, h.write)
		if old := n.t.retiredOf(h.id); old != nil {
			h.fd, err = unix.Openat(n.t.tiers[old.from].private, old.name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
		} else {
			h.fd, err = n.t.tiers[f.tier].openat(rel, openFlags(flags)&^unix.O_EXCL, 0)
		}
		if err != nil {
			n.t.closed(h.id, h.write)
		}
		return err
	}
	var err error
	if h.write {
		err = n.withWriter(rel, open)
	} else {
		n.t.names.RLock()
		var f found
		if f, err = n.find(rel); err == nil {
			err = open(&f)
		}
		n.t.names.RUnlock()
	}
	if err != nil {
		return nil, 0, errno(err)
	}
	return h, 0, 0
}

// made is for what make has called into being without opening it.
func (n *node) made(ctx context.Context, rel string, out *fuse.EntryOut, do func(p place) error) (*fs.Inode, syscall.Errno) {
	var f found
	err := n.t.make(rel, func(i int) error {
		p, err := n.t.tiers[i].place(rel)
		if err != nil {
			return err
		}
		defer p.close()
		if err := do(p); err != nil {
			return err
		}
		if err := n.own(ctx, i, rel, p); err != nil {
			return err
		}
		f, err = n.t.findIn(i, rel)
		return err
	})
	if err != nil {
		return nil, errno(err)
	}
	return n.inode(ctx, &f, out), 0
}

func (n *node) Mkdir(ctx context.Context, name string, mode uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	return n.made(ctx, n.child(name), out, func(p place) error { return unix.Mkdirat(p.dir, p.name, mode&0o7777) })
}

func (n *node) Mknod(ctx context.Context, name string, mode, dev uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	return n.made(ctx, n.child(name), out, func(p place) error { return unix.Mknodat(p.dir, p.name, mode, int(dev)) })
}

func (n *node) Symlink(ctx context.Context, target, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	return n.made(ctx, n.child(name), out, func(p place) error { return unix.Symlinkat(target, p.dir, p.name) })
}

// Link makes a second name on the tier of the first. Such files are not moved.
func (n *node) Link(ctx context.Context, target fs.InodeEmbedder, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	other, ok := target.(*node)
	if !ok {
		return nil, syscall.EXDEV
	}
	if _, dir := other.Parent(); dir == nil {
		return nil, syscall.ENOENT
	}
	old, new := other.rel(), n.child(name)
	if hidden(new) {
		return nil, syscall.EPERM
	}
	t := n.t
	t.names.Lock()
	defer t.names.Unlock()
	f, err := t.find(old)
	if err == nil {
		err = t.takeBack(old, &f)
	}
	if err == nil {
		f, err = t.find(old)
	}
	if err == nil {
		err = t.ensureDir(f.tier, parent(new))
	}
	if err == nil {
		err = t.linkIn(f.tier, old, new)
	}
	if err == nil {
		f, err = t.findIn(f.tier, new)
	}
	if err != nil {
		return nil, errno(err)
	}
	return n.inode(ctx, &f, out), 0
}

func (t *tree) linkIn(i int, old, new string) error {
	from, err := t.tiers[i].place(old)
	if err != nil {
		return err
	}
	defer from.close()
	to, err := t.tiers[i].place(new)
	if err != nil {
		return err
	}
	defer to.close()
	return unix.Linkat(from.dir, from.name, to.dir, to.name, 0)
}

// at calls do with the place of the node on one tier after the other until it is there: do
// says that it is not as system calls do.
func (n *node) at(do func(p place) error) error {
	rel := n.rel()
	n.t.names.RLock()
	defer n.t.names.RUnlock()
	if hidden(rel) {
		return unix.ENOENT
	}
	for _, ti := range n.t.tiers {
		p, err := ti.place(rel)
		if err == nil {
			err = do(p)
			p.close()
		}
		if !absent(err) {
			return err
		}
	}
	return unix.ENOENT
}

func (n *node) Readlink(context.Context) (target []byte, number syscall.Errno) {
	err := n.at(func(p place) error {
		b := make([]byte, unix.PathMax)
		size, err := unix.Readlinkat(p.dir, p.name, b)
		target = b[:max(0, size)]
		return err
	})
	return target, errno(err)
}

func (n *node) Unlink(_ context.Context, name string) syscall.Errno {
	rel := n.child(name)
	n.t.names.RLock()
	defer n.t.names.RUnlock()
	if hidden(rel) {
		return syscall.ENOENT
	}
	return errno(n.t.each(rel, func(_ int, p place) error { return unix.Unlinkat(p.dir, p.name, 0) }))
}

func (n *node) Rmdir(_ context.Context, name string) syscall.Errno {
	return errno(n.t.rmdir(n.child(name)))
}

func (n *node) Rename(_ context.Context, name string, to fs.InodeEmbedder, newName string, flags uint32) syscall.Errno {
	dir, ok := to.(*node)
	if !ok {
		return syscall.EXDEV
	}
	return errno(n.t.rename(n.child(name), dir.child(newName), flags))
}

// ours tells whether an attribute is the mount's own, which nobody else sees.
func (t *tree) ours(name string) bool { return name == t.xattr }

func (n *node) Getxattr(_ context.Context, name string, dest []byte) (uint32, syscall.Errno) {
	if n.t.ours(name) {
		return 0, syscall.ENODATA
	}
	var size int
	err := n.at(func(p place) (err error) {
		size, err = unix.Lgetxattr(p.proc(), name, dest)
		return err
	})
	return uint32(max(0, size)), errno(err)
}

func (n *node) Listxattr(_ context.Context, dest []byte) (uint32, syscall.Errno) {
	var names []string
	err := n.at(func(p place) (err error) {
		names, err = listXattrs(p)
		return err
	})
	if err != nil {
		return 0, errno(err)
	}
	var all strings.Builder
	for _, name := range names {
		if !n.t.ours(name) {
			all.WriteString(name + "\x00")
		}
	}
	if all.Len() > len(dest) {
		return uint32(all.Len()), syscall.ERANGE
	}
	return uint32(copy(dest, all.String())), 0
}

func (n *node) Setxattr(_ context.Context, name string, value []byte, flags uint32) syscall.Errno {
	return n.changeXattr(name, func(p place) error { return unix.Lsetxattr(p.proc(), name, value, int(flags)) })
}

func (n *node) Removexattr(_ context.Context, name string) syscall.Errno {
	return n.changeXattr(name, func(p place) error { return unix.Lremovexattr(p.proc(), name) })
}

func (n *node) changeXattr(name string, do func(p place) error) syscall.Errno {
	rel := n.rel()
	if n.t.ours(name) {
		return syscall.EPERM
	}
	n.t.names.RLock()
	defer n.t.names.RUnlock()
	if hidden(rel) {
		return syscall.ENOENT
	}
	return errno(n.t.each(rel, func(_ int, p place) error { return do(p) }))
}

func (n *node) CopyFileRange(_ context.Context, in fs.FileHandle, offIn uint64, _ *fs.Inode, out fs.FileHandle, offOut, length, flags uint64) (uint32, syscall.Errno) {
	from, ok := in.(*handle)
	to, ok2 := out.(*handle)
	if !ok || !ok2 {
		return 0, syscall.ENOTSUP
	}
	i, o := int64(offIn), int64(offOut)
	n2, err := unix.CopyFileRange(from.fd, &i, to.fd, &o, int(min(length, 1<<30)), int(flags))
	return uint32(max(0, n2)), errno(err)
}

// handle is an open file.
type handle struct {
	t     *tree
	fd    int
	id    uint64
	write bool
}

var (
	_ = (fs.FileReader)((*handle)(nil))
	_ = (fs.FileWriter)((*handle)(nil))
	_ = (fs.FileFsyncer)((*handle)(nil))
	_ = (fs.FileLseeker)((*handle)(nil))
	_ = (fs.FileAllocater)((*handle)(nil))
	_ = (fs.FileReleaser)((*handle)(nil))
	_ = (fs.FilePassthroughFder)((*handle)(nil))
)

// PassthroughFd lets the kernel read and write without asking.
func (h *handle) PassthroughFd() (int, bool) { return h.fd, true }

func (h *handle) stat() (unix.Statx_t, error) {
	var st unix.Statx_t
	err := unix.Statx(h.fd, "", unix.AT_EMPTY_PATH, statMask, &st)
	return st, err
}

func (h *handle) setattr(in *fuse.SetAttrIn) error {
	if uid, gid, ok := owners(in); ok {
		if err := unix.Fchown(h.fd, uid, gid); err != nil {
			return err
		}
	}
	if mode, ok := in.GetMode(); ok {
		if err := unix.Fchmod(h.fd, mode&0o7777); err != nil {
			return err
		}
	}
	if ts := times(in); ts != nil {
		return unix.UtimesNanoAt(h.fd, "", ts, unix.AT_EMPTY_PATH)
	}
	return nil
}

func (h *handle) Read(_ context.Context, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	return fuse.ReadResultFd(uintptr(h.fd), off, len(dest)), 0
}

func (h *handle) Write(_ context.Context, data []byte, off int64) (uint32, syscall.Errno) {
	n, err := unix.Pwrite(h.fd, data, off)
	return uint32(max(0, n)), errno(err)
}

func (h *handle) Fsync(_ context.Context, flags uint32) syscall.Errno {
	if flags&1 != 0 {
		return errno(unix.Fdatasync(h.fd))
	}
	return errno(unix.Fsync(h.fd))
}

func (h *handle) Lseek(_ context.Context, off uint64, whence uint32) (uint64, syscall.Errno) {
	at, err := unix.Seek(h.fd, int64(off), int(whence))
	return uint64(at), errno(err)
}

func (h *handle) Allocate(_ context.Context, off, size uint64, mode uint32) syscall.Errno {
	return errno(unix.Fallocate(h.fd, mode, int64(off), int64(size)))
}

func (h *handle) Release(context.Context) syscall.Errno {
	err := unix.Close(h.fd)
	h.t.closed(h.id, h.write)
	return errno(err)
}
