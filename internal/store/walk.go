package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/store/erofs"
)

// retries is how many times a file that changes during reading is read again.
const retries = 3

// pathMax is the longest path that a system call accepts, with its final NUL (PATH_MAX,
// path_resolution(7)). Trees may be deeper.
const pathMax = 4096

// entry is one name in the directory being published. Names that are hard links of one
// file share a node.
type entry struct {
	parent *entry // nil for the root
	name   string
	stamp  stamp
	nlink  uint64
	node   *erofs.Node
	below  []*entry // of a directory, in order of names
}

// stamp identifies a state of a file.
type stamp struct {
	dev, ino              uint64
	size                  int64
	mtimeSec, mtimeNsec   int64
	changeSec, changeNsec int64
}

func stampOf(st *unix.Stat_t) stamp {
	return stamp{uint64(st.Dev), st.Ino, st.Size, st.Mtim.Sec, st.Mtim.Nsec, st.Ctim.Sec, st.Ctim.Nsec}
}

// path returns the path below the root, "." for the root.
func (e *entry) path() string {
	if e.parent == nil {
		return "."
	}
	n := 0
	for at := e; at.parent != nil; at = at.parent {
		n += len(at.name) + 1
	}
	p := make([]byte, n)
	for at := e; at.parent != nil; at = at.parent {
		n -= len(at.name) + 1
		copy(p[n:], at.name)
		p[n+len(at.name)] = '/'
	}
	return string(p[:len(p)-1])
}

// walker reads the entries of directories with their metadata, but not contents.
type walker struct {
	ctx    context.Context
	tokens chan struct{} // one for each further goroutine
	wg     sync.WaitGroup
	seen   func(entries int) // called with the number of entries seen, from any goroutine

	mu  sync.Mutex
	err error
}

// walk reads the tree below the open directory root. It reads directories in parallel;
// the result does not depend on their order.
func walk(ctx context.Context, root *os.File, seen func(entries int)) (*entry, error) {
	w := &walker{ctx: ctx, tokens: make(chan struct{}, 2*runtime.GOMAXPROCS(0)), seen: seen}
	var st unix.Stat_t
	if err := unix.Fstat(int(root.Fd()), &st); err != nil {
		return nil, sourceError(".", err)
	}
	top := &entry{}
	if err := top.fill(&st, int(root.Fd()), "."); err != nil {
		return nil, sourceError(".", err)
	}
	dir, err := openat(int(root.Fd()), ".", unix.O_DIRECTORY)
	if err != nil {
		return nil, sourceError(".", err)
	}
	w.directory(top, dir)
	w.wg.Wait()
	if w.err != nil {
		return nil, w.err
	}
	shareLinks(top)
	return top, nil
}

// fail keeps the first error.
func (w *walker) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
	}
}

func (w *walker) stopped() bool {
	if err := context.Cause(w.ctx); err != nil {
		w.fail(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err != nil
}

// directory reads the entries of e and below, and closes dir, e's open directory.
func (w *walker) directory(e *entry, dir *os.File) {
	if w.stopped() {
		dir.Close()
		return
	}
	var err error
	for try := range retries + 1 {
		var again bool
		if again, err = e.list(dir); err != nil || !again {
			break
		}
		err = &SourceError{Path: e.path(), Reason: "it changes while it is being read", HintText: "publish while no program writes to it, or publish a copy"}
		time.Sleep(time.Duration(try) * 10 * time.Millisecond)
	}
	if err != nil {
		dir.Close()
		w.fail(err)
		return
	}
	w.seen(len(e.below))
	for _, c := range e.below {
		if c.node.Mode&unix.S_IFMT != unix.S_IFDIR {
			continue
		}
		sub, err := openat(int(dir.Fd()), c.name, unix.O_DIRECTORY)
		if err != nil {
			w.fail(sourceError(c.path(), err))
			break
		}
		select {
		case w.tokens <- struct{}{}:
			w.wg.Go(func() {
				defer func() { <-w.tokens }()
				w.directory(c, sub)
			})
		default:
			w.directory(c, sub)
		}
	}
	dir.Close()
}

// list reads the entries of a directory. It reports whether they must be read again
// because the directory changed while it was read.
func (e *entry) list(dir *os.File) (again bool, err error) {
	fd := int(dir.Fd())
	var before, after unix.Stat_t
	if err := unix.Fstat(fd, &before); err != nil {
		return false, sourceError(e.path(), err)
	}
	if _, err := dir.Seek(0, 0); err != nil {
		return false, sourceError(e.path(), err)
	}
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return false, sourceError(e.path(), err)
	}
	slices.Sort(names)
	e.below = make([]*entry, 0, len(names))
	for _, n := range names {
		c := &entry{parent: e, name: n}
		var st unix.Stat_t
		err := unix.Fstatat(fd, n, &st, unix.AT_SYMLINK_NOFOLLOW)
		if err == nil {
			err = c.fill(&st, fd, n)
		}
		if errors.Is(err, unix.ENOENT) {
			return true, nil
		}
		if err != nil {
			return false, sourceError(c.path(), err)
		}
		e.below = append(e.below, c)
	}
	if err := unix.Fstat(fd, &after); err != nil {
		return false, sourceError(e.path(), err)
	}
	if stampOf(&before) != stampOf(&after) {
		return true, nil
	}
	// It may have changed since its parent was read.
	return false, e.refill(&after, fd, ".")
}

// refill updates an entry, keeping its node's address.
func (e *entry) refill(st *unix.Stat_t, fd int, name string) error {
	if stampOf(st) == e.stamp {
		return nil
	}
	fresh := &entry{parent: e.parent, name: e.name}
	if err := fresh.fill(st, fd, name); err != nil {
		return sourceError(e.path(), err)
	}
	e.stamp, e.nlink = fresh.stamp, fresh.nlink
	*e.node = *fresh.node
	return nil
}

// fill sets the metadata of an entry from st, and reads its attributes and, of a
// symbolic link, its target. The entry is called name in the directory fd.
func (e *entry) fill(st *unix.Stat_t, fd int, name string) error {
	e.stamp, e.nlink = stampOf(st), uint64(st.Nlink)
	n := &erofs.Node{Mode: st.Mode, UID: st.Uid, GID: st.Gid, Sec: st.Mtim.Sec, Nsec: uint32(st.Mtim.Nsec)}
	e.node = n
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		n.Size = st.Size
	case unix.S_IFCHR, unix.S_IFBLK:
		n.Rdev = st.Rdev
	case unix.S_IFLNK:
		buf := make([]byte, pathMax)
		l, err := unix.Readlinkat(fd, name, buf)
		if err != nil {
			return err
		}
		n.Target = string(buf[:l])
	}
	var err error
	// The calls for attributes take only a path; this one begins at the directory.
	path := fmt.Sprintf("/proc/self/fd/%d/%s", fd, name)
	n.Xattrs, err = xattrs(
		func(p []byte) (int, error) { return unix.Llistxattr(path, p) },
		func(name string, p []byte) (int, error) { return unix.Lgetxattr(path, name, p) })
	return err
}

