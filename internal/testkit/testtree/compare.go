package testtree

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// MaxDifferences is the number of differences after which [Compare] stops.
const MaxDifferences = 50

// Compare walks the directories a and b and returns every difference, as
// "path: difference": names, types, modes, owners, sizes, device numbers, times of
// modification to the nanosecond, link targets, extended attributes of all
// namespaces, contents, the type that a directory listing shows, and which names
// are hard links of one file. It does not compare times of access and of status
// change, inode numbers, the sizes of directories and holes. An error means that
// a file could not be read; a difference is not an error.
func Compare(a, b string) ([]string, error) {
	c := &comparison{links: [2]map[inode]string{{}, {}}, bufs: [2][]byte{make([]byte, 1<<20), make([]byte, 1<<20)}}
	var fds [2]int
	for i, dir := range []string{a, b} {
		fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("open %s: %w", dir, err)
		}
		defer unix.Close(fd)
		fds[i] = fd
	}
	err := c.entry(fds, ".", ".", true)
	if err == nil {
		err = c.dirs(fds, "")
	}
	if errors.Is(err, errEnough) {
		return append(c.found, "and perhaps more"), nil
	}
	return c.found, err
}

var errEnough = errors.New("enough differences")

type inode struct{ dev, ino uint64 }

type comparison struct {
	found []string
	links [2]map[inode]string // first path of every file with several names
	bufs  [2][]byte
}

func (c *comparison) differ(path, format string, args ...any) error {
	c.found = append(c.found, fmt.Sprintf("%q: ", path)+fmt.Sprintf(format, args...))
	if len(c.found) >= MaxDifferences {
		return errEnough
	}
	return nil
}

// dirs compares the entries of two directories; path ends with a slash, or is
// empty.
func (c *comparison) dirs(fds [2]int, path string) error {
	var lists [2]map[string]uint32
	for i := range fds {
		var err error
		if lists[i], err = list(fds[i]); err != nil {
			return fmt.Errorf("list %q of tree %d: %w", path, i, err)
		}
	}
	var both []string
	for n := range lists[0] {
		if _, ok := lists[1][n]; !ok {
			if err := c.differ(path+n, "it is only in the first tree"); err != nil {
				return err
			}
			continue
		}
		both = append(both, n)
	}
	for n := range lists[1] {
		if _, ok := lists[0][n]; !ok {
			if err := c.differ(path+n, "it is only in the second tree"); err != nil {
				return err
			}
		}
	}
	slices.Sort(both)
	for _, n := range both {
		if x, y := lists[0][n], lists[1][n]; x != y {
			if err := c.differ(path+n, "its directory shows type %#o and %#o", x, y); err != nil {
				return err
			}
			continue
		}
		if err := c.entry(fds, n, path+n, false); err != nil {
			return err
		}
		if lists[0][n] != unix.S_IFDIR {
			continue
		}
		if err := c.descend(fds, n, path+n+"/"); err != nil {
			return err
		}
	}
	return nil
}

func (c *comparison) descend(fds [2]int, name, path string) error {
	var sub [2]int
	for i := range fds {
		fd, err := unix.Openat(fds[i], name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open %q of tree %d: %w", path, i, err)
		}
		defer unix.Close(fd)
		sub[i] = fd
	}
	return c.dirs(sub, path)
}

// list reads the names of a directory and the types it shows for them, and
// compares these with the types that stat returns.
func list(fd int) (map[string]uint32, error) {
	own, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	d := os.NewFile(uintptr(own), "directory")
	defer d.Close()
	entries, err := d.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	out := map[string]uint32{}
	for _, e := range entries {
		var st unix.Stat_t
		if err := unix.Fstatat(fd, e.Name(), &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return nil, fmt.Errorf("stat %q: %w", e.Name(), err)
		}
		kind := st.Mode & unix.S_IFMT
		if kind == unix.S_IFDIR != e.IsDir() {
			return nil, fmt.Errorf("%q is listed as %v and is %#o", e.Name(), e.Type(), kind)
		}
		if _, twice := out[e.Name()]; twice {
			return nil, fmt.Errorf("%q is listed twice", e.Name())
		}
		out[e.Name()] = kind
	}
	return out, nil
}

