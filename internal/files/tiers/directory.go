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

// access holds the attributes by which the kernel decides the access to a directory.
type access struct {
	uid, gid uint32
	mode     uint16 // without the file type
	acl      string // in the kernel's format, "" for none
}

const (
	aclAccess  = "system.posix_acl_access"
	aclDefault = "system.posix_acl_default"
)

// locked is the access to a directory whose parts differ in owners or ACLs in a way that no
// single mode can express: only root has access.
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

// and returns the access that both grant.
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

// dirState is the state of a directory as the kernel last saw it. Several tiers may have a
// part of the directory. The kernel decides access by this state, so only parts are used
// that were seen then, or that grant no less.
type dirState struct {
	mu    sync.Mutex
	parts []uint64 // by tier: their origins, 0 for no part
	told  access
}

// dirState returns the state of the directory with an identity. It exists as long as it is
// referenced.
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

// look records the parts of a directory, the first of which is f, and sets in f the
// attributes to report to the kernel: the access that all parts grant. Callers hold names.
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
			if t.root { // otherwise the tier itself checks the user's access
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

// part opens the part of a tier of the directory at rel. It returns ESTALE, after which the
// kernel looks the directory up again, if another directory has replaced the part and does
// not grant the access on which the kernel relies. Callers hold names and close the
// descriptor.
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
		unix.Close(fd) // closing an O_PATH descriptor cannot fail
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

// sticky reports whether only the owner of a file, or of the directory, may remove names
// from the directory.
func (n *node) sticky() bool {
	n.dir.mu.Lock()
	defer n.dir.mu.Unlock()
	return n.dir.told.mode&unix.S_ISVTX != 0
}

// plain reports whether the access to the directory is locked, so that its ACL must be
// hidden from the kernel.
func (n *node) plain() bool {
	if n.dir == nil {
		return false
	}
	n.dir.mu.Lock()
	defer n.dir.mu.Unlock()
	return n.dir.told == locked
}

// findChild looks up a name in the directory at rel. Callers hold names.
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

// expected checks a name that only its owner may remove: it must refer to the file for
// which the kernel has checked that.
func (n *node) expected(name string, f *found) error {
	if child := n.GetChild(name); child != nil && n.sticky() && !f.isDir() && child.StableAttr().Ino != f.id {
		return unix.ESTALE
	}
	return nil
}

// remove removes a name from all tiers, the slowest first. Callers hold names.
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

// childEntries lists a subdirectory.
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
			unix.Close(dir) // closing an O_PATH descriptor cannot fail
		}
		if err != nil && !absent(err) {
			return nil, err
		}
	}
	return entries(parts, false)
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd) // closing O_PATH descriptors cannot fail
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

// rename renames a file on its tier, or a directory on one tier after another; if that
// fails on one, the others are undone. Callers hold names for writing until the mount has
// the new name.
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

// as calls do with the user and group of the caller as the owner of new files. The kernel
// has already checked, with all groups, that the caller may create them, so the other
// rights of root stay. Other threads are not affected.
func (t *tree) as(ctx context.Context, do func() error) error {
	caller, ok := fuse.FromContext(ctx)
	if !t.root || !ok || caller.Uid == 0 && caller.Gid == 0 {
		return do()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer func() {
		if fsid(unix.SetfsuidRetUid, 0) != nil || fsid(unix.SetfsgidRetGid, 0) != nil {
			panic("a thread cannot regain the rights of root")
		}
	}()
	if err := fsid(unix.SetfsgidRetGid, caller.Gid); err != nil {
		return err
	}
	if err := fsid(unix.SetfsuidRetUid, caller.Uid); err != nil {
		return err
	}
	// Switching the user drops the capabilities over files; see capabilities(7).
	if err := setCaps(t.caps); err != nil {
		return err
	}
	return do()
}

// setCaps sets the capabilities of the present thread.
func setCaps(caps [2]unix.CapUserData) error {
	return unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &caps[0])
}

// unprivileged calls do without CAP_FSETID, so that the file system of the tier clears the
// set-user-ID and set-group-ID bits of a file that do changes, as for an ordinary user. It
// clears file capabilities for everyone. Other threads are not affected.
func (t *tree) unprivileged(do func() error) error {
	if !t.root {
		return do()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	caps := t.caps
	caps[0].Effective &^= 1 << unix.CAP_FSETID
	if err := setCaps(caps); err != nil {
		return err
	}
	defer func() {
		if setCaps(t.caps) != nil {
			panic("a thread cannot regain the rights of root")
		}
	}()
	return do()
}

// fsid sets a user or group and checks that it is set: these system calls return the
// previous value, and no error.
func fsid(set func(int) (int, error), id uint32) error {
	if _, err := set(int(id)); err != nil {
		return err
	}
	if now, err := set(-1); err != nil || uint32(now) != id {
		return errors.Join(unix.EPERM, err)
	}
	return nil
}

// modeIn returns the mode for a new entry of a directory. The caller's umask, which
// [inOrder] stores above the mode, does not apply if the directory has a default ACL.
func modeIn(dir int, mode uint32) uint32 {
	umask := mode >> umaskShift
	mode &= 1<<umaskShift - 1
	if _, err := unix.Getxattr(fdPath(dir), aclDefault, nil); err == nil {
		return mode
	}
	return mode &^ umask
}

// differing reports directories whose parts grant different access; see look.
func differing(a, b *tier) error {
	return fmt.Errorf("it has different owners, modes or ACLs in the tiers %s and %s: the mount grants only what both grant", a.Name, b.Name)
}
