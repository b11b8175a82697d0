package main

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"premix/internal/testkit/workbench"
)

func testLab(t *testing.T) *lab {
	t.Helper()
	l, err := workbench.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	l.Log = func(string, ...any) {}
	return &lab{l}
}

// A download is complete or fails.
func TestDownload(t *testing.T) {
	l := testLab(t)
	path := filepath.Join(l.Dir, "served/pull/layer")
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte("0123456789"), 0o644)); err != nil {
		t.Fatal(err)
	}
	o, err := l.Serve(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	var got strings.Builder
	if err := download(o.URL+"/pull/layer", &got); err != nil || got.String() != "0123456789" {
		t.Errorf("downloaded %q, %v", got.String(), err)
	}
	if err := download(o.URL+"/pull/nothing", io.Discard); err == nil {
		t.Error("a file that is not there was downloaded")
	}
}

// Each operation acts on a tree as its name says.
func TestOperations(t *testing.T) {
	dir := t.TempDir()
	p := &probe{dir: dir, count: 10, buf: make([]byte, 1<<20)}
	for _, name := range []string{"small/000/file-0.txt", "small/000/file-1.txt", "small/001/file-2.txt"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("content"), 0o644); err != nil {
			t.Fatal(err)
		}
		p.paths = append(p.paths, path)
	}
	const size = 3<<20 + 4096
	if err := os.WriteFile(filepath.Join(dir, bigFile), make([]byte, size), 0o644); err != nil {
		t.Fatal(err)
	}
	want := map[string]int64{
		"readdir": 2 + 2 + 3, // small and big; 000 and 001; files
		"stat":    3, "open": 3, "read-small": 3,
		"sequential": size, "mmap": size, "random-4k": 10,
	}
	for _, op := range operations {
		got, err := op.do(p)
		if err != nil {
			t.Errorf("%s: %v", op.name, err)
		}
		if got != want[op.name] {
			t.Errorf("%s counted %d, want %d", op.name, got, want[op.name])
		}
	}
	p.paths = append(p.paths, filepath.Join(dir, "missing"))
	for _, op := range operations[1:4] {
		if _, err := op.do(p); !errors.Is(err, unix.ENOENT) {
			t.Errorf("%s of a file that is not there: %v", op.name, err)
		}
	}
}

// Events are separated by their lengths, and their descriptors are closed.
func TestEventInodes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	var b []byte
	event := func(length, fd int) {
		e := make([]byte, length)
		binary.NativeEndian.PutUint32(e, uint32(length))
		binary.NativeEndian.PutUint32(e[16:], uint32(fd))
		b = append(b, e...)
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	event(unix.FAN_EVENT_METADATA_LEN, unix.FAN_NOFD)
	event(unix.FAN_EVENT_METADATA_LEN+8, fd)
	if got := eventInodes(append(b, 1, 2, 3)); !slices.Equal(got, []uint64{st.Ino}) {
		t.Errorf("inodes %v, want %d", got, st.Ino)
	}
	if err := unix.Fstat(fd, &st); err != unix.EBADF {
		t.Errorf("the descriptor of an event is still open: %v", err)
	}
}

// The watch reports the files that a program opens, in order, each file once.
func TestWatchOpens(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("fanotify on a file system needs root")
	}
	dir := t.TempDir()
	var want []uint64
	for _, name := range []string{"b", "a"} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		want = append(want, st.Ino)
	}
	opened, err := watchOpens(dir, func() error {
		for _, name := range []string{"b", "a", "b"} {
			if _, err := os.ReadFile(filepath.Join(dir, name)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	// Other programs use the same file system.
	opened = slices.DeleteFunc(opened, func(inode uint64) bool { return !slices.Contains(want, inode) })
	if !slices.Equal(opened, want) {
		t.Errorf("opened %v, want %v", opened, want)
	}
}
