package unmount

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// patience is the longest time to wait for a file system in use.
const patience = 2 * time.Minute

// Dir unmounts the file system mounted at dir as soon as it is not in use. It is for tests.
func Dir(dir string) error {
	for started := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if err := unix.Unmount(dir, 0); !errors.Is(err, unix.EBUSY) || time.Since(started) > patience {
			return err
		}
	}
}
