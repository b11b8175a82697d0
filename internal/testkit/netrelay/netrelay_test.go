package netrelay

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func newLink(t *testing.T, o Options) *Link {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces and TAP devices need root")
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skip("this kernel has no TAP devices: ", err)
	}
	l, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// udp opens a socket on each host.
func udp(t *testing.T, l *Link) (a, b *net.UDPConn) {
	t.Helper()
	for _, end := range []struct {
		h *Host
		c **net.UDPConn
	}{{l.A, &a}, {l.B, &b}} {
		if err := end.h.Do(func() (err error) {
			*end.c, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(end.h.Addr, 7000)))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if err := (*end.c).SetReadBuffer(8 << 20); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { (*end.c).Close() })
	}
	return a, b
}

// A transfer arrives unchanged, takes at least the time that rate and delay imply, and is
// counted.
func TestTransfer(t *testing.T) {
	for _, c := range []struct {
		name string
		o    Options
	}{
		{"frames", Options{Rate: 200e6, Delay: 5 * time.Millisecond, Seed: 1}},
		{"offload", Options{Rate: 200e6, Delay: 5 * time.Millisecond, Offload: true}},
		{"loss", Options{Delay: time.Millisecond, Loss: 0.01, Seed: 1}},
		{"small MTU", Options{MTU: 600}},
		{"unlimited", Options{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLink(t, c.o)
			want := make([]byte, 4<<20)
			random := rand.NewChaCha8([32]byte{1})
			random.Read(want)
			listener, err := l.A.Listen(0)
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			go func() {
				conn, err := listener.Accept()
				if err == nil {
					conn.Write(want)
					conn.Close()
				}
			}()
			begin := time.Now()
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			conn, err := l.B.Dial(ctx, "tcp", listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			conn.SetDeadline(begin.Add(2 * time.Minute))
			got, err := io.ReadAll(conn)
			if err != nil {
				t.Fatal(err)
			}
			took := time.Since(begin)
			if !bytes.Equal(got, want) {
				t.Fatalf("%d bytes arrived, %d were sent, or they differ", len(got), len(want))
			}
			// The connection takes a round trip, and the data one delay.
			least := 3 * c.o.Delay
			if c.o.Rate > 0 {
				least += time.Duration(float64(8*len(want)) / float64(c.o.Rate) * 1e9)
			}
			if took < least {
				t.Errorf("took %v: less than rate and delay allow, %v", took, least)
			}
			ab, ba := l.Counters()
			mtu := int64(c.o.MTU)
			if mtu == 0 {
				mtu = 1500
			}
			if ab.Bytes < int64(len(want)) || ab.Packets < int64(len(want))/mtu {
				t.Errorf("%d bytes are counted as %+v", len(want), ab)
			}
			if ba.Packets == 0 || ba.Bytes > ab.Bytes/4 {
				t.Errorf("acknowledgements are counted as %+v", ba)
			}
			if lost := ab.Lost > 0; lost != (c.o.Loss > 0) {
				t.Errorf("%d packets lost with a loss of %g", ab.Lost, c.o.Loss)
			}
		})
	}
}

// An answer takes at least twice the delay.
func TestDelay(t *testing.T) {
	const delay = 20 * time.Millisecond
	a, b := udp(t, newLink(t, Options{Delay: delay}))
	go func() {
		buf := make([]byte, 100)
		for {
			n, from, err := b.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			b.WriteToUDPAddrPort(buf[:n], from)
		}
	}()
	a.SetDeadline(time.Now().Add(2 * time.Minute))
	for range 5 {
		begin := time.Now()
		if _, err := a.WriteTo([]byte("ping"), b.LocalAddr()); err != nil {
			t.Fatal(err)
		}
		if _, _, err := a.ReadFrom(make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took < 2*delay {
			t.Errorf("an answer took %v", took)
		}
	}
}

// inbox counts the packets that a socket receives while others are sent, because the buffer
// of the socket is limited.
type inbox struct {
	n   atomic.Int64
	err chan error // error of the last read
}

func receive(c *net.UDPConn) *inbox {
	in := &inbox{err: make(chan error, 1)}
	go func() {
		buf := make([]byte, 2000)
		for {
			if _, _, err := c.ReadFrom(buf); err != nil {
				in.err <- err
				return
			}
			in.n.Add(1)
		}
	}()
	return in
}

// come waits until the socket has received as many packets as the link reports that it let
// through.
func (in *inbox) come(t *testing.T, l *Link) {
	t.Helper()
	waitFor(t, "what the link let through", func() bool { ab, _ := l.Counters(); return in.n.Load() >= ab.Packets })
}

// all waits for all packets, and then checks that no further one comes.
func (in *inbox) all(t *testing.T, c *net.UDPConn, l *Link) int {
	t.Helper()
	in.come(t, l)
	c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if err := <-in.err; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	return int(in.n.Load())
}

func waitFor(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s never came", what)
		}
	}
}

