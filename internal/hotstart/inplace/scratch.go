package inplace

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"premix/internal/kit/lock"
)

// scratchName is the beginning of the names of scratch directories. Each is locked (flock)
// by the process that uses it.
const scratchName = "premix-h-"

// makeScratch makes a scratch directory in dir, or in os.TempDir where dir is empty, and
// removes those there that preparations of this user have left which were killed. unlock
// is called when the directory has been removed.
func makeScratch(dir string) (path string, unlock func(), err error) {
	if dir == "" {
		dir = os.TempDir()
	}
	left, err := filepath.Glob(filepath.Join(dir, scratchName+"*"))
	if err != nil {
		return "", nil, err
	}
	for _, path := range left {
		if f := lockScratch(path); f != nil {
			_ = os.RemoveAll(path) // the next preparation removes the rest
			f.Close()
		}
	}
	for range 100 {
		// Its path is short: see trial.workDir.
		path = filepath.Join(dir, fmt.Sprintf("%s%04s", scratchName, strconv.FormatInt(rand.Int64N(36*36*36*36), 36)))
		if err := os.Mkdir(path, 0o700); errors.Is(err, fs.ErrExist) {
			continue
		} else if err != nil {
			return "", nil, err
		}
		// Before it was locked, another preparation may have removed it.
		if f := lockScratch(path); f != nil {
			return path, func() { f.Close() }, nil
		}
	}
	return "", nil, fmt.Errorf("no directory in %s can be made and locked", dir)
}

// otherScratch makes a scratch directory whose path, without links, begins with another name
// than path: a tool may ask whether it works below /tmp or /home, for example.
func otherScratch(path, store string) (other string, unlock func(), err error) {
	for _, dir := range []string{"/var/tmp", "/tmp", "/dev/shm", store} {
		dir, err := filepath.EvalSymlinks(dir)
		if err != nil || firstName(dir) == firstName(path) {
			continue
		}
		if other, unlock, err = makeScratch(dir); err == nil {
			return other, unlock, nil
		}
	}
	return "", nil, passing("a preparation needs a second directory for temporary files, which is not below /%s", firstName(path))
}

// firstName returns the first name in an absolute path.
func firstName(path string) string {
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return first
}

// lockScratch locks a directory of this user. It returns nil if the path is not a directory
// of this user, does not exist any more, or is in use.
func lockScratch(path string) *os.File {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil
	}
	st, err := f.Stat()
	if err == nil && int(st.Sys().(*syscall.Stat_t).Uid) == os.Geteuid() && lock.Try(f, lock.Exclusive) == nil {
		if now, err := os.Lstat(path); err == nil && os.SameFile(st, now) {
			return f
		}
	}
	f.Close()
	return nil
}
