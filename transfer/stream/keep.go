package stream

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Keep says what a copy keeps of entries besides names, content, permissions and times.
type Keep struct {
	// Owners keeps users and groups, by number, and set-user-ID, set-group-ID and sticky
	// bits. Only root can receive entries of another user.
	Owners bool `json:",omitempty"`
	// HardLinks keeps together the names of a file.
	HardLinks bool `json:",omitempty"`
	// Attributes keeps the extended attributes of files and directories: those of users,
	// and with Owners, where root receives, capabilities and trusted ones.
	Attributes bool `json:",omitempty"`
	// ACLs keeps access control lists (POSIX), whose users and groups are numbers.
	ACLs bool `json:",omitempty"`
}

// attribute is an extended one; see xattr(7).
type attribute struct {
	name  string
	value []byte
}

// takes reports whether an attribute is one that the copy keeps.
func (k *Keep) takes(name string) bool {
	switch {
	case name == "system.posix_acl_access", name == "system.posix_acl_default":
		return k.ACLs
	case strings.HasPrefix(name, "user."):
		return k.Attributes
	case name == "security.capability", strings.HasPrefix(name, "trusted."):
		return k.Attributes && k.Owners && os.Geteuid() == 0
	}
	return false
}

// special reports whether set-user-ID, set-group-ID and sticky bits arrive.
func (k *Keep) special() bool { return k.Owners && os.Geteuid() == 0 }

// most is how long lists of names, and values, may be; see xattr(7).
const attributesMost = 64 << 10

// attributes reads those of an open file or directory.
func (k *Keep) attributes(fd int) (list []attribute, err error) {
	names := make([]byte, attributesMost)
	n, err := unix.Flistxattr(fd, names)
	if errors.Is(err, unix.ENOTSUP) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("its attributes cannot be listed: %w", err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names[:n]), "\x00"), "\x00") {
		if !k.takes(name) {
			continue
		}
		value := make([]byte, attributesMost)
		n, err := unix.Fgetxattr(fd, name, value)
		if errors.Is(err, unix.ENODATA) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("its attribute %s cannot be read: %w", name, err)
		}
		list = append(list, attribute{name, slices.Clip(value[:n])})
	}
	return list, nil
}

// readAttributes reads those of a file or directory at a place.
func (k *Keep) readAttributes(at place, p string) ([]attribute, error) {
	f, err := at.open(p)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return k.attributes(int(f.Fd()))
}

// mayGive returns an error if this process cannot give an entry its owner.
func (k *Keep) mayGive(e *entry) error {
	if !k.Owners || os.Geteuid() == 0 {
		return nil
	}
	if int(e.uid) != os.Geteuid() {
		return fmt.Errorf("it belongs to user %d: only root can give files to others", e.uid)
	}
	groups, err := os.Getgroups()
	if err != nil {
		return err
	}
	if gid := int(e.gid); gid != os.Getegid() && !slices.Contains(groups, gid) {
		return fmt.Errorf("it belongs to group %d, of which user %d is not a member", gid, os.Geteuid())
	}
	return nil
}

// dress gives an open file or directory what is kept of an entry, in this order: a change
// of owner takes set-user-ID bits and capabilities away, and one of an access control list
// changes permissions. group is the set-group-ID bit that directories have by themselves.
func (k *Keep) dress(fd int, e *entry, group fs.FileMode) error {
	if k.Owners {
		if err := unix.Fchown(fd, int(e.uid), int(e.gid)); err != nil {
			return fmt.Errorf("its owner cannot be kept: %w", err)
		}
	}
	if k.Attributes || k.ACLs {
		if err := k.setAttributes(fd, e); err != nil {
			return err
		}
	}
	mode := uint32(e.mode.Perm())
	bits := e.mode
	if !k.special() {
		bits = 0
		if e.kind == entryDir {
			bits = group
		}
	}
	for bit, system := range map[fs.FileMode]uint32{fs.ModeSetuid: unix.S_ISUID, fs.ModeSetgid: unix.S_ISGID, fs.ModeSticky: unix.S_ISVTX} {
		if bits&bit != 0 {
			mode |= system
		}
	}
	if err := unix.Fchmod(fd, mode); err != nil {
		return err
	}
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(e.mtime)}
	return unix.UtimesNanoAt(fd, "", times, unix.AT_EMPTY_PATH)
}

func (k *Keep) setAttributes(fd int, e *entry) error {
	now, err := k.attributes(fd)
	if err != nil {
		return err
	}
	for _, a := range now {
		if !slices.ContainsFunc(e.attributes, func(b attribute) bool { return b.name == a.name }) {
			if err := unix.Fremovexattr(fd, a.name); err != nil {
				return fmt.Errorf("its attribute %s cannot be removed: %w", a.name, err)
			}
		}
	}
	for _, a := range e.attributes {
		if !k.takes(a.name) {
			continue // of a sender that may read more than this end may write
		}
		if err := unix.Fsetxattr(fd, a.name, a.value, 0); err != nil {
			return fmt.Errorf("its attribute %s cannot be kept: %w", a.name, err)
		}
	}
	return nil
}

// Failure is something that was left out of a tree, since it could not be read.
type Failure struct {
	Path   string `json:"path"` // below the tree
	Reason string `json:"reason"`
}

// failuresMost is how many of them are remembered.
const failuresMost = 10_000

// failures are those of a copy.
type failures struct {
	list []Failure
	more int // that are not in the list
}

func (f *failures) add(path, reason string) {
	if len(f.list) == failuresMost {
		f.more++
		return
	}
	f.list = append(f.list, Failure{path, reason})
}

// lost is how a sender tells of a failure: with the number of an entry, or -1 for what is
// not one.
type lost struct {
	Entry  int
	Path   []byte
	Reason string
}

// reasonOf is an error without the path at this end.
func reasonOf(err error) string {
	var at *fs.PathError
	if errors.As(err, &at) {
		return at.Err.Error()
	}
	return err.Error()
}

// ownerOf returns the owner of a file, and how many names it has.
func ownerOf(info fs.FileInfo) (uid, gid uint32, names uint64, id [2]uint64) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0, 1, id
	}
	return st.Uid, st.Gid, uint64(st.Nlink), [2]uint64{uint64(st.Dev), st.Ino}
}
