package tiers

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/posixtest"
	"golang.org/x/sys/unix"

	"premix/internal/files/content"
)

// serveTiers and mountTiers name the file of tiers that this binary serves, and the directory, for
// tests that kill it.
const serveTiers, mountTiers = "PREMIX_TEST_TIERS", "PREMIX_TEST_MOUNT"

func TestMain(m *testing.M) {
	if file := os.Getenv(serveTiers); file != "" {
		if err := serve(file, os.Getenv(mountTiers)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if dir := os.Getenv(ordinaryUser); dir != "" {
		if err := becomeOrdinary(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func serve(file, dir string) error {
	c, err := Load(file)
	if err != nil {
		return err
	}
	m, err := Mount(context.Background(), c, dir, nil)
	if err != nil {
		return err
	}
	return m.Run(context.Background(), func(e Event) { fmt.Println(e.Path) })
}

// A mount is killed repeatedly while it moves files. No file is lost or duplicated, and each is in
// one tier.
func TestKilledWhileItMoves(t *testing.T) {
	needRoot(t)
	top, dir := t.TempDir(), t.TempDir()
	flash, disk := filepath.Join(top, "flash"), filepath.Join(top, "disk")
	for _, d := range []string{flash, disk} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(top, "tiers.yaml")
	write(t, file, "tiers: [{name: flash, dir: flash}, {name: disk, dir: disk}]\nrules: [{from: flash, to: disk, larger: 1}]\ninterval: 1ms\n")
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			t.Error(err)
		}
	})
	want := map[string]string{}
	for round := range 12 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), serveTiers+"="+file, mountTiers+"="+dir)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		// Some files are ready to move, and others appear while files move.
		for i := range 6 {
			rel := fmt.Sprintf("%d/before%d", round, i)
			want[rel] = strings.Repeat(rel, 1+i*9000)
			write(t, filepath.Join(flash, rel), want[rel])
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		moves := bufio.NewScanner(out)
		for n := range 1 + round%5 {
			if !moves.Scan() {
				t.Fatalf("in round %d only %d files move", round, n)
			}
			rel := fmt.Sprintf("%d/during%d", round, n)
			want[rel] = strings.Repeat(rel, 1+n*9000)
			write(t, filepath.Join(dir, rel), want[rel])
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait()    // it was killed
		if round%2 == 0 { // every other time the next mount finds the dead one
			if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
				t.Fatal(err)
			}
		}
	}
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); dead(err) {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Fatal(err)
		}
	}
	m := mountOn(t, flash, disk)
	got := map[string]string{}
	if err := filepath.WalkDir(m.Dir, func(name string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(m.Dir, name) // relative to it, as in WalkDir
		b, err := os.ReadFile(name)
		got[rel] = string(b)
		_, here := os.Lstat(m.onFlash(rel))
		_, there := os.Lstat(m.onDisk(rel))
		if (here == nil) == (there == nil) {
			t.Errorf("%s on flash: %v, on disk: %v", rel, here, there)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(got, want) {
		t.Errorf("there are %d files, and %d were written", len(got), len(want))
		for rel := range want {
			if got[rel] != want[rel] {
				t.Errorf("%s has %d bytes, and had %d", rel, len(got[rel]), len(want[rel]))
			}
		}
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("there is no /dev/fuse")
	}
}

// mounted is a mount of two directories, flash and disk.
type mounted struct {
	*Mounted
	flash, disk string
	config      *Config
}

func (m *mounted) at(rel string) string      { return filepath.Join(m.Dir, rel) }
func (m *mounted) onFlash(rel string) string { return filepath.Join(m.flash, rel) }
func (m *mounted) onDisk(rel string) string  { return filepath.Join(m.disk, rel) }

func mountOn(t *testing.T, flash, disk string) *mounted {
	t.Helper()
	if os.Getenv(ordinaryUser) == "" {
		needRoot(t)
	}
	m := &mounted{flash: flash, disk: disk, config: configOf(flash, disk)}
	m.mount(t, t.TempDir())
	t.Cleanup(func() {
		if err := m.Unmount(); err != nil {
			t.Error(err)
		}
	})
	return m
}

func configOf(flash, disk string) *Config {
	return &Config{
		Tiers: []Tier{{Name: "flash", Dir: flash, High: 80, Low: 70}, {Name: "disk", Dir: disk, High: 80, Low: 70}}, Interval: time.Hour,
	}
}

func (m *mounted) mount(t *testing.T, dir string) {
	t.Helper()
	var err error
	if m.Mounted, err = Mount(t.Context(), m.config, dir, nil); err != nil {
		t.Fatal(err)
	}
	if os.Getenv(overRings) != "" && m.rings == nil {
		t.Error("requests do not come over io_uring")
	}
}

func twoTiers(t *testing.T) *mounted {
	t.Helper()
	return mountOn(t, t.TempDir(), t.TempDir())
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func wantText(t *testing.T, path, want string) {
	t.Helper()
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("%s holds %.40q, %v; want %.40q", path, got, err, want)
	}
}

func wantAbsent(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s: %v, and it should not be there", path, err)
	}
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

// mustMove moves a file from flash to disk after its last writer has closed it. The mount is
// notified some time after the close.
func (m *mounted) mustMove(t *testing.T, rel string) {
	t.Helper()
	for {
		_, err := m.tree.move(t.Context(), rel, 0, 1)
		if err == nil {
			return
		}
		if !errors.Is(err, ErrBusy) || t.Context().Err() != nil {
			t.Fatalf("moving %s: %v", rel, err)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestPosix(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(posixtest.All)) {
		t.Run(name, func(t *testing.T) {
			switch name {
			case "FcntlFlockLocksFile":
				t.Skip("expects one process's locks to exclude each other, as on no file system of the kernel's")
			case "OpenSymlinkRace":
				t.Skip("does not expect ESTALE; TestOpenWhileItIsReplaced does")
			}
			posixtest.All[name](t, twoTiers(t).Dir)
		})
	}
}

// A link and a file alternate under one name. A client that opens the file never gets the target of
// the link on the server's side, which would be opened as root.
func TestOpenWhileItIsReplaced(t *testing.T) {
	m := twoTiers(t)
	secret := filepath.Join(t.TempDir(), "secret")
	write(t, secret, "secret")
	path, tmp := m.at("f"), m.at("tmp")
	write(t, path, "")
	done := make(chan struct{})
	var shuffler sync.WaitGroup
	shuffler.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			err := os.WriteFile(tmp, nil, 0o600)
			err = errors.Join(err, os.Rename(tmp, path), os.Symlink(secret, tmp), os.Rename(tmp, path))
			if err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 500 {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW, 0)
		if err != nil {
			if !errors.Is(err, unix.ELOOP) && !errors.Is(err, unix.ESTALE) && !errors.Is(err, unix.EINVAL) {
				t.Errorf("opening: %v", err)
			}
			continue
		}
		b := make([]byte, 10)
		if n, err := unix.Read(fd, b); n != 0 || err != nil {
			t.Errorf("the file that is empty holds %q, %v", b[:max(0, n)], err)
		}
		if err := unix.Close(fd); err != nil {
			t.Error(err)
		}
	}
	close(done)
	shuffler.Wait()
}

func TestNewFilesLandOnTheFastTierAndMove(t *testing.T) {
	m := twoTiers(t)
	write(t, m.at("a/b/f"), "text")
	wantText(t, m.onFlash("a/b/f"), "text")
	wantAbsent(t, m.onDisk("a"))
	if err := unix.Setxattr(m.at("a/b/f"), "user.note", []byte("kept"), 0); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(m.at("a/b/f"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(m.at("a/b/f"), 12, 34); err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1_000_000_000, 123456789)
	if err := os.Chtimes(m.at("a/b/f"), at, at); err != nil {
		t.Fatal(err)
	}
	file, dir := inode(t, m.at("a/b/f")), inode(t, m.at("a/b"))
	m.mustMove(t, "a/b/f")
	wantAbsent(t, m.onFlash("a/b/f"))
	wantText(t, m.onDisk("a/b/f"), "text")
	wantText(t, m.at("a/b/f"), "text")
	check := func() {
		t.Helper()
		var st unix.Stat_t
		if err := unix.Stat(m.at("a/b/f"), &st); err != nil {
			t.Fatal(err)
		}
		if st.Ino != file || st.Mode != unix.S_IFREG|0o640 || st.Uid != 12 || st.Gid != 34 || st.Mtim.Nano() != at.UnixNano() {
			t.Errorf("moved: %+v, inode number was %d", st, file)
		}
		if now := inode(t, m.at("a/b")); now != dir {
			t.Errorf("the directory has inode number %d, and had %d", now, dir)
		}
		b := make([]byte, 1000)
		n, err := unix.Getxattr(m.at("a/b/f"), "user.note", b)
		if err != nil || string(b[:n]) != "kept" {
			t.Errorf("attribute: %q, %v", b[:max(0, n)], err)
		}
		if n, err = unix.Listxattr(m.at("a/b/f"), b); err != nil || string(b[:n]) != "user.note\x00" {
			t.Errorf("attributes: %q, %v", b[:max(0, n)], err)
		}
	}
	check()
	if err := m.Unmount(); err != nil {
		t.Fatal(err)
	}
	m.mount(t, m.Dir)
	check()
}

func TestListingMerges(t *testing.T) {
	m := twoTiers(t)
	write(t, m.onFlash("d/one"), "1")
	write(t, m.onDisk("d/two"), "2")
	write(t, m.onDisk("only/deep/three"), "3")
	names := func(rel string) []string {
		list, err := os.ReadDir(m.at(rel))
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range list {
			names = append(names, e.Name())
		}
		return names
	}
	if got := names(""); !slices.Equal(got, []string{"d", "only"}) {
		t.Errorf("the top holds %q", got)
	}
	if got := names("d"); !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("d holds %q", got)
	}
	before := inode(t, m.at("only/deep"))
	write(t, m.at("only/deep/four"), "4")
	wantText(t, m.onFlash("only/deep/four"), "4")
	if now := inode(t, m.at("only/deep")); now != before {
		t.Errorf("the directory has inode number %d, and had %d", now, before)
	}
	if err := os.Rename(m.at("only"), m.at("d/moved")); err != nil {
		t.Fatal(err)
	}
	wantText(t, m.at("d/moved/deep/three"), "3")
	wantText(t, m.at("d/moved/deep/four"), "4")
	if err := os.Remove(m.at("d/moved/deep")); !errors.Is(err, unix.ENOTEMPTY) {
		t.Errorf("removing what is not empty: %v", err)
	}
	if err := os.Rename(m.at("d/one"), m.at("d/two")); err != nil { // across tiers
		t.Fatal(err)
	}
	wantText(t, m.at("d/two"), "1")
	wantAbsent(t, m.onDisk("d/two"))
	if err := os.RemoveAll(m.at("d")); err != nil {
		t.Fatal(err)
	}
	wantAbsent(t, m.onFlash("d"))
	wantAbsent(t, m.onDisk("d"))
	write(t, filepath.Join(m.disk, content.Copies, "copy"), "of a policy")
	for _, name := range []string{Private, content.Copies} {
		wantAbsent(t, m.at(name))
		if err := os.Mkdir(m.at(name), 0o755); err == nil {
			t.Errorf("%s can be made", name)
		}
		if list, err := os.ReadDir(m.at(".")); err != nil || slices.ContainsFunc(list, func(e os.DirEntry) bool { return e.Name() == name }) {
			t.Errorf("%s is listed: %v", name, err)
		}
	}
}

func TestOpenFilesAcrossAMove(t *testing.T) {
	m := twoTiers(t)
	write(t, m.at("f"), "before")
	m.settle(t)
	reader, err := os.Open(m.at("f"))
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	m.mustMove(t, "f")
	wantAbsent(t, m.onFlash("f"))
	b := make([]byte, 100)
	if n, err := reader.ReadAt(b, 0); err != io.EOF || string(b[:n]) != "before" {
		t.Errorf("a reader from before the move sees %q, %v", b[:n], err)
	}
	wantText(t, m.at("f"), "before")
	// All readers see a write.
	writer, err := os.OpenFile(m.at("f"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := writer.WriteAt([]byte("behind"), 0); err != nil {
		t.Fatal(err)
	}
	if n, err := reader.ReadAt(b, 0); err != io.EOF || string(b[:n]) != "behind" {
		t.Errorf("after a write a reader from before the move sees %q, %v", b[:n], err)
	}
	wantText(t, m.at("f"), "behind")
	wantText(t, m.onFlash("f"), "behind")
	wantAbsent(t, m.onDisk("f"))
	if _, err := m.tree.move(t.Context(), "f", 0, 1); !errors.Is(err, ErrBusy) {
		t.Errorf("moving what is open for writing: %v", err)
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	m.mustMove(t, "f")
	if err := os.Truncate(m.at("f"), 3); err != nil { // the file moves back for this, too
		t.Fatal(err)
	}
	if n, err := reader.ReadAt(b, 0); err != io.EOF || string(b[:n]) != "beh" {
		t.Errorf("after a cut a reader from before the move sees %q, %v", b[:n], err)
	}
	m.mustMove(t, "f")
	if err := reader.Close(); err != nil {
		t.Fatal(err)
	}
	// The space is freed after the last reader has closed the file.
	for {
		list, err := os.ReadDir(filepath.Join(m.flash, Private))
		if err != nil {
			t.Fatal(err)
		}
		if len(list) == 0 {
			break
		}
		if t.Context().Err() != nil {
			t.Fatalf("left: %v", list)
		}
		time.Sleep(time.Millisecond)
	}
	wantText(t, m.at("f"), "beh")
	wantText(t, m.onDisk("f"), "beh")
}

// settle waits until the mount knows that no file is open, and all files are old enough to move.
func (m *mounted) settle(t *testing.T) {
	t.Helper()
	defer time.Sleep(2 * tick)
	for {
		m.tree.mu.Lock()
		n := len(m.tree.open)
		m.tree.mu.Unlock()
		if n == 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func TestWritersWhileFilesMove(t *testing.T) {
	m := twoTiers(t)
	const files, rounds = 8, 60
	done := make(chan struct{})
	var movers sync.WaitGroup
	for hint := range 2 {
		movers.Go(func() {
			for {
				for i := range files {
					select {
					case <-done:
						return
					default:
					}
					_, err := m.tree.move(t.Context(), fmt.Sprint("f", i), hint, 1-hint)
					if err != nil && !errors.Is(err, ErrBusy) && !absent(err) {
						t.Errorf("moving f%d: %v", i, err)
					}
				}
			}
		})
	}
	var writers sync.WaitGroup
	for i := range files {
		writers.Go(func() {
			path, want := m.at(fmt.Sprint("f", i)), []byte{}
			for round := range rounds {
				f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o644)
				if err != nil {
					t.Error(err)
					return
				}
				line := fmt.Appendf(nil, "round %d of file %d\n", round, i)
				_, err = f.Write(line)
				want = append(want, line...)
				if bad := f.Close(); err != nil || bad != nil {
					t.Error(err, bad)
					return
				}
				if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
					t.Errorf("file %d in round %d: %d bytes and %v, want %d", i, round, len(got), err, len(want))
					return
				}
			}
		})
	}
	writers.Wait()
	close(done)
	movers.Wait()
}

// small mounts a tmpfs of a size.
func small(t *testing.T, size string) string {
	t.Helper()
	needRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestFullTier(t *testing.T) {
	m := mountOn(t, small(t, "4m"), small(t, "32m"))
	block := string(bytes.Repeat([]byte("0123456789abcdef"), 1<<16))
	for i := range 3 {
		write(t, m.at(fmt.Sprint("f", i)), block)
	}
	f, err := os.Create(m.at("growing"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 1<<16))
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Errorf("writing more than there is: %v", err)
	}
	write(t, m.at("new"), block) // on the next tier
	wantText(t, m.onDisk("new"), block)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	m.settle(t)
	var moved []string
	if err := m.Pass(t.Context(), func(e Event) {
		if e.Err != nil {
			t.Errorf("%+v", e)
		}
		moved = append(moved, e.Path)
	}); err != nil {
		t.Fatal(err)
	}
	var s unix.Statfs_t
	if err := unix.Statfs(m.flash, &s); err != nil {
		t.Fatal(err)
	}
	if s.Bavail*100 < s.Blocks*30 || len(moved) == 0 {
		t.Errorf("after moving %q %d of %d blocks are free", moved, s.Bavail, s.Blocks)
	}
	for i := range 3 {
		wantText(t, m.at(fmt.Sprint("f", i)), block)
	}
}

func TestRulesAndOthersWhoMove(t *testing.T) {
	m := twoTiers(t)
	m.config.Rules = []Rule{{From: "flash", To: "disk", Older: time.Hour, Larger: 3}}
	write(t, m.at("old"), "old")
	write(t, m.at("small"), "s")
	write(t, m.at("new"), "new")
	past := time.Now().Add(-2 * time.Hour)
	for _, name := range []string{"old", "small"} {
		if err := os.Chtimes(m.at(name), past, past); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(m.at("new"), m.at("link")); err != nil {
		t.Fatal(err)
	}
	m.settle(t)
	if err := m.Pass(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{m.onDisk("old"), m.onFlash("small"), m.onFlash("new")} {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
	if _, err := m.tree.move(t.Context(), "link", 0, 1); !errors.Is(err, ErrBusy) {
		t.Errorf("moving a file of two names: %v", err)
	}
	// A policy moves a file below the mount.
	write(t, m.onDisk("small"), "s")
	if err := os.Remove(m.onFlash("small")); err != nil {
		t.Fatal(err)
	}
	for until := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if b, err := os.ReadFile(m.at("small")); err == nil && string(b) == "s" {
			break
		} else if time.Now().After(until) {
			t.Fatalf("what somebody else moved: %q, %v", b, err)
		}
	}
}

func TestRecovery(t *testing.T) {
	needRoot(t)
	flash, disk := t.TempDir(), t.TempDir()
	write(t, filepath.Join(flash, "equal"), "text")
	write(t, filepath.Join(disk, "equal"), "text")
	write(t, filepath.Join(flash, "d/differs"), "first")
	write(t, filepath.Join(disk, "d/differs"), "later")
	write(t, filepath.Join(disk, Private, "copy-1-1"), "te")
	write(t, filepath.Join(flash, Private, "old-1-2"), "text")
	if err := os.MkdirAll(filepath.Join(disk, Private, "dir-1-1"), 0o700); err != nil {
		t.Fatal(err)
	}
	// Change times come from the kernel's clock, which may tick slowly.
	if err := os.Chmod(filepath.Join(disk, "d/differs"), 0o600); err != nil {
		t.Fatal(err)
	}
	m := mountOn(t, flash, disk)
	wantAbsent(t, m.onFlash("equal"))
	wantText(t, m.at("equal"), "text")
	list, err := os.ReadDir(m.at("d"))
	if err != nil || len(list) != 2 {
		t.Errorf("of two files that differ there are %v, %v", list, err)
	}
	for _, dir := range []string{flash, disk} {
		if list, err := os.ReadDir(filepath.Join(dir, Private)); err != nil || len(list) > 0 {
			t.Errorf("left over: %v, %v", list, err)
		}
	}
	if _, err := Mount(context.Background(), m.config, t.TempDir(), nil); err == nil {
		t.Error("two mounts have the same tiers")
	} else if busy := new(BusyError); !errors.As(err, &busy) {
		t.Errorf("a second mount: %v", err)
	}
}

// Pass moves the files that rules and watermarks select, once.
func (m *Mounted) Pass(ctx context.Context, tell func(Event)) error {
	return m.tree.pass(ctx, m.config.Rules, tell)
}