// refresh updates the metadata of a regular file that has changed since walk.
func (e *entry) refresh(st *unix.Stat_t, fd int) error {
	attributes, err := xattrs(
		func(p []byte) (int, error) { return unix.Flistxattr(fd, p) },
		func(name string, p []byte) (int, error) { return unix.Fgetxattr(fd, name, p) })
	if err != nil {
		return err
	}
	e.stamp, e.nlink = stampOf(st), uint64(st.Nlink)
	*e.node = erofs.Node{
		Mode: st.Mode, UID: st.Uid, GID: st.Gid, Sec: st.Mtim.Sec, Nsec: uint32(st.Mtim.Nsec),
		Size: st.Size, Xattrs: attributes,
	}
	return nil
}

// xattrs reads extended attributes with list and get.
func xattrs(list func([]byte) (int, error), get func(string, []byte) (int, error)) (map[string][]byte, error) {
	var small [1024]byte
	names, err := growing(small[:], list)
	if errors.Is(err, unix.ENOTSUP) || err == nil && len(names) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list its extended attributes: %w", err)
	}
	var all map[string][]byte
	for name := range bytes.SplitSeq(names[:len(names)-1], []byte{0}) {
		name := string(name)
		if !carried(name) {
			continue
		}
		value, err := growing(nil, func(p []byte) (int, error) { return get(name, p) })
		if errors.Is(err, unix.ENODATA) {
			continue // removed since, or not accessible to this user
		}
		if err != nil {
			return nil, fmt.Errorf("read its extended attribute %s: %w", name, err)
		}
		if err := erofs.CheckXattr(name, value); err != nil {
			return nil, err
		}
		if all == nil {
			all = map[string][]byte{}
		}
		all[name] = value
	}
	return all, nil
}

// carried reports whether an attribute becomes part of a tree: see the package comment.
func carried(name string) bool {
	for _, p := range []string{"user.", "trusted.", "security.", "system.posix_acl_access", "system.posix_acl_default"} {
		if strings.HasPrefix(name, p) {
			return name != "security.selinux"
		}
	}
	return false
}

// growing calls f with larger buffers, at first buf, until its result fits.
func growing(buf []byte, f func([]byte) (int, error)) ([]byte, error) {
	for {
		if len(buf) == 0 { // f would only return the size
			n, err := f(nil)
			if err != nil || n == 0 {
				return []byte{}, err
			}
			buf = make([]byte, n)
		}
		n, err := f(buf)
		if errors.Is(err, unix.ERANGE) {
			buf = nil
			continue
		}
		if err != nil {
			return nil, err
		}
		return buf[:n], nil
	}
}

// shareLinks gives all names of a file the same node.
func shareLinks(e *entry) {
	type inode struct{ dev, ino uint64 }
	nodes := map[inode]*erofs.Node{}
	var visit func(*entry)
	visit = func(e *entry) {
		for _, c := range e.below {
			if c.nlink > 1 && c.node.Mode&unix.S_IFMT != unix.S_IFDIR {
				id := inode{c.stamp.dev, c.stamp.ino}
				if n, ok := nodes[id]; ok {
					c.node = n
				} else {
					nodes[id] = c.node
				}
			}
			visit(c)
		}
	}
	visit(e)
}

// openat opens an entry of a directory for reading, without following a link or waiting
// for the other end of a FIFO. It preserves the access time if the system permits that.
func openat(fd int, name string, flags int) (*os.File, error) {
	flags |= unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	for noatime := unix.O_NOATIME; ; {
		sub, err := unix.Openat(fd, name, flags|noatime, 0)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EPERM) && noatime != 0:
			noatime = 0
		case err != nil:
			return nil, &fs.PathError{Op: "open", Path: name, Err: err}
		default:
			return os.NewFile(uintptr(sub), name), nil
		}
	}
}

// openBelow opens a file by its path, of any length, below an open directory.
func openBelow(root *os.File, name string) (*os.File, error) {
	at := root
	for len(name) >= pathMax {
		cut := strings.LastIndexByte(name[:pathMax], '/')
		next, err := openat(int(at.Fd()), name[:cut], unix.O_DIRECTORY)
		if at != root {
			at.Close()
		}
		if err != nil {
			return nil, err
		}
		at, name = next, name[cut+1:]
	}
	f, err := openat(int(at.Fd()), path.Clean(name), 0)
	if at != root {
		at.Close()
	}
	return f, err
}
