package unmount

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestDir(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("a tmpfs cannot be mounted here: %v", err)
	}
	f, err := os.Create(filepath.Join(dir, "open"))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Unmount(dir, 0); !errors.Is(err, unix.EBUSY) {
		t.Fatalf("unmounted in use: %v", err)
	}
	gone := make(chan error)
	go func() { gone <- Dir(dir) }()
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if err := <-gone; err != nil {
		t.Error(err)
	}
	if err := Dir(dir); !errors.Is(err, unix.EINVAL) {
		t.Errorf("what is not mounted: %v", err)
	}
}
