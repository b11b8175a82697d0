package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/unmount"
	"premix/internal/store"
)

// varied makes a directory with wide and deep directories, names that sort in other orders
// than their paths, hard links across directories, equal files of all classes, and extended
// attributes.
func varied(t testing.TB, dir string) {
	t.Helper()
	for i := range 3000 {
		write(t, dir, fmt.Sprintf("wide/%x", i*7919%3000), fmt.Appendf(nil, "content %d", i%500))
	}
	for i := range 400 {
		write(t, dir, fmt.Sprintf("dirs/d%03d/sub/f", i), noise(uint64(i%150), 5000+i%10))
	}
	for i, name := range []string{"a", "a/b", "a-b", "a.b", "a!", "a/b/c", "a/b-c", "!", "z"} {
		write(t, dir, "odd/"+name+"/"+fmt.Sprint(i%3), noise(uint64(i%4), 9000))
		write(t, dir, "odd/"+name+"/~", noise(uint64(i%4), 200_000))
	}
	deep := "deep"
	for i := range 60 {
		deep += fmt.Sprintf("/%02d", i)
		write(t, dir, deep+"/x", []byte{byte(i)})
	}
	for i := range 200 {
		from, to := fmt.Sprintf("dirs/d%03d/sub/f", i), fmt.Sprintf("dirs/d%03d/link%d", 399-i, i)
		if i%3 == 0 {
			from = fmt.Sprintf("wide/%x", i)
		}
		if err := os.Link(filepath.Join(dir, from), filepath.Join(dir, to)); err != nil {
			t.Fatal(err)
		}
		if err := unix.Setxattr(filepath.Join(dir, from), "user.number", fmt.Append(nil, i%20), 0); err != nil {
			t.Fatal(err)
		}
		if err := unix.Setxattr(filepath.Join(dir, from), "user.own", noise(uint64(i), 30), 0); err != nil {
			t.Fatal(err)
		}
	}
	settle(t, dir)
	for i := range 30 {
		if err := os.Symlink(strings.Repeat("t", 1+i*100), filepath.Join(dir, "odd", fmt.Sprint("link", i))); err != nil {
			t.Fatal(err)
		}
	}
	then := unix.NsecToTimespec(1_234_567_890_000_000_005)
	for i := range 30 {
		if err := unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(dir, "odd", fmt.Sprint("link", i)), []unix.Timespec{then, then}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(dir, "odd"), []unix.Timespec{then, then}, 0); err != nil {
		t.Fatal(err)
	}
}

// variedTree is the digest of varied, as root's, from a version of premix that kept all entries in memory, with the sizes of chunks of this version.
const variedTree = "b251002cefad24c97de6fc89b980d201486cfd558a2d61bbbaff43beba1e8a80"

// A publish that keeps little in memory makes the same tree. With a cache it reads nothing
// again.
func TestLittleMemorySameTree(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("owners are part of the digest: it is known for root's files")
	}
	dir, cache := t.TempDir(), t.TempDir()
	varied(t, dir)
	if p := publish(t, newStore(t), dir, "x", ""); p.Tree.String() != variedTree {
		t.Errorf("tree %s, want %s", p.Tree, variedTree)
	}
	defer store.LittleMemory()()
	s := newStore(t)
	for i := range 2 {
		p := publish(t, s, dir, "x", cache)
		if p.Tree.String() != variedTree {
			t.Errorf("with little memory, publish %d: tree %s, want %s", i, p.Tree, variedTree)
		}
		if i == 1 && (p.ReadFiles != 0 || p.Written != 0) {
			t.Errorf("published again: %d files read, %d bytes written", p.ReadFiles, p.Written)
		}
	}
	for i := range 50 { // in the middle of the order of names
		write(t, dir, fmt.Sprintf("dirs/d2%02d/sub/new", i), noise(uint64(i+1000), 6000))
	}
	p := publish(t, s, dir, "x", cache)
	if q := publish(t, newStore(t), dir, "x", ""); q.Tree != p.Tree {
		t.Errorf("with a cache the tree is %s, without one %s", p.Tree, q.Tree)
	}
	if p.ReadFiles < 50 || p.ReadFiles > 150 {
		t.Errorf("%d files were read for 50 that are new", p.ReadFiles)
	}
}

