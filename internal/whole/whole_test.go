package whole

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// only tells whether the directory has these files, and no other.
func only(t *testing.T, dir string, want map[string]string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if w, ok := want[e.Name()]; err != nil || !ok || string(text) != w {
			t.Errorf("%s has %q, %v; want %q", e.Name(), text, err, w)
		}
	}
	if len(list) != len(want) {
		t.Errorf("%d files, want %d", len(list), len(want))
	}
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "page")
	if err := Write(path, Text([]byte("one"))); err != nil {
		t.Fatal(err)
	}
	only(t, dir, map[string]string{"page": "one"})

	// While it is written, and when that fails, what was there before stays.
	broken := errors.New("broken")
	err := Write(path, func(w io.Writer) error {
		if _, err := w.Write([]byte("half")); err != nil {
			return err
		}
		if text, err := os.ReadFile(path); string(text) != "one" {
			t.Errorf("the file has %q, %v while it is written", text, err)
		}
		return broken
	})
	if !errors.Is(err, broken) {
		t.Errorf("%v, want %v", err, broken)
	}
	only(t, dir, map[string]string{"page": "one"})

	// A link stays one.
	link := filepath.Join(dir, "link")
	if err := os.Symlink("page", link); err != nil {
		t.Fatal(err)
	}
	if err := Write(link, Text([]byte("two"))); err != nil {
		t.Fatal(err)
	}
	only(t, dir, map[string]string{"page": "two", "link": "two"})
	if _, err := os.Readlink(link); err != nil {
		t.Error(err)
	}
	if err := Write(filepath.Join(dir, "none", "page"), Text(nil)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v, want that there is no directory", err)
	}
}

// TestPipe writes to what is no file, which stays what it is.
func TestPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	got := make(chan string, 1)
	go func() {
		text, err := os.ReadFile(path)
		got <- string(text)
		if err != nil {
			t.Error(err)
		}
	}()
	if err := Write(path, Text([]byte("text"))); err != nil {
		t.Fatal(err)
	}
	if text := <-got; text != "text" {
		t.Errorf("%q came through the pipe", text)
	}
	if info, err := os.Lstat(path); err != nil || info.Mode().Type() != os.ModeNamedPipe {
		t.Errorf("%v, %v: no pipe any more", info, err)
	}
}