// taken waits until the link has decided about n packets.
func taken(t *testing.T, l *Link, n int) {
	t.Helper()
	waitFor(t, "what was sent", func() bool {
		ab, _ := l.Counters()
		return ab.Packets+ab.Lost+ab.Dropped >= int64(n)
	})
}

func TestLoss(t *testing.T) {
	l := newLink(t, Options{Loss: 0.3, Seed: 5})
	a, b := udp(t, l)
	in := receive(b)
	const sent = 3000
	for i := range sent {
		if _, err := a.WriteTo(make([]byte, 100), b.LocalAddr()); err != nil {
			t.Fatal(err)
		}
		if i%100 == 99 { // the queues of the device and the socket are limited
			taken(t, l, i+1)
			in.come(t, l)
		}
	}
	got := in.all(t, b, l)
	ab, _ := l.Counters()
	if int(ab.Packets) != got || int(ab.Lost+ab.Packets) != sent {
		t.Errorf("%d of %d packets arrived, counted as %+v", got, sent, ab)
	}
	// The limits are six standard deviations wide, and the seed is fixed.
	if ab.Lost < 750 || ab.Lost > 1050 {
		t.Errorf("%d of %d packets were lost with a loss of 0.3", ab.Lost, sent)
	}
}

// A queue holds as many packets as its time allows, and drops the rest.
func TestDropTail(t *testing.T) {
	// 1,000 bytes and headers take about 8.5 ms at 1 Mbit/s, so 100 ms hold a dozen
	// packets.
	l := newLink(t, Options{Rate: 1e6, Queue: 100 * time.Millisecond})
	a, b := udp(t, l)
	in := receive(b)
	sent := 0
	for range 100 { // one round is enough unless this process is slow to send
		for range 50 {
			if _, err := a.WriteTo(make([]byte, 1000), b.LocalAddr()); err != nil {
				t.Fatal(err)
			}
			sent++
		}
		taken(t, l, sent)
		if ab, _ := l.Counters(); ab.Dropped > 0 {
			break
		}
	}
	got := in.all(t, b, l)
	ab, _ := l.Counters()
	if int(ab.Packets) != got || int(ab.Packets+ab.Dropped) != sent {
		t.Errorf("%d packets arrived, counted as %+v", got, ab)
	}
	if got < 12 || ab.Dropped == 0 {
		t.Errorf("%d of %d packets arrived: a queue of 100 ms holds 12 and drops some", got, sent)
	}
}

// A link that is cut after some bytes carries these bytes and no more, even if the test
// reads late.
func TestCutAfter(t *testing.T) {
	l := newLink(t, Options{})
	a, b := udp(t, l)
	const payload, headers, n, sent = 100, 42, 10, 50
	for round := range 2 {
		before, _ := l.Counters()
		dark := l.CutAfter(n * (payload + headers))
		for range sent {
			if _, err := a.WriteTo(make([]byte, payload), b.LocalAddr()); err != nil {
				t.Fatal(err)
			}
		}
		<-dark
		taken(t, l, (round+1)*sent)
		if ab, _ := l.Counters(); ab.Packets-before.Packets > n || ab.Dropped-before.Dropped < sent-n {
			t.Errorf("%d packets were carried, want %d; %d of %d were dropped", ab.Packets-before.Packets, n, ab.Dropped-before.Dropped, sent)
		}
		l.Cut(false)
	}
}

