package beneath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// ways lists the functions that give a name to a new file. Each replaces "old" by "new" in the file
// DIR/state, or DIR/state/file. Files that it needs before are in DIR/made.
var ways = map[string]struct {
	tree bool // it makes a directory that did not exist before
	make func(dir string) error
	do   func(dir string, how Durability) error
}{
	"Replace": {do: func(dir string, how Durability) error {
		return Replace(filepath.Join(dir, "state"), 0o600, how, []byte("new"))
	}},
	"Write": {do: func(dir string, how Durability) error {
		return Write(filepath.Join(dir, "state"), 0o600, how, text("new"))
	}},
	"ReplaceIn": {do: func(dir string, how Durability) error {
		d, err := Open(dir)
		if err != nil {
			return err
		}
		defer d.Close()
		f, err := d.Create(0o600)
		if err != nil {
			return err
		}
		if _, err := f.WriteString("new"); err != nil {
			return errors.Join(err, f.Discard())
		}
		return f.ReplaceIn(d, "state", how)
	}},
	"Move of a file": {
		make: func(dir string) error { return os.WriteFile(filepath.Join(dir, "made"), []byte("new"), 0o600) },
		do: func(dir string, how Durability) error {
			return Move(filepath.Join(dir, "made"), filepath.Join(dir, "state"), how)
		},
	},
	"Move of a directory": {tree: true,
		make: func(dir string) error {
			return errors.Join(os.Mkdir(filepath.Join(dir, "made"), 0o700), os.WriteFile(filepath.Join(dir, "made/file"), []byte("new"), 0o600))
		},
		do: func(dir string, how Durability) error {
			return Move(filepath.Join(dir, "made"), filepath.Join(dir, "state"), how)
		},
	},
	"Stage": {tree: true, do: func(dir string, _ Durability) error {
		d, err := Open(dir)
		if err != nil {
			return err
		}
		defer d.Close()
		s, err := d.Stage("", "state")
		if err != nil {
			return err
		}
		err = errors.Join(os.Mkdir(s.Path(), 0o700), os.WriteFile(s.Path()+"/file", []byte("new"), 0o600))
		if err == nil {
			err = s.Commit()
		}
		return errors.Join(err, s.Close())
	}},
}

// disk replaces the calls that change names or wait for the disk. One of them fails or kills the
// process.
type disk struct {
	at    int   // number of the call from 1, or 0 for no fault
	fault error // nil kills the process before the call
	calls []string
}

func (d *disk) call(name string) error {
	d.calls = append(d.calls, name)
	if len(d.calls) != d.at {
		return nil
	}
	if d.fault == nil {
		runtime.Goexit()
	}
	return d.fault
}

// run runs f with the disk, and reports whether f returned.
func (d *disk) run(t *testing.T, f func() error) (finished bool, err error) {
	t.Helper()
	defer func(a func(*os.File) error, b func(int, string, int, string) error, c func(string, string) error, e func(int, string, int, string, uint) error, g func(int, string, int) error) {
		fsync, renameat, rename, renameat2, unlinkat = a, b, c, e, g
	}(fsync, renameat, rename, renameat2, unlinkat)
	fsync = func(f *os.File) error {
		kind := "file"
		if info, err := f.Stat(); err != nil || info.IsDir() {
			kind = "directory"
		}
		return errors.Join(d.call(kind), f.Sync())
	}
	renameat = func(a int, b string, c int, e string) error {
		if err := d.call("name"); err != nil {
			return err
		}
		return unix.Renameat(a, b, c, e)
	}
	renameat2 = func(a int, b string, c int, e string, flags uint) error {
		if err := d.call("name"); err != nil {
			return err
		}
		return unix.Renameat2(a, b, c, e, flags)
	}
	rename = func(a, b string) error {
		if err := d.call("name"); err != nil {
			return err
		}
		return os.Rename(a, b)
	}
	kill := d.fault == nil && d.at > 0
	unlinkat = func(a int, b string, flags int) error {
		if kill && len(d.calls) >= d.at {
			return nil // a killed process removes nothing
		}
		return unix.Unlinkat(a, b, flags)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = f()
		finished = true
	}()
	<-done
	return finished, err
}

// state returns the content that a way has made, or "" if there is none.
func state(t *testing.T, dir string, tree bool) string {
	t.Helper()
	path := filepath.Join(dir, "state")
	if tree {
		path += "/file"
	}
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return string(b)
}

// If any call fails, or the process is killed before it, either the old or the new content is
// there, complete.
func TestFaults(t *testing.T) {
	for name, w := range ways {
		for _, how := range []Durability{Volatile, Durable} {
			for _, fault := range []error{unix.EIO, unix.ENOSPC, unix.EROFS, nil} {
				old := "old"
				if w.tree {
					old = ""
				}
				begin := func() string {
					dir := t.TempDir()
					if !w.tree {
						must(t, os.WriteFile(filepath.Join(dir, "state"), []byte(old), 0o600))
					}
					if w.make != nil {
						must(t, w.make(dir))
					}
					return dir
				}
				whole := &disk{}
				dir := begin()
				if _, err := whole.run(t, func() error { return w.do(dir, how) }); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if got := state(t, dir, w.tree); got != "new" {
					t.Errorf("%s: %q", name, got)
				}
				named := slices.Index(whole.calls, "name") + 1
				for at := 1; at <= len(whole.calls); at++ {
					where := fmt.Sprintf("%s, %v, call %d of %v: %v", name, how, at, whole.calls, fault)
					dir := begin()
					d := &disk{at: at, fault: fault}
					finished, err := d.run(t, func() error { return w.do(dir, how) })
					if finished != (fault != nil) || fault != nil && !errors.Is(err, fault) {
						t.Errorf("%s: ended %v, %v", where, finished, err)
					}
					want := old
					if at > named {
						want = "new" // it is unknown whether the name survives a crash
					}
					if got := state(t, dir, w.tree); got != want {
						t.Errorf("%s: %q, want %q", where, got, want)
					}
					if left := parts(t, dir); finished && len(left) > 0 {
						t.Errorf("%s: left %v", where, left)
					}
				}
			}
		}
	}
}

