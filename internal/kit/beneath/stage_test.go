package beneath

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// stage opens the stage of "copy" in a directory.
func stage(t *testing.T, path, records string) (*Dir, *Stage) {
	t.Helper()
	dir, err := Open(path)
	must(t, err)
	t.Cleanup(func() { dir.Close() })
	s, err := dir.Stage(records, "copy")
	must(t, err)
	return dir, s
}

func TestStage(t *testing.T) {
	path, records := t.TempDir(), filepath.Join(t.TempDir(), "parts")
	_, s := stage(t, path, records)
	var st unix.Stat_t
	must(t, unix.Fstat(s.Dir().Fd(), &st))
	if st.Mode&0o777 != 0o700 || s.Resumed {
		t.Errorf("mode %o, resumed %v", st.Mode, s.Resumed)
	}
	if info, err := os.Stat(records); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("records: %v, %v", info, err)
	}
	must(t, os.WriteFile(s.Path(), []byte("half"), 0o600))
	// Only one process writes to a destination.
	dir, err := Open(path)
	must(t, err)
	defer dir.Close()
	var busy *BusyError
	if _, err := dir.Stage(records, "copy"); !errors.As(err, &busy) {
		t.Errorf("%v, want a BusyError", err)
	}
	must(t, s.Close())

	_, s = stage(t, path, records)
	if got, err := os.ReadFile(s.Path()); !s.Resumed || string(got) != "half" {
		t.Errorf("%q, %v: what there was is gone", got, err)
	}
	must(t, os.WriteFile(s.Path(), []byte("whole"), 0o600))
	must(t, s.Commit())
	only(t, path, map[string]string{"copy": "whole"})
	only(t, records, nil)

	// An existing file of this name stays, and so does the staged one.
	_, s = stage(t, path, records)
	must(t, os.WriteFile(s.Path(), []byte("other"), 0o600))
	var exist *ExistError
	if err := s.Commit(); !errors.As(err, &exist) {
		t.Errorf("%v, want an ExistError", err)
	}
	if got, err := os.ReadFile(filepath.Join(path, "copy")); err != nil || string(got) != "whole" {
		t.Errorf("%q, %v: a file was replaced", got, err)
	}
	must(t, s.Remove())
	only(t, path, map[string]string{"copy": "whole"})
	only(t, records, nil)

	// An empty stage, and one without a record, leave no files behind.
	_, s = stage(t, path, records)
	must(t, s.Close())
	_, s = stage(t, path, "")
	must(t, os.WriteFile(s.Path(), []byte("half"), 0o600))
	must(t, s.Close())
	only(t, path, map[string]string{"copy": "whole"})
	only(t, records, nil)
}