// entry compares one entry of two directories, without its own entries.
func (c *comparison) entry(fds [2]int, name, path string, root bool) error {
	var st [2]unix.Stat_t
	for i := range fds {
		if err := unix.Fstatat(fds[i], name, &st[i], unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return fmt.Errorf("stat %q of tree %d: %w", path, i, err)
		}
	}
	x, y := &st[0], &st[1]
	kind := x.Mode & unix.S_IFMT
	for _, f := range []struct {
		what string
		x, y any
		skip bool
	}{
		{"mode (octal)", fmt.Sprintf("%o", x.Mode), fmt.Sprintf("%o", y.Mode), false},
		{"uid", x.Uid, y.Uid, false},
		{"gid", x.Gid, y.Gid, false},
		{"size", x.Size, y.Size, kind == unix.S_IFDIR},
		{"device number", x.Rdev, y.Rdev, kind != unix.S_IFCHR && kind != unix.S_IFBLK},
		{"time", fmt.Sprintf("%d.%09d", x.Mtim.Sec, x.Mtim.Nsec), fmt.Sprintf("%d.%09d", y.Mtim.Sec, y.Mtim.Nsec), false},
		{"number of links", x.Nlink, y.Nlink, kind == unix.S_IFDIR},
	} {
		if !f.skip && f.x != f.y {
			if err := c.differ(path, "%s is %v and %v", f.what, f.x, f.y); err != nil {
				return err
			}
		}
	}
	if x.Mode&unix.S_IFMT != y.Mode&unix.S_IFMT {
		return nil
	}
	if kind != unix.S_IFDIR {
		if done, err := c.hardLinks(st, path); done || err != nil {
			return err
		}
	}
	if err := c.xattrs(fds, name, path); err != nil {
		return err
	}
	switch kind {
	case unix.S_IFLNK:
		return c.targets(fds, name, path)
	case unix.S_IFREG:
		return c.contents(fds, name, path)
	}
	return nil
}

// hardLinks compares which earlier name, if any, is a link of the same file. It
// reports whether that file was compared already.
func (c *comparison) hardLinks(st [2]unix.Stat_t, path string) (done bool, err error) {
	var first [2]string
	for i := range st {
		if st[i].Nlink < 2 {
			continue
		}
		id := inode{uint64(st[i].Dev), st[i].Ino}
		if first[i] = c.links[i][id]; first[i] == "" {
			c.links[i][id] = path
		}
	}
	if first[0] != first[1] {
		err = c.differ(path, "it is a hard link of %q and of %q", first[0], first[1])
	}
	return first[0] != "" && first[0] == first[1], err
}

func (c *comparison) xattrs(fds [2]int, name, path string) error {
	var all [2]map[string]string
	for i := range fds {
		var err error
		if all[i], err = xattrs(fmt.Sprintf("/proc/self/fd/%d/%s", fds[i], name)); err != nil {
			return fmt.Errorf("attributes of %q of tree %d: %w", path, i, err)
		}
	}
	for k, v := range all[0] {
		w, ok := all[1][k]
		if !ok {
			if err := c.differ(path, "attribute %s is only in the first tree", k); err != nil {
				return err
			}
		} else if v != w {
			if err := c.differ(path, "attribute %s is %.40q and %.40q", k, v, w); err != nil {
				return err
			}
		}
	}
	for k := range all[1] {
		if _, ok := all[0][k]; !ok {
			if err := c.differ(path, "attribute %s is only in the second tree", k); err != nil {
				return err
			}
		}
	}
	return nil
}

func xattrs(path string) (map[string]string, error) {
	buf := make([]byte, 1<<16)
	n, err := unix.Llistxattr(path, buf)
	if errors.Is(err, unix.ENOTSUP) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	value := make([]byte, 1<<16)
	for k := range strings.SplitSeq(strings.TrimRight(string(buf[:n]), "\x00"), "\x00") {
		if k == "" {
			continue
		}
		m, err := unix.Lgetxattr(path, k, value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", k, err)
		}
		out[k] = string(value[:m])
	}
	return out, nil
}

func (c *comparison) targets(fds [2]int, name, path string) error {
	var t [2]string
	for i := range fds {
		n, err := unix.Readlinkat(fds[i], name, c.bufs[i])
		if err != nil {
			return fmt.Errorf("target of %q of tree %d: %w", path, i, err)
		}
		t[i] = string(c.bufs[i][:n])
	}
	if t[0] != t[1] {
		return c.differ(path, "it points to %.60q and to %.60q", t[0], t[1])
	}
	return nil
}

func (c *comparison) contents(fds [2]int, name, path string) error {
	var f [2]*os.File
	for i := range fds {
		fd, err := unix.Openat(fds[i], name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open %q of tree %d: %w", path, i, err)
		}
		f[i] = os.NewFile(uintptr(fd), path)
		defer f[i].Close()
	}
	for off := int64(0); ; {
		var n [2]int
		for i := range f {
			var err error
			n[i], err = io.ReadFull(f[i], c.bufs[i])
			if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				return fmt.Errorf("read %q of tree %d at %d: %w", path, i, off, err)
			}
		}
		x, y := c.bufs[0][:n[0]], c.bufs[1][:n[1]]
		if !bytes.Equal(x, y) {
			i := 0
			for i < min(n[0], n[1]) && x[i] == y[i] {
				i++
			}
			return c.differ(path, "the contents differ from byte %d on", off+int64(i))
		}
		if n[0] == 0 {
			return nil
		}
		off += int64(n[0])
	}
}
