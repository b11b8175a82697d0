package shim

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// The sockets of allocations and steps are accessible only to their user, with any umask. premix
// does not make them in a directory that others can write to.
func TestSocketOfAllocation(t *testing.T) {
	defer unix.Umask(unix.Umask(0))
	dir := t.TempDir()
	if err := os.MkdirAll(statePath(dir, ""), 0o700); err != nil {
		t.Fatal(err)
	}
	l, remove, err := listenAt(dir, "s")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if fi, err := os.Stat(statePath(dir, "s")); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v", fi, err)
	}
	c, err := dialAt(dir, "s")
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	remove()
	if _, err := os.Lstat(statePath(dir, "s")); !os.IsNotExist(err) {
		t.Errorf("the socket stayed: %v", err)
	}
	if err := os.Chmod(statePath(dir, ""), 0o777); err != nil {
		t.Fatal(err)
	}
	if l, _, err := listenAt(dir, "s"); err == nil {
		l.Close()
		t.Error("it listens in a directory that all users can write to")
	}
}
