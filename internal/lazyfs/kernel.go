package lazyfs

import (
	"os"

	"golang.org/x/sys/unix"
)

// Kernel makes the system calls that may wait for the process that serves the image.
// Errors are [unix.Errno], or wrap one.
type Kernel interface {
	// Mount is mount(2).
	Mount(source, target, fstype string, flags uintptr, data string) error
	// Unmount is umount2(2).
	Unmount(target string, flags int) error
}

// Direct makes the calls in this process. It is for a process that is not killed, or
// that mounts nothing on top of the image that it serves.
type Direct struct{}

// Mount is mount(2).
func (Direct) Mount(source, target, fstype string, flags uintptr, data string) error {
	if err := unix.Mount(source, target, fstype, flags, data); err != nil {
		return os.NewSyscallError("mount", err)
	}
	return nil
}

// Unmount is umount2(2).
func (Direct) Unmount(target string, flags int) error {
	if err := unix.Unmount(target, flags); err != nil {
		return os.NewSyscallError("umount", err)
	}
	return nil
}
