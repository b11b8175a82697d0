package packdir

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"premix/internal/kit/exit"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// DifferenceError is returned if a directory and its tree differ, or if a file is being
// written.
type DifferenceError struct {
	Path   string // below the directory, "." for itself
	Reason string
}

func (e *DifferenceError) Error() string { return e.Path + " " + e.Reason }

// ExitCode implements exit.Coded.
func (*DifferenceError) ExitCode() exit.Code { return exit.Failed }

// Hint says which directories can be packed.
func (e *DifferenceError) Hint() string { return "pack only directories that no program writes to" }

// inode identifies a file of a file system.
type inode struct{ dev, ino uint64 }

// comparison compares a directory with another one, and records the files that it saw in
// the first.
type comparison struct {
	ctx   context.Context
	seen  map[inode]unix.Stat_t
	links [2]map[inode]string
	bufs  [2][]byte
}

// compare compares two open directories and their contents. It returns the files that it
// saw in the first one.
func compare(ctx context.Context, a, b int) (map[inode]unix.Stat_t, error) {
	c := &comparison{ctx: ctx, seen: make(map[inode]unix.Stat_t), links: [2]map[inode]string{{}, {}}, bufs: [2][]byte{make([]byte, 1<<20), make([]byte, 1<<20)}}
	if err := c.entry(a, b, ".", "."); err != nil {
		return nil, err
	}
	return c.seen, c.directory(a, b, "")
}

func differ(path, format string, args ...any) error {
	return &DifferenceError{path, fmt.Sprintf(format, args...)}
}

// names returns the names in a directory, in byte order.
func names(dir int) ([]string, error) {
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), ".")
	defer f.Close()
	list, err := f.Readdirnames(-1)
	slices.Sort(list)
	return list, err
}

func (c *comparison) directory(a, b int, path string) error {
	if err := context.Cause(c.ctx); err != nil {
		return err
	}
	first, err := names(a)
	if err != nil {
		return err
	}
	second, err := names(b)
	if err != nil {
		return err
	}
	if !slices.Equal(first, second) {
		return differ(strings.TrimSuffix("./"+path, "/"), "has %d names; its tree has %d, or different ones", len(first), len(second))
	}
	for _, name := range first {
		if err := c.entry(a, b, name, path+name); err != nil {
			return err
		}
	}
	return nil
}

func (c *comparison) entry(a, b int, name, path string) error {
	x, err := stat(a, name)
	if err != nil {
		return err
	}
	y, err := stat(b, name)
	if err != nil {
		return err
	}
	kind := x.Mode & unix.S_IFMT
	switch {
	case x.Mode != y.Mode:
		return differ(path, "has the mode %o, but %o in its tree", x.Mode, y.Mode)
	case x.Uid != y.Uid || x.Gid != y.Gid:
		return differ(path, "belongs to %d:%d, but to %d:%d in its tree", x.Uid, x.Gid, y.Uid, y.Gid)
	case x.Mtim != y.Mtim:
		return differ(path, "has another time of modification in its tree")
	case kind != unix.S_IFDIR && (x.Size != y.Size || x.Nlink != y.Nlink || x.Rdev != y.Rdev):
		return differ(path, "has another size, number of names or device number in its tree")
	}
	if err := c.attributes(a, b, name, path); err != nil {
		return err
	}
	c.seen[inode{uint64(x.Dev), x.Ino}] = x
	switch kind {
	case unix.S_IFDIR:
		if name == "." {
			return nil
		}
		return both(a, b, name, unix.O_DIRECTORY, func(p, q *os.File) error {
			return c.directory(int(p.Fd()), int(q.Fd()), path+"/")
		})
	case unix.S_IFLNK:
		t, err := readlink(a, name)
		if err != nil {
			return err
		}
		if u, err := readlink(b, name); err != nil || t != u {
			return errors.Join(differ(path, "has another target in its tree"), err)
		}
		return nil
	case unix.S_IFREG:
		if x.Nlink > 1 {
			p, q := inode{uint64(x.Dev), x.Ino}, inode{uint64(y.Dev), y.Ino}
			if c.links[0][p] != c.links[1][q] {
				return differ(path, "shares its file with another name in its tree")
			}
			if c.links[0][p] != "" {
				return nil
			}
			c.links[0][p], c.links[1][q] = path, path
		}
		return both(a, b, name, 0, func(p, q *os.File) error { return c.content(p, q, path) })
	}
	return nil
}

