package node

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"premix/internal/kit/beneath"
	"premix/internal/kit/lock"
	"premix/internal/kit/owner"
)

// Dir returns the directory of this user's node; see the package comment.
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
	_, dir := owner.RuntimeDir()
	return filepath.Join(dir, "node")
}

// CacheDir returns the default directory of this user's cache of trees.
func CacheDir() (string, error) {
	if home := os.Getenv("PREMIX_HOME"); home != "" {
		return filepath.Join(absolute(home), "cache", "node"), nil
	}
	if os.Geteuid() == 0 {
		return "/var/cache/premix", nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", &Error{Kind: KindUsage, Message: fmt.Sprintf("no directory for the cache: %v", err), HintText: "set PREMIX_HOME to a directory of your own"}
	}
	return filepath.Join(dir, "premix", "node"), nil
}

// absolute returns path unchanged if the working directory is unknown.
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

// makeDir makes the node's directory. It refuses one that does not belong to this user
// alone: a user who can write there controls the mounts.
func makeDir(dir string) error {
	err := os.MkdirAll(filepath.Dir(dir), 0o755)
	if base, runtime := owner.RuntimeDir(); filepath.Dir(dir) == runtime {
		err = owner.MakePrivate(base, runtime)
	}
	if err != nil {
		return dirError(dir, err)
	}
	for _, d := range []string{dir, treesDir(dir)} {
		if err := os.Mkdir(d, 0o711); err != nil && !errors.Is(err, fs.ErrExist) {
			return dirError(dir, err)
		}
		if err := owner.Private(d); err != nil {
			return dirError(dir, err)
		}
	}
	return nil
}

// checkDir refuses a node's directory whose content another user could have written. It
// returns nil if the directory does not exist.
func checkDir(dir string) error {
	dirs := []string{dir}
	if _, runtime := owner.RuntimeDir(); filepath.Dir(dir) == runtime {
		dirs = []string{runtime, dir}
	}
	for _, d := range dirs {
		if err := owner.Private(d); errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			return dirError(dir, err)
		}
	}
	return nil
}

func dirError(dir string, err error) error {
	return &Error{Kind: KindUsage, Message: fmt.Sprintf("the node's directory %s cannot be used: %v", dir, err), HintText: "set PREMIX_HOME, or PREMIX_NODE_DIR, to a directory of your own"}
}

// errLocked means that a node is running already.
var errLocked = errors.New("a node is running there")

// takeLock makes the node's directory and takes its lock. If it is held, the error is
// errLocked.
func takeLock(dir string) (*os.File, error) {
	if err := makeDir(dir); err != nil {
		return nil, err
	}
	f, err := owner.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, dirError(dir, err)
	}
	if err := lock.Try(f, lock.Exclusive); err != nil {
		f.Close()
		if errors.Is(err, lock.ErrHeld) {
			return nil, errLocked
		}
		return nil, dirError(dir, err)
	}
	return f, nil
}

// short calls f with a name of dir that is short enough for the address of a socket,
// which is limited to 108 bytes (unix(7)).
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

// maxLog is the size in bytes from which a new log is begun.
const maxLog = 4 << 20

// openLog opens the log for appending. The previous log stays beside it.
func openLog(dir string) (*os.File, error) {
	path := logPath(dir)
	if st, err := os.Stat(path); err == nil && st.Size() > maxLog {
		if err := beneath.Move(path, path+".old", beneath.Volatile); err != nil {
			return nil, err
		}
	}
	return owner.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
}

func newLog(w io.Writer, who string) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, nil)).With("from", who, "pid", os.Getpid())
}
