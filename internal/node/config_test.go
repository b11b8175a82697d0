package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestReadConfig(t *testing.T) {
	home := t.TempDir()
	t.Setenv("PREMIX_HOME", home)
	t.Setenv("PREMIX_NODE_DIR", "")
	c, err := ReadConfig()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.check(); err != nil {
		t.Fatal(err)
	}
	if c.Dir != home+"/run" || c.Cache != home+"/cache/node" || c.Trust != home+"/trust" || c.MaxDeaths != 5 || c.Timeout != 45*time.Second {
		t.Errorf("without a file: %+v", c)
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(home, "node.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("quota: 20G\nfloor: 512M\ncache: /c\nram: /dev/shm/p\nram_quota: 1T\nverify: true\norigins: [a, b]\nfetch_timeout: 3s\nmax_deaths: 9\n")
	if c, err = ReadConfig(); err != nil {
		t.Fatal(err)
	}
	if c.Quota != 20<<30 || c.Floor != 512<<20 || c.Cache != "/c" || c.RAM != "/dev/shm/p" || c.RAMQuota != 1<<40 || !c.Verify || len(c.Origins) != 2 || c.Timeout != 3*time.Second || c.MaxDeaths != 9 {
		t.Errorf("%+v", c)
	}
	for text, want := range map[string]string{
		"quota: lots":            `line 1: "lots" is not a size`,
		"quota: 99999999T":       "too large",
		"cash: /c":               "unknown key cash",
		"cache: c":               "is not absolute",
		"fetch_timeout: a while": "line 1",
		"[":                      "line 1",
	} {
		write(text)
		if _, err := ReadConfig(); !IsKind(err, KindUsage) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// A directory in which other users can write is refused for the control socket.
func TestMakeDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	if err := makeDir(dir); err != nil {
		t.Fatal(err)
	}
	lock, err := takeLock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := takeLock(dir); err != errLocked {
		t.Errorf("taken twice: %v", err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := makeDir(dir); !IsKind(err, KindUsage) || !strings.Contains(err.Error(), "can be written to by other users") {
		t.Errorf("%v", err)
	}
	if err := os.Symlink(t.TempDir(), dir+"2"); err != nil {
		t.Fatal(err)
	}
	if err := makeDir(dir + "2"); !IsKind(err, KindUsage) {
		t.Errorf("a symbolic link: %v", err)
	}
}

// The journal is replaced as a whole, and a journal of another version is refused.
func TestJournal(t *testing.T) {
	dir := t.TempDir()
	j, err := readJournal(dir)
	if err != nil || len(j.Mounts) != 0 {
		t.Fatalf("%+v, %v", j, err)
	}
	j.Mounts = []entry{{MountRequest: MountRequest{ID: "i", Ref: "r:1", Dir: "/d", Backend: "fuse"}, InUse: "erofs", Step: stepMounted, Base: "b", Size: 5}}
	if err := j.write(dir); err != nil {
		t.Fatal(err)
	}
	again, err := readJournal(dir)
	if err != nil || len(again.Mounts) != 1 {
		t.Fatalf("%+v, %v", again, err)
	}
	if e := again.Mounts[0]; e.ID != "i" || e.Backend != "fuse" || e.InUse != "erofs" || e.Step != stepMounted || e.Size != 5 {
		t.Errorf("%+v", e)
	}
	if left, err := filepath.Glob(dir + "/.*"); err != nil || len(left) != 0 {
		t.Errorf("%v are left, %v", left, err)
	}
	for _, text := range []string{`{"version":2}`, `{`, ``} {
		if err := os.WriteFile(statePath(dir), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readJournal(dir); err == nil {
			t.Errorf("%q was taken for a journal", text)
		}
	}
}
