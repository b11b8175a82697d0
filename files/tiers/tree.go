package tiers

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"premix/internal/beneath"
	"premix/internal/exit"
	"premix/internal/lock"
)

// Private is a directory of each tier that a mount does not show. It holds copies that are
// not finished (copy-*), retired files (old-*), directories on their way into a tier (dir-*)
// and, once an identity is written in the tier, an empty file named stamped.
const Private = ".premix-tiers"

// stampFile says that identities are written in a tier; without it none is looked for.
const stampFile = "stamped"

// tier is an open tier. Paths in it are relative and followed without symbolic links, so
// that a link in the tree leads nowhere on this side of the mount.
type tier struct {
	Tier
	fd      int // the directory
	private int // Private in it
	stamped atomic.Bool
	used    atomic.Int64 // by its files, as last counted; only with a Capacity
}

// tree is the tiers together. Of its locks names is taken before mu.
type tree struct {
	tiers []*tier
	// names is held for reading while a path is looked up and used, and for writing by
	// whatever gives a name to something else: renames, moves, new directories in a tier.
	names  sync.RWMutex
	mu     sync.Mutex
	open   map[uint64]*openFile // by identity
	alias  map[string]uint64    // identities that a file system without xattrs cannot hold
	serial atomic.Uint64        // for names in Private
	xattr  string               // the attribute that holds identities
	root   bool                 // whether it is root that mounts, and so for all users
	caps   [2]unix.CapUserData  // of this process
	dirs   sync.Map             // what was told of directories: identity to weak.Pointer[dirState]
}

// openFile is a file that somebody has open or that is being moved.
type openFile struct {
	readers, writers int
	handles          []*handle
	moving           bool
	changed          bool // was opened for writing, or cut, since moving began
	old              *retired
}

// retired is what a file left behind on the tier that it came from.
type retired struct {
	from, to int    // tiers
	name     string // in Private of from
}

func openTree(list []Tier) (*tree, error) {
	t := &tree{open: map[uint64]*openFile{}, alias: map[string]uint64{}, xattr: "user.premix.tiers.id"}
	if t.root = os.Geteuid() == 0; t.root {
		t.xattr = "trusted.premix.tiers.id" // which users cannot forge
	}
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &t.caps[0]); err != nil {
		return nil, err
	}
	for _, c := range list {
		ti := &tier{Tier: c, fd: -1, private: -1}
		t.tiers = append(t.tiers, ti)
		var err error
		if ti.fd, err = unix.Open(c.Dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err == nil {
			if err = unix.Mkdirat(ti.fd, Private, 0o700); err == nil || errors.Is(err, unix.EEXIST) {
				ti.private, err = unix.Openat(ti.fd, Private, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
			}
		}
		if err == nil {
			err = checkPrivate(ti.private)
		}
		if err == nil {
			// One mount at a time: what is in Private belongs to it.
			if err = lock.Try(lock.Fd(ti.private), lock.Exclusive); errors.Is(err, lock.ErrHeld) {
				err = &BusyError{c}
			}
		}
		if err != nil {
			t.close()
			return nil, &DirError{c.Dir, err}
		}
		ti.stamped.Store(unix.Faccessat(ti.private, stampFile, unix.F_OK, 0) == nil)
	}
	return t, nil
}

var errForeign = errors.New(Private + " in it belongs to another user, or others may write there")

// checkPrivate refuses a directory in which others could replace the copies of a move.
func checkPrivate(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return errForeign
	}
	return unix.Fchmod(fd, 0o700)
}

func (t *tree) close() {
	for _, ti := range t.tiers {
		for _, fd := range []int{ti.private, ti.fd} {
			if fd >= 0 {
				unix.Close(fd) // only read through
			}
		}
	}
}

// DirError tells that a directory cannot be used as a tier or a mount point.
type DirError struct {
	Dir string
	Err error
}

func (e *DirError) Error() string { return fmt.Sprintf("%s: %v", e.Dir, e.Err) }

// ExitCode implements exit.Coded. It is the cause's where that has one.
func (e *DirError) ExitCode() exit.Code {
	if code := exit.Of(e.Err); code != exit.Internal {
		return code
	}
	return exit.Usage
}
func (e *DirError) Unwrap() error { return e.Err }

