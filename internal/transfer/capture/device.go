package capture

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Route returns the interface by which, and the address from which, packets to a peer
// leave.
func Route(peer netip.Addr) (device string, here netip.Addr, err error) {
	// Connecting a UDP socket sends nothing, and asks the kernel for the route.
	c, err := net.Dial("udp", netip.AddrPortFrom(peer, 9).String())
	if err != nil {
		return "", here, fmt.Errorf("no way to %s: %w", peer, err)
	}
	defer c.Close()
	local, err := netip.ParseAddrPort(c.LocalAddr().String())
	if err != nil {
		return "", here, err
	}
	here = local.Addr().Unmap().WithZone("")
	list, err := net.Interfaces()
	if err != nil {
		return "", here, err
	}
	if here == peer.Unmap().WithZone("") {
		// Packets to an address of this machine go through the loopback device, whichever
		// device has the address.
		for _, i := range list {
			if i.Flags&net.FlagLoopback != 0 {
				return i.Name, here, nil
			}
		}
	}
	for _, i := range list {
		addrs, err := i.Addrs()
		if err != nil {
			return "", here, err
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Unmap() == here {
				return i.Name, here, nil
			}
		}
	}
	return "", here, fmt.Errorf("no interface has the address %s", here)
}

// MTU returns the MTU of an interface.
func MTU(device string) int {
	i, err := net.InterfaceByName(device)
	if err != nil {
		return 0
	}
	return i.MTU
}

// InterfaceBytes returns the number of bytes that an interface has received and sent. The loopback
// device receives the bytes that it sends; they count once. Carries reads /proc, because
// /sys shows the devices of the namespace in which it was mounted.
func InterfaceBytes(device string) (int64, error) {
	text, err := os.ReadFile("/proc/thread-self/net/dev")
	if err != nil {
		return 0, err
	}
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
		name, rest, ok := strings.Cut(s.Text(), ":")
		if !ok || strings.TrimSpace(name) != device {
			continue
		}
		f := strings.Fields(rest)
		if len(f) < 9 {
			break
		}
		in, err1 := strconv.ParseInt(f[0], 10, 64)
		out, err2 := strconv.ParseInt(f[8], 10, 64)
		if i, err := net.InterfaceByName(device); err == nil && i.Flags&net.FlagLoopback != 0 {
			out = 0
		}
		return in + out, errors.Join(err1, err2)
	}
	return 0, fmt.Errorf("interface %s is not in /proc/net/dev", device)
}

// Requests of ethtool, see <linux/ethtool.h>.
var offloads = []struct {
	name    string
	request uint32
	flag    uint32 // bit in the answer; 0: any
}{
	{"tso", 0x1e, 0}, {"gso", 0x23, 0}, {"gro", 0x2b, 0}, {"lro", 0x25, 1 << 15},
}

// Offload returns the active offloads that join or split packets below a capture, separated
// by blanks. It returns "" if there are none, or if the interface does not report them.
func Offload(device string) string {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	var on []string
	for _, o := range offloads {
		value := struct{ request, data uint32 }{request: o.request}
		var r struct {
			name [unix.IFNAMSIZ]byte
			data unsafe.Pointer
			_    [16]byte // of the union
		}
		copy(r.name[:unix.IFNAMSIZ-1], device)
		r.data = unsafe.Pointer(&value)
		_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&r)))
		if e == 0 && (o.flag == 0 && value.data != 0 || value.data&o.flag != 0) {
			on = append(on, o.name)
		}
	}
	return strings.Join(on, " ")
}

// Congestion returns the congestion controls of the established TCP connections of this
// machine to a peer, except those at port except, separated by blanks. It uses
// sock_diag(7).
func Congestion(peer netip.Addr, except uint16) string {
	const (
		byFamily    = 20 // SOCK_DIAG_BY_FAMILY
		congestion  = 4  // INET_DIAG_CONG
		established = 1  // TCP_ESTABLISHED
		headerSize  = 16 // struct nlmsghdr
		answerSize  = 72 // struct inet_diag_msg
	)
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_INET_DIAG)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	// The header is followed by struct inet_diag_req_v2: family, protocol, extensions,
	// padding, states, and an id that a dump does not use.
	req := make([]byte, headerSize+56)
	native := func(b []byte, v uint32) { *(*uint32)(unsafe.Pointer(&b[0])) = v }
	native(req, uint32(len(req)))
	*(*uint16)(unsafe.Pointer(&req[4])) = byFamily
	*(*uint16)(unsafe.Pointer(&req[6])) = unix.NLM_F_REQUEST | unix.NLM_F_DUMP
	req[headerSize] = unix.AF_INET
	if !peer.Unmap().Is4() {
		req[headerSize] = unix.AF_INET6
	}
	req[headerSize+1] = unix.IPPROTO_TCP
	req[headerSize+2] = 1 << (congestion - 1)
	native(req[headerSize+4:], 1<<established)
	if err := unix.Sendto(fd, req, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return ""
	}
	var names []string
	buf := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			return strings.Join(names, " ")
		}
		for b := buf[:n]; len(b) >= headerSize; {
			size := int(*(*uint32)(unsafe.Pointer(&b[0])))
			kind := *(*uint16)(unsafe.Pointer(&b[4]))
			if kind != byFamily || size < headerSize+answerSize || size > len(b) {
				return strings.Join(names, " ") // the end of the dump, or an error
			}
			m := b[headerSize:size]
			here := uint16(m[4])<<8 | uint16(m[5])
			to := netip.AddrFrom4([4]byte(m[24:28]))
			if !peer.Unmap().Is4() {
				to = netip.AddrFrom16([16]byte(m[24:40]))
			}
			if to == peer.Unmap() && here != except {
				for a := m[answerSize:]; len(a) >= 4; {
					length, what := int(*(*uint16)(unsafe.Pointer(&a[0]))), *(*uint16)(unsafe.Pointer(&a[2]))
					if length < 4 || length > len(a) {
						break
					}
					if name, _, _ := strings.Cut(string(a[4:length]), "\x00"); what == congestion && !slices.Contains(names, name) {
						names = append(names, name)
					}
					a = a[min(len(a), (length+3)&^3):]
				}
			}
			b = b[min(len(b), (size+3)&^3):]
		}
	}
}
