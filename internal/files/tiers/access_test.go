package tiers

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// user is a user other than root.
type user struct {
	uid, gid int
	groups   []int
}

var (
	owner    = user{uid: 12001, gid: 12001}
	member   = user{uid: 12002, gid: 12002, groups: []int{12001}}
	stranger = user{uid: 12003, gid: 12003}
)

// do calls f with the rights of a user, on a thread that ends afterwards.
func (u user) do(f func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread cannot get its rights back
		groups := make([]uint32, len(u.groups)+1)
		for i, g := range u.groups {
			groups[i] = uint32(g)
		}
		result <- func() error {
			if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(u.groups)), uintptr(unsafe.Pointer(&groups[0])), 0); e != 0 {
				return e
			}
			if _, _, e := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(u.gid), uintptr(u.gid), uintptr(u.gid)); e != 0 {
				return e
			}
			if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(u.uid), uintptr(u.uid), uintptr(u.uid)); e != 0 {
				return e
			}
			return f()
		}()
	}()
	return <-result
}

// forAll lets other users enter the directories of a test.
func forAll(t *testing.T, dir string) {
	t.Helper()
	for d := dir; len(d) > len(os.TempDir()); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// openTiers makes a mount whose directories, also below the mount, other users can enter.
func openTiers(t *testing.T) *mounted {
	t.Helper()
	needRoot(t)
	m := twoTiers(t)
	for _, dir := range []string{m.flash, m.disk} {
		forAll(t, dir)
	}
	forAll(t, filepath.Dir(m.Dir))
	m.fresh()
	return m
}

// fresh waits until the kernel's caches of the mount have expired.
func (m *mounted) fresh() { time.Sleep(cacheTime + 50*time.Millisecond) }

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// aclText returns an ACL in the format of the kernel; see linux/posix_acl_xattr.h. Entries are a
// tag, permissions and an ID.
func aclText(entries ...[3]uint32) []byte {
	b := []byte{2, 0, 0, 0}
	for _, e := range entries {
		b = binary.LittleEndian.AppendUint16(b, uint16(e[0]))
		b = binary.LittleEndian.AppendUint16(b, uint16(e[1]))
		b = binary.LittleEndian.AppendUint32(b, e[2])
	}
	return b
}

const none = ^uint32(0) // the ID of entries without one

func TestModesAreThoseOfTheTier(t *testing.T) {
	m := openTiers(t)
	for i, mode := range []uint32{0, 0o600, 0o7777, 0o4711, 0o2750, 0o1777, 0o022} {
		file, dir := fmt.Sprint("file", i), fmt.Sprint("dir", i)
		write(t, m.at(file), "text")
		must(t, os.Mkdir(m.at(dir), 0o755), unix.Chmod(m.at(file), mode), unix.Chmod(m.at(dir), mode))
		for _, rel := range []string{file, dir} {
			var above, below unix.Stat_t
			must(t, unix.Lstat(m.at(rel), &above), unix.Lstat(m.onFlash(rel), &below))
			if above.Mode != below.Mode || above.Mode&0o7777 != mode {
				t.Errorf("%s after chmod %#o: %#o through the mount, %#o on the tier", rel, mode, above.Mode, below.Mode)
			}
		}
		created := fmt.Sprint("created", i)
		fd, err := unix.Open(m.at(created), unix.O_CREAT|unix.O_WRONLY|unix.O_EXCL, mode)
		must(t, err, unix.Close(fd))
		var above, below unix.Stat_t
		must(t, unix.Lstat(m.at(created), &above), unix.Lstat(m.onFlash(created), &below))
		if above.Mode != below.Mode || above.Mode&0o7777 != mode {
			t.Errorf("created with %#o: %#o through the mount, %#o on the tier", mode, above.Mode, below.Mode)
		}
	}
}

// A file that moves gets no ACL from the default ACL of the new tier, and neither does its
// directory.
func TestNoForeignACL(t *testing.T) {
	flash, disk := t.TempDir(), t.TempDir()
	acl := aclText([3]uint32{1, 7, none}, [3]uint32{2, 7, 1234}, [3]uint32{4, 5, none}, [3]uint32{0x10, 7, none}, [3]uint32{0x20, 0, none})
	if err := unix.Setxattr(disk, aclDefault, acl, 0); errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("the file system has no ACLs: ", err)
	} else if err != nil {
		t.Fatal(err)
	}
	m := mountOn(t, flash, disk)
	write(t, m.at("d/f"), "text")
	m.settle(t)
	m.mustMove(t, "d/f")
	for _, rel := range []string{"d", "d/f"} {
		names, err := listXattrs(m.onDisk(rel))
		if err != nil || slices.ContainsFunc(names, func(name string) bool { return strings.Contains(name, "acl") }) {
			t.Errorf("%s has %v, %v", rel, names, err)
		}
	}
}