// Hint names the way out.
func (e *DirError) Hint() string {
	var busy *BusyError
	switch {
	case errors.As(e.Err, &busy):
		return "unmount the other one first, or give this one other tiers"
	case errors.Is(e.Err, errForeign):
		return "mount as its owner, or move " + Private + " away after a look at what lies there"
	case errors.Is(e.Err, fs.ErrNotExist):
		return "make the directory first"
	case errors.Is(e.Err, fs.ErrPermission), errors.Is(e.Err, unix.EROFS):
		return "mount as a user who may write there, such as root"
	case errors.Is(e.Err, unix.ENOSPC), errors.Is(e.Err, unix.EDQUOT):
		return "make some room there first"
	}
	return "mount on an empty directory, apart from the tiers"
}

// BusyError tells that a tier is in use by another mount.
type BusyError struct{ Tier Tier }

func (e *BusyError) Error() string { return "another mount uses tier " + e.Tier.Name }

// ExitCode implements exit.Coded.
func (*BusyError) ExitCode() exit.Code { return exit.Directory }

// hidden tells whether a path is below Private.
func hidden(rel string) bool { return rel == Private || strings.HasPrefix(rel, Private+"/") }

// openat opens a path of a tier without following links.
func (ti *tier) openat(rel string, flags int, mode uint32) (int, error) {
	if rel == "" {
		rel = "."
	}
	return openBeneath(ti.fd, rel, flags, mode)
}

// openBeneath opens a path beneath a directory without following links.
func openBeneath(dir int, rel string, flags int, mode uint32) (int, error) {
	return beneath.OpenAt(dir, rel, flags|unix.O_NOFOLLOW, mode)
}

// place is an entry of an open directory.
type place struct {
	dir  int
	name string
}

func (p place) close() { unix.Close(p.dir) } // only a place to look from

// place is closed after use.
func (ti *tier) place(rel string) (place, error) {
	dir, name := path.Split(rel)
	if name == "" {
		return place{-1, ""}, unix.EBUSY // the top of a tier has no name here
	}
	fd, err := ti.openat(strings.TrimSuffix(dir, "/"), unix.O_PATH|unix.O_DIRECTORY, 0)
	return place{fd, name}, err
}

const statMask = unix.STATX_BASIC_STATS | unix.STATX_BTIME

func statFd(fd int) (unix.Statx_t, error) {
	var st unix.Statx_t
	err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_NO_AUTOMOUNT, statMask, &st)
	return st, err
}

// fdPath is a path for system calls that take no descriptor, or none of O_PATH. It leads
// to the very file, which may be a link.
func fdPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// found is a file of a tier. It is held by O_PATH, so that what is checked and what is done
// concern the same file, whatever becomes of its name. Callers close it.
type found struct {
	tier int
	fd   int
	st   unix.Statx_t
	id   uint64
}

func (f *found) close() {
	if f.fd >= 0 {
		unix.Close(f.fd) // only a place to look from
		f.fd = -1
	}
}

func (f *found) kind() uint32    { return uint32(f.st.Mode) & unix.S_IFMT }
func (f *found) isDir() bool     { return f.kind() == unix.S_IFDIR }
func (f *found) isRegular() bool { return f.kind() == unix.S_IFREG }

// open opens the very file.
func (f *found) open(flags int) (int, error) {
	return unix.Open(fdPath(f.fd), flags|unix.O_CLOEXEC, 0)
}