func TestHost(t *testing.T) {
	l := newLink(t, Options{Delay: time.Millisecond})
	if err := l.A.Sysctl("net.ipv4.ip_default_ttl", "42"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		host *Host
		want string
	}{{l.A, "42"}, {l.B, "64"}} {
		cmd := exec.Command("cat", "/proc/sys/net/ipv4/ip_default_ttl")
		var out strings.Builder
		cmd.Stdout = &out
		if err := c.host.Run(cmd); err != nil {
			t.Fatal(err)
		}
		if got := strings.TrimSpace(out.String()); got != c.want {
			t.Errorf("a program on the host sees a TTL of %s, want %s", got, c.want)
		}
	}
	if err := l.A.Sysctl("net.ipv4.no_such_variable", "1"); err == nil {
		t.Error("a variable that is not there was set")
	}
	if _, err := l.A.Dial(t.Context(), "tcp", "localhost:1"); err == nil {
		t.Error("a name was dialled: it would be resolved outside of the host")
	}
}

// Close ends everything, even while frames are on their way, and can be called twice.
func TestClose(t *testing.T) {
	before := descriptors(t)
	l := newLink(t, Options{Rate: 1e6, Delay: 50 * time.Millisecond})
	a, b := udp(t, l)
	for range 10 {
		if _, err := a.WriteTo(make([]byte, 1000), b.LocalAddr()); err != nil {
			t.Fatal(err)
		}
	}
	a.Close()
	b.Close()
	for range 2 {
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors were open before, %d after", before, after)
	}
}

// descriptors counts the descriptors of network namespaces and TAP devices.
func descriptors(t *testing.T) (n int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		to, _ := os.Readlink("/proc/self/fd/" + e.Name())
		if strings.HasPrefix(to, "net:") || to == "/dev/net/tun" {
			n++
		}
	}
	return n
}

func TestOptions(t *testing.T) {
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{Rate: -1}, "negative"},
		{Options{Delay: -1}, "negative"},
		{Options{Loss: 1.5}, "probability"},
		{Options{MTU: 100}, "MTU"},
		{Options{MTU: 65000}, "MTU"},
		{Options{Loss: 0.1, Offload: true}, "offload"},
	} {
		if _, err := New(c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("New(%+v): %v, want an error with %q", c.o, err, c.want)
		}
	}
	o := Options{Delay: 40 * time.Millisecond}
	if err := o.complete(); err != nil || o.Queue != 80*time.Millisecond || o.MTU != 1500 {
		t.Errorf("completed to %+v, %v", o, err)
	}
}

// tcpFrame returns an IPv4 frame with a virtio_net_hdr.
func tcpFrame(kind byte, segment uint16, ipOptions, tcpOptions, payload int) []byte {
	b := make([]byte, vnetHeader+ethernet+20+ipOptions+20+tcpOptions+payload)
	b[1] = kind
	binary.NativeEndian.PutUint16(b[4:], segment)
	f := b[vnetHeader:]
	binary.BigEndian.PutUint16(f[12:], 0x0800)
	f[ethernet] = 0x40 | byte(20+ipOptions)/4
	f[ethernet+9] = 6
	f[ethernet+20+ipOptions+12] = byte(20+tcpOptions) / 4 << 4
	return b
}

func TestWirePackets(t *testing.T) {
	arp := tcpFrame(1, 1000, 0, 0, 100)
	binary.BigEndian.PutUint16(arp[vnetHeader+12:], 0x0806)
	for _, c := range []struct {
		name          string
		frame         []byte
		packets, size int
	}{
		{"not segmented", tcpFrame(0, 0, 0, 12, 1448), 1, 1514},
		{"one segment", tcpFrame(1, 1448, 0, 12, 1448), 1, 1514},
		{"three segments", tcpFrame(1, 1448, 0, 12, 2*1448+1), 3, 2*1514 + 67},
		{"IP options", tcpFrame(1, 1000, 4, 0, 2000), 2, 2 * (1000 + 58)},
		{"no payload", tcpFrame(1, 1000, 0, 0, 0), 1, 54},
		{"not TCP", arp, 1, 154},
		{"cut off", tcpFrame(1, 1000, 0, 0, 0)[:vnetHeader+30], 1, 30},
		{"empty", nil, 1, 0},
	} {
		if packets, size := wirePackets(c.frame); packets != c.packets || size != c.size {
			t.Errorf("%s: %d packets of %d bytes, want %d of %d", c.name, packets, size, c.packets, c.size)
		}
	}
}
