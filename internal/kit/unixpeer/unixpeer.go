package unixpeer

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"premix/internal/kit/owner"
)

// UID returns the user at the other end of a Unix socket.
func UID(c net.Conn) (uint32, error) {
	socket, ok := c.(syscall.Conn)
	if !ok {
		return 0, errors.New("the connection is not of a socket")
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return 0, err
	}
	var who *unix.Ucred
	var asked error
	if err := raw.Control(func(fd uintptr) { who, asked = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return 0, err
	}
	if asked != nil {
		return 0, asked
	}
	return who.Uid, nil
}

// Check refuses a connection over a Unix socket whose other end is a process of another user
// than this one and root. For a client the other end is the process that listens.
func Check(c net.Conn) error {
	user, err := UID(c)
	if err != nil {
		return err
	}
	if user != 0 && int(user) != os.Geteuid() {
		return &owner.Error{Path: "the other end of the socket", Reason: fmt.Sprintf("belongs to user %d", user)}
	}
	return nil
}

// Listener accepts connections of this user and root only: see [Check].
type Listener struct{ net.Listener }

// Accept returns the next connection of this user or root. It closes others.
func (l Listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil || Check(c) == nil {
			return c, err
		}
		c.Close()
	}
}
