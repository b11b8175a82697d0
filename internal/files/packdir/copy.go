package packdir

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// copier copies the content of a directory into an empty one.
type copier struct {
	ctx   context.Context
	links map[inode]string // paths below the destination's top
	top   int
}

func (c *copier) directory(from, to int, path string) error {
	list, err := names(from)
	if err != nil {
		return err
	}
	for _, name := range list {
		if err := context.Cause(c.ctx); err != nil {
			return err
		}
		if err := c.entry(from, to, name, path+name); err != nil {
			return fmt.Errorf("%s: %w", path+name, err)
		}
	}
	return nil
}

func (c *copier) entry(from, to int, name, path string) error {
	st, err := stat(from, name)
	if err != nil {
		return err
	}
	kind := st.Mode & unix.S_IFMT
	if kind != unix.S_IFDIR && st.Nlink > 1 {
		id := inode{uint64(st.Dev), st.Ino}
		if first := c.links[id]; first != "" {
			return unix.Linkat(c.top, first, to, name, 0)
		}
		c.links[id] = path
	}
	switch kind {
	case unix.S_IFDIR:
		if err := unix.Mkdirat(to, name, 0o700); err != nil {
			return err
		}
		err = both(from, to, name, unix.O_DIRECTORY, func(p, q *os.File) error {
			return c.directory(int(p.Fd()), int(q.Fd()), path+"/")
		})
	case unix.S_IFLNK:
		var target string
		if target, err = readlink(from, name); err == nil {
			err = unix.Symlinkat(target, to, name)
		}
	case unix.S_IFREG:
		err = copyFile(from, to, name)
	default:
		err = unix.Mknodat(to, name, kind|0o600, int(st.Rdev))
	}
	if err != nil {
		return err
	}
	return dress(from, to, name, &st)
}

func copyFile(from, to int, name string) error {
	src, err := open(from, name, 0)
	if err != nil {
		return err
	}
	defer src.Close()
	fd, err := unix.Openat(to, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	dst := os.NewFile(uintptr(fd), name)
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Close())
}

// dress copies owner, attributes, mode and times from one entry to another, in this order:
// a change of owner clears set-user-ID, and a change of attributes leaves the time of
// modification alone.
func dress(from, to int, name string, st *unix.Stat_t) error {
	if err := unix.Fchownat(to, name, int(st.Uid), int(st.Gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	all, err := attributes(from, name)
	if err != nil {
		return err
	}
	for key, value := range all {
		if err := unix.Lsetxattr(at(to, name), key, value, 0); err != nil {
			return fmt.Errorf("its attribute %s cannot be kept: %w", key, err)
		}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Fchmodat(to, name, st.Mode&^unix.S_IFMT, 0); err != nil {
			return err
		}
	}
	return unix.UtimesNanoAt(to, name, []unix.Timespec{st.Atim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
}

// remove removes the content of a directory. If seen is not nil, it removes a file only if
// it is unchanged since then; the others stay, and the error names the first of them.
func remove(dir int, seen map[inode]unix.Stat_t, path string) error {
	list, err := names(dir)
	if err != nil {
		return err
	}
	var kept error
	for _, name := range list {
		st, err := stat(dir, name)
		if err != nil {
			return err
		}
		flags := 0
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			flags = unix.AT_REMOVEDIR
			sub, err := open(dir, name, unix.O_DIRECTORY)
			if err != nil {
				return err
			}
			err = remove(int(sub.Fd()), seen, path+name+"/")
			if cerr := sub.Close(); err == nil {
				err = cerr
			}
			var changed *DifferenceError
			if errors.As(err, &changed) {
				kept = err
				continue
			}
			if err != nil {
				return err
			}
		} else if seen != nil {
			was, ok := seen[inode{uint64(st.Dev), st.Ino}]
			if !ok || was.Size != st.Size || was.Mtim != st.Mtim {
				kept = differ(path+name, "was written while its directory was packed: it lies beneath the mount")
				continue
			}
		}
		if err := unix.Unlinkat(dir, name, flags); err != nil {
			return err
		}
	}
	return kept
}
