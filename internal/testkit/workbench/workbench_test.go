package workbench

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func testLab(t *testing.T) *Lab {
	t.Helper()
	l, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	l.Log = func(string, ...any) {}
	return l
}

// Once repeats work that has failed, and keeps finished results.
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
	if _, err := l.Once("a/b", make(fail)); !errors.Is(err, fail) {
		t.Fatalf("the error is %v", err)
	}
	for range 2 {
		path, err := l.Once("a/b", make(nil))
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

// The origin serves files and blobs, and counts requests.
func TestOrigin(t *testing.T) {
	l := testLab(t)
	for name, content := range map[string]string{"served/pull/layer": "0123456789", "served/bench/blobs/sha256:ab": "abcdefghij", "served/bench/manifests/x": "{}", "served/bench/manifests/y": `{"manifests":[{}]}`} {
		path := filepath.Join(l.Dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	o, err := l.Serve(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	for _, c := range []struct {
		path, ranges string
		status       int
		want         string
	}{
		{"/pull/layer", "", 200, "0123456789"},
		{"/pull/layer", "bytes=2-4", 206, "234"},
		{"/v2/", "", 200, ""},
		{"/v2/bench/blobs/sha256:ab", "bytes=0-1", 206, "ab"},
		{"/v2/bench/manifests/x", "", 200, "{}"},
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
	if n := o.Requests.Load(); n != 7 {
		t.Errorf("%d requests were counted, want 7", n)
	}
	for name, want := range map[string]string{"x": "application/vnd.oci.image.manifest.v1+json", "y": "application/vnd.oci.image.index.v1+json"} {
		resp, err := http.Head(o.URL + "/v2/bench/manifests/" + name)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if got := resp.Header.Get("Content-Type"); got != want {
			t.Errorf("the type of manifest %s is %s, want %s", name, got, want)
		}
	}
}

// Only one benchmark at a time can use a lab.
func TestLock(t *testing.T) {
	l := testLab(t)
	if _, err := Open(l.Dir); err == nil {
		t.Error("a second benchmark works in the same directory")
	}
}

// The archive of a layer contains everything that overlayfs represents: whiteouts, opaque
// directories, hard links and extended attributes.
func TestWriteLayer(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("overlayfs' own attributes need root")
	}
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	err := errors.Join(
		os.Mkdir(at("d"), 0o750),
		os.WriteFile(at("d/file"), []byte("content"), 0o640),
		os.Link(at("d/file"), at("d/link")),
		os.Symlink("file", at("d/symbolic")),
		unix.Mknod(at("d/gone"), unix.S_IFCHR, 0),
		unix.Mknod(at("null"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))),
		unix.Setxattr(at("d"), "trusted.overlay.opaque", []byte("y"), 0),
		unix.Setxattr(at("d/file"), "trusted.premix", []byte{0, 1}, 0),
	)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := writeLayer(&b, dir); err != nil {
		t.Fatal(err)
	}
	var got []string
	for r := tar.NewReader(&b); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%c %s %o %s%s %d,%d %x", h.Typeflag, h.Name, h.Mode, h.Linkname, content, h.Devmajor, h.Devminor, h.PAXRecords["SCHILY.xattr.trusted.premix"]))
	}
	want := []string{
		"5 d/ 750  0,0 ",
		"0 d/.wh..wh..opq 0  0,0 ",
		"0 d/file 640 content 0,0 0001",
		"0 d/.wh.gone 0  0,0 ",
		"1 d/link 640 d/file 0,0 ",
		"2 d/symbolic 777 file 0,0 ",
		"3 null 600  1,3 ",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// UnmountBelow unmounts the mounts below a directory, and no other mounts.
func TestUnmountBelow(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	top := t.TempDir()
	for _, name := range []string{"a", "a/b", "ab"} {
		dir := filepath.Join(top, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("premix-test", dir, "tmpfs", 0, "size=64k"); err != nil {
			t.Skipf("no tmpfs can be mounted: %v", err)
		}
		defer unix.Unmount(dir, unix.MNT_DETACH)
	}
	mounts := func() int {
		text, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(text), " "+top+"/")
	}
	if n := mounts(); n != 3 {
		t.Fatalf("%d mounts", n)
	}
	if err := UnmountBelow(filepath.Join(top, "a")); err != nil {
		t.Error(err)
	}
	if n := mounts(); n != 2 { // the mounts on a itself and on ab
		t.Errorf("%d mounts are left, want 2", n)
	}
}
