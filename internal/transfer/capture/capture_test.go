package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/bpf"

	"premix/internal/kit/exit"
	"premix/internal/testkit/netrelay"
)

func newLink(t *testing.T, o netrelay.Options) *netrelay.Link {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("captures and namespaces need root")
	}
	l, err := netrelay.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// pull copies n bytes from B to A over TCP.
func pull(t *testing.T, l *netrelay.Link, n int64) {
	t.Helper()
	listener, err := l.B.Listen(0)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	sent := make(chan error, 1)
	go func() {
		c, err := listener.Accept()
		if err == nil {
			_, err = io.CopyN(c, zeros{}, n)
			err = errors.Join(err, c.Close())
		}
		sent <- err
	}()
	c, err := l.A.Dial(t.Context(), "tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got, err := io.Copy(io.Discard, c); err != nil || got != n {
		t.Fatalf("%d of %d bytes came: %v", got, n, err)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// A capture by the ring and a capture by tcpdump count the same packets if they run at the
// same time on the same interface.
func TestEqualToTcpdump(t *testing.T) {
	if _, err := exec.LookPath("tcpdump"); err != nil {
		t.Skip("tcpdump is missing")
	}
	for _, loss := range []float64{0, 0.01} {
		t.Run(fmt.Sprintf("loss %g", loss), func(t *testing.T) {
			l := newLink(t, netrelay.Options{Delay: time.Millisecond, Loss: loss, Seed: 3})
			o := Options{Interface: "link0", Here: l.A.Addr, Peer: l.B.Addr, MTU: 1500, Packets: true, Pcap: filepath.Join(t.TempDir(), "own.pcap")}
			var c *Capture
			if err := l.A.Do(func() (err error) { c, err = Open(o); return err }); err != nil {
				t.Fatal(err)
			}
			plain := o
			plain.Pcap = ""
			d, err := OpenTcpdump(plain, l.A.Start)
			if err != nil {
				t.Fatal(err)
			}
			const n = 8 << 20
			pull(t, l, n)
			mine, err := c.Stop()
			if err != nil {
				t.Fatal(err)
			}
			theirs, err := d.Stop()
			if err != nil {
				t.Fatal(err)
			}
			if mine.Drops != 0 || theirs.Drops != 0 {
				t.Fatalf("dropped: %d, %d", mine.Drops, theirs.Drops)
			}
			for _, c := range []struct {
				what         string
				mine, theirs any
			}{{"down", mine.Down, theirs.Down}, {"up", mine.Up, theirs.Up}, {"histogram", mine.Histogram, theirs.Histogram},
				{"TCP", mine.TCP, theirs.TCP}, {"connections", mine.Connections, theirs.Connections}, {"packets", len(mine.Packets), len(theirs.Packets)}} {
				if !reflect.DeepEqual(c.mine, c.theirs) {
					t.Errorf("%s: %+v by the ring, %+v by tcpdump", c.what, c.mine, c.theirs)
				}
			}
			// Even without loss, a sender may repeat a segment that it takes for lost.
			if p := mine.Down.Payload; p < n || p > n && mine.Down.Retransmits == 0 {
				t.Errorf("payload of %d bytes for %d", p, n)
			}
			if loss > 0 && mine.Down.Retransmits == 0 {
				t.Errorf("no retransmission at a loss of %g", loss)
			}
			var series int64
			for _, s := range mine.Series {
				series += s.Down
			}
			if series != mine.Down.Payload || mine.Connections != 1 || int64(len(mine.Packets)) != mine.Down.Packets+mine.Up.Packets {
				t.Errorf("series %d of %d, %d connections, %d packets", series, mine.Down.Payload, mine.Connections, len(mine.Packets))
			}
			// The file that the capture has written gives the same numbers.
			again := NewTally(o, c.Begin())
			if err := ReadPcap(o.Pcap, again); err != nil {
				t.Fatal(err)
			}
			if a := again.Totals(); a.Down != mine.Down || a.Up != mine.Up {
				t.Errorf("pcap file: %+v, %+v; capture: %+v, %+v", a.Down, a.Up, mine.Down, mine.Up)
			}
		})
	}
}

// Other traffic of the interface is not counted, although its number of bytes is known.
func TestOnlyThePair(t *testing.T) {
	l := newLink(t, netrelay.Options{})
	o := Options{Interface: "link0", Here: l.A.Addr, Peer: netip.MustParseAddr("10.99.0.77"), MTU: 1500}
	var c *Capture
	var before, after int64
	if err := l.A.Do(func() (err error) {
		if before, err = InterfaceBytes("link0"); err == nil {
			c, err = Open(o)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	pull(t, l, 1<<20)
	if err := l.A.Do(func() (err error) { after, err = InterfaceBytes("link0"); return err }); err != nil {
		t.Fatal(err)
	}
	totals, err := c.Stop()
	if err != nil {
		t.Fatal(err)
	}
	if totals.Down.Packets+totals.Up.Packets != 0 || after-before < 1<<20 {
		t.Errorf("%+v; the interface carried %d", totals, after-before)
	}
}

func TestCongestionOfSockets(t *testing.T) {
	l := newLink(t, netrelay.Options{})
	listener, err := l.B.Listen(0)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	c, err := l.A.Dial(t.Context(), "tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) {
		err = syscall.SetsockoptString(int(fd), syscall.IPPROTO_TCP, syscall.TCP_CONGESTION, "reno")
	}); err != nil {
		t.Fatal(err)
	}
	port := c.LocalAddr().(*net.TCPAddr).Port
	if err := l.A.Do(func() error {
		if got := Congestion(l.B.Addr, 0); got != "reno" {
			t.Errorf("congestion control %q, want reno", got)
		}
		if got := Congestion(l.B.Addr, uint16(port)); got != "" {
			t.Errorf("an excepted connection has %q", got)
		}
		device, here, err := Route(l.B.Addr)
		if err != nil || device != "link0" || here != l.A.Addr {
			t.Errorf("route: %s, %s, %v", device, here, err)
		}
		if MTU("link0") != 1500 || MTU("no such") != 0 {
			t.Errorf("MTU of %d", MTU("link0"))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// The filter accepts both directions of the pair and nothing else.
func TestFilter(t *testing.T) {
	a4, b4, c4 := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")
	a6, b6, c6 := netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2"), netip.MustParseAddr("fd00::3")
	for _, c := range []struct {
		a, b, src, dst netip.Addr
		want           bool
	}{
		{a4, b4, a4, b4, true}, {a4, b4, b4, a4, true}, {a4, b4, a4, c4, false}, {a4, b4, c4, b4, false}, {a4, b4, a4, a4, false}, {a4, b4, a6, b6, false},
		{a6, b6, a6, b6, true}, {a6, b6, b6, a6, true}, {a6, b6, a6, c6, false}, {a6, b6, c6, a6, false}, {a6, b6, a4, b4, false},
	} {
		program, err := filter(c.a, c.b)
		if err != nil {
			t.Fatal(err)
		}
		vm, err := bpf.NewVM(program)
		if err != nil {
			t.Fatal(err)
		}
		n, err := vm.Run(frame(c.src, c.dst, 6, 100, 1000, tcpSYN, 0))
		if err != nil || (n > 0) != c.want {
			t.Errorf("%s-%s: %s to %s passes: %v, %v", c.a, c.b, c.src, c.dst, n > 0, err)
		}
	}
	if _, err := filter(a4, b6); err == nil {
		t.Error("families were mixed")
	}
}

// frame returns the headers of a packet followed by payload zero bytes.
func frame(src, dst netip.Addr, proto byte, port uint16, seq uint32, flags byte, payload int) []byte {
	b := make([]byte, ethernet, 2000)
	l4 := make([]byte, 20+payload)
	if proto == 17 {
		l4 = make([]byte, 8+payload)
	} else {
		binary.BigEndian.PutUint32(l4[4:], seq)
		l4[12], l4[13] = 5<<4, flags
	}
	binary.BigEndian.PutUint16(l4, port)
	binary.BigEndian.PutUint16(l4[2:], port)
	if src.Is4() {
		binary.BigEndian.PutUint16(b[12:], 0x0800)
		ip := make([]byte, 20)
		ip[0], ip[9] = 0x45, proto
		binary.BigEndian.PutUint16(ip[2:], uint16(20+len(l4)))
		copy(ip[12:], src.AsSlice())
		copy(ip[16:], dst.AsSlice())
		b = append(b, ip...)
	} else {
		binary.BigEndian.PutUint16(b[12:], 0x86dd)
		ip := make([]byte, 40)
		ip[6] = proto
		binary.BigEndian.PutUint16(ip[4:], uint16(len(l4)))
		copy(ip[8:], src.AsSlice())
		copy(ip[24:], dst.AsSlice())
		b = append(b, ip...)
	}
	return append(b, l4...)
}

func TestTally(t *testing.T) {
	for _, family := range [][2]string{{"10.0.0.1", "10.0.0.2"}, {"fd00::1", "fd00::2"}} {
		here, peer := netip.MustParseAddr(family[0]), netip.MustParseAddr(family[1])
		begin := time.Unix(1000, 0)
		y := NewTally(Options{Here: here, Peer: peer, MTU: 1500, ExceptPort: 7}, begin)
		add := func(ms int, b []byte, size int) {
			y.Add(begin.Add(time.Duration(ms)*time.Millisecond), b[:min(len(b), Snap)], size)
		}
		whole := func(ms int, b []byte) { add(ms, b, len(b)) }
		const last = 1<<32 - 50 // sequence numbers wrap
		whole(0, frame(here, peer, 6, 5, 10, tcpSYN, 0))
		whole(1, frame(peer, here, 6, 5, last-1, tcpSYN, 0))
		whole(2, frame(peer, here, 6, 5, last, 0, 100))
		whole(3, frame(peer, here, 6, 5, 150, 0, 100)) // behind a hole
		whole(4, frame(peer, here, 6, 5, 50, 0, 100))  // fills the hole
		whole(25, frame(peer, here, 6, 5, 250, 0, 10))
		whole(26, frame(peer, here, 6, 7, 0, 0, 10)) // of an excepted port
		whole(27, frame(here, peer, 17, 9, 0, 0, 30))
		add(28, frame(peer, here, 6, 5, 260, 0, 100), 9000) // several packets that the device has joined
		whole(29, frame(here, netip.MustParseAddr("10.0.0.9"), 6, 5, 1, 0, 10))
		for _, junk := range [][]byte{nil, make([]byte, 20), make([]byte, 60)} {
			whole(30, junk)
		}
		got := y.Totals()
		if got.Down.Packets != 6 || got.Down.Payload != 410 || got.Down.Retransmits != 1 || got.Up.Packets != 2 || got.Up.Payload != 30 {
			t.Errorf("%s: down %+v, up %+v", here, got.Down, got.Up)
		}
		if got.TCP != 7 || got.UDP != 1 || got.Connections != 2 || got.Oversize != 1 {
			t.Errorf("%s: %+v", here, got)
		}
		want := []TickBytes{{Down: 300}, {}, {Down: 110, Up: 30}}
		if !reflect.DeepEqual(got.Series, want) {
			t.Errorf("series %+v, want %+v", got.Series, want)
		}
	}
}

// Without the privilege to capture, Open returns an error with a hint.
func TestWithoutPrivileges(t *testing.T) {
	if os.Geteuid() != 0 {
		_, err := Open(Options{Interface: "lo", Here: netip.MustParseAddr("127.0.0.1"), Peer: netip.MustParseAddr("127.0.0.1")})
		var p *exit.Error
		if !errors.As(err, &p) || p.Hint() == "" {
			t.Errorf("error %v", err)
		}
		return
	}
	// Run this test again as a user without privileges. The binary is copied, because it
	// may be in a directory that only root can read.
	self := filepath.Join(t.TempDir(), "test")
	text, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	for dir := filepath.Dir(self); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(self, text, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run", "^TestWithoutPrivileges$", "-test.v")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("as nobody: %v\n%s", err, out)
	}
}

// Between two ports of one address, each packet is seen once and each byte of the device
// counts once. The end that has connected is the local end.
func TestLoopback(t *testing.T) {
	l := newLink(t, netrelay.Options{})
	for _, at := range []netip.Addr{netip.MustParseAddr("127.0.0.1"), l.A.Addr} {
		t.Run(at.String(), func(t *testing.T) {
			const n = 8 << 20
			var totals *Totals
			var carried int64
			if err := l.A.Do(func() error {
				device, here, err := Route(at)
				if err != nil {
					return err
				}
				if device != "lo" || here != at {
					t.Errorf("packets to %s go through %s, from %s", at, device, here)
				}
				listener, err := net.Listen("tcp", netip.AddrPortFrom(at, 0).String())
				if err != nil {
					return err
				}
				defer listener.Close()
				before, err := InterfaceBytes("lo")
				if err != nil {
					return err
				}
				c, err := Open(Options{Interface: "lo", Here: at, Peer: at, MTU: MTU("lo"), Packets: true})
				if err != nil {
					return err
				}
				sent := make(chan error, 1)
				go func() {
					s, err := listener.Accept()
					if err == nil {
						_, err = io.CopyN(s, zeros{}, n)
						err = errors.Join(err, s.Close())
					}
					sent <- err
				}()
				client, err := net.Dial("tcp", listener.Addr().String())
				if err != nil {
					return err
				}
				got, err := io.Copy(io.Discard, client)
				if err := errors.Join(err, client.Close(), <-sent); err != nil || got != n {
					return fmt.Errorf("%d bytes: %w", got, err)
				}
				totals, err = c.Stop()
				if err != nil {
					return err
				}
				after, err := InterfaceBytes("lo")
				carried = after - before
				return err
			}); err != nil {
				t.Fatal(err)
			}
			// A sender may repeat a segment that it takes for lost.
			if p := totals.Down.Payload; p < n || p > n && totals.Down.Retransmits == 0 || totals.Up.Payload != 0 || totals.Up.Packets == 0 || totals.Connections != 1 || totals.Drops != 0 {
				t.Errorf("down %+v, up %+v, %d connections, %d drops", totals.Down, totals.Up, totals.Connections, totals.Drops)
			}
			// The device does not count Ethernet headers.
			if all := totals.Down.Bytes + totals.Up.Bytes - ethernet*(totals.Down.Packets+totals.Up.Packets); carried < all || carried > all+all/50 {
				t.Errorf("the device carried %d bytes, and %d were captured", carried, all)
			}
		})
	}
}
