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
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// visitSize is the length of the number by which the connections of a copy find
	// each other at a standing server, bytes.
	visitSize = 16
	// strangersMost is how many connections may be about to show what lets them in.
	strangersMost = 512
	// linger is how long a server waits for who has been told everything to go.
	linger = 5 * time.Second
)

// Roles of connections to a standing server.
const (
	roleControl = 'c'
	roleStream  = 's'
)

// PartSuffix is of what is not whole yet, where a server gives it its name in the end.
const PartSuffix = ".premix-part"

// Server is a standing far end: it serves what is below a directory to whoever has its
// key. A connection, of TLS 1.3, begins with the secret, the number of its copy and its
// role; a control connection goes on with the request, so that data comes a round trip
// after keys were exchanged.
type Server struct {
	Dir   string
	Keys  *Keys
	Write bool // let copies be put there
	// Note is called with what happens, for people. It may be nil.
	Note func(string)

	jail *os.Root

	mu     sync.Mutex
	visits map[[visitSize]byte]*visit
	known  sync.WaitGroup // connections
}

// visit is one copy. Whichever of its connections comes first makes it.
type visit struct {
	led        bool          // it has its control connection; under the server's mu
	begun      chan struct{} // closed when the control connection has told what is wanted
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
	strangers := make(chan struct{}, strangersMost)
	for {
		raw, err := l.AcceptTCP()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ECONNABORTED):
			time.Sleep(10 * time.Millisecond) // others end
			continue
		case err != nil:
			return err
		}
		strangers <- struct{}{}
		s.known.Go(func() { s.meet(ctx, raw, config, func() { <-strangers }) })
	}
}

// meet lets a connection in. met is called when it is a stranger no more.
func (s *Server) meet(ctx context.Context, raw *net.TCPConn, config *tls.Config, met func()) {
	met = sync.OnceFunc(met)
	defer met()
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
		s.note("%s was refused: its key is another one", raw.RemoteAddr())
		if head[len(head)-1] == roleControl {
			_ = newControl(nil, t.tls).sendJSON(kindError, failure{"refused", "the server lets nobody in with this key"})
		}
		bye(t)
		return
	}
	id := [visitSize]byte(head[secretSize:])
	_ = raw.SetDeadline(time.Time{})
	v := s.visit(id)
	met()
	if head[len(head)-1] == roleControl {
		if s.lead(v) {
			s.copy(ctx, t, id, v)
		}
		bye(t)
		return
	}
	late := time.NewTimer(joinTime)
	defer late.Stop()
	select {
	case <-v.begun:
		t.out.on = true
		congest(raw, v.congestion)
		v.join(t)
		<-v.over // ctx ends it until then
	case <-v.over:
		raw.Close()
	case <-late.C:
		s.leave(id)
		raw.Close()
	case <-ctx.Done():
	}
}

// visit that a connection belongs to.
func (s *Server) visit(id [visitSize]byte) *visit {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.visits[id]
	if v == nil {
		v = &visit{begun: make(chan struct{}), over: make(chan struct{})}
		s.visits[id] = v
	}
	return v
}

// lead tells whether a control connection is the first of its visit: there is one.
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

// copy answers what a control connection asks.
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
	at, done, err := s.place(&q)
	if err != nil {
		_ = ctl.sendJSON(kindError, toWire(err))
	} else {
		err = answer(ctx, ctl, &q, at, done, func(join func(*stream)) {
			v.congestion, v.join = q.Congestion, join
			close(v.begun)
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

// place that a request is about, and what is to be done when it is whole.
func (s *Server) place(q *request) (at place, done func() error, err error) {
	if at, err = within(s.jail, string(q.Path)); err != nil {
		return at, nil, &SourceError{fmt.Sprintf("%q: %v", q.Path, err)}
	}
	if q.Send {
		return at, nil, nil
	}
	switch {
	case !s.Write:
		return at, nil, &TargetError{"the server only gives: it was started without --write"}
	case at.path == ".":
		return at, nil, &TargetError{"the directory that is served cannot be replaced: name a path in it"}
	case len(q.Have) > 0:
		return at, nil, errors.New("a server looks at nothing that is had elsewhere")
	case !q.Whole:
		return at, nil, nil
	}
	final := at.path
	free := func() error {
		if _, err := s.jail.Lstat(final); !errors.Is(err, fs.ErrNotExist) {
			return &TargetError{fmt.Sprintf("%q is at the server already", final)}
		}
		return nil
	}
	if err := free(); err != nil {
		return at, nil, err
	}
	at.path += PartSuffix
	return at, func() error {
		if err := free(); err != nil {
			return err
		}
		return fault(s.jail.Rename(at.path, final))
	}, nil
}

func (s *Server) note(format string, args ...any) {
	if s.Note != nil {
		s.Note(fmt.Sprintf(format, args...))
	}
}

// bye closes a connection whose other end is to read everything that was sent: what
// was not read here would have the kernel throw that away.
func bye(t *stream) {
	_ = t.raw.SetDeadline(time.Now().Add(linger))
	_ = t.tls.CloseWrite()
	_, _ = io.Copy(io.Discard, t.raw)
	t.raw.Close()
}

// congest asks for a congestion control, where the system permits it.
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

// visit is an attempt to copy to or from a standing server. All connections are begun
// at once.
func (j *Job) visit(ctx context.Context, q *request) (_ *Done, moved bool, err error) {
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
	q.Whole = j.Whole
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
		_ = writeFrame(ask, kindRequest, text) // into memory
		first.Secret = ask.Bytes()
		if l.s, l.err = dial(ctx, net.JoinHostPort(host, service), &first, j.Congestion, func(time.Duration) {}); l.err == nil {
			l.s.out.on = false // its frames are not to wait for others
		}
	}()
	d, err := j.copy(ctx, newControl(l, l), q, h)
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

// strange is the error of a server that cannot be talked to.
func strange(server string, err error) error {
	if errors.Is(err, errCertificate) {
		return &RefusedError{"at " + server + " is not the server of this key: its certificate is another one"}
	}
	return &PeerError{Server: true, Err: err}
}
