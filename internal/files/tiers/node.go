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

// node is a file or directory of the mount. It stores only its name and identity. Its place
// is looked up for each operation, because it may move.
type node struct {
	fs.Inode
	t   *tree
	dir *dirState // of a directory only
}

var (
	_ = (fs.NodeLookuper)((*node)(nil))
	_ = (fs.NodeGetattrer)((*node)(nil))
	_ = (fs.NodeSetattrer)((*node)(nil))
	_ = (fs.NodeStatfser)((*node)(nil))
	_ = (fs.NodeReaddirer)((*node)(nil))
	_ = (fs.NodeFsyncer)((*node)(nil))
	_ = (fs.NodeCreater)((*node)(nil))
	_ = (fs.NodeTmpfiler)((*node)(nil))
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

// rel returns the path of the node, or a path that does not exist for a node without a
// name. It is stable while names is held.
func (n *node) rel() string { return n.Path(n.Root()) }

// errno returns the error number for the kernel. The error may consist of several joined
// ones.
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

// inode returns a node for a file found at a path. Callers hold names.
func (n *node) inode(ctx context.Context, rel string, f *found, out *fuse.EntryOut) (*fs.Inode, error) {
	child := &node{t: n.t}
	if f.isDir() {
		child.dir = n.t.dirState(f.id)
		if err := n.t.look(rel, f, child.dir); err != nil {
			return nil, err
		}
	}
	fill(&out.Attr, f)
	return n.NewInode(context.WithoutCancel(ctx), child, fs.StableAttr{Mode: f.kind(), Ino: f.id}), nil
}

func (n *node) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	n.t.names.RLock()
	defer n.t.names.RUnlock()
	rel := n.rel()
	f, err := n.findChild(rel, name)
	if err != nil {
		return nil, errno(err)
	}
	defer f.close()
	child, err := n.inode(ctx, join(rel, name), &f, out)
	return child, errno(err)
}

// find looks up the file of the node. It returns ESTALE, upon which the kernel looks the
// name up again, if the path belongs to another file now. An open file is found even
// without a name. Callers hold names.
func (n *node) find(rel string) (found, error) {
	f, err := n.t.find(rel)
	id := n.StableAttr()
	if err == nil && id.Mode != unix.S_IFDIR && (f.id != id.Ino || f.kind() != id.Mode) || err == nil && f.kind() != id.Mode {
		f.close()
		err = unix.ESTALE
	}
	if absent(err) || errors.Is(err, unix.ESTALE) {
		return n.t.nameless(id.Ino)
	}
	return f, err
}

// reach calls do for the file of the node, or for each part of a directory, the part on the
// first tier first.
func (n *node) reach(do func(f *found) error) error {
	n.t.names.RLock()
	defer n.t.names.RUnlock()
	rel := n.rel()
	if n.dir == nil {
		f, err := n.find(rel)
		if err != nil {
			return err
		}
		defer f.close()
		return do(&f)
	}
	err := error(unix.ESTALE)
	for i := range n.t.tiers {
		fd, bad := n.part(i, rel)
		if absent(bad) {
			continue
		}
		if bad != nil {
			return bad
		}
		f := found{tier: i, fd: fd}
		if f.st, err = statFd(fd); err == nil {
			err = do(&f)
		}
		f.close()
		if err != nil {
			return err
		}
	}
	return err
}

// errFirst ends reach after the first part.
var errFirst = errors.New("the first part is enough")

func (n *node) reachFirst(do func(f *found) error) error {
	err := n.reach(func(f *found) error {
		if err := do(f); err != nil {
			return err
		}
		return errFirst
	})
	if err == errFirst {
		return nil
	}
	return err
}

func (n *node) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	n.t.names.RLock()
	defer n.t.names.RUnlock()
	rel := n.rel()
	f, err := n.find(rel)
	if err == nil && n.dir != nil {
		err = n.t.look(rel, &f, n.dir)
	}
	defer f.close()
	if err != nil {
		return errno(err)
	}
	if n.IsRoot() {
		f.id = fuse.FUSE_ROOT_ID
	}
	fill(&out.Attr, &f)
	return 0
}

