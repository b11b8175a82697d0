package queue

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/owner"
)

// A lock of an open file description (fcntl(2), F_OFD_SETLK) is held like one of
// flock(2), and others can ask whether it is held without taking it.

// TakeLock opens the file at path and locks it; closing the file releases the lock. If wait is
// negative, TakeLock waits without a limit. busy reports that another process held the lock
// all the time.
func TakeLock(path string, wait time.Duration) (f *os.File, busy bool, err error) {
	f, err = owner.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o664)
	if err != nil {
		return nil, false, err
	}
	command := unix.F_OFD_SETLK
	if wait < 0 {
		command = unix.F_OFD_SETLKW
	}
	for started := time.Now(); ; {
		err = unix.FcntlFlock(f.Fd(), command, &unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart})
		switch {
		case err == nil:
			return f, false, nil
		case errors.Is(err, unix.EINTR):
			continue
		case !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES):
			return nil, false, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
		case time.Since(started) > wait:
			return nil, true, f.Close()
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// isLocked reports whether a process holds the lock.
func isLocked(path string) bool {
	f, err := owner.OpenOthers(path)
	if err != nil {
		return false
	}
	defer f.Close()
	l := unix.Flock_t{Type: unix.F_RDLCK, Whence: io.SeekStart}
	return unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &l) == nil && l.Type != unix.F_UNLCK
}

// sign writes the holder of a lock into its file, for messages.
func sign(f *os.File) {
	host, _ := os.Hostname()
	// It is only for messages; a full disk must not keep a worker from its work.
	if f.Truncate(0) == nil {
		_, _ = f.WriteAt([]byte(fmt.Sprintf("process %d on %s\n", os.Getpid(), host)), 0)
	}
}

// signature returns the holder of a lock, as sign has written it.
func signature(path string) string {
	text, err := owner.ReadOthers(path)
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(text))
}
