package beneath

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"premix/internal/kit/lock"
)

// Stage is a private directory for a file or a tree that is being made. Commit moves it,
// when it is complete, to its final name in the parent of the stage. Only the owner can
// enter the stage.
type Stage struct {
	Name    string // the name within the stage, and the final name
	Resumed bool   // an earlier call has started it

	parent *Dir
	dir    *Dir
	as     string   // name of the stage in parent
	record *os.File // locked; nil without a record
}

// stageRecord names the stage of a destination. It is a JSON file in a directory of the
// user; its name is a hash of the destination.
//
// A stage is recognised by its device, inode and time of birth, which no other directory
// has; by its owner; and by its mode. The time of status change is not compared: it changes
// with every file that is made in the stage, and a killed process cannot record it.
type stageRecord struct {
	Directory string `json:"directory"` // for people
	Stage     string `json:"stage"`
	Device    uint64 `json:"device"`
	Inode     uint64 `json:"inode"`
	Born      int64  `json:"born"` // nanoseconds since 1970; 0: the file system does not record it
}

// BusyError reports a destination that another process is writing.
type BusyError struct{ Path string }

func (e *BusyError) Error() string { return "another premix is copying to " + e.Path }

// Hint returns the advice for the user.
func (e *BusyError) Hint() string { return "wait for its end, or give another destination" }

// Stage opens the stage for the destination name in the directory. It keeps records in the
// directory records, which it makes with mode 0700. If records is "" or cannot be written,
// no later call can resume the stage.
func (d *Dir) Stage(records, name string) (_ *Stage, err error) {
	s := &Stage{Name: name, parent: d}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if records != "" {
		if err := s.find(records); err != nil {
			return nil, err
		}
	}
	if s.dir != nil {
		_, err := s.dir.Lstat(name)
		s.Resumed = err == nil
		return s, nil
	}
	s.as = Temporary(Prefix)
	if s.dir, err = d.Mkdir(s.as, 0o700); err != nil {
		return nil, err
	}
	return s, s.note()
}

// find locks the record of the destination, and opens the stage that it names.
func (s *Stage) find(records string) (err error) {
	// Without records the copy still works, but cannot be resumed.
	if os.MkdirAll(records, 0o700) != nil {
		return nil
	}
	dir, err := Open(records)
	if err != nil {
		return nil
	}
	defer dir.Close()
	var st unix.Stat_t
	if err := unix.Fstat(dir.Fd(), &st); err != nil {
		return err
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return fmt.Errorf("%s belongs to another user, or others may write there", records)
	}
	if err := unix.Fstat(s.parent.Fd(), &st); err != nil {
		return err
	}
	key := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(st.Dev)), st.Ino)
	sum := fnv.New128a() // the names are the user's own
	sum.Write(append(key, s.Name...))
	var f *os.File
	for {
		if f, err = dir.OpenFile(hex.EncodeToString(sum.Sum(nil))+".json", os.O_RDWR|os.O_CREATE, 0o600); err != nil {
			return nil
		}
		err = lock.Take(f, lock.Exclusive)
		if err == nil {
			err = unix.Fstat(int(f.Fd()), &st)
		}
		if err == nil && st.Nlink > 0 {
			break
		}
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return &BusyError{filepath.Join(s.parent.path, s.Name)}
		}
		if err != nil {
			return err
		}
		// The process that held the lock has removed the file.
	}
	s.record = f
	var r stageRecord
	text, err := io.ReadAll(f)
	if err != nil || json.Unmarshal(text, &r) != nil || r.Stage != filepath.Base(r.Stage) {
		return err
	}
	found, err := s.parent.OpenDir(r.Stage)
	if err != nil {
		return nil // it was removed, or is not a directory
	}
	now, st, err := identity(found)
	if err != nil || int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 || now.Device != r.Device || now.Inode != r.Inode || now.Born != r.Born {
		return errors.Join(err, found.Close())
	}
	s.dir, s.as = found, r.Stage
	return nil
}

func identity(d *Dir) (r stageRecord, st unix.Stat_t, err error) {
	if err := unix.Fstat(d.Fd(), &st); err != nil {
		return r, st, err
	}
	r.Device, r.Inode = uint64(st.Dev), st.Ino
	var x unix.Statx_t
	if unix.Statx(d.Fd(), "", unix.AT_EMPTY_PATH, unix.STATX_BTIME, &x) == nil && x.Mask&unix.STATX_BTIME != 0 {
		r.Born = x.Btime.Sec*1e9 + int64(x.Btime.Nsec)
	}
	return r, st, nil
}

// note writes the record of a new stage.
func (s *Stage) note() error {
	if s.record == nil {
		return nil
	}
	r, _, err := identity(s.dir)
	if err != nil {
		return err
	}
	r.Directory, r.Stage = s.parent.path, s.as
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := s.record.Truncate(0); err != nil {
		return err
	}
	_, err = s.record.WriteAt(append(text, '\n'), 0)
	return err
}

// Dir returns the stage's directory.
func (s *Stage) Dir() *Dir { return s.dir }

// Path returns the path at which to write, for this process alone.
func (s *Stage) Path() string { return s.dir.Path() + "/" + s.Name }

// Shown returns the path of the stage for messages. It must not be opened: another user
// may have replaced the directory at this path.
func (s *Stage) Shown() string { return filepath.Join(s.parent.path, s.as, s.Name) }