// withWriter calls do for the file. It first undoes a move whose copy would miss the
// writes.
func (n *node) withWriter(do func(f *found) error) error {
	n.t.names.RLock()
	f, err := n.find(n.rel())
	if err != nil || n.t.retiredOf(f.id) == nil {
		defer n.t.names.RUnlock()
		if err == nil {
			defer f.close()
			err = do(&f)
		}
		return err
	}
	f.close()
	n.t.names.RUnlock()
	n.t.names.Lock()
	defer n.t.names.Unlock()
	if err = n.takeBack(); err != nil {
		return err
	}
	if f, err = n.find(n.rel()); err != nil {
		return err
	}
	defer f.close()
	return do(&f)
}

// takeBack undoes the move of the file, if it left a retired one. Callers hold names for
// writing.
func (n *node) takeBack() error {
	rel := n.rel()
	f, err := n.find(rel)
	if err != nil {
		return err
	}
	defer f.close()
	return n.t.takeBack(rel, &f)
}

func (n *node) Setattr(ctx context.Context, fh fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	if size, ok := in.GetSize(); ok {
		// The flag is set if the caller lacks CAP_FSETID.
		truncate := func(fd int) error { return unix.Ftruncate(fd, int64(size)) }
		if in.Valid&fuse.FATTR_KILL_SUIDGID != 0 {
			truncate = func(fd int) error {
				return n.t.unprivileged(func() error { return unix.Ftruncate(fd, int64(size)) })
			}
		}
		var err error
		if h, ok := fh.(*handle); ok && h.write {
			err = truncate(h.fd)
		} else {
			err = n.withWriter(func(f *found) error {
				h := &handle{t: n.t, tier: f.tier, fd: -1, id: f.id, write: true}
				n.t.opened(h)
				defer n.t.closed(h)
				fd, err := f.open(unix.O_WRONLY)
				if err != nil {
					return err
				}
				defer unix.Close(fd)
				return truncate(fd)
			})
		}
		if err != nil {
			return errno(err)
		}
	}
	if err := n.reach(func(f *found) error { return n.t.setattr(ctx, f, in) }); err != nil {
		return errno(err)
	}
	return n.Getattr(ctx, fh, out)
}

