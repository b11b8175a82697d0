package node

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Dir returns the directory of this user's node; see the package's description.
func Dir() string {
	if dir := os.Getenv("PREMIX_NODE_DIR"); dir != "" {
		return absolute(dir)
	}
	if home := os.Getenv("PREMIX_HOME"); home != "" {
		return filepath.Join(absolute(home), "run")
	}
	if os.Geteuid() == 0 {
		return "/run/premix/node"
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "premix", "node")
	}
	// No login manager has made a directory for this user. checkDir refuses one
	// that somebody else has made.
	return filepath.Join(os.TempDir(), "premix-"+strconv.Itoa(os.Geteuid()), "node")
}

// CacheDir returns where this user's trees are cached unless a configuration says
// something else.
func CacheDir() (string, error) {
	if home := os.Getenv("PREMIX_HOME"); home != "" {
		return filepath.Join(absolute(home), "cache", "node"), nil
	}
	if os.Geteuid() == 0 {
		return "/var/cache/premix", nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", &Error{Kind: KindUsage, Message: fmt.Sprintf("find a place for the cache: %v", err), Way: "set PREMIX_HOME to a directory of your own"}
	}
	return filepath.Join(dir, "premix", "node"), nil
}

// absolute leaves a path as it is where the working directory is unknown.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

func socketPath(dir string) string { return filepath.Join(dir, "socket") }
func statePath(dir string) string  { return filepath.Join(dir, "state.json") }
func logPath(dir string) string    { return filepath.Join(dir, "log") }
func treesDir(dir string) string   { return filepath.Join(dir, "trees") }

// makeDir makes the node's directory, and refuses one that is not this user's own:
// whoever may write there decides what is mounted.
func makeDir(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return dirError(dir, err)
	}
	if err := os.Mkdir(dir, 0o711); err != nil && !errors.Is(err, fs.ErrExist) {
		return dirError(dir, err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return dirError(dir, err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return dirError(dir, unix.ENOTDIR)
	case int(st.Uid) != os.Geteuid():
		return dirError(dir, fmt.Errorf("it belongs to user %d", st.Uid))
	case st.Mode&0o022 != 0:
		return dirError(dir, errors.New("others may write to it"))
	}
	if err := os.Mkdir(treesDir(dir), 0o711); err != nil && !errors.Is(err, fs.ErrExist) {
		return dirError(dir, err)
	}
	return nil
}

func dirError(dir string, err error) error {
	return &Error{Kind: KindUsage, Message: fmt.Sprintf("the node's directory %s cannot be used: %v", dir, err), Way: "set PREMIX_HOME, or PREMIX_NODE_DIR, to a directory of your own"}
}

// errLocked says that a node is there already.
var errLocked = errors.New("a node is running there")

// takeLock makes the node's directory and takes its lock, or gives errLocked.
func takeLock(dir string) (*os.File, error) {
	if err := makeDir(dir); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, dirError(dir, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errLocked
		}
		return nil, dirError(dir, err)
	}
	return f, nil
}

// short calls f with a name of dir that is short enough for the address of a
// socket, of which there are only 108 bytes (unix(7)).
func short(dir string, f func(dir string) error) error {
	if len(socketPath(dir)) < 100 {
		return f(dir)
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return f(fmt.Sprintf("/proc/self/fd/%d", d.Fd()))
}

// maxLog is the size in bytes from which a log is begun afresh.
const maxLog = 4 << 20

// openLog opens the log for appending. The last one stays beside it.
func openLog(dir string) (*os.File, error) {
	path := logPath(dir)
	if st, err := os.Stat(path); err == nil && st.Size() > maxLog {
		if err := os.Rename(path, path+".old"); err != nil {
			return nil, err
		}
	}
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
}

func newLog(w io.Writer, who string) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, nil)).With("from", who, "pid", os.Getpid())
}
