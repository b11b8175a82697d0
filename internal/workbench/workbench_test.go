package workbench

import (
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
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

// The origin serves files and blobs, and counts.
func TestOrigin(t *testing.T) {
	l := testLab(t)
	for name, content := range map[string]string{"served/pull/layer": "0123456789", "served/bench/blobs/sha256:ab": "abcdefghij", "served/bench/manifests/x": "{}"} {
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
}

// One lab is one benchmark's.
func TestLock(t *testing.T) {
	l := testLab(t)
	if _, err := Open(l.Dir); err == nil {
		t.Error("a second benchmark works in the same directory")
	}
}
