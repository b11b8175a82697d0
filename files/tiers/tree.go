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
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
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
	root   bool                 // whether it is root that mounts
}

// openFile is a file that somebody has open or that is being moved.
type openFile struct {
	readers, writers int
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
			// One mount at a time: what is in Private belongs to it.
			if err = unix.Flock(ti.private, unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
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
func (e *DirError) Unwrap() error { return e.Err }

// Hint names the way out.
func (e *DirError) Hint() string {
	var busy *BusyError
	switch {
	case errors.As(e.Err, &busy):
		return "unmount the other one first, or give this one other tiers"
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

// hidden tells whether a path is below Private.
func hidden(rel string) bool { return rel == Private || strings.HasPrefix(rel, Private+"/") }

// openat opens a path of a tier without following links.
func (ti *tier) openat(rel string, flags int, mode uint32) (int, error) {
	if rel == "" {
		rel = "."
	}
	for {
		fd, err := unix.Openat2(ti.fd, rel, &unix.OpenHow{
			Flags: uint64(flags | unix.O_CLOEXEC | unix.O_NOFOLLOW), Mode: uint64(mode), Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
		})
		// A rename elsewhere during the walk makes it EAGAIN; see openat2(2).
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return fd, err
		}
	}
}

// place is an entry of an open directory. It is closed after use.
type place struct {
	dir  int
	name string
	own  bool // dir is the place's own
}

func (ti *tier) place(rel string) (place, error) {
	dir, name := path.Split(rel)
	if rel == "" {
		return place{dir: ti.fd, name: "."}, nil
	}
	if dir == "" {
		return place{dir: ti.fd, name: name}, nil
	}
	fd, err := ti.openat(strings.TrimSuffix(dir, "/"), unix.O_PATH|unix.O_DIRECTORY, 0)
	return place{fd, name, true}, err
}

func (p place) close() {
	if p.own {
		unix.Close(p.dir) // only a place to look from
	}
}

// proc is a path for system calls that know no directories; its last part is not followed
// by those that begin with l.
func (p place) proc() string { return fmt.Sprintf("/proc/self/fd/%d/%s", p.dir, p.name) }

const statMask = unix.STATX_BASIC_STATS | unix.STATX_BTIME

func (p place) stat() (unix.Statx_t, error) {
	var st unix.Statx_t
	err := unix.Statx(p.dir, p.name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, statMask, &st)
	return st, err
}

// found is where a path is.
type found struct {
	tier int
	st   unix.Statx_t
	id   uint64
}

func (f *found) isDir() bool     { return f.st.Mode&unix.S_IFMT == unix.S_IFDIR }
func (f *found) isRegular() bool { return f.st.Mode&unix.S_IFMT == unix.S_IFREG }

// absent tells whether an error only says that a path is not in this tier.
func absent(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// find looks for a path in all tiers, the fastest first. Callers hold names.
func (t *tree) find(rel string) (found, error) {
	if hidden(rel) {
		return found{}, unix.ENOENT
	}
	for i := range t.tiers {
		f, err := t.findIn(i, rel)
		if err == nil || !absent(err) {
			return f, err
		}
	}
	return found{}, unix.ENOENT
}

func (t *tree) findIn(i int, rel string) (found, error) {
	p, err := t.tiers[i].place(rel)
	if err != nil {
		return found{}, err
	}
	defer p.close()
	st, err := p.stat()
	if err != nil {
		return found{}, err
	}
	return found{i, st, t.identity(i, p, &st)}, nil
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
func (t *tree) identity(i int, p place, st *unix.Statx_t) uint64 {
	if t.tiers[i].stamped.Load() {
		var b [16]byte
		if n, err := unix.Lgetxattr(p.proc(), t.xattr, b[:]); err == nil && n == 16 && binary.LittleEndian.Uint64(b[8:]) == st.Ino {
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
func (t *tree) stamp(i int, p place, id uint64) error {
	st, err := p.stat()
	if err != nil {
		return err
	}
	ti := t.tiers[i]
	if !ti.stamped.Load() {
		fd, err := unix.Openat(ti.private, stampFile, unix.O_CREAT|unix.O_CLOEXEC|unix.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		unix.Close(fd) // nothing was written
		ti.stamped.Store(true)
	}
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:], id)
	binary.LittleEndian.PutUint64(b[8:], st.Ino)
	err = unix.Lsetxattr(p.proc(), t.xattr, b[:], 0)
	if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EPERM) {
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
// The parent directory is made there if it is missing; do may be called twice.
func (t *tree) make(rel string, do func(i int) error) error {
	if hidden(rel) {
		return unix.EPERM
	}
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
			if err = t.ensureDir(i, parent(rel)); err == nil {
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

func parent(rel string) string {
	if dir := path.Dir(rel); dir != "." {
		return dir
	}
	return ""
}

// ensureDir makes a directory that another tier has in this one, too: aside, with owner, mode,
// attributes, times and identity, and then in place. Callers hold names for writing.
func (t *tree) ensureDir(i int, rel string) error {
	if rel == "" {
		return nil
	}
	ti := t.tiers[i]
	if f, err := t.findIn(i, rel); err == nil {
		if !f.isDir() {
			return unix.ENOTDIR
		}
		return nil
	} else if !absent(err) {
		return err
	}
	f, err := t.find(rel)
	if err != nil {
		return err
	}
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
	made := place{dir: ti.private, name: name}
	src, err := t.tiers[f.tier].place(rel)
	if err == nil {
		defer src.close()
		if err = copyMeta(made, src, &f.st, t.xattr); err == nil {
			err = t.stamp(i, made, f.id)
		}
	}
	if err == nil {
		var to place
		if to, err = ti.place(rel); err == nil {
			defer to.close()
			restore := keepTimes(ti, parent(rel))
			if err = unix.Renameat2(made.dir, made.name, to.dir, to.name, unix.RENAME_NOREPLACE); err == nil {
				restore()
			}
		}
	}
	if err != nil {
		return errors.Join(err, unix.Unlinkat(ti.private, name, unix.AT_REMOVEDIR))
	}
	return nil
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

// copyMeta gives a file or directory owner, attributes, mode and times of another one.
func copyMeta(to, from place, st *unix.Statx_t, except string) error {
	if now, err := to.stat(); err != nil {
		return err
	} else if now.Uid != st.Uid || now.Gid != st.Gid {
		if err := unix.Fchownat(to.dir, to.name, int(st.Uid), int(st.Gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	names, err := listXattrs(from)
	if err != nil {
		return err
	}
	for _, name := range names {
		if name == except {
			continue
		}
		value, err := getXattr(from, name)
		if err != nil {
			return fmt.Errorf("attribute %s: %w", name, err)
		}
		if err := unix.Lsetxattr(to.proc(), name, value, 0); err != nil {
			return fmt.Errorf("attribute %s: %w", name, err)
		}
	}
	if err := unix.Fchmodat(to.dir, to.name, uint32(st.Mode)&0o7777, 0); err != nil {
		return err
	}
	return unix.UtimesNanoAt(to.dir, to.name, []unix.Timespec{timespec(st.Atime), timespec(st.Mtime)}, unix.AT_SYMLINK_NOFOLLOW)
}

func timespec(ts unix.StatxTimestamp) unix.Timespec {
	return unix.Timespec{Sec: ts.Sec, Nsec: int64(ts.Nsec)}
}

func listXattrs(p place) ([]string, error) {
	for {
		n, err := unix.Llistxattr(p.proc(), nil)
		if errors.Is(err, unix.ENOTSUP) || err == nil && n == 0 {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		b := make([]byte, n)
		n, err = unix.Llistxattr(p.proc(), b)
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

func getXattr(p place, name string) ([]byte, error) {
	for {
		n, err := unix.Lgetxattr(p.proc(), name, nil)
		if err != nil {
			return nil, err
		}
		b := make([]byte, n+1)
		n, err = unix.Lgetxattr(p.proc(), name, b)
		if errors.Is(err, unix.ERANGE) {
			continue
		}
		return b[:max(0, n)], err
	}
}

// entries lists a directory of all tiers together: names and kinds. Callers hold names.
func (t *tree) entries(rel string) (map[string]uint32, error) {
	var all map[string]uint32
	for _, ti := range t.tiers {
		fd, err := ti.openat(rel, unix.O_DIRECTORY|unix.O_RDONLY, 0)
		if absent(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		dir := os.NewFile(uintptr(fd), rel)
		list, err := dir.ReadDir(-1)
		dir.Close() // only read
		if err != nil {
			return nil, err
		}
		if all == nil {
			all = make(map[string]uint32, len(list))
		}
		for _, e := range list {
			if _, ok := all[e.Name()]; !ok && !(rel == "" && e.Name() == Private) {
				all[e.Name()] = kind(e.Type())
			}
		}
	}
	if all == nil {
		return nil, unix.ENOENT
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

// each calls do for the tiers that have a path, as far as there are any.
func (t *tree) each(rel string, do func(i int, p place) error) error {
	err := error(unix.ENOENT)
	for i, ti := range t.tiers {
		p, bad := ti.place(rel)
		if bad == nil {
			bad = do(i, p)
			p.close()
		}
		if bad == nil {
			err = nil
		} else if !absent(bad) {
			return bad
		}
	}
	return err
}

// opened counts one more who has a file open. Callers hold names.
func (t *tree) opened(id uint64, write bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.open[id]
	if o == nil {
		o = &openFile{}
		t.open[id] = o
	}
	if write {
		o.writers++
		o.changed = true
	} else {
		o.readers++
	}
}

// closed counts one fewer. With the last one a retired file goes.
func (t *tree) closed(id uint64, write bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.open[id]
	if write {
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
		delete(t.open, id)
	}
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

// rename gives a path another name on the tiers where it is. Directories are renamed on
// one tier after the other; where that fails, it is undone.
func (t *tree) rename(old, new string, flags uint32) error {
	if hidden(old) || hidden(new) {
		return unix.EPERM
	}
	t.names.Lock()
	defer t.names.Unlock()
	src, err := t.find(old)
	if err != nil {
		return err
	}
	dst, err := t.find(new)
	exists := err == nil
	if err != nil && !absent(err) {
		return err
	}
	switch {
	case flags == unix.RENAME_EXCHANGE && exists && !src.isDir() && !dst.isDir() && src.tier == dst.tier:
		return t.renameIn(src.tier, old, new, flags)
	case flags == unix.RENAME_NOREPLACE:
		if exists {
			return unix.EEXIST
		}
	case flags != 0:
		return unix.EINVAL
	}
	if !src.isDir() {
		if err := t.renameIn(src.tier, old, new, 0); err != nil {
			return err
		}
		if exists && dst.tier != src.tier {
			return t.unlinkIn(dst.tier, new, 0)
		}
		return nil
	}
	if exists {
		if list, err := t.entries(new); err != nil {
			return err
		} else if len(list) > 0 {
			return unix.ENOTEMPTY
		}
	}
	var done []int
	for i := range t.tiers {
		if _, err := t.findIn(i, old); absent(err) {
			continue
		}
		if err := t.renameIn(i, old, new, 0); err != nil {
			for _, j := range done {
				err = errors.Join(err, t.renameIn(j, new, old, 0))
			}
			return err
		}
		done = append(done, i)
	}
	if exists {
		for i := range t.tiers {
			if !slices.Contains(done, i) {
				if err := t.unlinkIn(i, new, unix.AT_REMOVEDIR); err != nil && !absent(err) {
					return err
				}
			}
		}
	}
	return nil
}

func (t *tree) renameIn(i int, old, new string, flags uint32) error {
	if err := t.ensureDir(i, parent(new)); err != nil {
		return err
	}
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
	return unix.Renameat2(from.dir, from.name, to.dir, to.name, uint(flags))
}

func (t *tree) unlinkIn(i int, rel string, flags int) error {
	p, err := t.tiers[i].place(rel)
	if err != nil {
		return err
	}
	defer p.close()
	return unix.Unlinkat(p.dir, p.name, flags)
}

// rmdir removes a directory that is empty on all tiers, the slowest first.
func (t *tree) rmdir(rel string) error {
	t.names.Lock()
	defer t.names.Unlock()
	if hidden(rel) {
		return unix.ENOENT
	}
	list, err := t.entries(rel)
	if err != nil {
		return err
	}
	if len(list) > 0 {
		return unix.ENOTEMPTY
	}
	for i := len(t.tiers) - 1; i >= 0; i-- {
		if err := t.unlinkIn(i, rel, unix.AT_REMOVEDIR); err != nil && !absent(err) {
			return err
		}
	}
	return nil
}
