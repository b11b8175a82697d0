package policy

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"premix/internal/files/content"
	"premix/internal/kit/beneath"
)

// tops are open directories beneath which names are resolved: neither links nor concurrent
// changes can lead out of them.
type tops struct {
	dirs []string // absolute
	run  string   // see planHeader.runName

	making sync.Mutex // held while directories are made; taken before mu
	mu     sync.Mutex
	fds    map[string]int
	swept  map[string]bool // paths that sweep has seen to; used by one goroutine
}

func (t *tops) close() {
	for _, fd := range t.fds {
		unix.Close(fd)
	}
}

// top returns the open directory that contains a path.
func (t *tops) top(path string) (fd int, rel string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, dir := range t.dirs {
		if !within(path, dir) || path == dir {
			continue
		}
		rel = strings.TrimPrefix(strings.TrimPrefix(path, dir), "/")
		if fd, ok := t.fds[dir]; ok {
			return fd, rel, nil
		}
		fd, err = unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return -1, "", &os.PathError{Op: "open", Path: dir, Err: err}
		}
		t.fds[dir] = fd
		return fd, rel, nil
	}
	return -1, "", fmt.Errorf("%s is not in a directory that was scanned", path)
}

// parent opens the directory that contains a path.
func (t *tops) parent(path string) (fd int, name string, err error) {
	top, rel, err := t.top(path)
	if err != nil {
		return -1, "", err
	}
	fd, err = openDir(top, filepath.Dir(rel))
	return fd, filepath.Base(rel), err
}

// openDir opens a directory beneath another one, or itself for ".".
func openDir(top int, rel string) (int, error) {
	return beneath.OpenAt(top, rel, unix.O_RDONLY|unix.O_DIRECTORY, 0)
}

// makeParent opens the directory that is to contain a path. Missing directories are created
// like those of the source, which have the same relative paths.
func (t *tops) makeParent(path, source string) (fd int, name string, err error) {
	top, rel, err := t.top(path)
	if err != nil {
		return -1, "", err
	}
	from, fromRel, err := t.top(source)
	if err != nil {
		return -1, "", err
	}
	dir := filepath.Dir(rel)
	if fd, err = openDir(top, dir); !errors.Is(err, unix.ENOENT) {
		return fd, filepath.Base(rel), err
	}
	if fromRel != rel {
		return -1, "", fmt.Errorf("%s and %s have different relative paths", source, path)
	}
	t.making.Lock()
	defer t.making.Unlock()
	parts := strings.Split(dir, "/")
	for i := range parts {
		if err := t.makeLike(top, from, strings.Join(parts[:i+1], "/")); err != nil {
			return -1, "", err
		}
	}
	fd, err = openDir(top, dir)
	return fd, filepath.Base(rel), err
}

// dirPrefix returns the prefix of the names of directories that this run creates, until
// they have all their attributes.
func (t *tops) dirPrefix() string { return ownPrefix + t.run + "-dir-" }

// sweep removes directories on the way to a path that a killed premix of this run was
// creating in [tops.makeLike].
func (t *tops) sweep(path string) error {
	top, rel, err := t.top(path)
	if err != nil {
		return err
	}
	for dir := filepath.Dir(rel); ; dir = filepath.Dir(dir) {
		if key := fmt.Sprint(top, "/", dir); !t.swept[key] {
			t.swept[key] = true
			if err := t.sweepDir(top, dir); err != nil {
				return err
			}
		}
		if dir == "." {
			return nil
		}
	}
}

