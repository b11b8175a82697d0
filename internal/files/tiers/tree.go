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

	"premix/internal/files/content"
	"premix/internal/kit/beneath"
	"premix/internal/kit/exit"
	"premix/internal/kit/lock"
)

// Private is a directory of each tier that a mount does not show. It holds unfinished
// copies (copy-*), retired files (old-*), directories before they appear in a tier (dir-*),
// and an empty file named stamped as soon as the tier has stored an identity.
const Private = ".premix-tiers"

// stampFile marks a tier with stored identities; without it they are not read.
const stampFile = "stamped"

// tier is an open tier. Its paths are relative and resolved without following symbolic
// links, so that a link in the tree cannot lead out of it here.
type tier struct {
	Tier
	fd      int // the directory
	private int // the directory Private in it
	stamped atomic.Bool
	used    atomic.Int64 // by its files, as last counted; only with a Capacity
}

// tree is the union of the tiers. Lock order: names before mu.
type tree struct {
	tiers []*tier
	// names is held for reading while a path is looked up and used, and for writing by
	// operations that change the meaning of names: renames, moves, new directories in a
	// tier.
	names  sync.RWMutex
	mu     sync.Mutex
	open   map[uint64]*openFile // by identity
	alias  map[string]uint64    // identities that the file system cannot store for lack of xattrs
	serial atomic.Uint64        // for names in Private
	xattr  string               // the attribute that holds identities
	root   bool                 // whether root mounts, and so for all users
	caps   [2]unix.CapUserData  // of this process
	dirs   sync.Map             // state of directories: identity to weak.Pointer[dirState]
}

// openFile is a file that is open or being moved.
type openFile struct {
	readers, writers int
	handles          []*handle
	moving           bool
	changed          bool // was opened for writing, or truncated, since the move began
	old              *retired
}

// retired is the file that a move left on the source tier for its readers.
type retired struct {
	from, to int    // tiers
	name     string // file name in Private of tier from
}

func openTree(list []Tier) (*tree, error) {
	t := &tree{open: map[uint64]*openFile{}, alias: map[string]uint64{}, xattr: "user.premix.tiers.id"}
	if t.root = os.Geteuid() == 0; t.root {
		t.xattr = "trusted.premix.tiers.id" // users cannot forge it
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
			// Permit one mount at a time: files in Private belong to it.
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

// checkPrivate refuses a directory in which other users could replace the copies of a move.
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
				unix.Close(fd) // a close after reading cannot lose data
			}
		}
	}
}

// DirError is returned for a directory that cannot be used as a tier or mount point.
type DirError struct {
	Dir string
	Err error
}

func (e *DirError) Error() string { return fmt.Sprintf("%s: %v", e.Dir, e.Err) }

// ExitCode implements exit.Coded. It is the exit code of the cause, if that has one.
func (e *DirError) ExitCode() exit.Code {
	if code := exit.Of(e.Err); code != exit.Internal {
		return code
	}
	return exit.Usage
}
func (e *DirError) Unwrap() error { return e.Err }

// Hint returns the way to resolve the error.
func (e *DirError) Hint() string {
	var busy *BusyError
	switch {
	case errors.As(e.Err, &busy):
		return "unmount the other one first, or use other tiers"
	case errors.Is(e.Err, errForeign):
		return "mount as its owner, or check the files there and move " + Private + " away"
	case errors.Is(e.Err, fs.ErrNotExist):
		return "make the directory first"
	case errors.Is(e.Err, fs.ErrPermission), errors.Is(e.Err, unix.EROFS):
		return "mount as a user who may write there, such as root"
	case errors.Is(e.Err, unix.ENOSPC), errors.Is(e.Err, unix.EDQUOT):
		return "free some space there first"
	}
	return "mount on an empty directory, apart from the tiers"
}

// BusyError is returned for a tier that another mount uses.
type BusyError struct{ Tier Tier }

func (e *BusyError) Error() string { return "another mount uses tier " + e.Tier.Name }

// ExitCode implements exit.Coded.
func (*BusyError) ExitCode() exit.Code { return exit.Directory }

// hidden reports whether a path is Private or the directory with the copies of a policy, or
// below one of them.
func hidden(rel string) bool {
	top, _, _ := strings.Cut(rel, "/")
	return top == Private || top == content.Copies
}

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

func (p place) close() { unix.Close(p.dir) } // closing an O_PATH descriptor cannot fail