// attempts are ways to access a file.
var attempts = []struct {
	name string
	do   func(path string) error
}{
	{"read", func(p string) error { return opened(p, unix.O_RDONLY) }},
	{"write", func(p string) error { return opened(p, unix.O_WRONLY) }},
	{"read and write", func(p string) error { return opened(p, unix.O_RDWR) }},
	{"append", func(p string) error { return opened(p, unix.O_WRONLY|unix.O_APPEND) }},
	{"create what is there", func(p string) error { return opened(p, unix.O_CREAT|unix.O_RDWR) }},
	{"open and cut", func(p string) error { return opened(p, unix.O_RDONLY|unix.O_TRUNC) }},
	{"open again by descriptor", func(p string) error {
		fd, err := unix.Open(p, unix.O_PATH, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return opened(fdPath(fd), unix.O_RDONLY)
	}},
	{"cut", func(p string) error { return unix.Truncate(p, 0) }},
	{"access", func(p string) error { return unix.Faccessat(unix.AT_FDCWD, p, unix.R_OK, 0) }},
	{"execute", func(p string) error { return unix.Faccessat(unix.AT_FDCWD, p, unix.X_OK, 0) }},
	{"stat", func(p string) error { return unix.Stat(p, new(unix.Stat_t)) }},
	{"chmod", func(p string) error { return unix.Chmod(p, 0o777) }},
	{"chown", func(p string) error { return unix.Chown(p, 12003, -1) }},
	{"touch", func(p string) error { return unix.UtimesNano(p, make([]unix.Timespec, 2)) }},
	{"read attribute", func(p string) error { _, err := unix.Getxattr(p, "user.note", make([]byte, 10)); return err }},
	{"write attribute", func(p string) error { return unix.Setxattr(p, "user.note", []byte("x"), 0) }},
	{"read in it", func(p string) error { return opened(p+"/in", unix.O_RDONLY) }},
	{"stat in it", func(p string) error { return unix.Stat(p+"/in", new(unix.Stat_t)) }},
	{"create in it", func(p string) error { return opened(p+"/new", unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY) }},
	{"make without a name in it", func(p string) error { return opened(p, unix.O_TMPFILE|unix.O_RDWR) }},
	{"mkdir in it", func(p string) error { return unix.Mkdir(p+"/newdir", 0o755) }},
	{"link in it", func(p string) error { return unix.Link(p+"/in", p+"/link") }},
	{"symlink in it", func(p string) error { return unix.Symlink("in", p+"/sym") }},
	{"rename in it", func(p string) error { return unix.Rename(p+"/in", p+"/out") }},
	{"remove in it", func(p string) error { return unix.Unlink(p + "/in") }},
}

func opened(path string, flags int) error {
	fd, err := unix.Open(path, flags, 0o600)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// Every access through the mount is allowed or refused exactly as in an equal directory of a tier.
func TestAccessIsThatOfTheTier(t *testing.T) {
	m := openTiers(t)
	acls := map[string][]byte{
		"":                 nil,
		"stranger reads":   aclText([3]uint32{1, 6, none}, [3]uint32{2, 4, 12003}, [3]uint32{4, 0, none}, [3]uint32{0x10, 4, none}, [3]uint32{0x20, 0, none}),
		"group gets less":  aclText([3]uint32{1, 6, none}, [3]uint32{2, 7, 12003}, [3]uint32{4, 0, none}, [3]uint32{0x10, 7, none}, [3]uint32{0x20, 0, none}),
		"stranger nothing": aclText([3]uint32{1, 7, none}, [3]uint32{2, 0, 12003}, [3]uint32{4, 7, none}, [3]uint32{0x10, 7, none}, [3]uint32{0x20, 7, none}),
	}
	kinds := map[string]uint32{}
	make := func(path string, dir bool, mode uint32, acl []byte) {
		t.Helper()
		if dir {
			must(t, os.Mkdir(path, 0o755), os.WriteFile(path+"/in", []byte("in"), 0o644), os.Chown(path+"/in", owner.uid, owner.gid))
		} else {
			write(t, path, "text")
		}
		must(t, unix.Setxattr(path, "user.note", []byte("n"), 0), os.Chown(path, owner.uid, owner.gid), unix.Chmod(path, mode))
		if acl != nil {
			must(t, unix.Setxattr(path, aclAccess, acl, 0))
		}
		kinds[path]++
	}
	n := 0
	for _, dir := range []bool{false, true} {
		for _, mode := range []uint32{0, 0o600, 0o640, 0o604, 0o066, 0o700, 0o750, 0o1777, 0o2770, 0o711} {
			for aclName, acl := range acls {
				if acl != nil && mode != 0o640 && mode != 0o1777 {
					continue
				}
				for who, u := range map[string]user{"owner": owner, "member": member, "stranger": stranger} {
					for _, a := range attempts {
						n++
						same := fmt.Sprint("same", n)
						beside := filepath.Join(m.disk, Private, same)
						make(m.onFlash(same), dir, mode, acl)
						make(beside, dir, mode, acl)
						above := u.do(func() error { return a.do(m.at(same)) })
						// The same directory of the disk, by a path that all users can use.
						var below error
						fd, err := unix.Open(beside, unix.O_PATH, 0)
						must(t, err)
						below = u.do(func() error { return a.do(fdPath(fd)) })
						unix.Close(fd)
						if !errors.Is(above, below) && !(above == nil && below == nil) {
							t.Errorf("dir %v, mode %#o, ACL %q: %s of %s: %v through the mount, %v on the tier", dir, mode, aclName, a.name, who, above, below)
						}
					}
				}
			}
		}
	}
}

// New files belong to the user who makes them, with the mode bits and ACLs that the tier would give
// them.
func TestNewFilesAreLikeThoseOfTheTier(t *testing.T) {
	m := openTiers(t)
	inherited := aclText([3]uint32{1, 7, none}, [3]uint32{2, 6, 12003}, [3]uint32{4, 7, none}, [3]uint32{0x10, 7, none}, [3]uint32{0x20, 0, none})
	beside := filepath.Join(m.disk, Private, "beside")
	must(t, os.Mkdir(beside, 0o755))
	makes := map[string]func(dir string) error{
		"file": func(d string) error { return opened(d+"/f", unix.O_CREAT|unix.O_WRONLY) },
		"setuid": func(d string) error {
			fd, err := unix.Open(d+"/f", unix.O_CREAT|unix.O_WRONLY, 0o6755)
			unix.Close(fd)
			return err
		},
		"open": func(d string) error {
			fd, err := unix.Open(d+"/f", unix.O_CREAT|unix.O_WRONLY, 0o777)
			unix.Close(fd)
			return err
		},
		"dir":     func(d string) error { return unix.Mkdir(d+"/f", 0o777) },
		"link":    func(d string) error { return unix.Symlink("x", d+"/f") },
		"pipe":    func(d string) error { return unix.Mkfifo(d+"/f", 0o666) },
		"regular": func(d string) error { return unix.Mknod(d+"/f", unix.S_IFREG|0o2664, 0) },
		"tmpfile": func(d string) error {
			fd, err := unix.Open(d, unix.O_TMPFILE|unix.O_RDWR, 0o666)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Linkat(unix.AT_FDCWD, fdPath(fd), unix.AT_FDCWD, d+"/f", unix.AT_SYMLINK_FOLLOW)
		},
	}
	old := unix.Umask(0o027) // of all threads
	defer unix.Umask(old)
	for name, do := range makes {
		for _, mode := range []uint32{0o777, 0o2777} {
			for _, acl := range [][]byte{nil, inherited} {
				for who, u := range map[string]user{"root": {}, "owner": owner, "member": member} {
					of := fmt.Sprintf("%s-%o-%d-%s", name, mode, len(acl), who)
					var st [2]unix.Stat_t
					var given [2]string
					for i, dir := range []string{filepath.Join(m.flash, of), filepath.Join(beside, of)} {
						must(t, unix.Mkdir(dir, 0o777), os.Chown(dir, 0, owner.gid), unix.Chmod(dir, mode))
						if acl != nil {
							must(t, unix.Setxattr(dir, aclDefault, acl, 0))
						}
						fd, err := unix.Open(dir, unix.O_PATH, 0)
						must(t, err)
						at := fdPath(fd)
						if i == 0 {
							at = m.at(of)
						}
						if err := u.do(func() error { return do(at) }); err != nil {
							t.Errorf("%s: %v", dir, err)
						}
						unix.Close(fd)
						if err := unix.Lstat(dir+"/f", &st[i]); err != nil {
							t.Errorf("%s: %v", dir, err)
						}
						if text, err := getXattr(dir+"/f", aclAccess); err == nil {
							given[i] = string(text)
						}
					}
					if st[0].Mode != st[1].Mode || st[0].Uid != st[1].Uid || st[0].Gid != st[1].Gid || given[0] != given[1] {
						t.Errorf("%s: through the mount %#o %d:%d, ACL %x; on the tier %#o %d:%d, ACL %x", of,
							st[0].Mode, st[0].Uid, st[0].Gid, given[0], st[1].Mode, st[1].Uid, st[1].Gid, given[1])
					}
				}
			}
		}
	}
}

// A directory whose parts have different permissions grants only the permissions of all parts, and
// the mount reports it.
func TestPartsOfADirectoryThatDiffer(t *testing.T) {
	needRoot(t)
	flash, disk := t.TempDir(), t.TempDir()
	cases := map[string]struct {
		prepare func(part string, disk bool) error
		mode    uint32
	}{
		"mode": {func(p string, disk bool) error {
			return unix.Chmod(p, map[bool]uint32{false: 0o755, true: 0o1750}[disk])
		}, 0o1750},
		"owner": {func(p string, disk bool) error {
			return os.Chown(p, map[bool]int{false: owner.uid, true: stranger.uid}[disk], 0)
		}, 0o700},
		"acl": {func(p string, disk bool) error {
			if !disk {
				return nil
			}
			return unix.Setxattr(p, aclAccess, aclText([3]uint32{1, 7, none}, [3]uint32{2, 0, 12003}, [3]uint32{4, 5, none}, [3]uint32{0x10, 5, none}, [3]uint32{0x20, 5, none}), 0)
		}, 0o700},
		"same": {func(string, bool) error { return nil }, 0o755},
	}
	for name, c := range cases {
		for i, tier := range []string{flash, disk} {
			write(t, filepath.Join(tier, name, fmt.Sprint("f", i)), "text")
			must(t, c.prepare(filepath.Join(tier, name), i == 1))
		}
	}
	m := &mounted{flash: flash, disk: disk, config: configOf(flash, disk)}
	var told []string
	var err error
	m.Mounted, err = Mount(t.Context(), m.config, t.TempDir(), func(e Event) { told = append(told, e.Path) })
	must(t, err)
	t.Cleanup(func() { must(t, m.Unmount()) })
	forAll(t, filepath.Dir(m.Dir))
	must(t, os.Chmod(flash, 0o755), os.Chmod(disk, 0o755))
	m.fresh()
	if got := strings.Join(told, " "); got != "acl mode owner" {
		t.Errorf("the mount says of %q that their parts differ", got)
	}
	for name, c := range cases {
		var st unix.Stat_t
		must(t, unix.Stat(m.at(name), &st))
		if st.Mode&0o7777 != c.mode {
			t.Errorf("%s has mode %#o, want %#o", name, st.Mode&0o7777, c.mode)
		}
		err := stranger.do(func() error { return opened(m.at(name+"/f1"), unix.O_RDONLY) })
		if may := name == "same"; may != (err == nil) {
			t.Errorf("%s: a stranger opens what its tier keeps for others: %v", name, err)
		}
	}
	// chmod makes the parts of all of them equal.
	must(t, os.Chown(m.at("owner"), 0, 0), os.Chmod(m.at("owner"), 0o755))
	if err := stranger.do(func() error { return opened(m.at("owner/f1"), unix.O_RDONLY) }); err != nil {
		t.Error(err)
	}
}

// Cached permissions of a directory do not give access to another directory that replaces it below
// the mount.
func TestDirectoryReplacedBelow(t *testing.T) {
	m := openTiers(t)
	must(t, os.Mkdir(m.onFlash("dir"), 0o755), os.Chown(m.onFlash("dir"), stranger.uid, stranger.gid))
	write(t, m.onFlash("private/secret"), "secret")
	must(t, os.Chmod(m.onFlash("private"), 0o700))
	m.fresh()
	err := stranger.do(func() error {
		fd, err := unix.Open(m.at("dir"), unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			return fmt.Errorf("opening the directory: %w", err)
		}
		defer unix.Close(fd)
		if err := errors.Join(os.Rename(m.onFlash("dir"), m.onFlash("old")), os.Rename(m.onFlash("private"), m.onFlash("dir"))); err == nil {
			return errors.New("the stranger may rename: the test is not right")
		}
		return nil
	})
	must(t, err)
	must(t, os.Rename(m.onFlash("dir"), m.onFlash("old")), os.Rename(m.onFlash("private"), m.onFlash("dir")))
	err = stranger.do(func() error { return opened(m.at("dir/secret"), unix.O_RDONLY) })
	if !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.ESTALE) {
		t.Errorf("reading a secret: %v", err)
	}
	err = stranger.do(func() error { return opened(m.at("dir/new"), unix.O_CREAT|unix.O_WRONLY) })
	if !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.ESTALE) {
		t.Errorf("writing beside a secret: %v", err)
	}
	m.fresh()
	if err = stranger.do(func() error { return opened(m.at("dir/secret"), unix.O_RDONLY) }); !errors.Is(err, unix.EACCES) {
		t.Errorf("reading a secret after a while: %v", err)
	}
	wantText(t, m.at("dir/secret"), "secret")
	wantAbsent(t, m.onFlash("dir/new"))
}

