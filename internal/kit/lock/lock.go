package lock

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// Kind is the kind of a lock.
type Kind int

const (
	Shared    Kind = unix.LOCK_SH
	Exclusive Kind = unix.LOCK_EX
)

// ErrHeld is the error for a lock that another open file holds.
var ErrHeld error = unix.EWOULDBLOCK

// File is an open file, such as an [*os.File].
type File interface{ Fd() uintptr }

// Fd is a descriptor of an open file.
type Fd int

// Fd implements [File].
func (fd Fd) Fd() uintptr { return uintptr(fd) }

// Wait is the time for which Take tries to get a lock.
const Wait = time.Second

// Try locks an open file, or returns [ErrHeld] at once.
func Try(f File, kind Kind) error { return flock(f, int(kind)|unix.LOCK_NB) }

// Take locks an open file, or returns [ErrHeld] after [Wait].
func Take(f File, kind Kind) error {
	for started := time.Now(); ; time.Sleep(Wait / 50) {
		if err := Try(f, kind); err == nil || !errors.Is(err, ErrHeld) || time.Since(started) >= Wait {
			return err
		}
	}
}

// Await locks an open file. It waits while another open file holds the lock. If ctx ends
// first it returns the cause.
func Await(ctx context.Context, f File, kind Kind) error {
	if ctx.Done() == nil {
		return flock(f, int(kind)) // sleeps in the kernel
	}
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		if err := Try(f, kind); !errors.Is(err, ErrHeld) {
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Release releases a lock. Closing the file does so too.
func Release(f File) error { return flock(f, unix.LOCK_UN) }

// flock calls flock(2) again when a signal interrupts it.
func flock(f File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
