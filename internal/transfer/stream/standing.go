package stream

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/bounded"
	"premix/internal/kit/exit"
)

const (
	// visitSize is the length in bytes of the random number that identifies the connections
	// of a copy at a standing server.
	visitSize = 16
	// strangersMost bounds the connections that have not sent the secret yet, and
	// strangersOfOne those of them from one address: a client may open all its streams at
	// once, and begin several copies.
	strangersMost  = 4096
	strangersOfOne = 16 * maxStreams
	// linger is the time that a server waits for a client to close the connection after the
	// last frame.
	linger = 5 * time.Second
	// farewell is the time that an interrupted client has to send its last frame.
	farewell = 500 * time.Millisecond
)

// The roles of connections to a standing server.
const (
	roleControl = 'c'
	roleStream  = 's'
)

// Server is a standing far end: it serves a directory to clients with its key. A
// connection, of TLS 1.3, begins with the secret, the number of its copy and its role. A
// control connection continues with the request, so that data arrives one round trip after
// the key exchange.
type Server struct {
	Dir   string
	Keys  *Keys
	Write bool // permit copies to this machine
	// Owners permits clients to set the owners of their copies: see [Keep]. If the server
	// is root, clients can then create files of any user, with set-user-ID.
	Owners bool
	// Records is the directory of records of incomplete copies, with which they are
	// resumed; empty: they are not resumed.
	Records string
	// Note is called with messages for people. It may be nil.
	Note func(string)

	jail *os.Root

	mu     sync.Mutex
	visits map[[visitSize]byte]*visit
	known  sync.WaitGroup // connections
}

// visit is one copy at the server. Its first connection creates it.
type visit struct {
	led        bool          // its control connection has come; guarded by the server's mu
	started    chan struct{} // closed when the request has been received
	over       chan struct{} // closed when there will be no more streams
	congestion string
	join       func(*stream)
}

// Run serves until ctx is done.
func (s *Server) Run(ctx context.Context, l *net.TCPListener) error {
	dir, err := filepath.Abs(s.Dir)
	if err != nil {
		return err
	}
	if s.jail, err = os.OpenRoot(dir); err != nil {
		return &TargetError{err.Error()}
	}
	defer s.jail.Close()
	s.visits = map[[visitSize]byte]*visit{}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	defer s.known.Wait()
	defer cancel()
	config := serverConfig(s.Keys.cert)
	total := bounded.Descriptors()
	strangers := max(1, min(strangersMost, total/2))
	b := bounded.New(l, bounded.Options{Total: total, Strangers: strangers, Source: min(strangersOfOne, strangers), Patience: joinTime + linger, Tell: func(closed int) {
		s.note("%d connections that had not shown a key were closed in favour of others", closed)
	}})
	for {
		c, err := b.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				c.Close()
			}
			return nil
		case err != nil:
			return err
		}
		s.known.Go(func() { s.meet(ctx, c.(*bounded.TCP), config) })
	}
}

// meet handles a new connection.
func (s *Server) meet(ctx context.Context, c *bounded.TCP, config *tls.Config) {
	defer c.Close()
	raw := c.TCPConn
	stop := context.AfterFunc(ctx, func() { raw.Close() })
	defer stop()
	tune(raw, "")
	t := newStream(raw, func(c net.Conn) *tls.Conn { return tls.Server(c, config) })
	var head [secretSize + visitSize + 1]byte
	_ = raw.SetDeadline(time.Now().Add(joinTime))
	if _, err := io.ReadFull(t.tls, head[:]); err != nil {
		raw.Close()
		return
	}
	if subtle.ConstantTimeCompare(head[:secretSize], s.Keys.secret) != 1 {
		s.note("%s was refused: it has another key", raw.RemoteAddr())
		if head[len(head)-1] == roleControl {
			_ = newControl(nil, t.tls).sendJSON(kindError, failure{"refused", "the server does not accept this key"})
		}
		bye(t)
		return
	}
	id := [visitSize]byte(head[secretSize:])
	if !c.Trust() {
		s.note("%s was refused: there are too many connections", raw.RemoteAddr())
		if head[len(head)-1] == roleControl {
			_ = newControl(nil, t.tls).sendJSON(kindError, failure{"other", "the server has reached its limit of connections, which depends on its limit of open files"})
		}
		bye(t)
		return
	}
	_ = raw.SetDeadline(time.Time{})
	v := s.visit(id)
	if head[len(head)-1] == roleControl {
		t.begin()
		t.out.on = false // its frames must be sent at once
		if s.lead(v) {
			s.copy(ctx, t, id, v)
		}
		bye(t)
		return
	}
	late := time.NewTimer(joinTime)
	defer late.Stop()
	select {
	case <-v.started:
		t.begin()
		congest(raw, v.congestion)
		v.join(t)
		<-v.over // until then ctx ends it
	case <-v.over:
		raw.Close()
	case <-late.C:
		s.leave(id)
		raw.Close()
	case <-ctx.Done():
	}
}

// visit returns the visit of a connection.
func (s *Server) visit(id [visitSize]byte) *visit {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.visits[id]
	if v == nil {
		v = &visit{started: make(chan struct{}), over: make(chan struct{})}
		s.visits[id] = v
	}
	return v
}

// lead reports whether a control connection is the first of its visit. There may be only
// one.
func (s *Server) lead(v *visit) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := !v.led
	v.led = true
	return first
}

func (s *Server) leave(id [visitSize]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.visits, id)
}

