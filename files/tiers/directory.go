package tiers

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"weak"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// access is what decides who may do what with a directory.
type access struct {
	uid, gid uint32
	mode     uint16 // without the kind
	acl      string // as the kernel keeps it, "" for none
}

const (
	aclAccess  = "system.posix_acl_access"
	aclDefault = "system.posix_acl_default"
)

// locked is the access to a directory whose parts have owners or ACLs that no one mode
// stands for: root alone has it.
var locked = access{mode: 0o700}

func accessOf(fd int, st *unix.Statx_t) access {
	a := access{st.Uid, st.Gid, st.Mode & 0o7777, ""}
	switch acl, err := getXattr(fdPath(fd), aclAccess); {
	case err == nil:
		a.acl = string(acl)
	case !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.ENOTSUP):
		return locked
	}
	return a
}

// and is what both grant.
func (a access) and(b access) access {
	switch {
	case a == b:
		return a
	case a.uid != b.uid || a.gid != b.gid || a.acl != "" || b.acl != "":
		return locked
	}
	a.mode = a.mode&b.mode&0o777 | a.mode&0o6000 | (a.mode|b.mode)&0o1000
	return a
}

// dirState is what the kernel was told last of a directory, whose parts several tiers may
// have. Who may use the directory is decided by it, and so only parts that were seen then,
// and such as grant no less, are used.
type dirState struct {
	mu    sync.Mutex
	parts []uint64 // by tier: their origins, 0 for none
	told  access
}

// dirState is the state of the directory of an identity, for as long as somebody holds it.
func (t *tree) dirState(id uint64) *dirState {
	for {
		old, ok := t.dirs.Load(id)
		if ok {
			if s := old.(weak.Pointer[dirState]).Value(); s != nil {
				return s
			}
		}
		s := &dirState{}
		w := weak.Make(s)
		if ok && !t.dirs.CompareAndSwap(id, old, w) {
			continue
		}
		if !ok {
			if _, there := t.dirs.LoadOrStore(id, w); there {
				continue
			}
		}
		runtime.AddCleanup(s, func(id uint64) { t.dirs.CompareAndDelete(id, w) }, id)
		return s
	}
}

// look notes the parts of a directory, of which f is the first, and makes of f what the
// kernel is told: the access that all of them grant. Callers hold names.
func (t *tree) look(rel string, f *found, s *dirState) error {
	parts := make([]uint64, len(t.tiers))
	parts[f.tier] = t.origin(f.tier, &f.st)
	told := accessOf(f.fd, &f.st)
	for i := f.tier + 1; i < len(t.tiers); i++ {
		p, err := t.findIn(i, rel)
		if absent(err) {
			continue
		}
		if err != nil {
			return err
		}
		if p.isDir() {
			parts[i] = t.origin(i, &p.st)
			if t.root { // otherwise the tier itself asks who it is
				told = told.and(accessOf(p.fd, &p.st))
			}
		}
		p.close()
	}
	f.st.Uid, f.st.Gid, f.st.Mode = told.uid, told.gid, unix.S_IFDIR|told.mode
	s.mu.Lock()
	defer s.mu.Unlock()
	s.parts, s.told = parts, told
	return nil
}