// A wide directory that changes while it is read is read again, and none of the entries of
// the first time is left.
func TestWideDirectoryThatChanges(t *testing.T) {
	dir := t.TempDir()
	for i := range 500 {
		write(t, dir, fmt.Sprintf("d/%03d", i), noise(uint64(i), 100))
		if err := os.Link(filepath.Join(dir, fmt.Sprintf("d/%03d", i)), filepath.Join(dir, fmt.Sprintf("d/link%03d", (i*7)%500))); err != nil {
			t.Fatal(err)
		}
	}
	defer store.LittleMemory()()
	s := newStore(t)
	key, err := s.Key("")
	if err != nil {
		t.Fatal(err)
	}
	published := 0
	for i := range 12 {
		done := make(chan struct{})
		go func() { // a few changes, then rest
			defer close(done)
			for k := range rand.IntN(4) {
				time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond)
				os.WriteFile(filepath.Join(dir, "d", fmt.Sprintf("%03d-%d", rand.IntN(500), i)), fmt.Append(nil, k), 0o644)
			}
		}()
		p, err := s.Publish(context.Background(), dir, mustRef(t, "x"), store.PublishOptions{Key: key})
		<-done
		var source *store.SourceError
		if errors.As(err, &source) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		again := publish(t, s, dir, "x", "")
		if p.Manifest.Inodes == again.Manifest.Inodes && p.Tree != again.Tree {
			// A change of the last file's content alone may come between.
			d, err := s.Diff(context.Background(), p.Tree, again.Tree)
			if err != nil {
				t.Fatal(err)
			}
			if len(d.Changes) > 3 {
				t.Fatalf("the directory at rest differs from the published one: %+v", d.Changes)
			}
			continue
		}
		if p.Tree == again.Tree {
			published++
		}
	}
	if published == 0 {
		t.Error("no publish met a directory at rest")
	}
}

