package access

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"premix/internal/kit/beneath"
	"premix/internal/kit/exit"
	"premix/internal/kit/owner"
)

// UnixPrefix begins the address of a Unix socket: unix:PATH.
const UnixPrefix = "unix:"

// longestSocket is the longest path of a socket, in bytes. See unix(7).
const longestSocket = 107

// ErrBusy is wrapped by the error for a socket on which another server listens.
var ErrBusy = errors.New("another server listens on the socket")

// Options are the address of a service and the clients that it serves.
type Options struct {
	// Address is HOST:PORT or unix:PATH.
	Address string
	// Secret is true where requests must bear a token or another secret.
	Secret bool
	// Open is true where the service serves every client that reaches the address.
	Open bool
	// Hosts are host names that requests may have besides loopback names.
	Hosts []string
}

// Listener is a listener and the rule for requests that come through it.
type Listener struct {
	net.Listener
	o      Options
	local  bool        // a loopback address or a Unix socket
	socket os.FileInfo // nil for TCP
	path   string      // of the socket
}

// ExposedError reports an address that other machines can reach without a secret.
type ExposedError struct{ Address string }

func (e *ExposedError) Error() string {
	return e.Address + " can be reached by other machines, and requests need no token"
}

// ExitCode implements exit.Coded.
func (*ExposedError) ExitCode() exit.Code { return exit.Usage }

// Hint returns ways to protect the service.
func (e *ExposedError) Hint() string {
	return "listen on 127.0.0.1 or on unix:PATH; or make a token with (umask 077; openssl rand -hex 16 > FILE) and name the file; or give --open if all who reach the address may use the service"
}

// AddressError reports an address on which a service cannot listen.
type AddressError struct {
	Address  string
	HintText string
	Err      error
}

func (e *AddressError) Error() string {
	// Errors of package net name the address.
	if op := (*net.OpError)(nil); errors.As(e.Err, &op) {
		return e.Err.Error()
	}
	return "listen on " + e.Address + ": " + e.Err.Error()
}

func (e *AddressError) Unwrap() error { return e.Err }

// ExitCode implements exit.Coded.
func (*AddressError) ExitCode() exit.Code { return exit.Usage }

// Hint returns the addresses that are possible.
func (e *AddressError) Hint() string {
	if e.HintText != "" {
		return e.HintText
	}
	return "name an address of this machine that is free: HOST:PORT, or unix:PATH"
}

// Listen opens a service's address. An address that the rule refuses is an *ExposedError.
// Another error is an *AddressError.
func Listen(ctx context.Context, o Options) (*Listener, error) {
	if path, ok := strings.CutPrefix(o.Address, UnixPrefix); ok {
		return listenUnix(ctx, path, o)
	}
	at, err := allowed(o)
	if err != nil {
		return nil, err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", at.String())
	if err != nil {
		return nil, &AddressError{Address: o.Address, Err: err}
	}
	return &Listener{Listener: l, o: o, local: at.IP.IsLoopback()}, nil
}

// Check returns the *ExposedError that Listen would return. It opens nothing.
func Check(o Options) error {
	if strings.HasPrefix(o.Address, UnixPrefix) {
		return nil
	}
	_, err := allowed(o)
	return err
}

// allowed resolves a TCP address, once, so that the address that is checked is the one
// that is opened.
func allowed(o Options) (*net.TCPAddr, error) {
	at, err := net.ResolveTCPAddr("tcp", o.Address)
	if err != nil {
		return nil, &AddressError{Address: o.Address, Err: err}
	}
	if !at.IP.IsLoopback() && !o.Secret && !o.Open {
		return nil, &ExposedError{o.Address}
	}
	return at, nil
}

// listenUnix makes a socket in a new directory of mode 0700 and then moves it, so that
// other users can never reach it before its mode is 0600.
func listenUnix(ctx context.Context, path string, o Options) (_ *Listener, err error) {
	defer func() {
		if err != nil {
			if bad := (*AddressError)(nil); !errors.As(err, &bad) {
				err = &AddressError{Address: o.Address, Err: err}
			}
		}
	}()
	if path == "" || path[0] == '@' {
		return nil, fmt.Errorf("there is no path of a socket after %q", UnixPrefix)
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, err
	}
	if len(path) > longestSocket {
		return nil, fmt.Errorf("the path of a socket has at most %d bytes", longestSocket)
	}
	if err := makeParent(filepath.Dir(path)); err != nil {
		return nil, err
	}
	if err := vacant(path); err != nil {
		return nil, err
	}
	scratch, err := os.MkdirTemp(filepath.Dir(path), ".premix-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(scratch)
	dir, err := os.Open(scratch)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	// The path through /proc is short whatever the directory is called.
	l, err := new(net.ListenConfig).Listen(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/socket", dir.Fd()))
	if err != nil {
		return nil, err
	}
	u := l.(*net.UnixListener)
	u.SetUnlinkOnClose(false)
	made := filepath.Join(scratch, "socket")
	var st os.FileInfo
	if err = os.Chmod(made, 0o600); err == nil {
		if st, err = os.Lstat(made); err == nil {
			err = beneath.Move(made, path, beneath.Volatile)
		}
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return &Listener{Listener: l, o: o, local: true, socket: st, path: path}, nil
}

// makeParent makes the directory of a socket. It refuses a directory to which other users
// may write: they could replace the socket by their own.
func makeParent(dir string) error {
	// The directories above may hold other files than the socket.
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	st, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if st.Mode().Perm()&0o022 != 0 && st.Mode()&fs.ModeSticky == 0 {
		return &AddressError{Address: dir, HintText: "name a socket in a directory of your own", Err: fmt.Errorf("other users may write to the directory (mode %04o)", st.Mode().Perm())}
	}
	if err := owner.CheckNamed(dir); err != nil {
		return &AddressError{Address: dir, HintText: "name a socket in a directory of your own", Err: err}
	}
	return nil
}

// vacant returns an error if a server answers on a socket, or if the path is another kind
// of file. If no process listens on the socket, its server was killed.
func vacant(path string) error {
	st, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if st.Mode().Type() != fs.ModeSocket {
		return errors.New("the file is there, and is not a socket")
	}
	c, err := net.Dial("unix", path)
	if err == nil {
		c.Close()
		return ErrBusy
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return nil
}

// Close closes the listener and removes its socket.
func (l *Listener) Close() error {
	err := l.Listener.Close()
	if l.socket == nil {
		return err
	}
	// A later server may have replaced the socket by its own.
	if st, statErr := os.Lstat(l.path); statErr == nil && os.SameFile(st, l.socket) {
		// A server closes its listener, too, when its owner does.
		if removeErr := os.Remove(l.path); !errors.Is(removeErr, fs.ErrNotExist) {
			return errors.Join(err, removeErr)
		}
	}
	return err
}

// Name returns the address of the service: HOST:PORT or unix:PATH.
func (l *Listener) Name() string {
	if l.socket != nil {
		return UnixPrefix + l.path
	}
	return l.Addr().String()
}

// URL returns the address that a browser opens, or unix:PATH.
func (l *Listener) URL() string {
	if l.socket != nil {
		return l.Name()
	}
	return "http://" + l.Name() + "/"
}

// Loopback reports whether host is localhost or a loopback address, with or without a
// port.
func Loopback(host string) bool {
	host = hostOf(host)
	if host == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.Unmap().IsLoopback() && a.Zone() == ""
}

// hostOf removes the port and brackets from a host, and converts it to lower case.
func hostOf(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	} else if n := len(host); n > 1 && host[0] == '[' && host[n-1] == ']' {
		host = host[1 : n-1]
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}
