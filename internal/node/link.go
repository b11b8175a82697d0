package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxPacket bounds a packet of the link, in bytes. The largest is the
// configuration, a few KiB.
const maxPacket = 64 << 10

// Operations of a message.
const (
	opConfig   = "config"   // Config; supervisor to worker
	opListener = "listener" // and a descriptor
	opLock     = "lock"     // and a descriptor
	opKept     = "kept"     // Key, State and a descriptor
	opGo       = "go"       // all state has been sent; Deaths
	opResult   = "result"   // ID, Errno
	opEnd      = "end"      // the node should end; the worker unmounts, then sends stop

	opPID     = "pid"     // PID: of the worker; worker to supervisor
	opKeep    = "keep"    // Key, State and a descriptor
	opDrop    = "drop"    // Key
	opReady   = "ready"   // the worker is ready
	opFailed  = "failed"  // Err: why the worker cannot serve; it then ends
	opCall    = "call"    // ID, Call
	opRestart = "restart" // Exe: the worker ends, start this binary instead
	opStop    = "stop"    // the worker ends, and the node with it
)

// message is a packet of the link.
type message struct {
	Op     string     `json:"op"`
	Key    string     `json:"key,omitempty"`
	State  []byte     `json:"state,omitempty"`
	Config *Config    `json:"config,omitempty"`
	Exe    string     `json:"exe,omitempty"`
	PID    int        `json:"pid,omitempty"`
	Deaths int        `json:"deaths,omitempty"`
	ID     uint64     `json:"id,omitempty"`
	Call   *call      `json:"call,omitempty"`
	Errno  unix.Errno `json:"errno,omitempty"`
	Err    *Error     `json:"err,omitempty"`
	fd     *os.File   // sent beside the JSON
}

// call is a mount(2) or, if Unmount is set, an umount2(2).
type call struct {
	Unmount bool    `json:"unmount,omitempty"`
	Source  string  `json:"source,omitempty"`
	Target  string  `json:"target"`
	Type    string  `json:"type,omitempty"`
	Flags   uintptr `json:"flags,omitempty"`
	Data    string  `json:"data,omitempty"`
}

// link is one end of the socket pair.
type link struct {
	conn *net.UnixConn
	mu   sync.Mutex // of writes
}

// newLink makes a link. It returns one end, and the other for a child process.
func newLink() (*link, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	child := os.NewFile(uintptr(fds[1]), "link")
	l, err := openLink(os.NewFile(uintptr(fds[0]), "link"))
	if err != nil {
		child.Close()
		return nil, nil, err
	}
	return l, child, nil
}

// openLink returns the link whose end is f, and closes f.
func openLink(f *os.File) (*link, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("link: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, fmt.Errorf("link: descriptor is a %T", c)
	}
	return &link{conn: u}, nil
}

func (l *link) Close() error { return l.conn.Close() }

// send sends a message and its descriptor, which the caller still owns. An error means
// that the other end is gone.
func (l *link) send(m message) error {
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(data) > maxPacket {
		return fmt.Errorf("link: a packet of %d bytes", len(data))
	}
	var rights []byte
	if m.fd != nil {
		raw, err := m.fd.SyscallConn()
		if err != nil {
			return fmt.Errorf("link: send a descriptor: %w", err)
		}
		// Within Control the descriptor cannot be closed and reused.
		var sent error
		err = raw.Control(func(fd uintptr) {
			rights = unix.UnixRights(int(fd))
			sent = l.write(data, rights)
		})
		return errors.Join(err, sent)
	}
	return l.write(data, nil)
}

func (l *link) write(data, rights []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _, err := l.conn.WriteMsgUnix(data, rights, nil)
	return err
}

// receive waits for a message. The caller owns its descriptor, if any. The error is
// io.EOF when the other end is gone and all of its messages have been received.
func (l *link) receive() (message, error) {
	data := make([]byte, maxPacket+1)
	rights := make([]byte, unix.CmsgSpace(4))
	n, nr, _, _, err := l.conn.ReadMsgUnix(data, rights)
	if err != nil {
		if errors.Is(err, syscall.ECONNRESET) { // the other end died with unread packets
			err = io.EOF
		}
		return message{}, err
	}
	if n == 0 && nr == 0 {
		return message{}, io.EOF
	}
	var m message
	if nr > 0 {
		f, err := descriptor(rights[:nr])
		if err != nil {
			return message{}, err
		}
		m.fd = f
	}
	if err := json.Unmarshal(data[:n], &m); err != nil {
		if m.fd != nil {
			m.fd.Close()
		}
		return message{}, fmt.Errorf("link: %w", err)
	}
	return m, nil
}

// descriptor returns the descriptor in a control message.
func descriptor(rights []byte) (*os.File, error) {
	list, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return nil, os.NewSyscallError("recvmsg", err)
	}
	for _, c := range list {
		fds, err := unix.ParseUnixRights(&c)
		if err != nil || len(fds) == 0 {
			continue
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
		}
		for _, fd := range fds[1:] {
			unix.Close(fd)
		}
		return os.NewFile(uintptr(fds[0]), "received"), nil
	}
	return nil, errors.New("link: a control message without a descriptor")
}
