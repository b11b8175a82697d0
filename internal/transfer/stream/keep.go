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

// Keep selects the properties of entries to copy besides names, content, permissions and
// times.
type Keep struct {
	// Owners keeps users and groups, by number, and set-user-ID, set-group-ID and sticky
	// bits. Only root can receive entries of another user.
	Owners bool `json:",omitempty"`
	// HardLinks copies files with several names as such.
	HardLinks bool `json:",omitempty"`
	// Attributes keeps the extended attributes of files and directories: attributes of users,
	// and with Owners, where root receives, capabilities and trusted ones.
	Attributes bool `json:",omitempty"`
	// ACLs keeps access control lists (POSIX), whose users and groups are numbers.
	ACLs bool `json:",omitempty"`
}

// attribute is an extended attribute; see xattr(7).
type attribute struct {
	name  string
	value []byte
}

// takes reports whether the copy includes an attribute.
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

// special reports whether set-user-ID, set-group-ID and sticky bits are set at the
// receiver.
func (k *Keep) special() bool { return k.Owners && os.Geteuid() == 0 }

// attributesMost bounds the length of lists of names, and of values; see xattr(7).
const attributesMost = 64 << 10

// attributes reads the attributes of an open file or directory.
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

// readAttributes reads the attributes of a file or directory at a place.
func (k *Keep) readAttributes(at place, p string) ([]attribute, error) {
	f, err := at.open(p)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return k.attributes(int(f.Fd()))
}

// mayGive returns an error if this process cannot set the owner of an entry.
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

// dress sets the kept properties of an open file or directory, in this order: a change of
// owner clears set-user-ID bits and capabilities, and a change of an access control list
// changes permissions. group is the set-group-ID bit that directories inherit.
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
			continue // the sender may have read attributes that this end may not set
		}
		if err := unix.Fsetxattr(fd, a.name, a.value, 0); err != nil {
			return fmt.Errorf("its attribute %s cannot be kept: %w", a.name, err)
		}
	}
	return nil
}

// Failure is a file of a tree that was left out because it could not be read.
type Failure struct {
	Path   string `json:"path"` // below the tree
	Reason string `json:"reason"`
}

// failuresMost is the number of failures that are listed.
const failuresMost = 10_000

// failures are the failures of a copy.
type failures struct {
	list []Failure
	more int // number of failures not in the list
}

func (f *failures) add(path, reason string) {
	if len(f.list) == failuresMost {
		f.more++
		return
	}
	f.list = append(f.list, Failure{path, reason})
}

// lost is the report of a failure by a sender, with the number of the entry, or -1 if it
// has none.
type lost struct {
	Entry  int
	Path   []byte
	Reason string
}

// reasonOf returns the text of an error without the path at this end.
func reasonOf(err error) string {
	var at *fs.PathError
	if errors.As(err, &at) {
		return at.Err.Error()
	}
	return err.Error()
}

// ownerOf returns the owner of a file, and its number of names.
func ownerOf(info fs.FileInfo) (uid, gid uint32, names uint64, id [2]uint64) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0, 1, id
	}
	return st.Uid, st.Gid, uint64(st.Nlink), [2]uint64{uint64(st.Dev), st.Ino}
}