// absent tells whether an error only says that a path is not in this tier.
func absent(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// find looks for a path in all tiers, the fastest first. Callers hold names.
func (t *tree) find(rel string) (found, error) {
	if hidden(rel) {
		return found{fd: -1}, unix.ENOENT
	}
	for i := range t.tiers {
		f, err := t.findIn(i, rel)
		if err == nil || !absent(err) {
			return f, err
		}
	}
	return found{fd: -1}, unix.ENOENT
}

func (t *tree) findIn(i int, rel string) (found, error) {
	fd, err := t.tiers[i].openat(rel, unix.O_PATH, 0)
	if err != nil {
		return found{fd: -1}, err
	}
	return t.foundFd(i, fd)
}

// foundFd is what a descriptor stands for, which it takes.
func (t *tree) foundFd(i, fd int) (found, error) {
	st, err := statFd(fd)
	if err != nil {
		unix.Close(fd) // only looked through
		return found{fd: -1}, err
	}
	return found{i, fd, st, t.identity(i, fd, &st)}, nil
}

// origin is the identity that a file has where it was made: two files never share it, even
// where one has the inode of the other, which is gone.
func (t *tree) origin(i int, st *unix.Statx_t) uint64 {
	var b [32]byte
	binary.LittleEndian.PutUint64(b[:], st.Ino)
	binary.LittleEndian.PutUint64(b[8:], uint64(st.Btime.Sec))
	binary.LittleEndian.PutUint64(b[16:], uint64(st.Btime.Nsec))
	binary.LittleEndian.PutUint64(b[24:], uint64(st.Dev_major)<<32|uint64(st.Dev_minor))
	sum := sha256.Sum256(append(b[:], t.tiers[i].Name...))
	// 0, 1 and all ones mean something to FUSE.
	return binary.LittleEndian.Uint64(sum[:])>>1 | 1<<62
}

// identity reads the identity of a file. One that came from another tier has it in an
// attribute of 16 bytes, the identity and the inode number that it is for: copies that
// others make of file and attributes have another inode, and an identity of their own.
func (t *tree) identity(i, fd int, st *unix.Statx_t) uint64 {
	kind := st.Mode & unix.S_IFMT
	if t.tiers[i].stamped.Load() && (kind == unix.S_IFREG || kind == unix.S_IFDIR) { // others never come from elsewhere
		var b [16]byte
		if n, err := unix.Getxattr(fdPath(fd), t.xattr, b[:]); err == nil && n == 16 && binary.LittleEndian.Uint64(b[8:]) == st.Ino {
			return binary.LittleEndian.Uint64(b[:])
		}
		t.mu.Lock()
		id, ok := t.alias[aliasKey(i, st)]
		t.mu.Unlock()
		if ok {
			return id
		}
	}
	return t.origin(i, st)
}

func aliasKey(i int, st *unix.Statx_t) string {
	return fmt.Sprint(i, st.Dev_major, st.Dev_minor, st.Ino, st.Btime)
}

// stamp writes an identity. Where the file system has no attributes, it is known for as
// long as the mount lasts.
func (t *tree) stamp(i, file int, id uint64) error {
	st, err := statFd(file)
	if err != nil {
		return err
	}
	ti := t.tiers[i]
	if !ti.stamped.Load() {
		fd, err := unix.Openat(ti.private, stampFile, unix.O_CREAT|unix.O_CLOEXEC|unix.O_WRONLY|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return err
		}
		unix.Close(fd) // nothing was written
		ti.stamped.Store(true)
	}
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:], id)
	binary.LittleEndian.PutUint64(b[8:], st.Ino)
	err = unix.Setxattr(fdPath(file), t.xattr, b[:], 0)
	if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		t.mu.Lock()
		t.alias[aliasKey(i, &st)] = id
		t.mu.Unlock()
		err = nil
	}
	return err
}

// privateName is a name in Private that nothing else has.
func (t *tree) privateName(kind string) string {
	return fmt.Sprintf("%s-%d-%d", kind, os.Getpid(), t.serial.Add(1))
}

// full tells whether new files had better go elsewhere: less than a hundredth is left.
func (ti *tier) full() bool {
	if ti.Capacity > 0 && ti.used.Load() >= ti.Capacity {
		return true
	}
	var s unix.Statfs_t
	if err := unix.Fstatfs(ti.fd, &s); err != nil {
		return false // whoever writes will be told
	}
	return s.Bavail <= s.Blocks/100
}