// part opens what a tier has of the directory whose path is rel. ESTALE, after which the
// kernel looks again, is for another directory that has come into its place and does not
// grant what the kernel relies on. Callers hold names and close what they get.
func (n *node) part(i int, rel string) (int, error) {
	fd, err := n.t.tiers[i].openat(rel, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil || rel == "" {
		return fd, err
	}
	st, err := statFd(fd)
	if err == nil && !n.accepts(i, fd, &st) {
		err = unix.ESTALE
	}
	if err != nil {
		unix.Close(fd) // only a place to look from
		return -1, err
	}
	return fd, nil
}

func (n *node) accepts(i, fd int, st *unix.Statx_t) bool {
	s := n.dir
	s.mu.Lock()
	known, told := s.parts != nil && s.parts[i] == n.t.origin(i, st), s.told
	s.mu.Unlock()
	if known || !n.t.root || n.t.identity(i, fd, st) == n.StableAttr().Ino {
		return true
	}
	return told.and(accessOf(fd, st)) == told
}

// sticky tells whether names in the directory may be taken only by who owns something.
func (n *node) sticky() bool {
	n.dir.mu.Lock()
	defer n.dir.mu.Unlock()
	return n.dir.told.mode&unix.S_ISVTX != 0
}

// plain tells whether the kernel must not see an ACL of the directory, because it stands
// for more than that.
func (n *node) plain() bool {
	if n.dir == nil {
		return false
	}
	n.dir.mu.Lock()
	defer n.dir.mu.Unlock()
	return n.dir.told == locked
}

// findChild looks for a name in the directory whose path is rel. Callers hold names.
func (n *node) findChild(rel, name string) (found, error) {
	if hidden(join(rel, name)) {
		return found{fd: -1}, unix.ENOENT
	}
	for i := range n.t.tiers {
		f, err := n.findChildIn(i, rel, name)
		if err == nil || !absent(err) {
			return f, err
		}
	}
	return found{fd: -1}, unix.ENOENT
}

func (n *node) findChildIn(i int, rel, name string) (found, error) {
	dir, err := n.part(i, rel)
	if err != nil {
		return found{fd: -1}, err
	}
	defer unix.Close(dir)
	return n.t.childOf(i, dir, name)
}

func (t *tree) childOf(i, dir int, name string) (found, error) {
	fd, err := openBeneath(dir, name, unix.O_PATH, 0)
	if err != nil {
		return found{fd: -1}, err
	}
	return t.foundFd(i, fd)
}

// expected makes sure that a name which only the owner of something may take is that of the
// file that the kernel has looked at.
func (n *node) expected(name string, f *found) error {
	if child := n.GetChild(name); child != nil && n.sticky() && !f.isDir() && child.StableAttr().Ino != f.id {
		return unix.ESTALE
	}
	return nil
}

// remove takes a name away from all tiers, the slowest first. Callers hold names.
func (n *node) remove(name string, flags int) error {
	rel := n.rel()
	f, err := n.findChild(rel, name)
	if err != nil {
		return err
	}
	defer f.close()
	if err := n.expected(name, &f); err != nil {
		return err
	}
	for i := len(n.t.tiers) - 1; i >= 0; i-- {
		if err := n.unlinkIn(i, name, flags); err != nil && (i == f.tier || !absent(err)) {
			return err
		}
	}
	return nil
}

func (n *node) unlinkIn(i int, name string, flags int) error {
	dir, err := n.part(i, n.rel())
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return unix.Unlinkat(dir, name, flags)
}

// childEntries lists a directory in this one. Callers hold names.
func (n *node) childEntries(name string) (map[string]uint32, error) {
	rel := n.rel()
	var parts []int
	defer func() { closeAll(parts) }()
	for i := range n.t.tiers {
		dir, err := n.part(i, rel)
		if err == nil {
			var fd int
			if fd, err = openBeneath(dir, name, unix.O_PATH|unix.O_DIRECTORY, 0); err == nil {
				parts = append(parts, fd)
			}
			unix.Close(dir) // only a place to look from
		}
		if err != nil && !absent(err) {
			return nil, err
		}
	}
	return entries(parts, false)
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd) // only places to look from
	}
}

// removeDir removes a directory that is empty on all tiers.
func (n *node) removeDir(name string) error {
	n.t.names.Lock()
	defer n.t.names.Unlock()
	if hidden(join(n.rel(), name)) {
		return unix.ENOENT
	}
	list, err := n.childEntries(name)
	if err != nil {
		return err
	}
	if len(list) > 0 {
		return unix.ENOTEMPTY
	}
	return n.remove(name, unix.AT_REMOVEDIR)
}

