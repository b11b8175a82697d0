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
// does. [Durable] brings what it holds to the disk before, and its new name afterwards.
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

// Exchange swaps the names of two files or directories. Where the file system cannot, the
// second one is called from.old afterwards, and for a moment nothing has its name.
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

// SyncTree brings a file to the disk, or a directory with all files and directories in it.
// What this user cannot open is as durable as the file system makes it.
func SyncTree(root string) error {
	return filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err == nil && (e.Type().IsRegular() || e.IsDir()) {
			err = SyncDir(path) // fsync is the same for both
		}
		if errors.Is(err, fs.ErrPermission) {
			return nil
		}
		return err
	})
}

// SweepAge is the age from which a file with a temporary name is one of a process that was
// killed.
const SweepAge = 7 * 24 * time.Hour

// sweepMost is how many names of a directory are looked at.
const sweepMost = 10_000

// swept has the paths of the directories that this process has swept.
var swept sync.Map

// sweep removes files that processes of this user have left under temporary names, if
// nothing has changed in them for [SweepAge]. It is best effort: a later process does the
// rest.
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