// noRoom tells whether another tier may have what this one has not.
func noRoom(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// make calls do with the tiers that something new may lie on until one has room for it.
// The parent directory is made there if it is missing; do may be called twice. Callers do
// not hold names.
func (t *tree) make(parent func() string, do func(i int) error) error {
	var err error
	for i, ti := range t.tiers {
		if i < len(t.tiers)-1 && ti.full() {
			continue
		}
		t.names.RLock()
		err = do(i)
		t.names.RUnlock()
		if errors.Is(err, unix.ENOENT) {
			t.names.Lock()
			if err = t.ensureDir(i, parent()); err == nil {
				err = do(i)
			}
			t.names.Unlock()
		}
		if !noRoom(err) {
			return err
		}
	}
	return err
}

func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

func parent(rel string) string {
	if dir := path.Dir(rel); dir != "." {
		return dir
	}
	return ""
}

// ensureDir makes a directory that another tier has in this one, too: aside, with owner, mode,
// attributes, times and identity, and then in place. It is on the disk when it returns, like
// the directory that it is like. Callers hold names for writing.
func (t *tree) ensureDir(i int, rel string) error {
	if rel == "" {
		return nil
	}
	ti := t.tiers[i]
	f, err := t.findIn(i, rel)
	if err == nil {
		defer f.close()
		if !f.isDir() {
			return unix.ENOTDIR
		}
		return nil
	} else if !absent(err) {
		return err
	}
	if f, err = t.find(rel); err != nil {
		return err
	}
	defer f.close()
	if !f.isDir() {
		return unix.ENOTDIR
	}
	if err := t.ensureDir(i, parent(rel)); err != nil {
		return err
	}
	name := t.privateName("dir")
	if err := unix.Mkdirat(ti.private, name, 0o700); err != nil {
		return err
	}
	made, err := openBeneath(ti.private, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err == nil {
		defer unix.Close(made)
		if err = copyMeta(made, f.fd, &f.st, t.xattr); err == nil {
			err = t.stamp(i, made, f.id)
		}
		if err == nil {
			err = unix.Fsync(made)
		}
	}
	if err == nil {
		var to place
		if to, err = ti.place(rel); err == nil {
			defer to.close()
			restore := keepTimes(ti, parent(rel))
			if err = unix.Renameat2(ti.private, name, to.dir, to.name, unix.RENAME_NOREPLACE); err == nil {
				restore()
				return syncDir(ti, parent(rel))
			}
		}
	}
	return errors.Join(err, unix.Unlinkat(ti.private, name, unix.AT_REMOVEDIR))
}

// keepTimes remembers the times of a directory in which only premix changes something, and
// gives a function that restores them. They are a nicety: errors are left out.
func keepTimes(ti *tier, rel string) func() {
	fd, err := ti.openat(rel, unix.O_DIRECTORY|unix.O_RDONLY, 0)
	if err != nil {
		return func() {}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return func() {}
	}
	return func() {
		_ = unix.UtimesNanoAt(fd, "", []unix.Timespec{st.Atim, st.Mtim}, unix.AT_EMPTY_PATH)
		unix.Close(fd)
	}
}

// copyMeta gives an open file or directory owner, attributes, mode and times of another one.
func copyMeta(to, from int, st *unix.Statx_t, except string) error {
	if now, err := statFd(to); err != nil {
		return err
	} else if now.Uid != st.Uid || now.Gid != st.Gid {
		if err := unix.Fchownat(to, "", int(st.Uid), int(st.Gid), unix.AT_EMPTY_PATH); err != nil {
			return err
		}
	}
	names, err := listXattrs(fdPath(from))
	if err != nil {
		return err
	}
	for _, name := range names {
		if name == except {
			continue
		}
		value, err := getXattr(fdPath(from), name)
		if err != nil {
			return fmt.Errorf("attribute %s: %w", name, err)
		}
		if there, err := getXattr(fdPath(to), name); err == nil && string(there) == string(value) {
			continue
		}
		if err := unix.Setxattr(fdPath(to), name, value, 0); err != nil {
			return fmt.Errorf("attribute %s: %w", name, err)
		}
	}
	if err := chmodFd(to, uint32(st.Mode)); err != nil {
		return err
	}
	return unix.UtimesNanoAt(to, "", []unix.Timespec{timespec(st.Atime), timespec(st.Mtime)}, unix.AT_EMPTY_PATH)
}

// chmodFd changes the mode of a file that is no link, which O_PATH may hold.
func chmodFd(fd int, mode uint32) error { return unix.Chmod(fdPath(fd), mode&0o7777) }

func timespec(ts unix.StatxTimestamp) unix.Timespec {
	return unix.Timespec{Sec: ts.Sec, Nsec: int64(ts.Nsec)}
}

func listXattrs(path string) ([]string, error) {
	for {
		n, err := unix.Listxattr(path, nil)
		if errors.Is(err, unix.ENOTSUP) || err == nil && n == 0 {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		b := make([]byte, n)
		n, err = unix.Listxattr(path, b)
		if errors.Is(err, unix.ERANGE) {
			continue
		}
		if err != nil {
			return nil, err
		}
		names := strings.Split(string(b[:n]), "\x00")
		return slices.DeleteFunc(names, func(s string) bool { return s == "" }), nil
	}
}

func getXattr(path, name string) ([]byte, error) {
	for {
		n, err := unix.Getxattr(path, name, nil)
		if err != nil {
			return nil, err
		}
		b := make([]byte, n+1)
		n, err = unix.Getxattr(path, name, b)
		if errors.Is(err, unix.ERANGE) {
			continue
		}
		return b[:max(0, n)], err
	}
}

// entries lists the parts of a directory together: names and kinds. Each descriptor is
// that of a directory.
func entries(parts []int, top bool) (map[string]uint32, error) {
	all := map[string]uint32{}
	for _, part := range parts {
		fd, err := openBeneath(part, ".", unix.O_DIRECTORY|unix.O_RDONLY, 0)
		if err != nil {
			return nil, err
		}
		dir := os.NewFile(uintptr(fd), ".")
		list, err := dir.ReadDir(-1)
		dir.Close() // only read
		if err != nil {
			return nil, err
		}
		for _, e := range list {
			if _, ok := all[e.Name()]; !ok && !(top && e.Name() == Private) {
				all[e.Name()] = kind(e.Type())
			}
		}
	}
	return all, nil
}

func kind(m os.FileMode) uint32 {
	switch {
	case m.IsDir():
		return unix.S_IFDIR
	case m&os.ModeSymlink != 0:
		return unix.S_IFLNK
	case m&os.ModeNamedPipe != 0:
		return unix.S_IFIFO
	case m&os.ModeSocket != 0:
		return unix.S_IFSOCK
	case m&os.ModeCharDevice != 0:
		return unix.S_IFCHR
	case m&os.ModeDevice != 0:
		return unix.S_IFBLK
	}
	return unix.S_IFREG
}

// opened counts one more who has a file open. Callers hold names.
func (t *tree) opened(h *handle) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.open[h.id]
	if o == nil {
		o = &openFile{}
		t.open[h.id] = o
	}
	o.handles = append(o.handles, h)
	if h.write {
		o.writers++
		o.changed = true
	} else {
		o.readers++
	}
}

// closed counts one fewer. With the last one a retired file goes. The descriptor of the
// handle is open until it returns.
func (t *tree) closed(h *handle) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.open[h.id]
	if i := slices.Index(o.handles, h); i >= 0 {
		o.handles = slices.Delete(o.handles, i, i+1)
	}
	if h.write {
		o.writers--
	} else {
		o.readers--
	}
	if o.readers+o.writers > 0 {
		return
	}
	if o.old != nil {
		// What cannot be unlinked now goes when the tiers are mounted again.
		_ = unix.Unlinkat(t.tiers[o.old.from].private, o.old.name, 0)
		o.old = nil
	}
	if !o.moving {
		delete(t.open, h.id)
	}
}

// nameless finds a file that is open and has no name any more, or none yet.
func (t *tree) nameless(id uint64) (found, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.open[id]
	if o == nil {
		return found{fd: -1}, unix.ESTALE
	}
	for _, h := range o.handles {
		if h.fd < 0 {
			continue // it is being opened
		}
		fd, err := unix.Open(fdPath(h.fd), unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return found{fd: -1}, err
		}
		st, err := statFd(fd)
		if err != nil {
			unix.Close(fd) // only looked through
			return found{fd: -1}, err
		}
		if o.old != nil {
			st.Nlink = 0 // the name that it has is our own
		}
		return found{h.tier, fd, st, id}, nil
	}
	return found{fd: -1}, unix.ESTALE
}

// retiredOf is what a file left behind, nil if there is nothing.
func (t *tree) retiredOf(id uint64) *retired {
	t.mu.Lock()
	defer t.mu.Unlock()
	if o := t.open[id]; o != nil {
		return o.old
	}
	return nil
}
