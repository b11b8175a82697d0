package owner

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const stranger = 61001 // a user without an account

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can make files of another user")
	}
}

func refused(t *testing.T, what string, err error) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || !errors.Is(err, fs.ErrPermission) {
		t.Errorf("%s: %v, want a refusal", what, err)
	}
}

func TestTrusts(t *testing.T) {
	t.Setenv("SUDO_UID", strconv.Itoa(stranger))
	if !Trusts(0) || !Trusts(uint32(os.Geteuid())) {
		t.Error("root, or this user, is not trusted")
	}
	if got := Trusts(stranger); got != (os.Geteuid() == 0) {
		t.Errorf("the user of SUDO_UID is trusted: %v", got)
	}
	t.Setenv("SUDO_UID", "")
	if Trusts(stranger) {
		t.Error("another user is trusted")
	}
}

func TestDirectory(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "dir")
	for _, c := range []struct {
		mode               fs.FileMode
		directory, private bool
	}{{0o700, true, true}, {0o755, true, true}, {0o775, true, false}, {0o777, false, false}} {
		if err := errors.Join(os.MkdirAll(dir, 0o700), os.Chmod(dir, c.mode)); err != nil {
			t.Fatal(err)
		}
		if err := Directory(dir); (err == nil) != c.directory {
			t.Errorf("Directory with mode %o: %v", c.mode, err)
		}
		if err := Private(dir); (err == nil) != c.private {
			t.Errorf("Private with mode %o: %v", c.mode, err)
		}
	}
	link, file := filepath.Join(parent, "link"), filepath.Join(parent, "file")
	if err := errors.Join(os.Chmod(dir, 0o700), os.Symlink(dir, link), os.WriteFile(file, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	refused(t, "a link", Directory(link))
	refused(t, "a file", Directory(file))
	if err := CheckNamed(link); err != nil {
		t.Errorf("Named does not follow a link: %v", err)
	}
	if err := Directory(filepath.Join(parent, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v, want that there is none", err)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) > 0 {
		t.Errorf("a look has left %v, %v", list, err)
	}
}

func TestStrangers(t *testing.T) {
	needRoot(t)
	dir := filepath.Join(t.TempDir(), "dir")
	file := filepath.Join(dir, "file")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(file, []byte("text"), 0o644), os.Lchown(file, stranger, stranger), os.Lchown(dir, stranger, stranger)); err != nil {
		t.Fatal(err)
	}
	refused(t, "Directory", Directory(dir))
	refused(t, "Private", Private(dir))
	refused(t, "Named", CheckNamed(dir))
	refused(t, "Shared", Shared(dir))
	_, err := OpenFile(file, os.O_RDWR|os.O_TRUNC, 0)
	refused(t, "OpenFile", err)
	if text, err := ReadOthers(file); err != nil || string(text) != "text" {
		t.Errorf("%q, %v: the file was changed", text, err)
	}
}

func TestMakePrivate(t *testing.T) {
	base := t.TempDir()
	if err := os.Chmod(base, 0o777|fs.ModeSticky); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(base, "a", "b")
	for range 2 {
		if err := MakePrivate(base, dir); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(filepath.Join(base, "a")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info, err)
	}
	// The link above the directory could belong to another user who made it first.
	if err := os.Symlink(dir, filepath.Join(base, "l")); err != nil {
		t.Fatal(err)
	}
	refused(t, "a link above", MakePrivate(base, filepath.Join(base, "l", "c")))
	if err := MakePrivate(base, base); err == nil {
		t.Error("the base itself is made private")
	}
	if err := os.Chmod(base, 0o777); err != nil {
		t.Fatal(err)
	}
	refused(t, "a base without a sticky bit", MakePrivate(base, dir))
}

func TestRuntimeDir(t *testing.T) {
	run := t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", run)
	t.Setenv("TMPDIR", "/tmp")
	if err := os.Chmod(run, 0o700); err != nil {
		t.Fatal(err)
	}
	if base, dir := RuntimeDir(); base != run || dir != filepath.Join(run, "premix") {
		t.Errorf("%s, %s", base, dir)
	}
	if err := os.Chmod(run, 0o777); err != nil {
		t.Fatal(err)
	}
	if base, dir := RuntimeDir(); base != "/tmp" || dir != "/tmp/premix-"+strconv.Itoa(os.Geteuid()) {
		t.Errorf("%s, %s", base, dir)
	}
}

func TestOpenFile(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.WriteFile(path("file"), []byte("text"), 0o600), os.Symlink("file", path("link")), os.Symlink("none", path("dangling")),
		unix.Mkfifo(path("fifo"), 0o600), os.WriteFile(path("open"), []byte("text"), 0o600), os.Chmod(path("open"), 0o666)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"link", "dangling", "fifo", "open"} {
		for _, flags := range []int{os.O_RDONLY, os.O_WRONLY | os.O_CREATE | os.O_TRUNC, os.O_RDWR | os.O_CREATE} {
			_, err := OpenFile(path(name), flags, 0o600)
			refused(t, name, err)
		}
	}
	for _, name := range []string{"link", "fifo"} {
		_, err := OpenOthers(path(name))
		refused(t, name, err)
	}
	if _, err := os.Lstat(path("none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v: a link was followed", err)
	}
	for _, name := range []string{"file", "open"} {
		if text, err := os.ReadFile(path(name)); string(text) != "text" {
			t.Errorf("%s has %q, %v", name, text, err)
		}
	}
	f, err := OpenFile(path("file"), os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := f.Stat(); err != nil || info.Size() != 0 {
		t.Errorf("%v, %v: the file was not truncated", info, err)
	}
	f.Close()
}

// In a directory in which others can make names, a file with several names may be another file of
// this user.
func TestOpenFileNames(t *testing.T) {
	dir := t.TempDir()
	kept, lock := filepath.Join(dir, "kept"), filepath.Join(dir, "sub", "lock")
	if err := errors.Join(os.Mkdir(filepath.Dir(lock), 0o700), os.WriteFile(kept, []byte("text"), 0o600), os.Link(kept, lock)); err != nil {
		t.Fatal(err)
	}
	for mode, good := range map[fs.FileMode]bool{0o700: true, 0o755: true, 0o775: false, 0o777: false, 0o777 | fs.ModeSticky: false} {
		if err := os.Chmod(filepath.Dir(lock), mode); err != nil {
			t.Fatal(err)
		}
		for _, flags := range []int{os.O_RDONLY, os.O_RDWR | os.O_CREATE, os.O_WRONLY | os.O_APPEND} {
			f, err := OpenFile(lock, flags, 0o600)
			if err == nil {
				f.Close()
			}
			if !good && flags != os.O_RDONLY {
				refused(t, "another name", err)
			} else if err != nil {
				t.Errorf("mode %v: %v", mode, err)
			}
		}
	}
	// The file is not truncated before the refusal.
	if err := os.Chmod(filepath.Dir(lock), 0o777); err != nil {
		t.Fatal(err)
	}
	_, err := OpenFile(lock, os.O_WRONLY|os.O_TRUNC, 0)
	refused(t, "another name", err)
	if text, err := os.ReadFile(kept); err != nil || string(text) != "text" {
		t.Errorf("%q, %v: the file was changed", text, err)
	}
}

func TestReadSecret(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	for name, mode := range map[string]fs.FileMode{"good": 0o600, "read-only": 0o400, "group": 0o640, "all": 0o604, "written": 0o602, "large": 0o600} {
		if err := errors.Join(os.WriteFile(path(name), []byte("secret"), 0o600), os.Chmod(path(name), mode)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink("good", path("link")), unix.Mkfifo(path("fifo"), 0o600), os.Truncate(path("large"), secretMost+1)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"good", "read-only", "link"} {
		if text, err := ReadSecret(path(name)); err != nil || string(text) != "secret" {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
	for _, name := range []string{"group", "all", "written", "fifo", "large"} {
		_, err := ReadSecret(path(name))
		refused(t, name, err)
		var e *Error
		if errors.As(err, &e) && e.Hint() == "" {
			t.Errorf("%s: no hint", name)
		}
	}
	if _, err := ReadSecret(path("none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v, want that there is none", err)
	}
}

// A file of another user is not a secret, even if root can read it.
func TestSecretOfAnother(t *testing.T) {
	needRoot(t)
	path := filepath.Join(t.TempDir(), "secret")
	if err := errors.Join(os.WriteFile(path, []byte("secret"), 0o600), os.Chown(path, stranger, stranger)); err != nil {
		t.Fatal(err)
	}
	_, err := ReadSecret(path)
	refused(t, "a file of another user", err)
}

func TestEnviron(t *testing.T) {
	for _, c := range []struct{ name, value, want string }{
		{"LD_LIBRARY_PATH", ":/opt/lib", "/opt/lib"},
		{"LD_LIBRARY_PATH", "/opt/lib:", "/opt/lib"},
		{"LD_LIBRARY_PATH", "lib:/opt/a::/opt/b;./c", "/opt/a:/opt/b"},
		{"LD_LIBRARY_PATH", ":", ""},
		{"LD_LIBRARY_PATH", "/opt/a:/opt/b", "/opt/a:/opt/b"},
		{"LD_PRELOAD", "./evil.so /lib/good.so libfine.so", "/lib/good.so:libfine.so"},
		{"LD_AUDIT", "sub/evil.so", ""},
		{"OTHER", ":lib", ":lib"},
	} {
		t.Setenv(c.name, c.value)
		want := c.want
		if os.Geteuid() != 0 {
			want = c.value
		}
		got := ""
		for _, entry := range Environ() {
			if name, value, _ := strings.Cut(entry, "="); name == c.name {
				got = value
			}
		}
		if got != want {
			t.Errorf("%s=%s is %q, want %q", c.name, c.value, got, want)
		}
		os.Unsetenv(c.name) // t.Setenv restores it
	}
}
