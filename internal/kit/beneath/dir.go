package beneath

import (
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"premix/internal/kit/owner"
)

// Dir is an open directory.
type Dir struct {
	f    *os.File
	path string
}

// Open opens a directory by a path that the user has named. Symbolic links in that path
// are followed.
func Open(path string) (*Dir, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if errors.Is(err, fs.ErrPermission) {
		// Files can be made in a directory that cannot be read.
		f, err = os.OpenFile(path, unix.O_PATH|unix.O_DIRECTORY, 0)
	}
	if err != nil {
		return nil, err
	}
	return &Dir{f, path}, nil
}

// Of returns the directory of an open descriptor. The Dir owns the descriptor.
func Of(fd int, path string) *Dir { return &Dir{os.NewFile(uintptr(fd), path), path} }

// From returns the directory of an open file. The Dir owns the file. Messages name it by
// path.
func From(f *os.File, path string) *Dir { return &Dir{f, path} }

// Close closes the directory.
func (d *Dir) Close() error { return d.f.Close() }

// Fd returns the descriptor, which is valid until Close.
func (d *Dir) Fd() int { return int(d.f.Fd()) }

// Path returns a path of the open directory for this process. It leads to the same
// directory even after the directory was renamed.
func (d *Dir) Path() string { return "/proc/self/fd/" + strconv.Itoa(d.Fd()) }

// Sync writes the directory's entries to the disk.
func (d *Dir) Sync() error { return d.f.Sync() }

// OpenDir opens a directory beneath this one.
func (d *Dir) OpenDir(rel string) (*Dir, error) {
	f, err := d.OpenFile(rel, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	return &Dir{f, filepath.Join(d.path, rel)}, nil
}

// OpenFile opens a file beneath the directory. It follows no symbolic link.
func (d *Dir) OpenFile(rel string, flags int, perm fs.FileMode) (*os.File, error) {
	fd, err := OpenAt(d.Fd(), rel, flags, uint32(perm.Perm()))
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: filepath.Join(d.path, rel), Err: err}
	}
	return os.NewFile(uintptr(fd), filepath.Join(d.path, rel)), nil
}

// OpenAt opens a file beneath the directory with the descriptor dir, and follows no
// symbolic link. The error is unix.ELOOP for a link, and unix.EXDEV for a name that leads
// out of the directory. The name may be longer than the kernel takes in one call; then ".."
// in it may be refused although it stays beneath the directory.
func OpenAt(dir int, rel string, flags int, mode uint32) (int, error) {
	if len(rel) >= unix.PathMax {
		return openLong(dir, rel, flags, mode)
	}
	flags |= unix.O_CLOEXEC
	how := unix.OpenHow{Flags: uint64(flags), Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS}
	if flags&(unix.O_CREAT|unix.O_TMPFILE&^unix.O_DIRECTORY) != 0 {
		how.Mode = uint64(mode)
	}
	for {
		fd, err := openat2(dir, rel, &how)
		switch {
		case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM) && !hasOpenat2():
			return walk(dir, rel, flags, mode)
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
		default:
			return fd, err
		}
	}
}

// openat2 is replaced by tests of kernels without it.
// openLong opens a long name in pieces.
func openLong(dir int, rel string, flags int, mode uint32) (int, error) {
	cut := strings.LastIndexByte(rel[:unix.PathMax-1], '/')
	if cut <= 0 || strings.Trim(rel[cut:], "/") == "" {
		return -1, unix.ENAMETOOLONG
	}
	at, err := OpenAt(dir, rel[:cut], unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(at) // closing an O_PATH descriptor cannot fail
	return OpenAt(at, strings.TrimLeft(rel[cut:], "/"), flags, mode)
}

var openat2 = unix.Openat2

// hasOpenat2 reports whether the system call works. Sandboxes refuse it with EPERM.
func hasOpenat2() bool {
	fd, err := openat2(unix.AT_FDCWD, "/", &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC})
	if err != nil {
		return false
	}
	unix.Close(fd)
	return true
}

// walk implements OpenAt without openat2.
func walk(dir int, rel string, flags int, mode uint32) (int, error) {
	if rel == "" {
		return -1, unix.ENOENT
	}
	if !filepath.IsLocal(rel) {
		return -1, unix.EXDEV
	}
	parts := strings.Split(filepath.Clean(rel), "/")
	at := dir
	for i, name := range parts {
		how := flags | unix.O_NOFOLLOW
		if i < len(parts)-1 {
			how = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
		}
		fd, err := openOne(at, name, how, mode)
		if at != dir {
			unix.Close(at)
		}
		if err != nil {
			return -1, err
		}
		at = fd
	}
	return at, nil
}

