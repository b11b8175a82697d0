package unmount

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long somebody may use a file system that is to go.
const patience = 2 * time.Minute

// Dir unmounts what is mounted at dir, when nobody uses it any more.
func Dir(dir string) error {
	for begun := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if err := unix.Unmount(dir, 0); !errors.Is(err, unix.EBUSY) || time.Since(begun) > patience {
			return err
		}
	}
}
