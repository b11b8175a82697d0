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

	"premix/internal/kit/bounded"
	"premix/internal/transfer"
)

const (
	// secretSize is the length of the near end's secret in bytes.
	secretSize = 32
	// joinTime is the time limit for setting up a stream.
	joinTime = 10 * time.Second
	// unsent bounds the unsent bytes of a stream in the kernel: few, so that chunks go to a
	// stream that can send them now.
	unsent = 256 << 10
	// gatherSize is the number of bytes passed to the kernel, or read from it, at once: TLS
	// records have 16 KiB, and would each need a system call.
	gatherSize = 128 << 10
	// strangerSize is the size of that buffer during the key exchange.
	strangerSize = 4 << 10
	// doorMost bounds the connections to the port of a copy that have not sent the secret
	// yet, and doorOfOne those of them from one address.
	doorMost  = 512
	doorOfOne = 4 * maxStreams
)

// gather is a connection that combines writes once it is set up. It reads all available
// data from the kernel at once.
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

// stream is a stream that has been set up.
type stream struct {
	tls *tls.Conn
	raw *net.TCPConn
	out *gather
}

// newStream returns a connection before its key exchange. It has small buffers, because the
// other end may be a stranger.
func newStream(raw *net.TCPConn, o func(net.Conn) *tls.Conn) *stream {
	g := &gather{Conn: raw, r: bufio.NewReaderSize(raw, strangerSize)}
	return &stream{tls: o(g), raw: raw, out: g}
}

// begin prepares a stream for data. It must not be read or written during the call.
func (s *stream) begin() {
	g := s.out
	had := make([]byte, g.r.Buffered())
	_, _ = io.ReadFull(g.r, had) // a read from memory
	g.r = bufio.NewReaderSize(io.MultiReader(bytes.NewReader(had), s.raw), gatherSize)
	g.w = bufio.NewWriterSize(s.raw, gatherSize)
	g.on = true
}

// flush sends the written data.
func (s *stream) flush() error {
	if err := s.out.w.Flush(); err != nil {
		return &PeerError{Err: err}
	}
	return nil
}

// tune sets the options of a socket for much data. It ignores errors, because the options
// are not essential.
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

// resent returns how many segments of a stream were retransmitted, and the name of its
// congestion control.
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

// door accepts streams at the far end.
type door struct {
	listener *net.TCPListener
	config   *tls.Config
	hello    hello
}

// openDoor listens at an address of this machine for streams with the secret.
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

// serverConfig disables session tickets, which would only cost bytes.
func serverConfig(cert tls.Certificate) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true, DynamicRecordSizingDisabled: true, Certificates: []tls.Certificate{cert}}
}

// wait calls join for each stream that has sent the secret, until the door is closed.
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

// roundTrip returns the round-trip time of a connection's handshake, as measured by the
// kernel.
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

// errCertificate is returned if another server is at an address.
var errCertificate = errors.New("the certificate is not the one that the far end has announced")

// dial creates a stream at the near end. It calls met with the round-trip time before the
// key exchange.
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
			// The certificate is self-signed. The control connection has sent its digest,
			// which is checked instead.
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