func openOne(dir int, name string, flags int, mode uint32) (int, error) {
	for {
		fd, err := unix.Openat(dir, name, flags, mode)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		// With O_DIRECTORY the error for a link is ENOTDIR, as for a file.
		var st unix.Stat_t
		if errors.Is(err, unix.ENOTDIR) && unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
			err = unix.ELOOP
		}
		// O_PATH opens the link itself.
		if err == nil && flags&unix.O_PATH != 0 && unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
			unix.Close(fd)
			return -1, unix.ELOOP
		}
		return fd, err
	}
}

// Lstat returns the state of a file beneath the directory. It does not follow a link.
func (d *Dir) Lstat(rel string) (st unix.Stat_t, err error) {
	dir := d.Fd()
	if parent := filepath.Dir(rel); parent != "." {
		if dir, err = OpenAt(dir, parent, unix.O_PATH|unix.O_DIRECTORY, 0); err != nil {
			return st, &fs.PathError{Op: "stat", Path: filepath.Join(d.path, rel), Err: err}
		}
		defer unix.Close(dir)
	}
	if err := unix.Fstatat(dir, filepath.Base(rel), &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return st, &fs.PathError{Op: "stat", Path: filepath.Join(d.path, rel), Err: err}
	}
	return st, nil
}

// SyncDir writes the entries of a directory to the disk.
func SyncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(fsync(d), d.Close())
}

// MkdirAll makes a directory and its missing parents. Their names are on the disk when it
// returns.
func MkdirAll(path string, perm fs.FileMode) error {
	if _, err := os.Stat(path); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	parent := filepath.Dir(path)
	if err := MkdirAll(parent, perm); err != nil {
		return err
	}
	if err := os.Mkdir(path, perm); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return SyncDir(parent)
}

// Mkdir makes a directory and opens it.
func (d *Dir) Mkdir(name string, perm fs.FileMode) (*Dir, error) {
	if err := unix.Mkdirat(d.Fd(), name, uint32(perm.Perm())); err != nil {
		return nil, &fs.PathError{Op: "mkdir", Path: filepath.Join(d.path, name), Err: err}
	}
	made, err := d.OpenDir(name)
	if err != nil {
		return nil, err
	}
	if err := made.fresh(); err != nil {
		return nil, errors.Join(&fs.PathError{Op: "mkdir", Path: filepath.Join(d.path, name), Err: err}, made.Close())
	}
	return made, nil
}

// fresh returns an error for a directory that this process cannot have made just now: a
// user who may write to the directory above can replace it by another one.
func (d *Dir) fresh() error {
	var st unix.Stat_t
	if err := unix.Fstat(d.Fd(), &st); err != nil {
		return err
	}
	_, err := d.f.Readdirnames(1)
	if errors.Is(err, io.EOF) && int(st.Uid) == os.Geteuid() {
		_, err = d.f.Seek(0, io.SeekStart)
		return err
	}
	return errors.New("another directory has taken its place")
}

// Temporary returns a name that no other user can know in advance.
func Temporary(prefix string) string {
	// crypto/rand would do the same, and would be initialized in each start of a shim.
	var b [16]byte
	if _, err := unix.Getrandom(b[:], 0); err != nil {
		panic(err) // the kernel returns random bytes, or waits
	}
	return prefix + hex.EncodeToString(b[:])
}

// Durability states which crashes a file survives.
type Durability bool

const (
	// Volatile files may be lost, or empty, after a crash of the machine.
	Volatile Durability = false
	// Durable files are on the disk when the call returns, and so are their names.
	Durable Durability = true
)

// File is a file that has no final name yet.
type File struct {
	*os.File
	dir  *Dir
	name string // empty: it has its final name, or was removed

	// The function Create sets these:
	mine   bool   // dir is closed with it
	as     string // its final name
	direct bool   // a pipe or a device
}

// Prefix begins the names of files that are still being written.
const Prefix = ".premix-part-"

// Create makes an empty file with a temporary name, for reading and writing. The mode is
// subject to the umask.
func (d *Dir) Create(perm fs.FileMode) (*File, error) {
	name := Temporary(Prefix)
	f, err := d.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return nil, err
	}
	return &File{File: f, dir: d, name: name}, nil
}

// Create makes an empty file with a temporary name, which [File.Commit] renames to path.
// The mode is subject to the umask. Create follows a symbolic link of the caller or of
// root, and refuses a link of another user. It opens a pipe or a device itself.
func Create(path string, perm fs.FileMode) (*File, error) {
	dir, name, err := final(path)
	if err != nil {
		return nil, err
	}
	var f *File
	st, err := dir.Lstat(name)
	if kind := st.Mode & unix.S_IFMT; err == nil && kind != unix.S_IFREG {
		// final leaves a link only in /proc: the link of a pipe or a socket.
		direct, err := os.OpenFile(filepath.Join(dir.Path(), name), os.O_WRONLY, 0)
		if err != nil {
			return nil, errors.Join(&fs.PathError{Op: "write", Path: path, Err: err}, dir.Close())
		}
		return &File{File: direct, dir: dir, mine: true, direct: true}, nil
	}
	if _, done := swept.LoadOrStore(filepath.Dir(path), nil); !done {
		dir.sweep()
	}
	if f, err = dir.Create(perm); err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	f.as, f.mine = name, true
	return f, nil
}

