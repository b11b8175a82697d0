package tiers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestFsyncOfADirectory(t *testing.T) {
	m := twoTiers(t)
	write(t, m.onFlash("both/one"), "1")
	write(t, m.onDisk("both/two"), "2")
	write(t, m.onDisk("slow/three"), "3")
	for _, rel := range []string{"", "both", "slow"} {
		d, err := os.Open(m.at(rel))
		must(t, err)
		if err := errors.Join(d.Sync(), unix.Fdatasync(int(d.Fd())), d.Close()); err != nil {
			t.Errorf("%q: %v", rel, err)
		}
	}
	d, err := os.Open(m.at("slow"))
	must(t, err, os.RemoveAll(m.at("slow")))
	defer d.Close()
	if err := d.Sync(); err != nil {
		t.Errorf("a directory that was removed: %v", err)
	}
}

func TestFileWithoutAName(t *testing.T) {
	m := twoTiers(t)
	write(t, m.onDisk("dir/other"), "other")
	fd, err := unix.Open(m.at("dir"), unix.O_TMPFILE|unix.O_RDWR, 0o640)
	must(t, err)
	f := os.NewFile(uintptr(fd), "nameless")
	defer f.Close()
	_, err = f.WriteString("content")
	must(t, err)
	list, err := os.ReadDir(m.at("dir"))
	if err != nil || len(list) != 1 {
		t.Errorf("the directory has %v, %v", list, err)
	}
	must(t, f.Chmod(0o604), unix.Fsetxattr(fd, "user.note", []byte("kept"), 0), f.Truncate(4))
	again, err := os.OpenFile(fdPath(fd), os.O_RDWR, 0)
	must(t, err)
	_, err = again.WriteAt([]byte("CONT"), 0)
	must(t, err, again.Close())
	must(t, unix.Linkat(unix.AT_FDCWD, fdPath(fd), unix.AT_FDCWD, m.at("dir/named"), unix.AT_SYMLINK_FOLLOW))
	wantText(t, m.at("dir/named"), "CONT")
	var st unix.Stat_t
	must(t, unix.Stat(m.onFlash("dir/named"), &st))
	if st.Mode != unix.S_IFREG|0o604 || st.Nlink != 1 {
		t.Errorf("mode %#o, %d links", st.Mode, st.Nlink)
	}
	value, err := getXattr(m.onFlash("dir/named"), "user.note")
	if err != nil || string(value) != "kept" {
		t.Errorf("attribute %q, %v", value, err)
	}
	must(t, f.Close())
	m.mustMove(t, "dir/named")
	wantText(t, m.at("dir/named"), "CONT")
	// A file that is never linked leaves nothing behind.
	must(t, opened(m.at("dir"), unix.O_TMPFILE|unix.O_WRONLY))
	fd, err = unix.Open(m.at("dir"), unix.O_TMPFILE|unix.O_RDWR|unix.O_EXCL, 0o600)
	must(t, err)
	defer unix.Close(fd)
	if err := unix.Linkat(unix.AT_FDCWD, fdPath(fd), unix.AT_FDCWD, m.at("never"), unix.AT_SYMLINK_FOLLOW); !errors.Is(err, unix.ENOENT) {
		t.Errorf("linking with O_EXCL: %v", err)
	}
}

// An open file is complete after its name was removed. Operations on it, or on a removed directory,
// affect no other file.
func TestRemovedAndOpen(t *testing.T) {
	m := twoTiers(t)
	for _, moved := range []bool{false, true} {
		write(t, m.at("f"), "text")
		m.settle(t)
		f, err := os.Open(m.at("f"))
		must(t, err)
		if moved {
			m.mustMove(t, "f")
		}
		must(t, os.Remove(m.at("f")))
		write(t, m.at("f"), "another")
		must(t, os.Chmod(m.at("f"), 0o644), f.Chmod(0o400), f.Chown(12, 34), unix.Fsetxattr(int(f.Fd()), "user.note", []byte("x"), 0))
		w, err := os.OpenFile(fdPath(int(f.Fd())), os.O_WRONLY|os.O_TRUNC, 0)
		must(t, err)
		_, err = w.WriteString("new")
		must(t, err, w.Close())
		b := make([]byte, 10)
		if n, _ := f.ReadAt(b, 0); string(b[:n]) != "new" {
			t.Errorf("moved %v: it has %q", moved, b[:n])
		}
		var st, other unix.Stat_t
		must(t, unix.Fstat(int(f.Fd()), &st), unix.Stat(m.at("f"), &other))
		if st.Mode != unix.S_IFREG|0o400 || st.Uid != 12 || st.Nlink != 0 || st.Size != 3 {
			t.Errorf("moved %v: mode %#o, owner %d, %d links, %d bytes", moved, st.Mode, st.Uid, st.Nlink, st.Size)
		}
		if other.Mode != unix.S_IFREG|0o644 || other.Uid != 0 {
			t.Errorf("moved %v: the other one has mode %#o, owner %d", moved, other.Mode, other.Uid)
		}
		wantText(t, m.at("f"), "another")
		must(t, os.Remove(m.at("f")), f.Close())
	}
	must(t, os.Mkdir(m.at("d"), 0o755))
	d, err := os.Open(m.at("d"))
	must(t, err, os.Remove(m.at("d")))
	defer d.Close()
	var before, after unix.Stat_t
	must(t, unix.Stat(m.flash, &before))
	_ = d.Chmod(0o777) // it may fail
	_ = d.Chown(12, 34)
	_ = unix.Fsetxattr(int(d.Fd()), "user.note", []byte("x"), 0)
	must(t, unix.Stat(m.flash, &after))
	if before.Mode != after.Mode || before.Uid != after.Uid {
		t.Errorf("the top has mode %#o, owner %d, and had %#o, %d", after.Mode, after.Uid, before.Mode, before.Uid)
	}
	if _, err := getXattr(m.flash, "user.note"); !errors.Is(err, unix.ENODATA) {
		t.Errorf("the top has an attribute: %v", err)
	}
}