// A stage whose name belongs to another file is not resumed, and the other file is left alone.
func TestStageTaken(t *testing.T) {
	for name, take := range map[string]func(as string) error{
		"link":      func(as string) error { return os.Symlink("/etc", as) },
		"directory": func(as string) error { return os.Mkdir(as, 0o700) },
		"file":      func(as string) error { return os.WriteFile(as, []byte("bait"), 0o644) },
	} {
		t.Run(name, func(t *testing.T) {
			path, records := t.TempDir(), t.TempDir()
			must(t, os.Chmod(records, 0o700))
			_, s := stage(t, path, records)
			must(t, os.WriteFile(s.Path(), []byte("half"), 0o600))
			as := filepath.Join(path, s.as)
			must(t, s.Close())
			must(t, os.Rename(as, as+".moved"))
			must(t, take(as))
			_, s = stage(t, path, records)
			if s.Resumed || filepath.Join(path, s.as) == as {
				t.Errorf("it goes on in %s", s.as)
			}
			must(t, os.WriteFile(s.Path(), []byte("whole"), 0o600))
			must(t, s.Commit())
			if _, err := os.Lstat(as); err != nil {
				t.Error(err)
			}
			if got, err := os.ReadFile(filepath.Join(path, "copy")); err != nil || string(got) != "whole" {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}

// A stage that is swapped during writing keeps its data, because its name is not used again.
func TestStageSwapped(t *testing.T) {
	path, bait := t.TempDir(), t.TempDir()
	_, s := stage(t, path, "")
	as := filepath.Join(path, s.as)
	must(t, os.Rename(as, as+".moved"))
	must(t, os.Symlink(bait, as))
	must(t, os.WriteFile(s.Path(), []byte("text"), 0o600))
	only(t, bait, nil)
	must(t, s.Commit())
	if got, err := os.ReadFile(filepath.Join(path, "copy")); err != nil || string(got) != "text" {
		t.Errorf("%q, %v", got, err)
	}
	if to, err := os.Readlink(as); err != nil || to != bait {
		t.Errorf("%q, %v: the link of another was touched", to, err)
	}
}

func TestStagePlain(t *testing.T) {
	path := t.TempDir()
	_, s := stage(t, path, "")
	must(t, os.MkdirAll(filepath.Join(s.Path(), "sub"), 0o755))
	tool := filepath.Join(s.Path(), "sub/tool")
	must(t, os.WriteFile(tool, nil, 0o755))
	must(t, os.Chmod(tool, 0o755|fs.ModeSetuid|fs.ModeSetgid))
	must(t, os.Chmod(filepath.Join(s.Path(), "sub"), 0o755|fs.ModeSticky|fs.ModeSetgid))
	must(t, os.Symlink("/etc/passwd", filepath.Join(s.Path(), "link")))
	must(t, s.Plain())
	must(t, s.Commit())
	for name, want := range map[string]fs.FileMode{"copy/sub": fs.ModeDir | 0o755, "copy/sub/tool": 0o755} {
		if info, err := os.Lstat(filepath.Join(path, name)); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v; want %v", name, info.Mode(), err, want)
		}
	}
}

// A directory that its owner cannot write to gets its final name too.
func TestStageReadOnly(t *testing.T) {
	path := t.TempDir()
	_, s := stage(t, path, "")
	must(t, os.Mkdir(s.Path(), 0o111))
	must(t, s.Commit())
	if info, err := os.Lstat(filepath.Join(path, "copy")); err != nil || info.Mode().Perm() != 0o111 {
		t.Errorf("%v, %v", info, err)
	}
}

// Records that other users can write are ignored.
func TestStageRecords(t *testing.T) {
	records := filepath.Join(t.TempDir(), "parts")
	must(t, os.Mkdir(records, 0o700))
	must(t, os.Chmod(records, 0o777))
	dir, err := Open(t.TempDir())
	must(t, err)
	defer dir.Close()
	if s, err := dir.Stage(records, "copy"); err == nil {
		t.Error("records that others may write are believed")
		must(t, s.Close())
	}
}

// Without RENAME_NOREPLACE in the file system, no file is replaced either.
func TestStageNoReplace(t *testing.T) {
	defer func(was func(int, string, int, string, uint) error) { renameat2 = was }(renameat2)
	renameat2 = func(int, string, int, string, uint) error { return unix.EINVAL }
	for _, directory := range []bool{false, true} {
		path := t.TempDir()
		make := func(at string) error {
			if directory {
				return os.Mkdir(at, 0o755)
			}
			return os.WriteFile(at, nil, 0o644)
		}
		_, s := stage(t, path, "")
		must(t, make(s.Path()))
		must(t, make(filepath.Join(path, "copy")))
		var exist *ExistError
		if err := s.Commit(); !errors.As(err, &exist) {
			t.Errorf("%v, want an ExistError", err)
		}
		must(t, os.Remove(filepath.Join(path, "copy")))
		must(t, s.Commit())
		if list, err := os.ReadDir(path); err != nil || len(list) != 1 || list[0].Name() != "copy" {
			t.Errorf("%v, %v", list, err)
		}
	}
}
