package database

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A pipe in the place of a lock does not block, and a link is not followed.
func TestAttackSweep(t *testing.T) {
	home := t.TempDir()
	for name, plant := range map[string]func(string) error{
		".new-pipe": func(p string) error { return unix.Mkfifo(p, 0o666) },
		".new-link": func(p string) error { return os.Symlink(filepath.Join(home, "pipe"), p) },
	} {
		dir := filepath.Join(home, name)
		old := time.Now().Add(-time.Hour)
		if err := errors.Join(os.Mkdir(dir, 0o755), plant(filepath.Join(dir, "lock")), os.Chtimes(dir, old, old)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(home, "pipe"), 0o666); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- sweep(home) }()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it waits for who opens the pipe")
	}
}
