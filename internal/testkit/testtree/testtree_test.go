package testtree

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func build(t *testing.T, n int) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("awkward trees need root")
	}
	dir := t.TempDir()
	if err := Build(dir, n); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestBuildIsTheSameEveryTime(t *testing.T) {
	for n := range Trees {
		t.Run(Name(n), func(t *testing.T) {
			a, b := build(t, n), build(t, n)
			diffs, err := Compare(a, b)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range diffs {
				t.Error(d)
			}
		})
	}
}

// cp(1) copies everything exactly, and is independent of this package.
func TestCompareAgreesWithCp(t *testing.T) {
	for _, n := range []int{1, 2, 3, 4, 5, 6} {
		a, b := build(t, n), t.TempDir()
		if out, err := exec.Command("cp", "-a", a+"/.", b).CombinedOutput(); err != nil {
			t.Fatalf("cp: %v\n%s", err, out)
		}
		diffs, err := Compare(a, b)
		if err != nil || len(diffs) > 0 {
			t.Errorf("%s: %v %q", Name(n), err, diffs)
		}
	}
}

func TestCompareSees(t *testing.T) {
	at := func(dir, name string) string { return filepath.Join(dir, name) }
	originals := map[int]string{}
	for what, c := range map[string]struct {
		tree   int
		change func(dir string) error
		want   string
	}{
		"a byte": {7, func(d string) error {
			f, err := os.OpenFile(at(d, "noise04194304"), os.O_RDWR, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.WriteAt([]byte("changed"), 4_000_000)
			return err
		}, `"noise04194304": the contents differ from byte 4000000 on`},
		"a mode":         {5, func(d string) error { return os.Chmod(at(d, "null"), 0o600) }, `"null": mode`},
		"an owner":       {6, func(d string) error { return os.Lchown(at(d, "linkowner0"), 1, 0) }, `"linkowner0": uid is 0 and 1`},
		"a missing name": {1, func(d string) error { return os.Remove(at(d, "new\nline")) }, `only in the first tree`},
		"another name":   {1, func(d string) error { return os.WriteFile(at(d, "zzz"), nil, 0o644) }, `"zzz": it is only in the second tree`},
		"an attribute": {3, func(d string) error {
			return unix.Lsetxattr(at(d, "one"), "user.comment", []byte("sample 13"), 0)
		}, `"one": attribute user.comment is "sample 12" and "sample 13"`},
		"an ACL": {3, func(d string) error {
			return unix.Lremovexattr(at(d, "directory"), "system.posix_acl_default")
		}, `"directory": attribute system.posix_acl_default is only in the first tree`},
		"a nanosecond": {6, func(d string) error {
			ts := []unix.Timespec{{}, {Sec: 0, Nsec: 2}}
			return unix.UtimesNanoAt(unix.AT_FDCWD, at(d, "time 0.000000001"), ts, 0)
		}, `time is 0.000000001 and 0.000000002`},
		"a broken link": {2, func(d string) error {
			f := at(d, "tiny007")
			if err := os.Remove(f); err != nil {
				return err
			}
			return os.WriteFile(f, []byte("one of several names\n"), 0o644)
		}, `"tiny007": it is a hard link of "other/deeper/tiny" and of ""`},
		"a target": {2, func(d string) error {
			if err := os.Remove(at(d, "dangling")); err != nil {
				return err
			}
			return os.Symlink("elsewhere", at(d, "dangling"))
		}, `"dangling": it points to`},
		"a device": {5, func(d string) error {
			if err := os.Remove(at(d, "disk")); err != nil {
				return err
			}
			return unix.Mknod(at(d, "disk"), unix.S_IFBLK|0o660, int(unix.Mkdev(259, 301)))
		}, `"disk": device number`},
	} {
		if originals[c.tree] == "" {
			originals[c.tree] = build(t, c.tree)
		}
		a, b := originals[c.tree], build(t, c.tree)
		if err := c.change(b); err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		diffs, err := Compare(a, b)
		if err != nil || !strings.Contains(strings.Join(diffs, "\n"), c.want) {
			t.Errorf("%s: %v, differences %q, want %q", what, err, diffs, c.want)
		}
	}
}