// copy handles the request of a control connection.
func (s *Server) copy(ctx context.Context, t *stream, id [visitSize]byte, v *visit) {
	defer close(v.over)
	defer s.leave(id)
	ctl := newControl(t.tls, t.tls)
	begin := time.Now()
	_ = t.raw.SetReadDeadline(begin.Add(joinTime))
	q, err := ctl.asked("")
	if err != nil {
		return
	}
	_ = t.raw.SetReadDeadline(time.Time{})
	congest(t.raw, q.Congestion)
	at, c, err := s.place(ctx, &q)
	var done func() error
	if c != nil {
		defer c.close() // a later call continues with a part
		done = c.commit
	}
	if err != nil {
		_ = ctl.sendJSON(kindError, toWire(err))
	} else {
		err = answer(ctx, ctl, &q, at, done, func(join func(*stream)) {
			v.congestion, v.join = q.Congestion, join
			close(v.started)
		})
	}
	what := "gave"
	if !q.Send {
		what = "took"
	}
	if err != nil {
		what = "failed: " + err.Error() + ":"
	}
	s.note("%s %s %q in %.2f s", t.raw.RemoteAddr(), what, q.Path, time.Since(begin).Seconds())
}

// place returns the place of the copy of a request and, if it is to be renamed at the end,
// the staged copy.
func (s *Server) place(ctx context.Context, q *request) (at place, c *staged, err error) {
	if at, err = within(s.jail, string(q.Path)); err != nil {
		return at, nil, &SourceError{Reason: fmt.Sprintf("%q: %v", q.Path, err)}
	}
	if q.Send {
		return at, nil, nil
	}
	switch {
	case !s.Write:
		return at, nil, &TargetError{"the server only gives: it was started without --write"}
	case at.path == ".":
		return at, nil, &TargetError{"the directory that is served cannot be replaced: name a path in it"}
	case q.Keep.Owners && !s.Owners:
		return at, nil, &TargetError{"the server keeps no owners: it was started without --owners"}
	case len(q.Have) > 0:
		return at, nil, errors.New("a server does not support --have")
	case !q.Whole:
		return at, nil, nil
	}
	if c, err = stageFor(ctx, at, s.Records, q); err != nil {
		return at, nil, err
	}
	return c.place, c, nil
}

func (s *Server) note(format string, args ...any) {
	if s.Note != nil {
		s.Note(fmt.Sprintf(format, args...))
	}
}

// bye closes a connection so that the other end receives all data: with unread
// input, the kernel would discard it.
func bye(t *stream) {
	_ = t.raw.SetDeadline(time.Now().Add(linger))
	_ = t.tls.CloseWrite()
	_, _ = io.Copy(io.Discard, t.raw)
	t.raw.Close()
}

// congest sets a congestion control, if the system permits it.
func congest(c *net.TCPConn, name string) {
	raw, err := c.SyscallConn()
	if err != nil || name == "" {
		return
	}
	_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, name) })
}

// later is a connection that is being set up.
type later struct {
	ready chan struct{}
	s     *stream
	err   error
}

func (l *later) Read(p []byte) (int, error) {
	if <-l.ready; l.err != nil {
		return 0, l.err
	}
	return l.s.tls.Read(p)
}

func (l *later) Write(p []byte) (int, error) {
	if <-l.ready; l.err != nil {
		return 0, l.err
	}
	return l.s.tls.Write(p)
}

// visit attempts a copy to or from a standing server. It opens all connections at once.
func (j *Copy) visit(ctx context.Context, q *request) (_ *Result, moved bool, err error) {
	host, service, err := net.SplitHostPort(j.Server)
	if err != nil {
		return nil, false, err
	}
	port, err := strconv.Atoi(service)
	if err != nil {
		return nil, false, fmt.Errorf("the port of %s: %w", j.Server, err)
	}
	if j.Host != "" {
		host = j.Host
	}
	text, err := json.Marshal(q)
	if err != nil {
		return nil, false, err
	}
	shown := append([]byte(nil), j.Key.secret...)
	var id [visitSize]byte
	rand.Read(id[:])
	shown = append(shown, id[:]...)
	h := &hello{Version: Version, Address: host, Port: port, Certificate: j.Key.certificate, Secret: append(shown[:len(shown):len(shown)], roleStream)}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	first := *h
	begin := append(shown[:len(shown):len(shown)], roleControl)
	first.Secret = begin
	l := &later{ready: make(chan struct{})}
	go func() {
		defer close(l.ready)
		ask := bytes.NewBuffer(begin)
		_ = writeFrame(ask, kindRequest, text) // a write to memory
		first.Secret = ask.Bytes()
		if l.s, l.err = dial(ctx, net.JoinHostPort(host, service), &first, j.Congestion, func(time.Duration) {}); l.err == nil {
			l.s.out.on = false // its frames must be sent at once
		}
	}()
	// An interrupted client has a moment to send its last frame.
	stop := context.AfterFunc(ctx, func() {
		if <-l.ready; l.err == nil {
			_ = l.s.raw.SetDeadline(time.Now().Add(farewell))
		}
	})
	defer stop()
	d, err := j.copy(ctx, newControl(l, l), q, h, func() {
		if <-l.ready; l.err == nil {
			_ = l.s.raw.SetLinger(0)
			l.s.raw.Close()
		}
	})
	if err == nil {
		stop()
	}
	cancel()
	<-l.ready
	if l.err != nil {
		return nil, false, strange(j.Server, l.err)
	}
	l.s.raw.Close()
	var gone *PeerError
	if errors.As(err, &gone) {
		gone.Met, gone.Server = true, true
	}
	return d, true, err
}

// strange returns the error for a server that cannot be used.
func strange(server string, err error) error {
	if errors.Is(err, errCertificate) {
		return exit.Errorf(exit.Origin, "ask the owner of the server for its key: the file whose name ends with "+ClientSuffix, "at %s is not the server of this key: its certificate is another one", server)
	}
	return &PeerError{Server: true, Err: err}
}
