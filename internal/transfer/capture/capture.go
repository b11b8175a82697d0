package capture

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"premix/internal/kit/exit"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Drain is the time for which a capture continues after Stop.
const Drain = 250 * time.Millisecond

// Snap is the number of captured bytes of a frame: enough for Ethernet, IPv6 and the
// longest TCP header.
const Snap = 128

const (
	blockSize = 1 << 20
	blocks    = 64 // 64 MiB hold the headers of some seconds at 1 Gbit/s
	retire    = 50 // ms after which a block that is not full is handed over
)

// Options are the settings of a capture.
type Options struct {
	Interface  string
	Here, Peer netip.Addr
	ExceptPort uint16 // a port of here whose TCP connection is not counted; 0: none
	MTU        int    // of the interface, see [MTU]
	Packets    bool   // keep a row for each packet
	Pcap       string // file for captured headers; empty: none
}

// cannotCapture is the error where this process is not permitted to capture.
func cannotCapture(err error) error {
	return exit.Errorf(exit.Unavailable, "run premix as root, or measure times alone with --capture none", "packets cannot be captured: %w", err)
}

// Source is a running capture of any kind.
type Source interface {
	// Stop continues for Drain, ends the capture and returns the totals.
	Stop() (*Totals, error)
}

// Capture is a capture with a ring buffer.
type Capture struct {
	fd       int
	ring     []byte
	tally    *Tally
	loopback bool
	pcap     *pcapWriter
	stop     atomic.Bool
	done     chan error
}

// Open starts a capture, which is active when Open returns. The interface must be in the
// network namespace of the calling thread.
func Open(o Options) (_ *Capture, err error) {
	dev, err := net.InterfaceByName(o.Interface)
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", o.Interface, err)
	}
	// With protocol 0 no packets arrive before the filter is set.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		err = os.NewSyscallError("socket", err)
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
			return nil, cannotCapture(err)
		}
		return nil, err
	}
	c := &Capture{fd: fd, tally: NewTally(o, time.Now()), loopback: dev.Flags&net.FlagLoopback != 0, done: make(chan error, 1)}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	if err := c.setFilter(o); err != nil {
		return nil, err
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VERSION, unix.TPACKET_V3); err != nil {
		return nil, os.NewSyscallError("setsockopt PACKET_VERSION", err)
	}
	req := unix.TpacketReq3{Block_size: blockSize, Block_nr: blocks, Frame_size: 2048, Frame_nr: blockSize / 2048 * blocks, Retire_blk_tov: retire}
	if err := unix.SetsockoptTpacketReq3(fd, unix.SOL_PACKET, unix.PACKET_RX_RING, &req); err != nil {
		return nil, os.NewSyscallError("setsockopt PACKET_RX_RING", err)
	}
	if c.ring, err = unix.Mmap(fd, 0, blockSize*blocks, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	if o.Pcap != "" {
		if c.pcap, err = createPcap(o.Pcap); err != nil {
			return nil, err
		}
	}
	const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8 // in network order
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: dev.Index}); err != nil {
		return nil, os.NewSyscallError("bind", err)
	}
	go func() { c.done <- c.read() }()
	return c, nil
}

// Begin returns the begin of the capture, from which times in [Totals] are counted.
func (c *Capture) Begin() time.Time { return c.tally.begin }

// Stop implements [Source].
func (c *Capture) Stop() (*Totals, error) {
	time.Sleep(Drain)
	c.stop.Store(true)
	err := <-c.done
	drops, statErr := c.drops()
	c.tally.t.Drops = drops
	err = errors.Join(err, statErr, c.close())
	return c.tally.Totals(), err
}

func (c *Capture) close() (err error) {
	if c.ring != nil {
		err = unix.Munmap(c.ring)
	}
	if c.pcap != nil {
		err = errors.Join(err, c.pcap.close())
	}
	return errors.Join(err, unix.Close(c.fd))
}

func (c *Capture) drops() (int64, error) {
	s, err := unix.GetsockoptTpacketStatsV3(c.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil {
		return 0, os.NewSyscallError("getsockopt PACKET_STATISTICS", err)
	}
	return int64(s.Drops), nil
}

// Offsets within a block, see struct tpacket_block_desc of <linux/if_packet.h>.
const (
	blockStatus  = 8
	blockPackets = 12
	blockFirst   = 16
	// sockaddr_ll follows the header of a packet, aligned to 16 bytes; its sixth
	// field, at 10, is the kind of packet.
	packetKind = 48 + 10
)

// read processes blocks until Stop is called and the ring is empty.
func (c *Capture) read() error {
	for i := 0; ; i = (i + 1) % blocks {
		block := c.ring[i*blockSize : (i+1)*blockSize]
		status := (*uint32)(unsafe.Pointer(&block[blockStatus]))
		for atomic.LoadUint32(status)&unix.TP_STATUS_USER == 0 {
			stopping := c.stop.Load()
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLIN | unix.POLLERR}}, 2*retire)
			if err != nil && !errors.Is(err, unix.EINTR) {
				return os.NewSyscallError("poll", err)
			}
			// End only if Stop was called before a wait in which no packet came.
			if stopping && n == 0 && atomic.LoadUint32(status)&unix.TP_STATUS_USER == 0 {
				return nil
			}
		}
		if err := c.block(block); err != nil {
			return err
		}
		atomic.StoreUint32(status, unix.TP_STATUS_KERNEL)
	}
}

