package node

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/mountinfo"
	"premix/internal/kit/unmount"
)

// A mount that no process holds may be in use for a moment: the node waits for it, up to a
// limit. A mount that a process holds is reported as in use at once.
func TestOutwait(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("a tmpfs cannot be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := unmount.Dir(dir); err != nil && !errors.Is(err, unix.EINVAL) {
			t.Error(err)
		}
	})
	list, err := mountinfo.Read()
	if err != nil {
		t.Fatal(err)
	}
	at := mountinfo.Top(list, dir)
	if at == nil {
		t.Fatal("it is not among the mounts")
	}
	tries := 0
	try := func() error {
		tries++
		return unix.Unmount(dir, 0)
	}

	hold := exec.Command("sleep", "600")
	hold.Dir = dir
	if err := hold.Start(); err != nil {
		t.Fatal(err)
	}
	if err := retryBusy(*at, time.Hour, try); !errors.Is(err, unix.EBUSY) || tries != 1 {
		t.Errorf("a process holds it: %v after %d tries", err, tries)
	}
	if err := hold.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = hold.Wait() // it fails because the process was killed

	// A descriptor in transit between two processes belongs to neither of them.
	f, err := os.Create(filepath.Join(dir, "file"))
	if err != nil {
		t.Fatal(err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	release := func() {
		for _, fd := range pair {
			_ = unix.Close(fd) // this also closes descriptors that have not arrived
		}
	}
	sent := unix.Sendmsg(pair[0], []byte{0}, unix.UnixRights(int(f.Fd())), nil, 0)
	if err := errors.Join(sent, f.Close()); err != nil {
		release()
		t.Fatal(err)
	}
	if err := retryBusy(*at, busyGrace/10, try); !errors.Is(err, unix.EBUSY) {
		t.Errorf("somebody keeps it: %v", err)
	}
	tries = 0
	err = retryBusy(*at, 2*time.Minute, func() error {
		if tries == 3 {
			release()
		}
		return try()
	})
	if err != nil || tries < 4 {
		t.Errorf("somebody has let it go: %v after %d tries", err, tries)
	}
}