// Commit closes the file and gives it the name for which [Create] made it.
func (f *File) Commit(how Durability) error {
	if f.direct {
		return errors.Join(f.File.Close(), f.Discard())
	}
	return f.Replace(f.as, how)
}

// Replace closes the file and renames it in its directory. It replaces a file or a symbolic
// link that has the name. When Replace fails it removes the file.
func (f *File) Replace(name string, how Durability) error { return f.ReplaceIn(f.dir, name, how) }

// ReplaceIn is Replace with a name in another directory of the same file system.
func (f *File) ReplaceIn(dir *Dir, name string, how Durability) error {
	var err error
	if how == Durable {
		err = fsync(f.File)
	}
	if err == nil {
		err = f.own()
	}
	if err = errors.Join(err, f.File.Close()); err == nil {
		err = renameat(f.dir.Fd(), f.name, dir.Fd(), name)
	}
	if err != nil {
		return errors.Join(&fs.PathError{Op: "write", Path: filepath.Join(dir.path, name), Err: err}, f.Discard())
	}
	f.name = ""
	if how == Durable {
		err = fsync(dir.f)
	}
	return errors.Join(err, f.Discard())
}

// own returns an error if the temporary name belongs to another file by now.
func (f *File) own() error {
	var open, named unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &open); err != nil {
		return err
	}
	if err := unix.Fstatat(f.dir.Fd(), f.name, &named, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if open.Ino != named.Ino || open.Dev != named.Dev {
		return errors.New("another file has taken its temporary name")
	}
	return nil
}

// Discard closes and removes the file, unless it has its final name. It can be called more
// than once.
func (f *File) Discard() error {
	var err error
	_ = f.File.Close() // Replace may have closed it
	if f.name != "" {
		err = unlinkat(f.dir.Fd(), f.name, 0)
		f.name = ""
	}
	if f.mine {
		f.mine = false
		err = errors.Join(err, f.dir.Close())
	}
	return err
}

// fsync, renameat and unlinkat are replaced by fault tests.
var (
	fsync    = (*os.File).Sync
	renameat = unix.Renameat
	unlinkat = unix.Unlinkat
)

// Write makes the file at path with the bytes that write writes. On an error there is no
// new file. See [Create].
func Write(path string, perm fs.FileMode, how Durability, write func(io.Writer) error) error {
	f, err := Create(path, perm)
	if err != nil {
		return err
	}
	if err := write(f); err != nil {
		return errors.Join(err, f.Discard())
	}
	return f.Commit(how)
}

// Replace is Write with the content of the file.
func Replace(path string, perm fs.FileMode, how Durability, text []byte) error {
	return Write(path, perm, how, func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	})
}

const linksMost = 40 // as the kernel, see path_resolution(7)

// final opens the directory of the file that a path leads to, and returns the name of the
// file there.
func final(path string) (*Dir, string, error) {
	path = filepath.Clean(path)
	for range linksMost {
		dir, err := Open(filepath.Dir(path))
		if err != nil {
			return nil, "", err
		}
		name := filepath.Base(path)
		to, err := readlink(dir, name)
		if to == "" {
			if err != nil {
				dir.Close()
				return nil, "", err
			}
			return dir, name, nil
		}
		// The text of a link in /proc/self/fd may not be a path. /dev/stdout leads to one.
		var sys unix.Statfs_t
		if _, err := os.Lstat(to); err != nil && unix.Fstatfs(dir.Fd(), &sys) == nil && sys.Type == unix.PROC_SUPER_MAGIC {
			return dir, name, nil
		}
		dir.Close()
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(path), to)
		}
		path = to
	}
	return nil, "", &fs.PathError{Op: "open", Path: path, Err: unix.ELOOP}
}

// readlink returns the text of a link that may be followed, "" for another file.
func readlink(dir *Dir, name string) (string, error) {
	fd, err := unix.Openat(dir.Fd(), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return "", nil
	}
	if err != nil {
		return "", &fs.PathError{Op: "open", Path: filepath.Join(dir.path, name), Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return "", err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return "", nil
	}
	if err := owner.Link(filepath.Join(dir.path, name), st.Uid); err != nil {
		return "", err
	}
	b := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", b)
	if err != nil {
		return "", &fs.PathError{Op: "readlink", Path: filepath.Join(dir.path, name), Err: err}
	}
	return string(b[:n]), nil
}
