//go:build amd64

package frozen

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestIsShut has sockets, only one of which can be made again.
func TestIsShut(t *testing.T) {
	pair := func(kind int) [2]int {
		t.Helper()
		fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		return fds
	}
	closed := func(kind int) int {
		fds := pair(kind)
		unix.Close(fds[1])
		return fds[0]
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		make func() int
		want bool
	}{
		"closed":       {func() int { return closed(unix.SOCK_STREAM) }, true},
		"not blocking": {func() int { return closed(unix.SOCK_STREAM | unix.SOCK_NONBLOCK) }, true},
		"open":         {func() int { return pair(unix.SOCK_STREAM)[0] }, false},
		"packets":      {func() int { return closed(unix.SOCK_SEQPACKET) }, false},
		"datagrams":    {func() int { return closed(unix.SOCK_DGRAM) }, false},
		"half shut":    {func() int { f := pair(unix.SOCK_STREAM); must(unix.Shutdown(f[0], unix.SHUT_WR)); return f[0] }, false},
		"with bytes": {func() int {
			f := pair(unix.SOCK_STREAM)
			_, err := unix.Write(f[1], []byte("x"))
			must(err)
			unix.Close(f[1])
			return f[0]
		}, false},
		"reset": {func() int {
			f := pair(unix.SOCK_STREAM)
			_, err := unix.Write(f[0], []byte("x"))
			must(err)
			unix.Close(f[1])
			return f[0]
		}, false},
		"with a buffer": {func() int {
			fd := closed(unix.SOCK_STREAM)
			must(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 8192))
			return fd
		}, false},
		"with a time": {func() int {
			fd := closed(unix.SOCK_STREAM)
			must(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}))
			return fd
		}, false},
		"of a network": {func() int {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			must(err)
			return fd
		}, false},
		"unconnected": {func() int {
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			must(err)
			return fd
		}, false},
	} {
		fd := c.make()
		if got, err := isShut(fd); got != c.want || err != nil {
			t.Errorf("%s: %v, %v", name, got, err)
		}
		unix.Close(fd)
	}
}
