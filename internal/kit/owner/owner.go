package owner

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"premix/internal/kit/exit"
)

// Error reports a file, a directory or a peer that other users control.
type Error struct {
	Path     string
	Reason   string
	HintText string // the hint; "" if it depends on the caller
}

func (e *Error) Error() string { return e.Path + " " + e.Reason }

// Is makes an Error match [fs.ErrPermission].
func (e *Error) Is(target error) bool { return target == fs.ErrPermission }

// ExitCode implements exit.Coded.
func (*Error) ExitCode() exit.Code { return exit.Directory }

// Hint returns the advice for the user.
func (e *Error) Hint() string { return e.HintText }

// also is a further trusted user ID plus one, or 0.
var also atomic.Int64

// TrustOwner adds the owner of dir to the trusted users. It is for the jobs of an engine:
// the engine names the directory, and in a container another user may own it.
func TrustOwner(dir string) {
	var st unix.Stat_t
	if unix.Stat(dir, &st) == nil {
		also.Store(int64(st.Uid) + 1)
	}
}

// Trusts reports whether this process may rely on files of a user as on its own.
func Trusts(uid uint32) bool {
	euid := os.Geteuid()
	if uid == 0 || int(uid) == euid || int64(uid)+1 == also.Load() {
		return true
	}
	// sudo sets SUDO_UID itself. A user who could set it for root is root.
	return euid == 0 && os.Getenv("SUDO_UID") == strconv.FormatUint(uint64(uid), 10)
}

// check refuses a file whose owner is not trusted or whose mode has a bit of forbidden. If
// it would, it first makes a file in dir, to find out whether the file system shows the
// true owner and mode.
func check(path, dir string, st *unix.Stat_t, forbidden uint32) error {
	foreign, open := !Trusts(st.Uid), st.Mode&forbidden != 0
	if !foreign && !open {
		return nil
	}
	if probe, ok := made(dir); ok {
		foreign = foreign && probe.Uid != st.Uid
		open = open && probe.Mode&forbidden == 0
	}
	if foreign {
		return &Error{Path: path, Reason: fmt.Sprintf("belongs to user %d", st.Uid)}
	}
	if open {
		return &Error{Path: path, Reason: fmt.Sprintf("can be written to by other users (mode %04o)", st.Mode&0o7777)}
	}
	return nil
}

// made makes a file with mode 0600 in dir and returns the owner and mode that the file
// system shows for it.
func made(dir string) (st unix.Stat_t, ok bool) {
	f, err := os.CreateTemp(dir, ".premix-owner-")
	if err != nil {
		return st, false
	}
	defer os.Remove(f.Name())
	defer f.Close()
	return st, unix.Fstat(int(f.Fd()), &st) == nil
}

// Trusted refuses a directory in which root would write by path if another user could
// replace the directory or its entries. It resolves the path and checks each directory on
// the way, the last one too: its owner, and the owner of each symbolic link, must be
// trusted. Without a sticky bit it must not be writable by all users, nor by a group other
// than root's group and the group of the user who called sudo. Directories that do not
// exist yet are trusted. The check is for root only: other users may share directories.
//
// Root of a container without a user namespace of its own is this machine's root: the
// owner of a directory that is mounted into the container can change names in it too.
//
// systemd-tmpfiles(8) has the same rule for unsafe path transitions.
func Trusted(dir string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	if uids, err := os.ReadFile("/proc/self/uid_map"); err == nil && oneUser(string(uids)) {
		return nil
	}
	if !filepath.IsAbs(dir) {
		wd, err := os.Getwd()
		if err != nil {
			return err
		}
		dir = wd + "/" + dir // not cleaned: ".." may follow a link
	}
	err := trustedHint(dir)
	var foreign *Error
	if errors.As(err, &foreign) {
		foreign.HintText = "do it as the user whose directory it is, or give a directory that root alone may change"
	}
	return err
}

// oneUser reports whether a map of user IDs, see user_namespaces(7), belongs to a namespace
// whose only user is root, and whose root is an ordinary user outside. Such a root has no
// rights over the files of other users: in a namespace, the kernel gives capabilities over a
// file only if the namespace maps its owner.
func oneUser(uids string) bool {
	f := strings.Fields(uids)
	return len(f) == 3 && f[0] == "0" && f[1] != "0" && f[2] == "1"
}

// MkdirAll makes a directory, as [os.MkdirAll] does, unless [Trusted] refuses it.
func MkdirAll(dir string, mode fs.FileMode) error {
	var foreign *Error
	if err := Trusted(dir); errors.As(err, &foreign) {
		return err
	}
	if err := os.MkdirAll(dir, mode); err != nil {
		return err
	}
	return Trusted(dir) // in a directory that all users can write to, another user may have made it meanwhile
}