// A move keeps the permissions of a file, and does not act on a file that replaces it.
func TestMoveOfFilesThatUsersControl(t *testing.T) {
	m := openTiers(t)
	capability := []byte{1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0} // cap_net_bind_service, capabilities(7)
	write(t, m.at("tool"), "program")
	must(t, os.Chown(m.onFlash("tool"), owner.uid, owner.gid), unix.Chmod(m.onFlash("tool"), 0o6755), unix.Setxattr(m.onFlash("tool"), "security.capability", capability, 0))
	m.settle(t)
	m.mustMove(t, "tool")
	var st unix.Stat_t
	must(t, unix.Stat(m.onDisk("tool"), &st))
	value, err := getXattr(m.onDisk("tool"), "security.capability")
	if st.Mode != unix.S_IFREG|0o6755 || st.Uid != uint32(owner.uid) || err != nil || string(value) != string(capability) {
		t.Errorf("mode %#o, owner %d, capability %x, %v", st.Mode, st.Uid, value, err)
	}

	// A link does not lead a move out of a tier.
	outside := t.TempDir()
	write(t, filepath.Join(outside, "f"), "outside")
	must(t, os.Symlink(outside, m.onFlash("way")), os.Symlink(filepath.Join(outside, "f"), m.onFlash("link")))
	for _, rel := range []string{"way/f", "link"} {
		if _, err := m.tree.move(t.Context(), rel, 0, 1); err == nil {
			t.Errorf("%s moved", rel)
		}
	}
	wantText(t, filepath.Join(outside, "f"), "outside")
	must(t, m.Pass(t.Context(), nil))

	// A directory of the destination is a link.
	write(t, m.onFlash("sub/f"), "text")
	must(t, os.Symlink(outside, m.onDisk("sub")))
	m.settle(t)
	if _, err := m.tree.move(t.Context(), "sub/f", 0, 1); err == nil {
		t.Error("a file moved through a link")
	}
	wantText(t, m.onFlash("sub/f"), "text")
	if list, err := os.ReadDir(outside); err != nil || len(list) != 1 {
		t.Errorf("outside there are %v, %v", list, err)
	}
}

// At the last moment of a move, after the copy got its name, another file replaces the source below
// the mount. Neither file is lost.
func TestReplacedWhileItMoves(t *testing.T) {
	m := twoTiers(t)
	wantAll := map[string]bool{}
	var kept []string
	for round := range 40 {
		rel := fmt.Sprint("f", round)
		write(t, m.onFlash(rel), "moves "+rel)
		write(t, m.onFlash(rel+"-other"), "other "+rel)
		time.Sleep(tick)
		done, swapped := make(chan struct{}), make(chan error)
		go func() {
			for unix.Access(m.onDisk(rel), unix.F_OK) != nil {
				select {
				case <-done:
					swapped <- nil
					return
				default:
				}
			}
			swapped <- ignore(unix.Renameat2(unix.AT_FDCWD, m.onFlash(rel), unix.AT_FDCWD, m.onFlash(rel+"-other"), unix.RENAME_EXCHANGE), unix.ENOENT)
		}()
		_, err := m.tree.move(t.Context(), rel, 0, 1)
		close(done)
		if err != nil && !errors.Is(err, ErrBusy) && !strings.Contains(err.Error(), Private) {
			t.Errorf("%s: %v", rel, err)
		}
		must(t, <-swapped)
		wantAll["moves "+rel], wantAll["other "+rel] = true, true
		kept = append(kept, rel, rel+"-other")
	}
	for _, rel := range kept {
		for _, path := range []string{m.onFlash(rel), m.onDisk(rel)} {
			if b, err := os.ReadFile(path); err == nil {
				delete(wantAll, string(b))
			}
		}
	}
	// A file that could not be restored is kept aside.
	for _, dir := range []string{m.flash, m.disk} {
		list, err := filepath.Glob(filepath.Join(dir, Private, "taken-*"))
		must(t, err)
		for _, path := range list {
			b, err := os.ReadFile(path)
			must(t, err)
			delete(wantAll, string(b))
		}
	}
	for text := range wantAll {
		t.Errorf("%q is nowhere", text)
	}
}

func ignore(err, but error) error {
	if errors.Is(err, but) {
		return nil
	}
	return err
}

// A file that replaced another one when premix ended is kept when the tiers are mounted again. The
// other file is not needed any more.
func TestTakenWhenPremixEnded(t *testing.T) {
	needRoot(t)
	flash, disk := t.TempDir(), t.TempDir()
	private := filepath.Join(flash, Private)
	must(t, os.Mkdir(private, 0o700))
	write(t, filepath.Join(private, "mine"), "the file")
	var st unix.Statx_t
	must(t, unix.Statx(unix.AT_FDCWD, filepath.Join(private, "mine"), 0, statMask, &st), os.Rename(filepath.Join(private, "mine"), filepath.Join(private, takenName(&st))))
	write(t, filepath.Join(private, "taken-1-2-3.000000004"), "another file")
	var told []Event
	m, err := Mount(context.Background(), configOf(flash, disk), t.TempDir(), func(e Event) { told = append(told, e) })
	must(t, err)
	must(t, m.Unmount())
	list, err := os.ReadDir(private)
	if err != nil || len(list) != 1 || len(told) != 1 || told[0].Err == nil {
		t.Errorf("kept: %v, %v; said: %v", list, err, told)
	}
	wantText(t, filepath.Join(private, "taken-1-2-3.000000004"), "another file")
}
