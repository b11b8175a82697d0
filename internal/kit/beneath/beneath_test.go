package beneath

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"premix/internal/kit/owner"
)

// only reports files of the directory that differ from want.
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

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func text(s string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.WriteString(w, s)
		return err
	}
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "page")
	must(t, Write(path, 0o644, Durable, text("one")))
	only(t, dir, map[string]string{"page": "one"})

	// The old content stays while the file is written, and after a failure.
	broken := errors.New("broken")
	err := Write(path, 0o644, Durable, func(w io.Writer) error {
		if err := text("half")(w); err != nil {
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

	// A user's own link stays a link.
	must(t, os.Symlink("page", filepath.Join(dir, "link")))
	must(t, Replace(filepath.Join(dir, "link"), 0o644, Volatile, []byte("two")))
	only(t, dir, map[string]string{"page": "two", "link": "two"})
	if to, err := os.Readlink(filepath.Join(dir, "link")); err != nil || to != "page" {
		t.Errorf("%q, %v: the link is not one any more", to, err)
	}
	if err := Replace(filepath.Join(dir, "none", "page"), 0o644, Volatile, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v, want that there is no directory", err)
	}
	must(t, os.Symlink("loop", filepath.Join(dir, "loop")))
	if err := Replace(filepath.Join(dir, "loop"), 0o644, Volatile, nil); !errors.Is(err, unix.ELOOP) {
		t.Errorf("%v, want %v", err, unix.ELOOP)
	}
}

// A link of another user is not followed, regardless of its target.
func TestLinkOfAnother(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make a link of another user")
	}
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "secret"), []byte("kept"), 0o600))
	must(t, os.Symlink("secret", filepath.Join(dir, "page")))
	must(t, os.Lchown(filepath.Join(dir, "page"), 65534, 65534))
	err := Replace(filepath.Join(dir, "page"), 0o644, Volatile, []byte("taken"))
	var link *owner.Error
	if !errors.As(err, &link) || link.Hint() == "" {
		t.Errorf("%v, want an owner.Error", err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "secret")); err != nil || string(got) != "kept" {
		t.Errorf("%q, %v: the target of the link was written to", got, err)
	}
}

// A pipe stays a pipe, and the text is written to it.
func TestPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	must(t, unix.Mkfifo(path, 0o600))
	got := make(chan string, 1)
	go func() {
		text, err := os.ReadFile(path)
		got <- string(text)
		if err != nil {
			t.Error(err)
		}
	}()
	must(t, Write(path, 0o644, Durable, text("text")))
	if text := <-got; text != "text" {
		t.Errorf("%q came through the pipe", text)
	}
	if info, err := os.Lstat(path); err != nil || info.Mode().Type() != fs.ModeNamedPipe {
		t.Errorf("%v, %v: not a pipe any more", info, err)
	}
}

// Descriptors have names in /proc, which are links whose text is not a path.
func TestDescriptor(t *testing.T) {
	r, w, err := os.Pipe()
	must(t, err)
	defer r.Close()
	dir := t.TempDir()
	must(t, os.Symlink((&Dir{f: w}).Path(), filepath.Join(dir, "stdout")))
	must(t, Write(filepath.Join(dir, "stdout"), 0o644, Volatile, text("text")))
	must(t, w.Close())
	if got, err := io.ReadAll(r); err != nil || string(got) != "text" {
		t.Errorf("%q, %v", got, err)
	}
}

// A temporary file does not get the final name if another process has replaced it.
func TestSwapped(t *testing.T) {
	path := t.TempDir()
	dir, err := Open(path)
	must(t, err)
	defer dir.Close()
	must(t, os.WriteFile(filepath.Join(path, "state"), []byte("old"), 0o600))
	f, err := dir.Create(0o600)
	must(t, err)
	must(t, os.Remove(filepath.Join(path, f.name)))
	must(t, os.Symlink("/etc/passwd", filepath.Join(path, f.name)))
	if err := f.Replace("state", Durable); err == nil {
		t.Error("a link has got the final name")
	}
	only(t, path, map[string]string{"state": "old"})
}

// A directory with any content, or with another owner, does not count as just made.
func TestFresh(t *testing.T) {
	path := t.TempDir()
	dir, err := Open(path)
	must(t, err)
	defer dir.Close()
	made, err := dir.Mkdir("made", 0o700)
	must(t, err)
	defer made.Close()
	must(t, os.WriteFile(filepath.Join(path, "made/file"), nil, 0o600))
	if err := made.fresh(); err == nil {
		t.Error("a directory with a file is taken for a new one")
	}
	if os.Geteuid() != 0 {
		return
	}
	must(t, errors.Join(os.Remove(filepath.Join(path, "made/file")), os.Chown(filepath.Join(path, "made"), 65534, 65534)))
	if err := made.fresh(); err == nil {
		t.Error("a directory of another user is taken for a new one")
	}
}