// trustedHint is Trusted for an absolute path, whose names it resolves as the kernel does.
func trustedHint(path string) error {
	at, names, links := "/", strings.Split(path, "/"), 0
	for {
		var st unix.Stat_t
		if err := unix.Lstat(at, &st); err == unix.ENOENT {
			return nil
		} else if err != nil {
			return &fs.PathError{Op: "lstat", Path: at, Err: err}
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFLNK:
			if err := Link(at, st.Uid); err != nil {
				return err
			}
			to, err := os.Readlink(at)
			if err != nil {
				return err
			}
			if links++; links > 40 { // as the kernel, see path_resolution(7)
				return &fs.PathError{Op: "open", Path: path, Err: unix.ELOOP}
			}
			names = append(strings.Split(to, "/"), names...)
			if at = filepath.Dir(at); filepath.IsAbs(to) {
				at = "/"
			}
		case unix.S_IFDIR:
			var forbidden uint32
			if st.Mode&unix.S_ISVTX == 0 {
				forbidden = 0o002
				if st.Gid != 0 && os.Getenv("SUDO_GID") != strconv.FormatUint(uint64(st.Gid), 10) {
					forbidden = 0o022
				}
			}
			if err := check(at, at, &st, forbidden); err != nil {
				return err
			}
		default:
			return &fs.PathError{Op: "open", Path: at, Err: unix.ENOTDIR}
		}
		for len(names) > 0 && (names[0] == "" || names[0] == ".") {
			names = names[1:]
		}
		if len(names) == 0 {
			return nil
		}
		at, names = filepath.Join(at, names[0]), names[1:] // it is clean, so ".." is the directory above
	}
}

// Link refuses to follow a symbolic link whose owner is not trusted.
func Link(path string, uid uint32) error {
	if Trusts(uid) {
		return nil
	}
	return &Error{path, fmt.Sprintf("is a symbolic link of another user (%d)", uid), "name the file itself, or a name that is free"}
}

// Environ returns the environment for the programs of the system that premix starts, such
// as runc and ssh. For root it removes relative paths from the variables of ld.so(8): the
// working directory may belong to another user. An empty element of LD_LIBRARY_PATH, as in
// LD_LIBRARY_PATH=$LD_LIBRARY_PATH:/opt/lib, is a relative path too.
func Environ() []string {
	env := os.Environ()
	if os.Geteuid() != 0 {
		return env
	}
	for i, entry := range env {
		name, value, _ := strings.Cut(entry, "=")
		switch name {
		case "LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT":
			var list []string
			for _, place := range strings.FieldsFunc(value, func(r rune) bool { return strings.ContainsRune(":; ", r) }) {
				if filepath.IsAbs(place) || name != "LD_LIBRARY_PATH" && !strings.Contains(place, "/") {
					list = append(list, place) // a name without a slash is searched in the library path
				}
			}
			env[i] = name + "=" + strings.Join(list, ":")
		}
	}
	return env
}

// CheckNamed refuses a directory that a user named if its owner is not trusted. Symbolic links
// to it are followed.
func CheckNamed(dir string) error {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: dir, Err: err}
	}
	return check(dir, dir, &st, 0)
}

// Directory refuses dir unless it is a directory, not a symbolic link to one, whose owner
// is trusted and to which not all users can write.
func Directory(dir string) error { return directory(dir, 0o002) }

// Private refuses dir unless it is a directory, not a symbolic link to one, whose owner is
// trusted and to which no other user can write. It refuses it to root also where [Trusted]
// does: another user could put another directory in its place.
func Private(dir string) error {
	if err := directory(dir, 0o022); err != nil {
		return err
	}
	return Trusted(dir)
}

func directory(dir string, forbidden uint32) error {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return &fs.PathError{Op: "lstat", Path: dir, Err: err}
	}
	switch {
	case st.Mode&unix.S_IFMT == unix.S_IFLNK:
		return &Error{Path: dir, Reason: "is a symbolic link"}
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return &Error{Path: dir, Reason: "is not a directory"}
	}
	return check(dir, dir, &st, forbidden)
}

// MakePrivate makes dir and its missing parents below base with mode 0700, and refuses any
// of them that exists and is not private. base is a directory in which every user can make
// entries, such as /tmp.
func MakePrivate(base, dir string) error {
	rel, err := filepath.Rel(base, dir)
	if err != nil {
		return err
	}
	if !filepath.IsLocal(rel) || rel == "." {
		return fmt.Errorf("%s is not below %s", dir, base)
	}
	if err := Shared(base); err != nil {
		return err
	}
	if parent := filepath.Dir(dir); parent != filepath.Clean(base) {
		if err := MakePrivate(base, parent); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return Private(dir)
}

// Shared refuses a directory in which another user could rename the entries of this user:
// its owner is not trusted, or all users can write to it and it has no sticky bit. Symbolic
// links to it are followed.
func Shared(dir string) error {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: dir, Err: err}
	}
	if err := check(dir, dir, &st, 0); err != nil {
		return err
	}
	if st.Mode&0o002 != 0 && st.Mode&unix.S_ISVTX == 0 {
		return &Error{Path: dir, Reason: fmt.Sprintf("can be written to by all users, and has no sticky bit (mode %04o)", st.Mode&0o7777)}
	}
	return nil
}

