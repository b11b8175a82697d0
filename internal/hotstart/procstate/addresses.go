package procstate

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"premix/internal/kit/exit"
)

// FixAddresses gives the programs that the calling thread executes the same addresses of
// mappings, stack and heap in every execution. It returns the previous personality of the
// thread (personality(2)), and restore, which sets it again. The error is an
// *AddressError.
func FixAddresses() (own uint64, restore func(), err error) {
	const addrNoRandomize = 0x0040000
	v, _, e := unix.Syscall(unix.SYS_PERSONALITY, 0xffffffff, 0, 0)
	if e == 0 {
		_, _, e = unix.Syscall(unix.SYS_PERSONALITY, v|addrNoRandomize, 0, 0)
	}
	if e != 0 {
		return uint64(v), func() {}, &AddressError{e}
	}
	return uint64(v), func() { _, _, _ = unix.Syscall(unix.SYS_PERSONALITY, v, 0, 0) }, nil
}

// CanFixAddresses returns the error that FixAddresses would return, and changes nothing.
func CanFixAddresses() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_, restore, err := FixAddresses()
	restore()
	return err
}

// AddressError is the error where the kernel, or a container's seccomp profile, does not
// let addresses be fixed. Nothing starts hot there.
type AddressError struct{ err error }

func (e *AddressError) Error() string {
	return fmt.Sprintf("addresses cannot be fixed, as with the seccomp profiles of Docker and Podman: personality: %v", e.err)
}

func (e *AddressError) Unwrap() error { return e.err }

// Hint returns the hint for the user.
func (*AddressError) Hint() string {
	return "start the container with --security-opt seccomp=unconfined"
}

// ExitCode implements exit.Coded.
func (*AddressError) ExitCode() exit.Code { return exit.Unavailable }