// both opens a name in two directories, and calls f.
func both(a, b int, name string, flags int, f func(p, q *os.File) error) error {
	p, err := open(a, name, flags)
	if err != nil {
		return err
	}
	defer p.Close()
	q, err := open(b, name, flags)
	if err != nil {
		return err
	}
	defer q.Close()
	return f(p, q)
}

func open(dir int, name string, flags int) (*os.File, error) {
	fd, err := unix.Openat(dir, name, flags|unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

func (c *comparison) content(p, q *os.File, path string) error {
	if _, err := unix.FcntlInt(p.Fd(), unix.F_SETLEASE, unix.F_RDLCK); errors.Is(err, unix.EAGAIN) {
		return differ(path, "is being written")
	}
	for {
		if err := context.Cause(c.ctx); err != nil {
			return err
		}
		n, err := io.ReadFull(p, c.bufs[0])
		if err != nil && err != io.EOF && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
		m, err := io.ReadFull(q, c.bufs[1])
		if err != nil && err != io.EOF && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
		if !bytes.Equal(c.bufs[0][:n], c.bufs[1][:m]) {
			return differ(path, "has other content in its tree")
		}
		if n < len(c.bufs[0]) {
			return nil
		}
	}
}

func (c *comparison) attributes(a, b int, name, path string) error {
	x, err := attributes(a, name)
	if err != nil {
		return err
	}
	y, err := attributes(b, name)
	if err != nil {
		return err
	}
	if len(x) != len(y) {
		return differ(path, "has %d extended attributes, but %d in its tree", len(x), len(y))
	}
	for k, v := range x {
		if w, ok := y[k]; !ok || !bytes.Equal(v, w) {
			return differ(path, "has another attribute %s in its tree", k)
		}
	}
	return nil
}

func stat(dir int, name string) (st unix.Stat_t, err error) {
	if err = unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW|unix.AT_EMPTY_PATH); err != nil {
		err = &os.PathError{Op: "stat", Path: name, Err: err}
	}
	return st, err
}

func readlink(dir int, name string) (string, error) {
	buf := make([]byte, 4096) // PATH_MAX
	n, err := unix.Readlinkat(dir, name, buf)
	return string(buf[:max(n, 0)]), err
}

// at returns a path for system calls that take no directory descriptor.
func at(dir int, name string) string { return fmt.Sprintf("/proc/self/fd/%d/%s", dir, name) }

// attributes returns the extended attributes that a tree can have: see package store.
func attributes(dir int, name string) (map[string][]byte, error) {
	list := make([]byte, 64<<10) // XATTR_LIST_MAX, xattr(7)
	n, err := unix.Llistxattr(at(dir, name), list)
	if errors.Is(err, unix.ENOTSUP) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: its attributes cannot be listed: %w", name, err)
	}
	all := make(map[string][]byte)
	for key := range strings.SplitSeq(strings.TrimSuffix(string(list[:n]), "\x00"), "\x00") {
		if key == "" || key == "security.selinux" {
			continue
		}
		value := make([]byte, 64<<10) // XATTR_SIZE_MAX
		size, err := unix.Lgetxattr(at(dir, name), key, value)
		if errors.Is(err, unix.ENODATA) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: its attribute %s cannot be read: %w", name, key, err)
		}
		all[key] = value[:size]
	}
	return all, nil
}