func (t *tops) sweepDir(top int, rel string) error {
	fd, err := openDir(top, rel)
	if err != nil {
		return nil // without the directory nothing is in it; if it cannot be opened, the action itself will fail
	}
	dir := os.NewFile(uintptr(fd), rel)
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(1000)
		for _, name := range names {
			if !strings.HasPrefix(name, t.dirPrefix()) {
				continue
			}
			// An error means that it is not empty, and thus not ours.
			if err := unix.Unlinkat(fd, name, unix.AT_REMOVEDIR); err != nil && !isNone(err) && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.ENOTDIR) {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// makeLike creates a directory like the one in another top, unless it exists. It appears
// with all its attributes.
func (t *tops) makeLike(top, from int, rel string) error {
	fd, err := openDir(top, rel)
	if err == nil {
		return unix.Close(fd)
	}
	if !errors.Is(err, unix.ENOENT) {
		return err
	}
	src, err := openDir(from, rel)
	if err != nil {
		return err
	}
	defer unix.Close(src)
	fd, err = openDir(top, filepath.Dir(rel))
	if err != nil {
		return err
	}
	parent := beneath.Of(fd, rel)
	defer parent.Close()
	var st unix.Stat_t
	if err := unix.Fstat(src, &st); err != nil {
		return err
	}
	tmp := beneath.Temporary(t.dirPrefix())
	made, err := parent.Mkdir(tmp, 0o700)
	if err != nil {
		return err
	}
	if err = errors.Join(dress(made.Fd(), src, &st), made.Sync(), made.Close()); err == nil {
		err = unix.Renameat2(parent.Fd(), tmp, parent.Fd(), filepath.Base(rel), unix.RENAME_NOREPLACE)
	}
	if err != nil {
		return errors.Join(err, unix.Unlinkat(parent.Fd(), tmp, unix.AT_REMOVEDIR))
	}
	return parent.Sync()
}

// dress gives an open file the owner, extended attributes (including ACLs), mode and times
// of another one. It returns an error if any of them cannot be set.
func dress(fd, src int, st *unix.Stat_t) error {
	if err := unix.Fchown(fd, int(st.Uid), int(st.Gid)); err != nil {
		return fmt.Errorf("its owner cannot be kept: %w", err)
	}
	names := make([]byte, 64<<10) // XATTR_LIST_MAX, xattr(7)
	n, err := unix.Flistxattr(src, names)
	if err != nil && !errors.Is(err, unix.ENOTSUP) {
		return fmt.Errorf("its attributes cannot be listed: %w", err)
	}
	list := strings.FieldsFunc(string(names[:max(n, 0)]), func(c rune) bool { return c == 0 })
	if err := content.DropACLs(fmt.Sprintf("/proc/self/fd/%d", fd), list); err != nil {
		return fmt.Errorf("an ACL of its directory cannot be removed: %w", err)
	}
	value := make([]byte, 64<<10) // XATTR_SIZE_MAX
	for _, name := range list {
		size, err := unix.Fgetxattr(src, name, value)
		if errors.Is(err, unix.ENODATA) {
			continue
		}
		if err == nil {
			err = unix.Fsetxattr(fd, name, value[:size], 0)
		}
		if err != nil {
			return fmt.Errorf("its attribute %s cannot be kept: %w", name, err)
		}
	}
	// Set the mode after the owner, whose change clears set-user-ID.
	if err := unix.Fchmod(fd, st.Mode&^unix.S_IFMT); err != nil {
		return fmt.Errorf("its mode cannot be kept: %w", err)
	}
	return setTimes(fd, st)
}

func setTimes(fd int, st *unix.Stat_t) error {
	return unix.UtimesNanoAt(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), []unix.Timespec{st.Atim, st.Mtim}, 0)
}

// stamped reports whether a file has the size and times that the scan found.
func (a *Action) stamped(st *unix.Stat_t) bool {
	return a.same(st) && st.Ctim.Nano() == a.Changed
}

// same compares a file with the scan, except for the time of status change, which premix's
// own renames set.
func (a *Action) same(st *unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFREG && int64(st.Ino) == a.Inode && int64(st.Dev) == a.Device && st.Size == a.Size && st.Mtim.Nano() == a.Modified
}

// lease takes a read lease (fcntl(2), F_SETLEASE). The kernel refuses it while a program
// has the file open for writing. Programs that then open the file for writing wait until
// the lease is returned by closing the file, at most for lease-break-time. On a file system
// without leases only times show that a file is written to. written reports whether the
// file is being written.
func lease(fd int) (held, written bool) {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_RDLCK)
	return err == nil, errors.Is(err, unix.EAGAIN)
}

// leased reports whether the lease is still held, without a program waiting for its end.
func leased(fd int) bool {
	kind, err := unix.FcntlInt(uintptr(fd), unix.F_GETLEASE, 0)
	return err == nil && kind == unix.F_RDLCK
}

func statAt(dir int, name string) (st unix.Stat_t, err error) {
	err = unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return st, err
}

func isNone(err error) bool { return errors.Is(err, syscall.ENOENT) }