// Plain removes the set-user-ID, set-group-ID and sticky bits of everything in the stage.
// Directories keep a set-group-ID bit that they inherited from the stage's directory.
func (s *Stage) Plain() error {
	var top unix.Stat_t
	if err := unix.Fstat(s.dir.Fd(), &top); err != nil {
		return err
	}
	root, err := os.OpenRoot(s.dir.Path())
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == "." || e.Type()&fs.ModeSymlink != 0 {
			return err
		}
		info, err := root.Lstat(path)
		if err != nil {
			return err
		}
		bad := fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky
		if info.IsDir() && top.Mode&unix.S_ISGID != 0 {
			bad &^= fs.ModeSetgid
		}
		if mode := info.Mode(); mode&bad != 0 {
			return root.Chmod(path, mode&^bad)
		}
		return nil
	})
}

// ExistError reports that a name is taken.
type ExistError struct{ Path string }

func (e *ExistError) Error() string { return e.Path + " is there already" }

// Free returns an [ExistError] if the final name is taken.
func (s *Stage) Free() error {
	_, err := s.parent.Lstat(s.Name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = &ExistError{filepath.Join(s.parent.path, s.Name)}
	}
	return err
}

// Commit moves the file or tree in the stage to its final name and removes the stage. It
// never replaces a file. The name is on the disk when it returns.
func (s *Stage) Commit() error {
	st, err := s.dir.Lstat(s.Name)
	if err != nil {
		return err
	}
	// A directory that changes its parent must be writable for its owner.
	restore := func() error { return nil }
	if st.Mode&unix.S_IFMT == unix.S_IFDIR && st.Mode&0o200 == 0 && os.Geteuid() != 0 {
		top, err := s.dir.OpenFile(s.Name, unix.O_PATH|unix.O_DIRECTORY, 0) // it may not be readable
		if err != nil {
			return err
		}
		defer top.Close()
		chmod := func(mode uint32) error { return unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", top.Fd()), mode) }
		if err := chmod(st.Mode&0o7777 | 0o200); err != nil {
			return err
		}
		restore = func() error { return chmod(st.Mode & 0o7777) }
	}
	err = renameNew(s.dir.Fd(), s.Name, s.parent.Fd(), s.Name)
	if errors.Is(err, unix.EEXIST) {
		err = &ExistError{filepath.Join(s.parent.path, s.Name)}
	}
	if err = errors.Join(err, restore()); err != nil {
		return err
	}
	if err := fsync(s.parent.f); err != nil {
		return err
	}
	return s.Remove()
}

// renameNew renames to a name that is free.
func renameNew(from int, name string, to int, as string) error {
	err := renameat2(from, name, to, as, unix.RENAME_NOREPLACE)
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS) {
		return err
	}
	// Some file systems, such as NFS, lack RENAME_NOREPLACE. rename(2) of a directory
	// replaces at most an empty directory, and link(2) of a file fails if the name is
	// taken.
	var st unix.Stat_t
	if err := unix.Fstatat(from, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		if err := unix.Linkat(from, name, to, as, 0); err != nil {
			return err
		}
		return unlinkat(from, name, 0)
	}
	if err := unix.Fstatat(to, as, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil {
		return unix.EEXIST
	}
	return renameat(from, name, to, as)
}

var renameat2 = unix.Renameat2

// Clear removes everything in the stage, but not the stage itself.
func (s *Stage) Clear() error {
	root, err := os.OpenRoot(s.dir.Path())
	if err != nil {
		return err
	}
	defer root.Close()
	list, err := fs.ReadDir(root.FS(), ".")
	for _, e := range list {
		err = errors.Join(err, root.RemoveAll(e.Name()))
	}
	return err
}

// Remove removes the stage with everything in it, and its record.
func (s *Stage) Remove() error {
	err := s.Clear()
	// Another file or directory may have the stage's name by now. It is not removed.
	if st, serr := s.parent.Lstat(s.as); serr == nil {
		if now, _, ierr := identity(s.dir); ierr == nil && now.Inode == st.Ino && now.Device == uint64(st.Dev) {
			err = errors.Join(err, unlinkat(s.parent.Fd(), s.as, unix.AT_REMOVEDIR))
		}
	}
	s.as = ""
	if s.record != nil {
		err = errors.Join(err, os.Remove(s.record.Name()))
	}
	return errors.Join(err, s.Close())
}

// Close closes the stage. Its content stays for a later call. A stage that is empty, or has
// no record, is removed.
func (s *Stage) Close() error {
	if s.dir == nil {
		if s.record != nil {
			s.record.Close()
			s.record = nil
		}
		return nil
	}
	dir, record := s.dir, s.record
	if s.as == "" { // Remove has done the rest
		s.dir, s.record = nil, nil
		if record != nil {
			record.Close()
		}
		return dir.Close()
	}
	if record == nil {
		if err := s.Clear(); err != nil {
			return errors.Join(err, dir.Close())
		}
	}
	s.dir, s.record = nil, nil
	// An empty directory is all that rmdir removes.
	if err := unlinkat(s.parent.Fd(), s.as, unix.AT_REMOVEDIR); err == nil && record != nil {
		_ = os.Remove(record.Name()) // the record of a removed stage does no harm
	}
	err := dir.Close()
	if record != nil {
		err = errors.Join(err, record.Close())
	}
	return err
}
