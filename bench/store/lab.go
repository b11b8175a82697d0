package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"premix/internal/netrelay"
)

// lab is the work directory.
type lab struct {
	dir string
	log func(format string, args ...any)
}

// once makes the file or directory name of the work directory if it is not there:
// make is given another path, which is renamed when all is well.
func (l *lab) once(name string, make func(path string) error) (string, error) {
	path := filepath.Join(l.dir, name)
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return path, err
	}
	l.log("preparing %s", name)
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
	return path, os.Rename(half, path)
}

// scratch makes an empty directory for one repetition.
func (l *lab) scratch() (string, error) {
	dir := filepath.Join(l.dir, "scratch")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	return os.MkdirTemp(dir, "")
}

// command is one whose output is shown when it fails.
func command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stderr = new(strings.Builder)
	return cmd
}

// run runs a command on a host; nil: here.
func run(h *netrelay.Host, cmd *exec.Cmd) error {
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

// start starts a command on a host; nil: here.
func start(h *netrelay.Host, cmd *exec.Cmd) error {
	if h == nil {
		return cmd.Start()
	}
	return h.Start(cmd)
}

// dropCaches empties the page cache and the caches of names and inodes.
func dropCaches() error {
	if err := run(nil, command(context.Background(), "sync")); err != nil {
		return err
	}
	return os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0)
}

// usage is the number of bytes that the files below dir have, each counted once.
func usage(dir string) (n int64, err error) {
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