// parts returns the temporary names in a directory.
func parts(t *testing.T, dir string) (list []string) {
	t.Helper()
	all, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range all {
		if strings.HasPrefix(e.Name(), Prefix) {
			list = append(list, e.Name())
		}
	}
	return list
}

// A durable file is on disk before it gets its name, and its name is on disk when the call returns.
func TestOrder(t *testing.T) {
	for name, want := range map[string]string{
		"Replace": "file name directory", "Write": "file name directory", "ReplaceIn": "file name directory", "Move of a file": "file name directory",
		"Move of a directory": "directory file name directory", "Stage": "name directory",
	} {
		dir, w, d := t.TempDir(), ways[name], &disk{}
		if w.make != nil {
			must(t, w.make(dir))
		}
		if _, err := d.run(t, func() error { return w.do(dir, Durable) }); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(d.calls, " "); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	d := &disk{}
	if _, err := d.run(t, func() error { return MkdirAll(filepath.Join(t.TempDir(), "a/b"), 0o700) }); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(d.calls, " "); got != "directory directory" {
		t.Errorf("two new directories: %s", got)
	}
}

// Old remains of a killed process are removed. Recent files, other kinds of files, and files of
// other users stay.
func TestSweep(t *testing.T) {
	defer func(was func() time.Time) { now = was }(now)
	dir := t.TempDir()
	d := &disk{at: 1}
	if finished, _ := d.run(t, func() error { return Replace(filepath.Join(dir, "state"), 0o600, Durable, nil) }); finished {
		t.Fatal("the process was not killed")
	}
	must(t, os.WriteFile(filepath.Join(dir, ".premix"), nil, 0o600))
	must(t, os.Mkdir(filepath.Join(dir, Prefix+"directory"), 0o700))
	must(t, os.Symlink("state", filepath.Join(dir, Prefix+"link")))
	want := 4
	if os.Geteuid() == 0 {
		must(t, os.WriteFile(filepath.Join(dir, Prefix+"other"), nil, 0o600))
		must(t, os.Chown(filepath.Join(dir, Prefix+"other"), 65534, 65534))
		want++
	}
	for _, c := range []struct {
		later time.Duration
		want  int
	}{{SweepAge / 2, want}, {2 * SweepAge, want - 1}} {
		now = func() time.Time { return time.Now().Add(c.later) }
		swept.Clear()
		must(t, Replace(filepath.Join(dir, "state"), 0o600, Volatile, nil))
		list, err := os.ReadDir(dir)
		must(t, err)
		if len(list) != c.want+1 { // the file itself
			t.Errorf("after %v %d files, want %d: %v", c.later, len(list), c.want+1, list)
		}
	}
}

// A full or read-only disk keeps the old content and no other files.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("premix-test", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skip("needs the right to mount a small file system: ", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	path := filepath.Join(dir, "state")
	must(t, Replace(path, 0o600, Durable, []byte("old")))
	if err := Replace(path, 0o600, Durable, make([]byte, 1<<20)); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("%v, want %v", err, unix.ENOSPC)
	}
	only(t, dir, map[string]string{"state": "old"})
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	for name, w := range ways {
		if w.make != nil {
			continue // the preparation of this way cannot write there
		}
		if err := w.do(dir, Durable); !errors.Is(err, unix.EROFS) {
			t.Errorf("%s: %v, want %v", name, err, unix.EROFS)
		}
	}
	only(t, dir, map[string]string{"state": "old"})
}

// Exchange swaps files, or replaces one where the file system cannot swap.
func TestExchange(t *testing.T) {
	defer func(was func(int, string, int, string, uint) error) { renameat2 = was }(renameat2)
	kernel := renameat2
	for name, c := range map[string]struct {
		call func(int, string, int, string, uint) error
		want map[string]string
	}{
		"swaps":  {kernel, map[string]string{"a": "b", "b": "a"}},
		"cannot": {func(int, string, int, string, uint) error { return unix.EINVAL }, map[string]string{"a.old": "b", "b": "a"}},
	} {
		renameat2 = c.call
		dir := t.TempDir()
		for _, n := range []string{"a", "b"} {
			must(t, os.WriteFile(filepath.Join(dir, n), []byte(n), 0o600))
		}
		must(t, Exchange(filepath.Join(dir, "a"), filepath.Join(dir, "b")))
		t.Log(name)
		only(t, dir, c.want)
	}
	if err := Exchange("/none/a", "/none/b"); err == nil {
		t.Error("what is not there was exchanged")
	}
}
