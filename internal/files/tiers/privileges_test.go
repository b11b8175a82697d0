package tiers

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// netRaw is the attribute [capability] that grants CAP_NET_RAW; see linux/capability.h.
var netRaw = []byte{1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

// privileges returns the mode of a file and whether it has capabilities.
func privileges(t *testing.T, path string) string {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Stat(path, &st))
	_, err := getXattr(path, capability)
	if err != nil && !errors.Is(err, unix.ENODATA) {
		t.Fatal(err)
	}
	return fmt.Sprintf("mode %#o, capabilities: %v", st.Mode&0o7777, err == nil)
}

// A change of a file's content takes from it the bits and capabilities that the file system
// of the tier takes, also if the file got them after it was opened.
func TestChangesTakePrivileges(t *testing.T) {
	m := openTiers(t)
	plain := t.TempDir()
	forAll(t, plain)
	changes := map[string]func(fd int) error{
		"nothing":   func(int) error { return nil },
		"write":     func(fd int) error { _, err := unix.Write(fd, []byte("x")); return err },
		"truncate":  func(fd int) error { return unix.Ftruncate(fd, 1) },
		"fallocate": func(fd int) error { return unix.Fallocate(fd, 0, 0, 1<<16) },
		"copy": func(fd int) error {
			from, to := int64(0), int64(2)
			_, err := unix.CopyFileRange(fd, &from, fd, &to, 1, 0)
			return err
		},
	}
	// Set-group-ID without the right of the group to execute is no privilege, and the file
	// system keeps it for members of the group, which a mount does not know.
	for _, mode := range []uint32{0o6777, 0o4666, 0o2676, 0o666} {
		for name, change := range changes {
			for _, u := range []user{owner, stranger} {
				for _, late := range []bool{false, true} {
					rel := fmt.Sprintf("%s-%o-%d-%v", name, mode, u.uid, late)
					t.Run(rel, func(t *testing.T) {
						var got [2]string
						for i, top := range []string{plain, m.Dir} {
							path := filepath.Join(top, rel)
							write(t, path, "text")
							raise := func() {
								must(t, os.Chown(path, owner.uid, owner.gid), unix.Chmod(path, mode), unix.Setxattr(path, capability, netRaw, 0))
							}
							raise()
							err := u.do(func() error {
								fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
								if err != nil {
									return err
								}
								if late {
									if _, err := unix.Write(fd, []byte("first")); err != nil {
										return err
									}
									raised := make(chan struct{})
									go func() { defer close(raised); raise() }()
									<-raised
								}
								return errors.Join(change(fd), unix.Close(fd))
							})
							got[i] = fmt.Sprint(err, ", ", privileges(t, path))
						}
						if got[1] != got[0] {
							t.Errorf("through the mount: %s; on the tier: %s", got[1], got[0])
						}
						if below := fmt.Sprint("<nil>, ", privileges(t, m.onFlash(rel))); got[1][:5] == "<nil>" && below != got[1] {
							t.Errorf("the tier has %s, and the mount shows %s", below, got[1])
						}
					})
				}
			}
		}
	}
}

// Root's truncation keeps the bits, as on the tier; root's writes lose them.
func TestRootsChangesTakePrivileges(t *testing.T) {
	m := openTiers(t)
	path := m.at("f")
	write(t, path, "text")
	must(t, unix.Chmod(path, 0o6755), os.Truncate(path, 1))
	if got, want := privileges(t, path), "mode 06755, capabilities: false"; got != want {
		t.Errorf("after a truncation: %s, want %s", got, want)
	}
	must(t, unix.Setxattr(path, capability, netRaw, 0))
	fd, err := unix.Open(path, unix.O_WRONLY, 0)
	must(t, err)
	_, err = unix.Write(fd, []byte("x"))
	must(t, err, unix.Close(fd))
	if got, want := privileges(t, path), "mode 0755, capabilities: false"; got != want {
		t.Errorf("after a write: %s, want %s", got, want)
	}
}

// A chown(2) that changes nothing clears bits for the owner, and for no other user.
func TestChownOfNothingTakesPrivileges(t *testing.T) {
	m := openTiers(t)
	path := m.at("f")
	chown := func() error { return unix.Chown(path, -1, -1) }
	for _, mode := range []uint32{0o6777, 0o4666, 0o2676} {
		write(t, path, "text")
		must(t, os.Chown(path, owner.uid, owner.gid), unix.Chmod(path, mode))
		if err := stranger.do(chown); !errors.Is(err, unix.EPERM) {
			t.Errorf("mode %#o: a stranger's chown: %v", mode, err)
		}
		if got, want := privileges(t, path), fmt.Sprintf("mode %#o, capabilities: false", mode); got != want {
			t.Errorf("after a stranger's chown: %s, want %s", got, want)
		}
		must(t, owner.do(chown))
		if got, want := privileges(t, path), fmt.Sprintf("mode %#o, capabilities: false", mode&^0o6000); got != want {
			t.Errorf("after the owner's chown: %s, want %s", got, want)
		}
	}
}

// An attribute that another program sets between two writes, through the mount or on the
// tier, is seen, and the second write takes the capabilities.
func TestCapabilitiesBetweenWrites(t *testing.T) {
	m := openTiers(t)
	for name, at := range map[string]func(string) string{"mount": m.at, "tier": m.onFlash} {
		t.Run(name, func(t *testing.T) {
			write(t, m.at(name), "text")
			fd, err := unix.Open(m.at(name), unix.O_WRONLY|unix.O_CLOEXEC, 0)
			must(t, err)
			defer unix.Close(fd)
			_, err = unix.Write(fd, []byte("1"))
			must(t, err, unix.Setxattr(at(name), capability, netRaw, 0), unix.Setxattr(at(name), "user.note", []byte("note"), 0))
			if b, err := getXattr(m.at(name), capability); err != nil || string(b) != string(netRaw) {
				t.Errorf("before the write: %q, %v", b, err)
			}
			_, err = unix.Write(fd, []byte("2"))
			must(t, err)
			for _, path := range []string{m.at(name), m.onFlash(name)} {
				if _, err := getXattr(path, capability); !errors.Is(err, unix.ENODATA) {
					t.Errorf("%s has capabilities after the write: %v", path, err)
				}
				if b, err := getXattr(path, "user.note"); err != nil || string(b) != "note" {
					t.Errorf("%s: user.note is %q, %v", path, b, err)
				}
			}
		})
	}
}
