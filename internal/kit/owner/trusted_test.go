package owner

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

func TestTrusted(t *testing.T) {
	path := t.TempDir()
	if os.Geteuid() != 0 {
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
		if err := Trusted(path); err != nil {
			t.Errorf("it is for root alone: %v", err)
		}
		return
	}
	must := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("SUDO_UID", "1000")
	t.Setenv("SUDO_GID", "1001")
	for i, c := range []struct {
		mode     fs.FileMode
		uid, gid int
		good     bool
	}{
		{0o755, 0, 0, true},
		{0o755, stranger, stranger, false},
		{0o700, stranger, stranger, false},
		{0o777, 0, 0, false},
		{0o777 | fs.ModeSticky, 0, 0, true},
		{0o777 | fs.ModeSticky, stranger, 0, false},
		{0o775, 0, 0, true},
		{0o775, 0, 50, false},
		{0o775 | fs.ModeSetgid, 0, 50, false},
		{0o775 | fs.ModeSticky, 0, 50, true},
		{0o755, 1000, 50, true},
		{0o775, 1000, 1001, true},
		{0o775, 1000, 50, false},
	} {
		dir := filepath.Join(path, string(rune('a'+i)))
		must(os.MkdirAll(filepath.Join(dir, "sub", "run"), 0o700), os.Chown(dir, c.uid, c.gid), os.Chmod(dir, c.mode))
		// A user who can rename sub can redirect root, as can a user who can change run.
		for _, at := range []string{dir, filepath.Join(dir, "sub"), filepath.Join(dir, "sub", "run"), filepath.Join(dir, "sub", "run", "none")} {
			err := Trusted(at)
			if c.good && err != nil {
				t.Errorf("%s, mode %v of %d:%d: %v", at, c.mode, c.uid, c.gid, err)
			}
			if !c.good {
				refused(t, at, err)
			}
		}
	}
	// A link of another user may change its target at any time; a link of root counts as its
	// target.
	link := func(name, to string) string {
		t.Helper()
		must(os.Symlink(to, filepath.Join(path, name)))
		return filepath.Join(path, name)
	}
	good := link("link", "a")
	for _, at := range []string{good, filepath.Join(good, "sub"), filepath.Join(good, "sub", "..", "..", "a"), link("far", filepath.Join(path, "a", "sub")), link("to link", "link/sub/run")} {
		if err := Trusted(at); err != nil {
			t.Error(err)
		}
	}
	t.Chdir(path)
	if err := Trusted("link/sub"); err != nil {
		t.Error(err)
	}
	refused(t, "a relative path", Trusted("b/sub"))
	refused(t, "a link to a directory of a stranger", Trusted(link("to another", "b")))
	refused(t, "a link on a way through a directory of a stranger", Trusted(link("through", "b/sub/../../a")))
	must(os.Lchown(good, stranger, stranger))
	refused(t, "a link of a stranger", Trusted(good))
	refused(t, "a way through a link of a stranger", Trusted(filepath.Join(good, "sub")))
	refused(t, "a link to a link of a stranger", Trusted(filepath.Join(path, "to link")))
	if err := Trusted(link("loop", "loop")); err == nil {
		t.Error("a loop of links is trusted")
	}
	if err := Trusted(filepath.Join(path, "none")); err != nil {
		t.Errorf("a directory that does not exist: %v", err)
	}
	file := filepath.Join(path, "file")
	must(os.WriteFile(file, nil, 0o600))
	if err := Trusted(file); err == nil {
		t.Error("a file is trusted as a directory")
	}
	var foreign *Error
	if err := Trusted(filepath.Join(path, "b", "sub")); !errors.As(err, &foreign) || foreign.Hint() == "" || foreign.Path != filepath.Join(path, "b") {
		t.Errorf("%v names %+v, want the directory of user "+strconv.Itoa(stranger), err, foreign)
	}
}

// Root in a namespace with one user is that user, unless it is root outside.
func TestOneUser(t *testing.T) {
	for text, want := range map[string]bool{
		"         0       1000          1\n": true,
		"0 4294967294 1":                     true,
		"         0          0 4294967295\n": false,
		"0 0 1":                              false, // its root is root outside
		"1000 1000 1":                        false,
		"         0       1000          1\n         1     100000      65536": false,
		"0 100000 65536": false,
		"":               false,
	} {
		if got := oneUser(text); got != want {
			t.Errorf("oneUser(%q) = %v", text, got)
		}
	}
}

// MkdirAll does not make a directory that it refuses.
func TestMkdirAll(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	if err := MkdirAll(filepath.Join(dir, "a", "b"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(filepath.Join(dir, "a"), stranger, stranger); err != nil {
		t.Fatal(err)
	}
	refused(t, "a directory below one of a stranger", MkdirAll(filepath.Join(dir, "a", "c", "d"), 0o755))
	if list, err := os.ReadDir(filepath.Join(dir, "a")); err != nil || len(list) != 1 {
		t.Errorf("it was made: %v, %v", list, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := MkdirAll(filepath.Join(dir, "file", "c"), 0o755); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("below a file: %v", err)
	}
}
