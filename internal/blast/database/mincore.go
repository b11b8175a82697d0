package database

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// mincore returns which pages of a mapping are in memory (mincore(2)). Package unix lacks
// this function.
func mincore(mapping, pages []byte) error {
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&mapping[0])), uintptr(len(mapping)), uintptr(unsafe.Pointer(&pages[0])))
	if errno != 0 {
		return errno
	}
	return nil
}