// names makes a directory with n small files.
func names(t testing.TB, dir string, n int) {
	t.Helper()
	for i := range n {
		sub := filepath.Join(dir, strconv.Itoa(i/10_000))
		if i%10_000 == 0 {
			if err := os.Mkdir(sub, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(sub, fmt.Sprintf("sample-%08d.fastq.gz.md5", i)), fmt.Append(nil, i), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// limited starts a command in a cgroup with this much memory, and no swap. It reports false if
// this machine does not permit it.
func limited(t *testing.T, memory int) (attr *syscall.SysProcAttr, ok bool) {
	const root = "/sys/fs/cgroup"
	var fs unix.Statfs_t
	if err := unix.Statfs(root, &fs); err != nil || fs.Type != unix.CGROUP2_SUPER_MAGIC {
		t.Logf("without a cgroup: %s has no cgroups of version 2 (%v)", root, err)
		return nil, false
	}
	dir := filepath.Join(root, fmt.Sprintf("premix-test-%d-%d", os.Getpid(), time.Now().UnixNano()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Logf("without a cgroup: %v", err)
		return nil, false
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile(filepath.Join(dir, "memory.max"), []byte(strconv.Itoa(memory)), 0o644); err != nil {
		t.Logf("without a limit: %v", err)
		return nil, false
	}
	_ = os.WriteFile(filepath.Join(dir, "memory.swap.max"), []byte("0"), 0o644) // there may be no swap
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(f.Fd())}, true
}

// The memory of a publish does not grow with the number of entries: 300 MB are enough, with and
// without a cache. The cgroup's limit counts the pages of temporary files too.
func TestPublishWithinMemory(t *testing.T) {
	const most = 300_000_000
	s, dir, cache := newStore(t), t.TempDir(), t.TempDir()
	if err := unix.Mount("premix-test", dir, "tmpfs", 0, "nr_inodes=2m"); err == nil { // so that it is made quickly
		t.Cleanup(func() {
			if err := unmount.Dir(dir); err != nil {
				t.Error(err)
			}
		})
	}
	names(t, dir, soak(100_000, 1_000_000))
	what := "publish"
	if soak(0, 1) == 0 {
		what = "publish-little" // so that runs are written for fewer entries
	}
	for _, round := range []string{"first", "again"} {
		cmd := childCommand(s, what, dir, "x", cache)
		attr, ok := limited(t, most)
		if ok {
			cmd.SysProcAttr = attr
		}
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v", round, err)
		}
		peak, err := strconv.Atoi(strings.TrimSpace(string(out)))
		if err != nil {
			t.Fatal(err)
		}
		peak <<= 10
		t.Logf("%s: %d million bytes at most, user %v, system %v", round, peak/1e6, cmd.ProcessState.UserTime(), cmd.ProcessState.SystemTime())
		if peak > most {
			t.Errorf("%s: %d bytes of memory", round, peak)
		}
	}
}

// A publish whose disk fills up names the store and the reason, and leaves nothing behind.
func TestPublishToFullDisk(t *testing.T) {
	dir, disk := t.TempDir(), t.TempDir()
	varied(t, dir)
	if err := unix.Mount("premix-test", disk, "tmpfs", 0, "size=16m"); err != nil {
		t.Skipf("this machine does not permit a small tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := unmount.Dir(disk); err != nil {
			t.Error(err)
		}
	})
	s, err := store.Init(filepath.Join(disk, "store"), store.Options{Home: t.TempDir(), Unsynced: true})
	if err != nil {
		t.Fatal(err)
	}
	key, err := s.Key("")
	if err != nil {
		t.Fatal(err)
	}
	defer store.LittleMemory()()
	failed := 0
	// Less and less of the disk is free, so that it fills up in each part of a publish.
	for left := 6000 << 10; left > 0; left -= 600 << 10 {
		fill := filepath.Join(disk, "fill")
		var fs unix.Statfs_t
		if err := unix.Statfs(disk, &fs); err != nil {
			t.Fatal(err)
		}
		if size := int(fs.Bavail)*int(fs.Bsize) - left; size > 0 {
			if err := os.WriteFile(fill, bytes.Repeat([]byte{1}, size), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		_, err := s.Publish(context.Background(), dir, mustRef(t, "x"), store.PublishOptions{Key: key})
		var access *store.AccessError
		if err != nil {
			failed++
			if !errors.As(err, &access) || !errors.Is(err, unix.ENOSPC) {
				t.Errorf("with %d bytes left: %v", left, err)
			}
		}
		if list, _ := os.ReadDir(filepath.Join(s.Dir(), "work/writers")); len(list) > 0 {
			t.Errorf("with %d bytes left: %v remains", left, list)
		}
		if err := os.Remove(fill); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		if found := verify(t, s); len(found) > 0 {
			t.Errorf("with %d bytes left: %+v", left, found)
		}
		collect(t, s, store.GCOptions{})
		if _, err := s.Untag(context.Background(), mustRef(t, "x")); err != nil {
			t.Fatal(err)
		}
		collect(t, s, store.GCOptions{})
	}
	if failed < 3 {
		t.Errorf("%d publishes met a full disk", failed)
	}
}

// The temporary files of a killed publish have no names: the kernel removes them. The next gc
// removes its directory.
func TestKilledPublishLeavesNoFiles(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	names(t, dir, 20_000)
	writers := filepath.Join(s.Dir(), "work/writers")
	killed := 0
	for range soak(5, 100) {
		cmd := childCommand(s, "publish-little", dir, "x", t.TempDir())
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		open := 0 // files of the child without a name
		for open == 0 && cmd.ProcessState == nil {
			fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", cmd.Process.Pid))
			for _, fd := range fds {
				if to, _ := os.Readlink(fd); strings.HasPrefix(to, writers) && strings.HasSuffix(to, "(deleted)") {
					open++
				}
			}
			if len(fds) == 0 {
				break // it ended
			}
		}
		time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond)
		cmd.Process.Kill()
		if cmd.Wait() != nil && open > 0 {
			killed++
		}
		err := filepath.WalkDir(writers, func(path string, e os.DirEntry, err error) error {
			if err == nil && strings.Contains(e.Name(), "ondisk") {
				t.Errorf("%s remains", path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		collect(t, s, store.GCOptions{})
		if list, err := os.ReadDir(writers); err != nil || len(list) > 0 {
			t.Errorf("after gc %v remains (%v)", list, err)
		}
	}
	if killed == 0 {
		t.Error("no publish was killed while it had temporary files")
	}
}
