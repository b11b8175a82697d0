package netrelay

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// device is the name of the TAP device of every host.
const device = "link0"

// Host is one end of a link: a network namespace.
type Host struct {
	Addr netip.Addr

	ns  *os.File // the namespace, see namespaces(7)
	tap *os.File
	mac [6]byte
}

func newHost(addr netip.Addr, o Options) (*Host, error) {
	h := &Host{Addr: addr}
	// The thread is never unlocked: it belongs to the new namespace, and ends with
	// its goroutine.
	err := onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("unshare", err)
		}
		var err error
		if h.ns, err = os.Open("/proc/thread-self/ns/net"); err != nil {
			return err
		}
		return h.configure(o)
	})
	if err != nil {
		h.close()
		return nil, err
	}
	return h, nil
}

// onThread runs f on a thread of its own, which ends afterwards, so f may change its
// state.
func onThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- f()
	}()
	return <-done
}

// Do runs f on a thread in the host's network namespace. Sockets that f itself makes
// belong to the host; goroutines that f starts run outside of it.
func (h *Host) Do(f func() error) error {
	return onThread(func() error {
		if err := unix.Setns(int(h.ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("setns", err)
		}
		return f()
	})
}

// Start starts a program on the host. cmd must not ask for a signal at its parent's
// death (Pdeathsig): the kernel sends it when the starting thread ends, see prctl(2),
// and this thread ends at once.
func (h *Host) Start(cmd *exec.Cmd) error { return h.Do(cmd.Start) }

// Run starts a program on the host, and waits for it.
func (h *Host) Run(cmd *exec.Cmd) error {
	if err := h.Start(cmd); err != nil {
		return err
	}
	return cmd.Wait()
}

// Listen listens on a port of the host; 0 chooses one.
func (h *Host) Listen(port int) (l net.Listener, err error) {
	err = h.Do(func() error {
		l, err = net.Listen("tcp4", netip.AddrPortFrom(h.Addr, uint16(port)).String())
		return err
	})
	return l, err
}

// Dial connects from the host; address has a literal IP address.
func (h *Host) Dial(ctx context.Context, network, address string) (c net.Conn, err error) {
	if _, err := netip.ParseAddrPort(address); err != nil {
		return nil, fmt.Errorf("dial %s: %w", address, err)
	}
	err = h.Do(func() error {
		c, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return c, err
}

// Sysctl sets a variable of the host's network, as in
// Sysctl("net.ipv4.tcp_congestion_control", "cubic").
func (h *Host) Sysctl(name, value string) error {
	path := filepath.Join("/proc/sys", strings.ReplaceAll(name, ".", "/"))
	return h.Do(func() error { return os.WriteFile(path, []byte(value), 0o644) })
}

func (h *Host) close() {
	for _, f := range []*os.File{h.tap, h.ns} {
		if f != nil {
			f.Close()
		}
	}
}

// configure sets up the network of the calling thread's namespace.
func (h *Host) configure(o Options) error {
	// A transfer must not use metrics that the kernel saved from an earlier one. IPv6
	// is off, since its announcements would be counted.
	for path, value := range map[string]string{
		"/proc/sys/net/ipv4/tcp_no_metrics_save":       "1",
		"/proc/sys/net/ipv6/conf/default/disable_ipv6": "1",
	} {
		if err := os.WriteFile(path, []byte(value), 0o644); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := h.openTAP(o.Offload); err != nil {
		return err
	}
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(s)
	return errors.Join(
		ioctl(s, unix.SIOCSIFFLAGS, "lo", func(r *unix.Ifreq) error { r.SetUint16(unix.IFF_UP); return nil }),
		ioctl(s, unix.SIOCSIFADDR, device, func(r *unix.Ifreq) error { return r.SetInet4Addr(h.Addr.AsSlice()) }),
		ioctl(s, unix.SIOCSIFNETMASK, device, func(r *unix.Ifreq) error { return r.SetInet4Addr([]byte{255, 255, 255, 0}) }),
		ioctl(s, unix.SIOCSIFMTU, device, func(r *unix.Ifreq) error { r.SetUint32(uint32(o.MTU)); return nil }),
		ioctl(s, unix.SIOCSIFFLAGS, device, func(r *unix.Ifreq) error { r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING); return nil }),
		h.readMAC(s),
	)
}

// ioctl makes a request of netdevice(7); set fills in its argument.
func ioctl(socket int, request uint, dev string, set func(*unix.Ifreq) error) error {
	r, err := unix.NewIfreq(dev)
	if err != nil {
		return err
	}
	if err := set(r); err != nil {
		return err
	}
	if err := unix.IoctlIfreq(socket, request, r); err != nil {
		return fmt.Errorf("configure %s: ioctl %#x: %w", dev, request, err)
	}
	return nil
}

// openTAP makes the device, see Documentation/networking/tuntap.rst of Linux.
func (h *Host) openTAP(offload bool) error {
	// Non-blocking, so that Go's poller waits for frames and Close ends a read.
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: "/dev/net/tun", Err: err}
	}
	// With NAPI the kernel joins arriving frames, as with a network card.
	flags := uint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_NAPI)
	if offload {
		flags |= unix.IFF_VNET_HDR
	}
	err = ioctl(fd, unix.TUNSETIFF, device, func(r *unix.Ifreq) error { r.SetUint16(flags); return nil })
	if err == nil && offload {
		if e := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, unix.TUN_F_CSUM|unix.TUN_F_TSO4); e != nil {
			err = os.NewSyscallError("ioctl TUNSETOFFLOAD", e)
		}
	}
	if err != nil {
		unix.Close(fd)
		return err
	}
	h.tap = os.NewFile(uintptr(fd), "/dev/net/tun")
	return nil
}

// readMAC reads the Ethernet address. It is a sockaddr in the ifreq, for which
// x/sys/unix has no accessor.
func (h *Host) readMAC(socket int) error {
	var r struct {
		name   [unix.IFNAMSIZ]byte
		family uint16
		addr   [14]byte
		_      [8]byte
	}
	copy(r.name[:], device)
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(socket), unix.SIOCGIFHWADDR, uintptr(unsafe.Pointer(&r))); e != 0 {
		return os.NewSyscallError("ioctl SIOCGIFHWADDR", e)
	}
	copy(h.mac[:], r.addr[:])
	return nil
}

// neighbour adds the other host to this host's ARP table, see arp(7).
func (h *Host) neighbour(other *Host) error {
	type sockaddr struct {
		family uint16
		data   [14]byte
	}
	var r struct {
		protocol, hardware sockaddr
		flags              int32
		_                  sockaddr // netmask
		dev                [unix.IFNAMSIZ]byte
	}
	r.protocol.family = unix.AF_INET
	copy(r.protocol.data[2:], other.Addr.AsSlice()) // after the port
	r.hardware.family = unix.ARPHRD_ETHER
	copy(r.hardware.data[:], other.mac[:])
	const complete, permanent = 0x02, 0x04 // ATF_COM, ATF_PERM of <net/if_arp.h>
	r.flags = complete | permanent
	copy(r.dev[:], device)
	return h.Do(func() error {
		s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		defer unix.Close(s)
		if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(s), unix.SIOCSARP, uintptr(unsafe.Pointer(&r))); e != 0 {
			return os.NewSyscallError("ioctl SIOCSARP", e)
		}
		return nil
	})
}
