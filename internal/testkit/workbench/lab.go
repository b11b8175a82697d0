package workbench

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"premix/internal/kit/beneath"
	"premix/internal/kit/lock"
	"premix/internal/testkit/netrelay"
)

// Lab is the work directory.
type Lab struct {
	Dir string
	Log func(format string, args ...any)

	lock *os.File
}

// Open makes or opens the work directory, and locks it until Close.
func Open(dir string) (*Lab, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return nil, err
	}
	held, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, err
	}
	if err := lock.Try(held, lock.Exclusive); err != nil {
		held.Close()
		return nil, fmt.Errorf("another benchmark works in %s: %w", dir, err)
	}
	begin := time.Now()
	return &Lab{Dir: dir, lock: held, Log: func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, "%6.1f s  %s\n", time.Since(begin).Seconds(), fmt.Sprintf(format, args...))
	}}, nil
}

// Close unlocks the directory.
func (l *Lab) Close() error { return l.lock.Close() }

// Once makes the file or directory name in the work directory if it does not exist. It
// calls make with another path, and renames the result if make succeeds.
func (l *Lab) Once(name string, make func(path string) error) (string, error) {
	path := filepath.Join(l.Dir, name)
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return path, err
	}
	l.Log("preparing %s", name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	half := path + ".half"
	if err := os.RemoveAll(half); err != nil {
		return "", err
	}
	if err := make(half); err != nil {
		return "", fmt.Errorf("prepare %s: %w", name, err)
	}
	return path, beneath.Move(half, path, beneath.Volatile)
}

// Scratch makes an empty directory for one repetition.
func (l *Lab) Scratch() (string, error) {
	dir := filepath.Join(l.Dir, "scratch")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	return os.MkdirTemp(dir, "")
}

// Command returns a command whose output is shown when it fails.
func Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stderr = new(strings.Builder)
	return cmd
}

// Run runs a command on a host; nil means this machine.
func Run(h *netrelay.Host, cmd *exec.Cmd) error {
	var err error
	if h == nil {
		err = cmd.Run()
	} else {
		err = h.Run(cmd)
	}
	if err != nil {
		text, _ := cmd.Stderr.(fmt.Stringer)
		if text == nil {
			return fmt.Errorf("%s: %w", filepath.Base(cmd.Path), err)
		}
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(text.String()))
	}
	return nil
}

// Start starts a command on a host; nil means this machine.
func Start(h *netrelay.Host, cmd *exec.Cmd) error {
	if h == nil {
		return cmd.Start()
	}
	return h.Start(cmd)
}

// DropCaches empties the page cache and the caches of names and inodes.
func DropCaches() error {
	if err := Run(nil, Command(context.Background(), "sync")); err != nil {
		return err
	}
	return os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0)
}

// Usage returns the number of bytes of the files below dir. It counts hard links once.
func Usage(dir string) (n int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		info, err := e.Info()
		if err == nil {
			n += info.Size()
		}
		return err
	})
	return n, err
}
