package main

import (
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func testLab(t *testing.T) *lab {
	t.Helper()
	return &lab{dir: t.TempDir(), log: func(string, ...any) {}}
}

// What fails half way is made again; what is there is kept.
func TestOnce(t *testing.T) {
	l := testLab(t)
	made := 0
	fail := errors.New("no")
	make := func(err error) func(string) error {
		return func(path string) error {
			made++
			return errors.Join(os.WriteFile(path, []byte("x"), 0o666), err)
		}
	}
	if _, err := l.once("a/b", make(fail)); !errors.Is(err, fail) {
		t.Fatalf("the error is %v", err)
	}
	for range 2 {
		path, err := l.once("a/b", make(nil))
		if err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != "x" {
			t.Errorf("read %q, %v", b, err)
		}
	}
	if made != 2 {
		t.Errorf("made %d times, want 2", made)
	}
}

// Every operation does to a tree what its name says.
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

// The origin serves files and blobs, and counts.
func TestOrigin(t *testing.T) {
	l := testLab(t)
	for name, content := range map[string]string{"served/pull/layer": "0123456789", "served/bench/blobs/sha256:ab": "abcdefghij"} {
		path := filepath.Join(l.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	o, err := l.serve(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer o.close()
	for _, c := range []struct {
		path, ranges string
		status       int
		want         string
	}{
		{"/pull/layer", "", 200, "0123456789"},
		{"/pull/layer", "bytes=2-4", 206, "234"},
		{"/v2/", "", 200, ""},
		{"/v2/bench/blobs/sha256:ab", "bytes=0-1", 206, "ab"},
		{"/v2/bench/blobs/sha256:cd", "", 404, "404 page not found\n"},
		{"/../lock", "", 404, "404 page not found\n"},
	} {
		req, err := http.NewRequest("GET", o.URL+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if c.ranges != "" {
			req.Header.Set("Range", c.ranges)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != c.status || string(body) != c.want {
			t.Errorf("%s %s: %d %q %v, want %d %q", c.path, c.ranges, resp.StatusCode, body, err, c.status, c.want)
		}
	}
	if n := o.requests.Load(); n != 6 {
		t.Errorf("%d requests were counted, want 6", n)
	}
	var got strings.Builder
	if err := download(o.URL+"/pull/layer", &got); err != nil || got.String() != "0123456789" {
		t.Errorf("downloaded %q, %v", got.String(), err)
	}
	if err := download(o.URL+"/pull/nothing", io.Discard); err == nil {
		t.Error("a file that is not there was downloaded")
	}
}

// Events are told apart by their lengths, and their descriptors are closed.
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

// What a program opens is seen, in order, each file once.
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
	// Others use the same file system.
	opened = slices.DeleteFunc(opened, func(inode uint64) bool { return !slices.Contains(want, inode) })
	if !slices.Equal(opened, want) {
		t.Errorf("opened %v, want %v", opened, want)
	}
}
