package beneath

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Move gives a file or a directory another name on the same file system, as [os.Rename]
// does. With [Durable] it first writes the content to the disk, and then the new name.
func Move(from, to string, how Durability) error {
	if how == Durable {
		if err := SyncTree(from); err != nil {
			return err
		}
	}
	if err := rename(from, to); err != nil || how == Volatile {
		return err
	}
	return SyncDir(filepath.Dir(to))
}

// Exchange swaps the names of two files or directories. On a file system that cannot, the
// second one gets the name from.old, and for a moment its old name does not exist.
func Exchange(from, to string) error {
	err := renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_EXCHANGE)
	if err == nil {
		return nil
	}
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS) {
		return &os.LinkError{Op: "exchange", Old: from, New: to, Err: err}
	}
	if err := rename(to, from+".old"); err != nil {
		return err
	}
	return rename(from, to)
}

// rename is replaced by fault tests.
var rename = os.Rename

// SyncTree writes a file to the disk, or a directory with all its files and directories.
// It skips files that this user cannot open.
func SyncTree(root string) error {
	return filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err == nil && (e.Type().IsRegular() || e.IsDir()) {
			err = SyncDir(path) // fsync works for files too
		}
		if errors.Is(err, fs.ErrPermission) {
			return nil
		}
		return err
	})
}

// SweepAge is the age at which a file with a temporary name is removed. The process that
// made it was killed.
const SweepAge = 7 * 24 * time.Hour

// sweepMost is the largest number of names of a directory that sweep examines.
const sweepMost = 10_000

// swept holds the paths of the directories that this process has swept.
var swept sync.Map

// sweep removes files that processes of this user have left under temporary names, if they
// have not changed for [SweepAge]. It ignores errors: a later process removes the rest.
func (d *Dir) sweep() {
	list, err := os.Open(d.Path())
	if err != nil {
		return
	}
	defer list.Close()
	names, _ := list.Readdirnames(sweepMost)
	for _, name := range names {
		if !strings.HasPrefix(name, Prefix) {
			continue
		}
		st, err := d.Lstat(name)
		changed := max(st.Mtim.Sec, st.Ctim.Sec)
		if err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && int(st.Uid) == os.Geteuid() && now().Sub(time.Unix(changed, 0)) > SweepAge {
			_ = unlinkat(d.Fd(), name, 0)
		}
	}
}

// now is replaced by tests.
var now = time.Now