// If links replace files below the mount, no operation of the mount leaves the tier.
func TestLinksComeIntoPlaceBelow(t *testing.T) {
	m := openTiers(t)
	outside := filepath.Join(t.TempDir(), "outside")
	write(t, outside, "outside")
	must(t, os.Chmod(outside, 0o600))
	path, aside := m.onFlash("f"), m.onFlash("aside")
	write(t, path, "text")
	must(t, os.Symlink(outside, aside))
	done := make(chan struct{})
	swapped := make(chan error)
	go func() {
		var err error
		for err == nil {
			select {
			case <-done:
				swapped <- nil
				return
			default:
				err = unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, aside, unix.RENAME_EXCHANGE)
			}
		}
		<-done
		swapped <- err
	}()
	// The success of each operation depends on the file that exists at the moment.
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		fd, err := unix.Open(m.at("f"), unix.O_PATH|unix.O_NOFOLLOW, 0)
		if err != nil {
			continue
		}
		at := fdPath(fd)
		_ = unix.Chmod(at, 0o666)
		_ = unix.Chown(at, owner.uid, owner.gid)
		_ = unix.Truncate(at, 1)
		_ = unix.Setxattr(at, "user.note", []byte("x"), 0)
		_ = unix.UtimesNano(at, make([]unix.Timespec, 2))
		unix.Close(fd)
	}
	close(done)
	must(t, <-swapped)
	var st unix.Stat_t
	must(t, unix.Stat(outside, &st))
	if st.Mode&0o7777 != 0o600 || st.Uid != 0 || st.Size != 7 || st.Mtim.Sec == 0 {
		t.Errorf("a file outside of the tiers has mode %#o, owner %d, %d bytes now", st.Mode&0o7777, st.Uid, st.Size)
	}
	if _, err := getXattr(outside, "user.note"); !errors.Is(err, unix.ENODATA) {
		t.Errorf("a file outside of the tiers has an attribute: %v", err)
	}
}

