package stream

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/bounded"
	"premix/transfer"
)

const (
	// secretSize is the length of what the near end shows to be let in, bytes.
	secretSize = 32
	// joinTime is how long a stream may take to be set up.
	joinTime = 10 * time.Second
	// unsent is how much a stream holds in the kernel that was not sent yet, bytes:
	// little, so that chunks go where there is room for them now.
	unsent = 256 << 10
	// gatherSize is how much is handed to the kernel at once, or taken from it, bytes:
	// TLS has records of 16 KiB, each of which would be a system call.
	gatherSize = 128 << 10
	// strangerSize is the length of that buffer while keys are exchanged.
	strangerSize = 4 << 10
	// doorMost is how many connections to the port of one copy may be about to show its
	// secret, and doorOfOne how many of them come from one address.
	doorMost  = 512
	doorOfOne = 4 * maxStreams
)

// gather is a connection whose writes are put together once it is set up. What has
// come is taken from the kernel as a whole.
type gather struct {
	net.Conn
	r  *bufio.Reader
	w  *bufio.Writer
	on bool
}

func (g *gather) Read(p []byte) (int, error) { return g.r.Read(p) }

func (g *gather) Write(p []byte) (int, error) {
	if g.on {
		return g.w.Write(p)
	}
	return g.Conn.Write(p)
}

// stream is one that is set up.
type stream struct {
	tls *tls.Conn
	raw *net.TCPConn
	out *gather
}

// newStream is a connection whose keys are still to be exchanged. It has small buffers:
// whoever connects may be a stranger.
func newStream(raw *net.TCPConn, o func(net.Conn) *tls.Conn) *stream {
	g := &gather{Conn: raw, r: bufio.NewReaderSize(raw, strangerSize)}
	return &stream{tls: o(g), raw: raw, out: g}
}

// begin has a stream carry data. Nobody may read or write meanwhile.
func (s *stream) begin() {
	g := s.out
	had := make([]byte, g.r.Buffered())
	_, _ = io.ReadFull(g.r, had) // it is in memory
	g.r = bufio.NewReaderSize(io.MultiReader(bytes.NewReader(had), s.raw), gatherSize)
	g.w = bufio.NewWriterSize(s.raw, gatherSize)
	g.on = true
}

// flush sends what was written.
func (s *stream) flush() error {
	if err := s.out.w.Flush(); err != nil {
		return &PeerError{Err: err}
	}
	return nil
}

// tune sets a socket up for much data. What the system refuses is left as it is: a
// copy works without.
func tune(c *net.TCPConn, congestion string) {
	silence := transfer.Silence()
	_ = c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: max(silence/4, time.Second), Interval: max(silence/8, time.Second), Count: 6})
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsent)
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silence/time.Millisecond))
		if congestion != "" {
			_ = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, congestion)
		}
	})
}

// resent is how many segments of a stream were sent again, and what decides how
// much is under way: the congestion control's name.
func (s *stream) resent() (n uint32, congestion string) {
	raw, err := s.raw.SyscallConn()
	if err != nil {
		return 0, ""
	}
	_ = raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			n = info.Total_retrans
		}
		congestion, _ = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	})
	return n, congestion
}

// door lets streams in at the far end.
type door struct {
	listener *net.TCPListener
	config   *tls.Config
	hello    hello
}

// openDoor listens at an address of this machine, for whoever knows the secret.
func openDoor(address string, port int) (*door, error) {
	cert, err := certify(24 * time.Hour)
	if err != nil {
		return nil, err
	}
	at := &net.TCPAddr{IP: net.ParseIP(address), Port: port}
	l, err := net.ListenTCP("tcp", at)
	if err != nil {
		return nil, err
	}
	d := &door{listener: l, hello: hello{Version: Version, Address: address, Port: l.Addr().(*net.TCPAddr).Port, Secret: make([]byte, secretSize)}}
	rand.Read(d.hello.Secret)
	digest := sha256.Sum256(cert.Certificate[0])
	d.hello.Certificate = digest[:]
	d.config = serverConfig(cert)
	return d, nil
}

// serverConfig has no session tickets, which would take a round trip's bytes for nothing.
func serverConfig(cert tls.Certificate) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true, DynamicRecordSizingDisabled: true, Certificates: []tls.Certificate{cert}}
}

// wait calls join with each stream that has shown the secret, until the door is
// closed.
func (d *door) wait(congestion string, join func(*stream)) {
	total := min(doorMost+4*maxStreams, bounded.Descriptors())
	l := bounded.New(d.listener, bounded.Options{Total: total, Strangers: max(1, total*2/3), Source: min(doorOfOne, max(1, total*2/3)), Patience: joinTime})
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			c := c.(*bounded.TCP)
			raw := c.TCPConn
			tune(raw, congestion)
			s := newStream(raw, func(c net.Conn) *tls.Conn { return tls.Server(c, d.config) })
			var secret [secretSize]byte
			_ = raw.SetDeadline(time.Now().Add(joinTime))
			if _, err := io.ReadFull(s.tls, secret[:]); err != nil || subtle.ConstantTimeCompare(secret[:], d.hello.Secret) != 1 {
				c.Close()
				return
			}
			if !c.Trust() {
				c.Close()
				return
			}
			_ = raw.SetDeadline(time.Time{})
			s.begin()
			join(s)
		}()
	}
}

// roundTrip is what the kernel took from a connection's handshake.
func roundTrip(c *net.TCPConn) (rtt time.Duration) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			rtt = time.Duration(info.Rtt) * time.Microsecond
		}
	})
	return rtt
}

// errCertificate tells that somebody else is at an address.
var errCertificate = errors.New("the certificate is not the one that the far end has announced")

// dial makes a stream at the near end. met is called with the round trip before keys
// are exchanged.
func dial(ctx context.Context, address string, h *hello, congestion string, met func(rtt time.Duration)) (*stream, error) {
	ctx, done := context.WithTimeout(ctx, joinTime)
	defer done()
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	raw := c.(*net.TCPConn)
	met(roundTrip(raw))
	tune(raw, congestion)
	s := newStream(raw, func(c net.Conn) *tls.Conn {
		return tls.Client(c, &tls.Config{MinVersion: tls.VersionTLS13, DynamicRecordSizingDisabled: true,
			// No authority has signed the certificate: the control connection has
			// told its digest, which says more.
			InsecureSkipVerify: true,
			VerifyConnection: func(state tls.ConnectionState) error {
				if len(state.PeerCertificates) == 1 {
					if sum := sha256.Sum256(state.PeerCertificates[0].Raw); subtle.ConstantTimeCompare(sum[:], h.Certificate) == 1 {
						return nil
					}
				}
				return errCertificate
			}})
	})
	_ = raw.SetDeadline(time.Now().Add(joinTime))
	if err := s.tls.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, err
	}
	if _, err := s.tls.Write(h.Secret); err != nil {
		raw.Close()
		return nil, err
	}
	_ = raw.SetDeadline(time.Time{})
	s.begin()
	return s, nil
}