// deep makes nested directories and returns their path, which is too long for one system call.
func deep(t *testing.T, dir int) string {
	t.Helper()
	var parts []string
	at := dir
	for range 50 {
		name := strings.Repeat("d", 100)
		must(t, unix.Mkdirat(at, name, 0o755))
		next, err := unix.Openat(at, name, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		t.Cleanup(func() { unix.Close(next) })
		at, parts = next, append(parts, name)
	}
	return strings.Join(parts, "/")
}

// A name that is longer than the kernel's limit works like any other name.
func TestOpenLong(t *testing.T) {
	defer func(was func(int, string, *unix.OpenHow) (int, error)) { openat2 = was }(openat2)
	kernel := openat2
	dir, err := Open(t.TempDir())
	must(t, err)
	defer dir.Close()
	path := deep(t, dir.Fd())
	if len(path) <= unix.PathMax {
		t.Fatalf("the path has %d bytes", len(path))
	}
	for name, call := range map[string]func(int, string, *unix.OpenHow) (int, error){
		"openat2": kernel,
		"walk":    func(int, string, *unix.OpenHow) (int, error) { return -1, unix.ENOSYS },
	} {
		t.Run(name, func(t *testing.T) {
			openat2 = call
			f, err := dir.OpenFile(path+"/file-"+name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			must(t, err)
			must(t, f.Close())
			below, err := dir.OpenDir(path)
			must(t, err)
			defer below.Close()
			if _, err := below.Lstat("file-" + name); err != nil {
				t.Error(err)
			}
			must(t, unix.Symlinkat("/etc", below.Fd(), "out-"+name))
			first, rest, _ := strings.Cut(path, "/")
			must(t, unix.Symlinkat(first, dir.Fd(), "link-"+name))
			for rel, want := range map[string]error{
				path + "/out-" + name:               unix.ELOOP,
				path + "/out-" + name + "/passwd":   unix.ELOOP,
				"link-" + name + "/" + rest:         unix.ELOOP,
				path + "/none":                      unix.ENOENT,
				path + "/file-" + name + "/x":       unix.ENOTDIR,
				"/" + path:                          unix.EXDEV,
				"../" + path:                        unix.EXDEV,
				strings.Repeat("x", unix.PathMax):   unix.ENAMETOOLONG,
				strings.Repeat("/", unix.PathMax+1): unix.EXDEV,
			} {
				f, err := dir.OpenFile(rel, os.O_RDONLY, 0)
				if err == nil {
					f.Close()
				}
				if !errors.Is(err, want) && !(want == unix.EXDEV && errors.Is(err, unix.ENAMETOOLONG)) {
					t.Errorf("open ...%q: %v, want %v", rel[max(0, len(rel)-20):], err, want)
				}
			}
			if f, err := dir.OpenFile(path+strings.Repeat("/..", 60), os.O_RDONLY, 0); !errors.Is(err, unix.EXDEV) {
				t.Errorf("%v, %v: a long name leads out of the directory", f, err)
			}
		})
	}
}

// Both ways to resolve names refuse the same names.
func TestOpenAt(t *testing.T) {
	defer func(was func(int, string, *unix.OpenHow) (int, error)) { openat2 = was }(openat2)
	kernel := openat2
	for name, call := range map[string]func(int, string, *unix.OpenHow) (int, error){
		"openat2": kernel,
		"walk":    func(int, string, *unix.OpenHow) (int, error) { return -1, unix.ENOSYS },
		"sandbox": func(int, string, *unix.OpenHow) (int, error) { return -1, unix.EPERM },
	} {
		t.Run(name, func(t *testing.T) {
			openat2 = call
			path := t.TempDir()
			must(t, os.MkdirAll(filepath.Join(path, "a/b"), 0o755))
			must(t, os.WriteFile(filepath.Join(path, "a/b/file"), []byte("text"), 0o644))
			must(t, os.Symlink("a", filepath.Join(path, "to-directory")))
			must(t, os.Symlink("b/file", filepath.Join(path, "a/to-file")))
			must(t, os.Symlink("/etc", filepath.Join(path, "a/out")))
			dir, err := Open(path)
			must(t, err)
			defer dir.Close()
			for _, c := range []struct {
				rel   string
				flags int
				want  error
			}{
				{"a/b/file", os.O_RDONLY, nil},
				{"a/b", os.O_RDONLY | unix.O_DIRECTORY, nil},
				{".", os.O_RDONLY | unix.O_DIRECTORY, nil},
				{"a/b/file", unix.O_PATH, nil},
				{"to-directory/b/file", os.O_RDONLY, unix.ELOOP},
				{"to-directory", os.O_RDONLY | unix.O_DIRECTORY, unix.ELOOP},
				{"a/to-file", os.O_RDONLY, unix.ELOOP},
				{"a/to-file", unix.O_PATH, unix.ELOOP},
				{"a/to-file", os.O_WRONLY | os.O_CREATE, unix.ELOOP},
				{"a/out/passwd", os.O_RDONLY, unix.ELOOP},
				{"../x", os.O_RDONLY, unix.EXDEV},
				{"/etc/passwd", os.O_RDONLY, unix.EXDEV},
				{"", os.O_RDONLY, unix.ENOENT},
				{"none", os.O_RDONLY, unix.ENOENT},
				{"a/b/file/x", os.O_RDONLY, unix.ENOTDIR},
				{"a/b/file", os.O_WRONLY | os.O_CREATE | os.O_EXCL, unix.EEXIST},
				{"a/to-file", os.O_WRONLY | os.O_CREATE | os.O_EXCL, unix.EEXIST},
			} {
				f, err := dir.OpenFile(c.rel, c.flags, 0o600)
				if err == nil {
					f.Close()
				}
				if !errors.Is(err, c.want) {
					t.Errorf("open %q with %#x: %v, want %v", c.rel, c.flags, err, c.want)
				}
			}
			for rel, want := range map[string]error{"a/to-file": nil, "to-directory/b": unix.ELOOP, "../x": unix.EXDEV} {
				if _, err := dir.Lstat(rel); !errors.Is(err, want) {
					t.Errorf("lstat %q: %v, want %v", rel, err, want)
				}
			}
		})
	}
}
