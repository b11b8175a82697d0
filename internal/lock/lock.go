package lock

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Wait is how long a lock is tried for.
const Wait = time.Second

// Exclusive locks an open file for its holder alone. The error is [unix.EWOULDBLOCK] where
// somebody has it for longer than [Wait].
func Exclusive(f *os.File) error {
	for begun := time.Now(); ; {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EWOULDBLOCK) && time.Since(begun) < Wait:
			time.Sleep(Wait / 50)
		default:
			return err
		}
	}
}
