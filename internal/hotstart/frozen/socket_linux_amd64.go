package frozen

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// socketOptions are the options that must have the same values as in a new socket.
var socketOptions = []int{unix.SO_SNDBUF, unix.SO_RCVBUF, unix.SO_RCVLOWAT, unix.SO_PASSCRED, unix.SO_PASSSEC, unix.SO_PASSPIDFD, unix.SO_PRIORITY,
	unix.SO_MARK, unix.SO_REUSEADDR, unix.SO_KEEPALIVE, unix.SO_BROADCAST, unix.SO_TIMESTAMP, unix.SO_PEEK_OFF, unix.SO_BUSY_POLL, unix.SO_OOBINLINE}

// socket keeps one end of a socketpair(2) whose other end has been closed: reads are at
// the end, and writes fail. The Java virtual machine has one, to close descriptors with.
// Every other socket is refused.
func (f *freezer) socket(file File, o *open, name string) (File, error) {
	refused := refuse("it has opened a socket: %s", name)
	pidfd, err := unix.PidfdOpen(f.p.Pid, 0)
	if err != nil {
		return file, refused
	}
	defer unix.Close(pidfd)
	fd, err := unix.PidfdGetfd(pidfd, o.fd, 0)
	if err != nil {
		return file, refused
	}
	defer unix.Close(fd)
	shut, err := isShut(fd)
	if err != nil {
		return file, fmt.Errorf("look at %s: %w", name, err)
	}
	if !shut {
		return file, refused
	}
	file.Kind, file.Path = FileShut, "" // which names the inode
	return file, nil
}

// isShut reports whether a socket has no names, no data, no options and no other end.
func isShut(fd int) (bool, error) {
	for option, want := range map[int]int{unix.SO_DOMAIN: unix.AF_UNIX, unix.SO_TYPE: unix.SOCK_STREAM, unix.SO_PROTOCOL: 0, unix.SO_ACCEPTCONN: 0} {
		if got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, option); err != nil || got != want {
			return false, err
		}
	}
	for _, nr := range []uintptr{unix.SYS_GETSOCKNAME, unix.SYS_GETPEERNAME} {
		var name [128]byte
		size := uint32(len(name))
		_, _, e := unix.Syscall(nr, uintptr(fd), uintptr(unsafe.Pointer(&name)), uintptr(unsafe.Pointer(&size)))
		if e != 0 || size != 2 { // the family alone (unix(7))
			return false, nil
		}
	}
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if _, err := unix.Poll(poll, 0); err != nil {
		return false, err
	}
	if poll[0].Revents&unix.POLLHUP == 0 || poll[0].Revents&unix.POLLERR != 0 {
		return false, nil // an end of it is open, or an error waits
	}
	var b [1]byte
	if n, _, err := unix.Recvfrom(fd, b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT); n != 0 || err != nil {
		return false, nil // the last bytes have not been read
	}
	fresh, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, err
	}
	defer unix.Close(fresh[0])
	defer unix.Close(fresh[1])
	for _, option := range socketOptions {
		got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, option)
		want, err2 := unix.GetsockoptInt(fresh[0], unix.SOL_SOCKET, option)
		if got != want || (err == nil) != (err2 == nil) {
			return false, nil
		}
	}
	for _, option := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if got, err := unix.GetsockoptTimeval(fd, unix.SOL_SOCKET, option); err != nil || *got != (unix.Timeval{}) {
			return false, err
		}
	}
	linger, err := unix.GetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER)
	if err != nil || *linger != (unix.Linger{}) {
		return false, err
	}
	return true, nil
}