// Moves keep their copies in Private. A tier is refused if others could replace these.
func TestPrivateOfOthers(t *testing.T) {
	needRoot(t)
	for name, prepare := range map[string]func(private string) error{
		"owner": func(p string) error { return errors.Join(os.Mkdir(p, 0o700), os.Chown(p, owner.uid, owner.gid)) },
		"mode":  func(p string) error { return errors.Join(os.Mkdir(p, 0o700), os.Chmod(p, 0o777)) },
		"link":  func(p string) error { return os.Symlink("/tmp", p) },
	} {
		t.Run(name, func(t *testing.T) {
			flash, disk := t.TempDir(), t.TempDir()
			must(t, prepare(filepath.Join(flash, Private)))
			m, err := Mount(context.Background(), configOf(flash, disk), t.TempDir(), nil)
			if err == nil {
				t.Error("it is mounted")
				must(t, m.Unmount())
			}
			var bad *DirError
			if !errors.As(err, &bad) || bad.Hint() == "" {
				t.Errorf("error %v", err)
			}
		})
	}
}

// A file may be deeper than the longest path: programs reach it from a directory above it.
func TestDeeperThanTheLongestPath(t *testing.T) {
	m := twoTiers(t)
	below := func(top string, parts []string, do func(dir int, name string) error) int {
		t.Helper()
		at, err := unix.Open(top, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		for _, name := range parts {
			must(t, do(at, name))
			next, err := unix.Openat(at, name, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			must(t, err, unix.Close(at))
			at = next
		}
		t.Cleanup(func() { must(t, unix.Close(at)) })
		return at
	}
	var parts []string
	for range 45 {
		parts = append(parts, strings.Repeat("d", 100))
	}
	dir := below(m.Dir, parts, func(dir int, name string) error { return unix.Mkdirat(dir, name, 0o755) })
	fd, err := unix.Openat(dir, "f", unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, 0o600)
	must(t, err)
	_, err = unix.Write(fd, []byte("text"))
	must(t, err, unix.Close(fd), unix.Fchmodat(dir, "f", 0o640, 0), unix.Linkat(dir, "f", dir, "g", 0), unix.Renameat(dir, "f", dir, "h"),
		unix.Unlinkat(dir, "g", 0), unix.Symlinkat("h", dir, "l"), unix.Mkdirat(dir, "sub", 0o700), unix.Unlinkat(dir, "sub", unix.AT_REMOVEDIR))
	m.mustMove(t, strings.Join(parts, "/")+"/h")
	for _, top := range []string{m.Dir, m.disk} {
		dir := below(top, parts, func(int, string) error { return nil })
		fd, err := unix.Openat(dir, "h", unix.O_RDONLY, 0)
		must(t, err)
		b := make([]byte, 10)
		n, err := unix.Read(fd, b)
		must(t, err, unix.Close(fd))
		var st unix.Stat_t
		must(t, unix.Fstatat(dir, "h", &st, 0))
		if string(b[:n]) != "text" || st.Mode&0o7777 != 0o640 || st.Nlink != 1 {
			t.Errorf("below %s: %q, mode %#o, %d names", top, b[:n], st.Mode, st.Nlink)
		}
	}
}

// A chown(2) that changes neither owner nor group sets the change time, as on a tier.
func TestChownOfNothing(t *testing.T) {
	m := twoTiers(t)
	must(t, os.Mkdir(m.at("dir"), 0o755), os.Symlink("x", m.at("link")))
	write(t, m.at("file"), "text")
	for _, rel := range []string{"file", "dir", "link"} {
		var before, after unix.Stat_t
		must(t, unix.Lstat(m.at(rel), &before))
		time.Sleep(20 * time.Millisecond) // the clock of a file system has ticks
		must(t, os.Lchown(m.at(rel), -1, -1), unix.Lstat(m.at(rel), &after))
		if before.Ctim == after.Ctim || before.Mtim != after.Mtim || before.Mode != after.Mode {
			t.Errorf("%s: from %+v to %+v", rel, before, after)
		}
	}
}