// RuntimeDir returns the directory for sockets and locks of this user on this machine:
// premix in $XDG_RUNTIME_DIR if that directory belongs to this user, or else premix-UID in
// the directory for temporary files. base is the parent, for [MakePrivate].
func RuntimeDir() (base, dir string) {
	if base := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(base) {
		// After su(1) or sudo(8) the variable may name the directory of another user.
		var st unix.Stat_t
		if unix.Stat(base, &st) == nil && int(st.Uid) == os.Geteuid() && st.Mode&0o022 == 0 {
			return base, filepath.Join(base, "premix")
		}
	}
	base = os.TempDir()
	return base, filepath.Join(base, "premix-"+strconv.Itoa(os.Geteuid()))
}

// OpenFile opens a file of premix's state, as [os.OpenFile] does. It refuses symbolic
// links, files that are not regular, files whose owner is not trusted, and files to which
// all users can write. For writing it also refuses files to which another user may have
// made a hard link. It does not block on a FIFO.
func OpenFile(path string, flags int, mode fs.FileMode) (*os.File, error) {
	truncate := flags&os.O_TRUNC != 0 // only after the checks
	f, err := os.OpenFile(path, flags&^os.O_TRUNC|unix.O_NOFOLLOW|unix.O_NONBLOCK, mode)
	if errors.Is(err, unix.ELOOP) {
		return nil, &Error{Path: path, Reason: "is a symbolic link"}
	}
	if errors.Is(err, unix.ENXIO) {
		return nil, &Error{Path: path, Reason: "is not a regular file"}
	}
	if err != nil {
		return nil, err
	}
	if err = checkFile(f); err == nil && flags&(os.O_WRONLY|os.O_RDWR) != 0 {
		err = onlyName(f)
	}
	if err == nil && truncate {
		err = f.Truncate(0)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// secretMost is the largest size of a file of tokens or keys, in bytes.
const secretMost = 1 << 20

// ReadSecret reads a file of tokens or keys. Symbolic links to it are followed. It refuses
// files that are not regular, files whose owner is not trusted, since the owner knows the
// secret, and files that other users can read or write. It does not block on a FIFO.
func ReadSecret(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := checkMode(f, 0); err != nil {
		var foreign *Error
		if errors.As(err, &foreign) {
			foreign.HintText = "name a file of your own"
		}
		return nil, err
	}
	// Unlike check, this trusts the mode that the file system shows: if it shows the
	// same mode for all files, other users can read them.
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Mode()&0o077 != 0 {
		return nil, &Error{path, fmt.Sprintf("can be read or written by other users (mode %04o)", info.Mode().Perm()), "chmod 600 " + path}
	}
	if info.Size() > secretMost {
		return nil, &Error{path, "is too large for a file of tokens or keys", "name the right file"}
	}
	return io.ReadAll(io.LimitReader(f, secretMost))
}

// ReadConfig reads a file with settings. Symbolic links to it are followed. It refuses
// files that are not regular, files whose owner is not trusted, and files to which all
// users can write. It does not block on a FIFO.
func ReadConfig(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := checkFile(f); err != nil {
		return nil, err
	}
	return io.ReadAll(f)
}

// onlyName refuses a file with several hard links in a directory where other users can make
// one: the file may be another file of this user. The kernel prevents these links if
// fs.protected_hardlinks is set, but not if they are made on another machine.
func onlyName(f *os.File) error {
	var st, dir unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return &fs.PathError{Op: "stat", Path: f.Name(), Err: err}
	}
	if st.Nlink <= 1 {
		return nil
	}
	if err := unix.Stat(filepath.Dir(f.Name()), &dir); err != nil {
		return &fs.PathError{Op: "stat", Path: filepath.Dir(f.Name()), Err: err}
	}
	if dir.Mode&0o022 == 0 {
		return nil
	}
	return &Error{f.Name(), "has another name (a hard link), and other users can make names in its directory", "if it is yours, make a copy of it and give the copy its name"}
}

func checkFile(f *os.File) error { return checkMode(f, 0o002) }

func checkMode(f *os.File, forbidden uint32) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return &fs.PathError{Op: "stat", Path: f.Name(), Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return &Error{Path: f.Name(), Reason: "is not a regular file"}
	}
	return check(f.Name(), filepath.Dir(f.Name()), &st, forbidden)
}

// OpenOthers opens a file for reading that may belong to another user. It refuses symbolic
// links and files that are not regular. It does not block on a FIFO.
func OpenOthers(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, &Error{Path: path, Reason: "is a symbolic link"}
	}
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		f.Close()
		return nil, errors.Join(err, &Error{Path: path, Reason: "is not a regular file"})
	}
	return f, nil
}

// ReadOthers reads a file as [OpenOthers] opens it.
func ReadOthers(path string) ([]byte, error) {
	f, err := OpenOthers(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

// CheckPlanted refuses a file whose owner is not trusted in a directory to which all users can
// write. The kernel does the same where fs.protected_symlinks, protected_regular and
// protected_fifos are set.
func CheckPlanted(path string) error {
	var st, dir unix.Stat_t
	if unix.Lstat(path, &st) != nil || unix.Stat(filepath.Dir(path), &dir) != nil {
		return nil // the file does not exist
	}
	if dir.Mode&0o002 == 0 {
		return nil
	}
	return check(path, filepath.Dir(path), &st, 0)
}