// rename gives something another name on the tiers where it is. Directories are renamed on
// one tier after the other; where that fails, it is undone. Callers hold names for writing
// until the mount knows of the new name.
func (n *node) rename(name string, to *node, newName string, flags uint32) error {
	t := n.t
	if hidden(join(n.rel(), name)) || hidden(join(to.rel(), newName)) {
		return unix.EPERM
	}
	src, err := n.findChild(n.rel(), name)
	if err != nil {
		return err
	}
	defer src.close()
	dst, err := to.findChild(to.rel(), newName)
	defer dst.close()
	exists := err == nil
	if err != nil && !absent(err) {
		return err
	}
	if err := n.expected(name, &src); err != nil {
		return err
	}
	if exists {
		if err := to.expected(newName, &dst); err != nil {
			return err
		}
	}
	switch {
	case flags == unix.RENAME_EXCHANGE && exists && !src.isDir() && !dst.isDir() && src.tier == dst.tier:
		return n.renameIn(src.tier, name, to, newName, flags)
	case flags == unix.RENAME_NOREPLACE:
		if exists {
			return unix.EEXIST
		}
	case flags != 0:
		return unix.EINVAL
	}
	if !src.isDir() {
		if err := n.renameIn(src.tier, name, to, newName, 0); err != nil {
			return err
		}
		if exists && dst.tier != src.tier {
			return to.unlinkIn(dst.tier, newName, 0)
		}
		return nil
	}
	if exists {
		if list, err := to.childEntries(newName); err != nil {
			return err
		} else if len(list) > 0 {
			return unix.ENOTEMPTY
		}
	}
	done := make([]bool, len(t.tiers))
	for i := range t.tiers {
		part, err := n.findChildIn(i, n.rel(), name)
		if absent(err) {
			continue
		}
		part.close()
		if err == nil {
			err = n.renameIn(i, name, to, newName, 0)
		}
		if err != nil {
			for j := range i {
				if done[j] {
					err = errors.Join(err, to.renameIn(j, newName, n, name, 0))
				}
			}
			return err
		}
		done[i] = true
	}
	for i := range t.tiers {
		if !exists || done[i] {
			continue
		}
		if err := to.unlinkIn(i, newName, unix.AT_REMOVEDIR); err != nil && !absent(err) {
			return err
		}
	}
	return nil
}

func (n *node) renameIn(i int, name string, to *node, newName string, flags uint32) error {
	if err := n.t.ensureDir(i, to.rel()); err != nil {
		return err
	}
	from, err := n.part(i, n.rel())
	if err != nil {
		return err
	}
	defer unix.Close(from)
	into, err := to.part(i, to.rel())
	if err != nil {
		return err
	}
	defer unix.Close(into)
	return unix.Renameat2(from, name, into, newName, uint(flags))
}

// as calls do with the user and group of who asked as the owner of new files. Where they
// may be made the kernel has checked already, with all groups, and so the rights of root
// stay. Other threads are not concerned.
func (t *tree) as(ctx context.Context, do func() error) error {
	caller, ok := fuse.FromContext(ctx)
	if !t.root || !ok || caller.Uid == 0 && caller.Gid == 0 {
		return do()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer func() {
		if fsid(unix.SetfsuidRetUid, 0) != nil || fsid(unix.SetfsgidRetGid, 0) != nil {
			panic("a thread does not get back the rights of root")
		}
	}()
	if err := fsid(unix.SetfsgidRetGid, caller.Gid); err != nil {
		return err
	}
	if err := fsid(unix.SetfsuidRetUid, caller.Uid); err != nil {
		return err
	}
	// With another user go the rights over files; see capabilities(7).
	if err := unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &t.caps[0]); err != nil {
		return err
	}
	return do()
}

// fsid sets a user or group and makes sure of it: the system calls return what was before,
// and no errors.
func fsid(set func(int) (int, error), id uint32) error {
	if _, err := set(int(id)); err != nil {
		return err
	}
	if now, err := set(-1); err != nil || uint32(now) != id {
		return errors.Join(unix.EPERM, err)
	}
	return nil
}

// modeIn is the mode that something new in a directory is made with. The caller's umask,
// which [inOrder] puts above the mode, does not count where the directory has a default ACL.
func modeIn(dir int, mode uint32) uint32 {
	umask := mode >> umaskShift
	mode &= 1<<umaskShift - 1
	if _, err := unix.Getxattr(fdPath(dir), aclDefault, nil); err == nil {
		return mode
	}
	return mode &^ umask
}

// differing tells in which directories not all parts grant the same; see look.
func differing(a, b *tier) error {
	return fmt.Errorf("it has different owners, modes or ACLs in the tiers %s and %s: the mount grants only what both grant", a.Name, b.Name)
}
