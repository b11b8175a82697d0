package lock

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"
)

func open(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// The time of the test is simulated: it advances only while all goroutines wait, so that the result
// does not depend on the machine.
func TestTake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "lock")
		if err := Take(open(t, path), Exclusive); err != nil {
			t.Fatal(err)
		}
		if err := Take(open(t, path), Exclusive); !errors.Is(err, ErrHeld) {
			t.Errorf("a lock that somebody has: %v", err)
		}
	})
}

// Take gets a lock whose holder has gone, even if a child process keeps the file open for a moment
// longer.
func TestSharedForAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "lock")
		first := open(t, path)
		if err := Take(first, Exclusive); err != nil {
			t.Fatal(err)
		}
		shared, err := unix.Dup(int(first.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
		got := make(chan error)
		go func() { got <- Take(open(t, path), Exclusive) }()
		synctest.Wait() // it has tried, and waits
		if err := unix.Close(shared); err != nil {
			t.Fatal(err)
		}
		if err := <-got; err != nil {
			t.Error(err)
		}
	})
}