// place returns the place of a path. The caller closes it.
func (ti *tier) place(rel string) (place, error) {
	dir, name := path.Split(rel)
	if name == "" {
		return place{-1, ""}, unix.EBUSY // the top of a tier cannot be renamed or removed
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

// fdPath returns a path for system calls that take no descriptor, or no O_PATH descriptor.
// It refers to the same file, even if that is a link.
func fdPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// found is a file of a tier, held by an O_PATH descriptor, so that checks and operations
// refer to the same file, even if it is renamed. Callers close it.
type found struct {
	tier int
	fd   int
	st   unix.Statx_t
	id   uint64
}

func (f *found) close() {
	if f.fd >= 0 {
		unix.Close(f.fd) // closing an O_PATH descriptor cannot fail
		f.fd = -1
	}
}

func (f *found) kind() uint32    { return uint32(f.st.Mode) & unix.S_IFMT }
func (f *found) isDir() bool     { return f.kind() == unix.S_IFDIR }
func (f *found) isRegular() bool { return f.kind() == unix.S_IFREG }

// open opens the same file.
func (f *found) open(flags int) (int, error) {
	return unix.Open(fdPath(f.fd), flags|unix.O_CLOEXEC, 0)
}

// absent reports whether an error only means that a path is not in this tier.
func absent(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// find looks a path up in all tiers, the fastest first. Callers hold names.
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

// foundFd returns the file of a descriptor, which it takes over.
func (t *tree) foundFd(i, fd int) (found, error) {
	st, err := statFd(fd)
	if err != nil {
		unix.Close(fd) // closing an O_PATH descriptor cannot fail
		return found{fd: -1}, err
	}
	return found{i, fd, st, t.identity(i, fd, &st)}, nil
}

// origin returns the identity of a file on the tier where it was created. Two files never
// have the same one, even if one has the inode of the other, which was removed.
func (t *tree) origin(i int, st *unix.Statx_t) uint64 {
	var b [32]byte
	binary.LittleEndian.PutUint64(b[:], st.Ino)
	binary.LittleEndian.PutUint64(b[8:], uint64(st.Btime.Sec))
	binary.LittleEndian.PutUint64(b[16:], uint64(st.Btime.Nsec))
	binary.LittleEndian.PutUint64(b[24:], uint64(st.Dev_major)<<32|uint64(st.Dev_minor))
	sum := sha256.Sum256(append(b[:], t.tiers[i].Name...))
	// 0, 1 and all ones have a special meaning in FUSE.
	return binary.LittleEndian.Uint64(sum[:])>>1 | 1<<62
}

// identity returns the identity of a file. A file from another tier has it in an attribute
// of 16 bytes: the identity, and the inode number that it belongs to. If a program copies
// the file with its attributes, the copy has another inode, and an identity of its own.
func (t *tree) identity(i, fd int, st *unix.Statx_t) uint64 {
	kind := st.Mode & unix.S_IFMT
	if t.tiers[i].stamped.Load() && (kind == unix.S_IFREG || kind == unix.S_IFDIR) { // files of other types are never moved
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

// stamp stores an identity. If the file system does not support attributes, it is kept in
// memory until the mount ends.
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
		unix.Close(fd) // no data was written
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

// privateName returns an unused name in Private.
func (t *tree) privateName(kind string) string {
	return fmt.Sprintf("%s-%d-%d", kind, os.Getpid(), t.serial.Add(1))
}

// full reports whether new files should go to another tier: less than a hundredth of the
// space is left.
func (ti *tier) full() bool {
	if ti.Capacity > 0 && ti.used.Load() >= ti.Capacity {
		return true
	}
	var s unix.Statfs_t
	if err := unix.Fstatfs(ti.fd, &s); err != nil {
		return false // the write will return the error
	}
	return s.Bavail <= s.Blocks/100
}

// noRoom reports whether an error means that the tier is full, so that another tier may
// have space.
func noRoom(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// make calls do with the tiers for a new entry, one after another, until one has space for
// it. It creates the parent directory there if it is missing. It may call do twice. Callers
// do not hold names.
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

// ensureDir creates in a tier a directory that another tier has: first in Private, with
// owner, mode, attributes, times and identity, and then in place. When it returns, the
// directory is on the disk, as is the one it was copied from. Callers hold names for
// writing.
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

// keepTimes returns a function that restores the times of a directory in which only premix
// changes entries. It ignores errors, because the times are not essential.
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

// copyMeta copies owner, attributes, mode and times from one open file or directory to
// another.
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
	if err := content.DropACLs(fdPath(to), names); err != nil {
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

// chmodFd changes the mode of a file that is not a link. fd may be an O_PATH descriptor.
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

// entries merges the lists of the parts of a directory: names and types. Each of parts is
// the descriptor of a directory.
func entries(parts []int, top bool) (map[string]uint32, error) {
	all := map[string]uint32{}
	for _, part := range parts {
		fd, err := openBeneath(part, ".", unix.O_DIRECTORY|unix.O_RDONLY, 0)
		if err != nil {
			return nil, err
		}
		dir := os.NewFile(uintptr(fd), ".")
		list, err := dir.ReadDir(-1)
		dir.Close() // a close after reading cannot lose data
		if err != nil {
			return nil, err
		}
		for _, e := range list {
			if _, ok := all[e.Name()]; !ok && !(top && hidden(e.Name())) {
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

// opened counts one more open handle of a file. Callers hold names.
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

// closed counts one open handle less. With the last one it removes a retired file. The
// descriptor of the handle stays open until closed returns.
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
		// If it cannot be removed now, the next mount of the tiers removes it.
		_ = unix.Unlinkat(t.tiers[o.old.from].private, o.old.name, 0)
		o.old = nil
	}
	if !o.moving {
		delete(t.open, h.id)
	}
}

// nameless finds an open file that has no name any more, or not yet.
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
			unix.Close(fd) // closing an O_PATH descriptor cannot fail
			return found{fd: -1}, err
		}
		if o.old != nil {
			st.Nlink = 0 // its only name is in Private
		}
		return found{h.tier, fd, st, id}, nil
	}
	return found{fd: -1}, unix.ESTALE
}

// written calls do with the descriptor of a file that is open for writing, which cannot have
// moved. It reports whether the file is.
func (t *tree) written(id uint64, do func(fd int) error) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.open[id]
	if o == nil || o.writers == 0 || o.old != nil {
		return false, nil
	}
	for _, h := range o.handles {
		if h.write && h.fd >= 0 {
			return true, do(h.fd)
		}
	}
	return false, nil
}

// retiredOf returns the retired file of a moved file, or nil.
func (t *tree) retiredOf(id uint64) *retired {
	t.mu.Lock()
	defer t.mu.Unlock()
	if o := t.open[id]; o != nil {
		return o.old
	}
	return nil
}