// setattr sets all attributes except the size.
func (t *tree) setattr(ctx context.Context, f *found, in *fuse.SetAttrIn) error {
	uid, gid, owner := owners(in)
	if owner {
		if err := unix.Fchownat(f.fd, "", uid, gid, unix.AT_EMPTY_PATH); err != nil {
			return err
		}
	}
	if mode, ok := in.GetMode(); ok {
		if f.kind() == unix.S_IFLNK {
			return unix.EOPNOTSUPP
		}
		if err := chmodFd(f.fd, mode); err != nil {
			return err
		}
	}
	if ts := times(in); ts != nil {
		return unix.UtimesNanoAt(f.fd, "", ts, unix.AT_EMPTY_PATH)
	}
	const settable = fuse.FATTR_MODE | fuse.FATTR_UID | fuse.FATTR_GID | fuse.FATTR_SIZE | fuse.FATTR_ATIME | fuse.FATTR_MTIME
	if in.Valid&settable == 0 {
		// chown(2) that changes neither owner nor group sets the time of status change, and
		// clears bits. With CAP_HANDLE_KILLPRIV_V2 the kernel does not check that the caller
		// may clear them. It sends the same request before a write to a file with such bits,
		// which the write itself clears.
		caller, ok := fuse.FromContext(ctx)
		if !f.isDir() && f.st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 && ok && caller.Uid != 0 && caller.Uid != f.st.Uid {
			if writing, _ := t.written(f.id, func(int) error { return nil }); writing {
				return nil
			}
			return unix.EPERM
		}
		return unix.Fchownat(f.fd, "", -1, -1, unix.AT_EMPTY_PATH)
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

// Statfs adds up the file systems of the tiers. Two tiers on one file system count once.
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
	all, err := n.entries()
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

func (n *node) entries() (map[string]uint32, error) {
	var parts []int
	defer func() { closeAll(parts) }()
	rel := n.rel()
	for i := range n.t.tiers {
		fd, err := n.part(i, rel)
		if err == nil {
			parts = append(parts, fd)
		} else if !absent(err) {
			return nil, err
		}
	}
	return entries(parts, rel == "")
}

// Fsync syncs a file, or all parts of a directory.
func (n *node) Fsync(ctx context.Context, fh fs.FileHandle, flags uint32) syscall.Errno {
	if h, ok := fh.(*handle); ok {
		return h.Fsync(ctx, flags)
	}
	err := n.reach(func(f *found) error {
		fd, err := openBeneath(f.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Fsync(fd)
	})
	if _, parent := n.Parent(); parent == nil && !n.IsRoot() && errors.Is(err, unix.ESTALE) {
		err = nil // it was removed
	}
	return errno(err)
}

func (n *node) Create(ctx context.Context, name string, flags uint32, mode uint32, out *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	// The kernel has not checked that the caller may open an existing file. If one exists
	// by now, the kernel looks it up again.
	child, h, err := n.create(ctx, name, out, func(dir int) (int, error) {
		fd, err := openBeneath(dir, name, openFlags(flags)|unix.O_CREAT|unix.O_EXCL, modeIn(dir, mode)&0o7777)
		if errors.Is(err, unix.EEXIST) && flags&unix.O_EXCL == 0 {
			err = unix.ESTALE
		}
		return fd, err
	})
	return child, h, 0, errno(err)
}

// Tmpfile creates a file without a name on the tier for new files.
func (n *node) Tmpfile(ctx context.Context, flags uint32, mode uint32, out *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	child, h, err := n.create(ctx, "", out, func(dir int) (int, error) {
		return openBeneath(dir, ".", openFlags(flags)|int(flags)&unix.O_EXCL|unix.O_TMPFILE, modeIn(dir, mode)&0o7777)
	})
	return child, h, 0, errno(err)
}

func (n *node) create(ctx context.Context, name string, out *fuse.EntryOut, do func(dir int) (int, error)) (child *fs.Inode, h *handle, err error) {
	err = n.t.make(n.rel, func(i int) error {
		rel := n.rel()
		if name != "" && hidden(join(rel, name)) {
			return unix.EPERM
		}
		dir, err := n.part(i, rel)
		if err != nil {
			return err
		}
		defer unix.Close(dir)
		h = &handle{t: n.t, tier: i, write: true}
		if err := n.t.as(ctx, func() (err error) { h.fd, err = do(dir); return err }); err != nil {
			return err
		}
		f := found{tier: i, fd: h.fd}
		if f.st, err = statFd(h.fd); err == nil {
			f.id = n.t.identity(i, h.fd, &f.st)
			child, err = n.inode(ctx, join(rel, name), &f, out)
		}
		if err != nil {
			return errors.Join(err, unix.Close(h.fd))
		}
		h.id = f.id
		n.t.opened(h)
		return nil
	})
	return child, h, err
}

// openFlags returns the flags for opening the file of a tier. Appended data comes with its
// offset, O_TRUNC is a separate request, and the kernel handles O_DIRECT itself.
func openFlags(flags uint32) int {
	return int(flags) & (unix.O_ACCMODE | unix.O_SYNC | unix.O_DSYNC | unix.O_NONBLOCK)
}

func (n *node) Open(_ context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	h := &handle{t: n.t, fd: -1, write: flags&unix.O_ACCMODE != unix.O_RDONLY}
	open := func(f *found) (err error) {
		h.id, h.tier = f.id, f.tier
		n.t.opened(h)
		var fd int
		if old := n.t.retiredOf(h.id); old != nil && f.tier != old.from {
			h.tier = old.from
			fd, err = openBeneath(n.t.tiers[old.from].private, old.name, unix.O_RDONLY, 0)
		} else {
			fd, err = f.open(openFlags(flags))
		}
		if err != nil {
			n.t.closed(h)
			return err
		}
		h.ready(fd)
		return nil
	}
	var err error
	if h.write {
		err = n.withWriter(open)
	} else {
		n.t.names.RLock()
		var f found
		if f, err = n.find(n.rel()); err == nil {
			err = open(&f)
		}
		f.close()
		n.t.names.RUnlock()
	}
	if err != nil {
		return nil, 0, errno(err)
	}
	return h, 0, 0
}

// made creates an entry with do, without opening it, and returns its inode.
func (n *node) made(ctx context.Context, name string, out *fuse.EntryOut, do func(dir int) error) (*fs.Inode, syscall.Errno) {
	var child *fs.Inode
	err := n.t.make(n.rel, func(i int) error {
		rel := n.rel()
		if hidden(join(rel, name)) {
			return unix.EPERM
		}
		dir, err := n.part(i, rel)
		if err != nil {
			return err
		}
		defer unix.Close(dir)
		if err := n.t.as(ctx, func() error { return do(dir) }); err != nil {
			return err
		}
		f, err := n.t.childOf(i, dir, name)
		if err != nil {
			return err
		}
		defer f.close()
		child, err = n.inode(ctx, join(rel, name), &f, out)
		return err
	})
	return child, errno(err)
}

func (n *node) Mkdir(ctx context.Context, name string, mode uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	return n.made(ctx, name, out, func(dir int) error { return unix.Mkdirat(dir, name, modeIn(dir, mode)&0o7777) })
}

func (n *node) Mknod(ctx context.Context, name string, mode, dev uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	return n.made(ctx, name, out, func(dir int) error { return unix.Mknodat(dir, name, modeIn(dir, mode), int(dev)) })
}

func (n *node) Symlink(ctx context.Context, target, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	return n.made(ctx, name, out, func(dir int) error { return unix.Symlinkat(target, dir, name) })
}

// Link creates a second name on the tier of the first. Files with two names are not moved.
func (n *node) Link(ctx context.Context, target fs.InodeEmbedder, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	other, ok := target.(*node)
	if !ok {
		return nil, syscall.EXDEV
	}
	n.t.names.Lock()
	defer n.t.names.Unlock()
	child, err := n.link(ctx, other, name, out)
	return child, errno(err)
}

func (n *node) link(ctx context.Context, other *node, name string, out *fuse.EntryOut) (*fs.Inode, error) {
	rel := n.rel()
	if hidden(join(rel, name)) {
		return nil, unix.EPERM
	}
	if err := other.takeBack(); err != nil {
		return nil, err
	}
	f, err := other.find(other.rel())
	if err != nil {
		return nil, err
	}
	defer f.close()
	if err := n.t.ensureDir(f.tier, rel); err != nil {
		return nil, err
	}
	dir, err := n.part(f.tier, rel)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	if err := unix.Linkat(unix.AT_FDCWD, fdPath(f.fd), dir, name, unix.AT_SYMLINK_FOLLOW); err != nil {
		return nil, err
	}
	if f.st, err = statFd(f.fd); err != nil {
		return nil, err
	}
	return n.inode(ctx, join(rel, name), &f, out)
}

func (n *node) Readlink(context.Context) (target []byte, number syscall.Errno) {
	err := n.reach(func(f *found) error {
		b := make([]byte, unix.PathMax)
		size, err := unix.Readlinkat(f.fd, "", b)
		target = b[:max(0, size)]
		return err
	})
	return target, errno(err)
}

func (n *node) Unlink(_ context.Context, name string) syscall.Errno {
	n.t.names.RLock()
	defer n.t.names.RUnlock()
	if hidden(join(n.rel(), name)) {
		return syscall.ENOENT
	}
	return errno(n.remove(name, 0))
}

func (n *node) Rmdir(_ context.Context, name string) syscall.Errno {
	return errno(n.removeDir(name))
}

// Rename is called by [inOrder], which holds names.
func (n *node) Rename(_ context.Context, name string, to fs.InodeEmbedder, newName string, flags uint32) syscall.Errno {
	dir, ok := to.(*node)
	if !ok {
		return syscall.EXDEV
	}
	return errno(n.rename(name, dir, newName, flags))
}

// capability is the attribute with the capabilities that a program gets.
const capability = "security.capability"

// ours reports whether an attribute belongs to the mount and is hidden.
func (t *tree) ours(name string) bool { return name == t.xattr }

func (n *node) Getxattr(_ context.Context, name string, dest []byte) (uint32, syscall.Errno) {
	if n.t.ours(name) || (name == aclAccess || name == aclDefault) && n.plain() {
		return 0, syscall.ENODATA
	}
	var size int
	get := func(f *found) (err error) {
		size, err = unix.Getxattr(fdPath(f.fd), name, dest)
		return err
	}
	if name == capability && n.dir == nil {
		// The kernel asks before the first write to an open file.
		if open, err := n.t.written(n.StableAttr().Ino, func(fd int) error { return get(&found{fd: fd}) }); open {
			return uint32(max(0, size)), errno(err)
		}
	}
	err := n.reachFirst(get)
	return uint32(max(0, size)), errno(err)
}

func (n *node) Listxattr(_ context.Context, dest []byte) (uint32, syscall.Errno) {
	var names []string
	err := n.reachFirst(func(f *found) (err error) {
		names, err = listXattrs(fdPath(f.fd))
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
	return n.changeXattr(name, func(f *found) error {
		if err := unix.Setxattr(fdPath(f.fd), name, value, int(flags&^killGroupID)); err != nil || flags&killGroupID == 0 {
			return err
		}
		st, err := statFd(f.fd) // the ACL has changed the mode
		if err != nil || st.Mode&unix.S_ISGID == 0 {
			return err
		}
		return chmodFd(f.fd, uint32(st.Mode)&^unix.S_ISGID)
	})
}

func (n *node) Removexattr(_ context.Context, name string) syscall.Errno {
	return n.changeXattr(name, func(f *found) error { return unix.Removexattr(fdPath(f.fd), name) })
}

func (n *node) changeXattr(name string, do func(f *found) error) syscall.Errno {
	if n.t.ours(name) {
		return syscall.EPERM
	}
	return errno(n.reach(do))
}

func (n *node) CopyFileRange(_ context.Context, in fs.FileHandle, offIn uint64, _ *fs.Inode, out fs.FileHandle, offOut, length, flags uint64) (uint32, syscall.Errno) {
	from, ok := in.(*handle)
	to, ok2 := out.(*handle)
	if !ok || !ok2 {
		return 0, syscall.ENOTSUP
	}
	i, o := int64(offIn), int64(offOut)
	var copied int
	err := n.t.unprivileged(func() (err error) {
		copied, err = unix.CopyFileRange(from.fd, &i, to.fd, &o, int(min(length, 1<<30)), int(flags))
		return err
	})
	return uint32(max(0, copied)), errno(err)
}

// handle is an open file.
type handle struct {
	t     *tree
	tier  int // where it was opened
	fd    int // -1 while it is being opened
	id    uint64
	write bool
}

var (
	_ = (fs.FileReader)((*handle)(nil))
	_ = (fs.FileWriter)((*handle)(nil))
	_ = (fs.FileLseeker)((*handle)(nil))
	_ = (fs.FileAllocater)((*handle)(nil))
	_ = (fs.FileReleaser)((*handle)(nil))
	_ = (fs.FilePassthroughFder)((*handle)(nil))
)

// ready sets the descriptor of a handle that opened has counted.
func (h *handle) ready(fd int) {
	h.t.mu.Lock()
	defer h.t.mu.Unlock()
	h.fd = fd
}

// PassthroughFd lets the kernel read and write without asking.
func (h *handle) PassthroughFd() (int, bool) { return h.fd, true }

func (h *handle) Read(_ context.Context, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	return fuse.ReadResultFd(uintptr(h.fd), off, len(dest)), 0
}

func (h *handle) Write(_ context.Context, data []byte, off int64) (uint32, syscall.Errno) {
	var n int
	err := h.t.unprivileged(func() (err error) {
		n, err = unix.Pwrite(h.fd, data, off)
		return err
	})
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
	return errno(h.t.unprivileged(func() error { return unix.Fallocate(h.fd, mode, int64(off), int64(size)) }))
}

func (h *handle) Release(context.Context) syscall.Errno {
	h.t.closed(h)
	return errno(unix.Close(h.fd))
}