func (c *Capture) block(block []byte) error {
	count := *(*uint32)(unsafe.Pointer(&block[blockPackets]))
	at := *(*uint32)(unsafe.Pointer(&block[blockFirst]))
	for range count {
		h := (*unix.Tpacket3Hdr)(unsafe.Pointer(&block[at]))
		if !c.loopback || block[at+packetKind] != unix.PACKET_OUTGOING {
			data := block[at+uint32(h.Mac):][:h.Snaplen]
			c.tally.Add(time.Unix(int64(h.Sec), int64(h.Nsec)), data, int(h.Len))
			if c.pcap != nil {
				if err := c.pcap.add(h.Sec, h.Nsec, data, h.Len); err != nil {
					return err
				}
			}
		}
		at += h.Next_offset
	}
	return nil
}

// setFilter makes the kernel drop packets that are not between the two addresses.
func (c *Capture) setFilter(o Options) error {
	program, err := filter(o.Here.Unmap(), o.Peer.Unmap())
	if err != nil {
		return err
	}
	raw, err := bpf.Assemble(program)
	if err != nil {
		return fmt.Errorf("filter: %w", err)
	}
	list := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		list[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	err = unix.SetsockoptSockFprog(c.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(list)), Filter: &list[0]})
	return os.NewSyscallError("setsockopt SO_ATTACH_FILTER", err)
}

// filter accepts frames from a to b and from b to a.
func filter(a, b netip.Addr) ([]bpf.Instruction, error) {
	if a.Is4() != b.Is4() {
		return nil, fmt.Errorf("%s and %s are of different families", a, b)
	}
	kind, source, words := uint32(0x0800), uint32(ethernet+12), 1
	if !a.Is4() {
		kind, source, words = 0x86dd, ethernet+8, 4
	}
	// Each pair of addresses is compared word by word. If the last comparison holds, the
	// filter returns; if any fails, it continues after the pair.
	pair := func(from, to []byte) (list []bpf.Instruction) {
		compare := append(append([]byte{}, from...), to...)
		length := 4 * words // instructions: two a word, two addresses
		for i := range 2 * words {
			rest := uint8(length - 2*i - 2 + 1) // distance to the instruction after the return
			list = append(list,
				bpf.LoadAbsolute{Off: source + uint32(4*i), Size: 4},
				bpf.JumpIf{Cond: bpf.JumpEqual, Val: binary.BigEndian.Uint32(compare[4*i:]), SkipFalse: rest})
		}
		return append(list, bpf.RetConstant{Val: Snap})
	}
	x, y := pair(a.AsSlice(), b.AsSlice()), pair(b.AsSlice(), a.AsSlice())
	program := []bpf.Instruction{
		bpf.LoadAbsolute{Off: 12, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: kind, SkipFalse: uint8(len(x) + len(y))},
	}
	program = append(append(program, x...), y...)
	return append(program, bpf.RetConstant{Val: 0}), nil
}

// pcapWriter writes a pcap file.
type pcapWriter struct {
	f *os.File
	b *bufio.Writer
}

const (
	pcapMagic    = 0xa1b23c4d // nanoseconds, in the order of this machine
	pcapMicro    = 0xa1b2c3d4
	pcapHeader   = 24
	pcapPacket   = 16
	linkEthernet = 1
)

func createPcap(path string) (*pcapWriter, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	w := &pcapWriter{f: f, b: bufio.NewWriterSize(f, 1<<20)}
	h := make([]byte, pcapHeader)
	binary.NativeEndian.PutUint32(h, pcapMagic)
	binary.NativeEndian.PutUint16(h[4:], 2)
	binary.NativeEndian.PutUint16(h[6:], 4)
	binary.NativeEndian.PutUint32(h[16:], Snap)
	binary.NativeEndian.PutUint32(h[20:], linkEthernet)
	_, err = w.b.Write(h)
	return w, err
}

func (w *pcapWriter) add(sec, nsec uint32, data []byte, size uint32) error {
	var h [pcapPacket]byte
	binary.NativeEndian.PutUint32(h[0:], sec)
	binary.NativeEndian.PutUint32(h[4:], nsec)
	binary.NativeEndian.PutUint32(h[8:], uint32(len(data)))
	binary.NativeEndian.PutUint32(h[12:], size)
	if _, err := w.b.Write(h[:]); err != nil {
		return err
	}
	_, err := w.b.Write(data)
	return err
}

func (w *pcapWriter) close() error { return errors.Join(w.b.Flush(), w.f.Close()) }
