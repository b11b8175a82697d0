package bounded

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"premix/internal/kit/unixpeer"
	"premix/internal/testkit/shortdir"
)

// limit is how long a test waits for an event that must happen.
const limit = time.Minute

// open makes a listener with bounds, and a function that connects to it from an address. The
// channel receives the accepted connections.
func open(t *testing.T, o Options) (l *Listener, dial func(from string) net.Conn, in chan net.Conn) {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l = New(inner, o)
	t.Cleanup(func() { l.Close() })
	in = make(chan net.Conn, 100)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				close(in)
				return
			}
			in <- c
		}
	}()
	return l, func(from string) net.Conn {
		t.Helper()
		c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}, in
}

// come returns the next accepted connection.
func come(t *testing.T, in chan net.Conn) *TCP {
	t.Helper()
	select {
	case c := <-in:
		t.Cleanup(func() { c.Close() })
		return c.(*TCP)
	case <-time.After(limit):
		t.Fatal("no connection was let in")
		return nil
	}
}

// closed waits until the other end has closed a connection.
func closed(t *testing.T, c net.Conn) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(limit))
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%s was not closed: %v", c.LocalAddr(), err)
	}
}

// works sends a byte from one end to the other.
func works(t *testing.T, client, server net.Conn) {
	t.Helper()
	_ = client.SetReadDeadline(time.Now().Add(limit))
	if _, err := server.Write([]byte{7}); err != nil {
		t.Errorf("%s: %v", client.LocalAddr(), err)
	}
	if _, err := client.Read(make([]byte, 1)); err != nil {
		t.Errorf("%s: %v", client.LocalAddr(), err)
	}
}

func TestOldestGoesFirst(t *testing.T) {
	l, dial, in := open(t, Options{Total: 4, Strangers: 3, Source: 3})
	first := dial("127.0.0.1")
	known := come(t, in)
	for range 2 { // the second call changes nothing
		if !known.Trust() {
			t.Fatal("the first connection cannot be trusted")
		}
	}
	var clients []net.Conn
	var servers []*TCP
	for _, from := range []string{"127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"} {
		clients = append(clients, dial(from))
		servers = append(servers, come(t, in))
	}
	closed(t, clients[0])
	works(t, first, known)
	for i := 1; i < 4; i++ {
		works(t, clients[i], servers[i])
	}
	if servers[1].Trust() {
		t.Error("there was no place for a second trusted connection")
	}
	if servers[0].Trust() {
		t.Error("a connection that was closed is trusted")
	}
	known.Close()
	if !servers[1].Trust() {
		t.Error("the place of a trusted connection that has ended is not free")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.count != 3 || l.trusted != 1 || len(l.rooms) != 2 || l.waiting.Len() != 2 {
		t.Errorf("%d connections, %d trusted, %d sources, %d wait", l.count, l.trusted, len(l.rooms), l.waiting.Len())
	}
}

func TestSource(t *testing.T) {
	_, dial, in := open(t, Options{Total: 10, Source: 2})
	other := dial("127.0.0.9")
	otherServer := come(t, in)
	var clients []net.Conn
	for range 5 {
		clients = append(clients, dial("127.0.0.2"))
		come(t, in)
	}
	for _, c := range clients[:3] {
		closed(t, c)
	}
	works(t, other, otherServer)
}

// A source whose connections are all busy gets no further one. Other sources do.
func TestSourceIsBusy(t *testing.T) {
	l, dial, in := open(t, Options{Total: 10, Source: 1})
	client := dial("127.0.0.2")
	server := come(t, in)
	server.hold()
	// The connection may be reset before the client knows of it.
	if c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("127.0.0.2")}}).Dial("tcp", l.Addr().String()); err == nil {
		defer c.Close()
		closed(t, c)
	} else if !errors.Is(err, syscall.ECONNRESET) {
		t.Fatal(err)
	}
	other := dial("127.0.0.3")
	works(t, other, come(t, in))
	works(t, client, server)
	server.release()
	again := dial("127.0.0.2")
	works(t, again, come(t, in))
	closed(t, client)
}

// If all connections are busy, a further one waits and is not lost.
func TestAllAreBusy(t *testing.T) {
	l, dial, in := open(t, Options{Total: 1})
	dial("127.0.0.1")
	server := come(t, in)
	server.hold()
	client := dial("127.0.0.2")
	select {
	case <-in:
		t.Fatal("a connection was let in beyond the bound")
	case <-time.After(50 * time.Millisecond): // a short wait must suffice to see that no connection is accepted
	}
	server.Close()
	works(t, client, come(t, in))
	// A listener that is closed does not wait.
	dial("127.0.0.3")
	l.Close()
	for range in {
	}
}

func TestPatience(t *testing.T) {
	_, dial, in := open(t, Options{Total: 10, Strangers: 9, Patience: 20 * time.Millisecond})
	client := dial("127.0.0.1")
	server := come(t, in)
	trusted := server.Trust()
	late := dial("127.0.0.1")
	come(t, in)
	closed(t, late)
	if trusted { // the machine may have been slower than the patience
		works(t, client, server)
	}
}

// Clients that send parts of a header do not keep out a client with a complete one, and do not cut
// off the answer in progress.
func TestSlowHeaders(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	answering, goOn := make(chan struct{}), make(chan struct{})
	told := make(chan int, 100)
	server := &http.Server{ConnState: TrackState(nil), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/long" {
			close(answering)
			<-goOn
		}
		_, _ = io.WriteString(w, "answer")
	})}
	finished := make(chan error, 1)
	go func() {
		finished <- server.Serve(New(inner, Options{Total: 3, Source: 3, Tell: func(n int) { told <- n }}))
	}()
	t.Cleanup(func() { server.Close(); <-finished })
	client := &http.Client{Timeout: limit, Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	get := func(path string) error {
		r, err := client.Get("http://" + inner.Addr().String() + path)
		if err != nil {
			return err
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		if err == nil && string(b) != "answer" {
			err = errors.New(string(b))
		}
		return err
	}
	long := make(chan error, 1)
	go func() { long <- get("/long") }()
	<-answering
	for range 20 {
		c, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n"); err != nil {
			t.Fatal(err)
		}
	}
	if err := get("/"); err != nil {
		t.Error(err)
	}
	close(goOn)
	if err := <-long; err != nil {
		t.Errorf("the answer was cut off: %v", err)
	}
	select {
	case <-told:
	case <-time.After(limit):
		t.Error("nothing is told of connections that were closed")
	}
}

// A client that does not read an answer does not hold its connection.
func TestStall(t *testing.T) {
	for _, how := range []string{"Write", "ReadFrom"} {
		_, dial, in := open(t, Options{Total: 10, Stall: 50 * time.Millisecond})
		dial("127.0.0.1")
		server := come(t, in)
		var err error
		if how == "Write" {
			_, err = server.Write(make([]byte, 64<<20))
		} else {
			f, ferr := os.Create(filepath.Join(t.TempDir(), "file"))
			if ferr != nil {
				t.Fatal(ferr)
			}
			defer f.Close()
			if err := f.Truncate(64 << 20); err != nil {
				t.Fatal(err)
			}
			_, err = server.ReadFrom(&io.LimitedReader{R: f, N: 64 << 20})
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: %v", how, err)
		}
	}
}

// Data that is written in pieces arrives complete.
func TestPieces(t *testing.T) {
	_, dial, in := open(t, Options{Total: 10, Stall: limit})
	client := dial("127.0.0.1")
	server := come(t, in)
	text := strings.Repeat("0123456789abcdef", 3*pieceSize/16)[:2*pieceSize+17]
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sent := make(chan error, 1)
	go func() {
		_, err := server.Write([]byte(text))
		rest := &io.LimitedReader{R: f, N: pieceSize + 5}
		n, ferr := server.ReadFrom(rest)
		if n != pieceSize+5 || rest.N != 0 {
			ferr = errors.Join(ferr, errors.New("ReadFrom counts wrong"))
		}
		n, rerr := server.ReadFrom(bufio.NewReader(f))
		if n != pieceSize+12 {
			rerr = errors.Join(rerr, errors.New("ReadFrom counts wrong at the end of a file"))
		}
		sent <- errors.Join(err, ferr, rerr, server.Close())
	}()
	got, err := io.ReadAll(client)
	if err := errors.Join(err, <-sent); err != nil || string(got) != text+text {
		t.Errorf("%d bytes of %d, %v", len(got), 2*len(text), err)
	}
}

// A Unix socket has the same bounds.
func TestUnix(t *testing.T) {
	name := filepath.Join(shortdir.New(t), "s")
	inner, err := net.Listen("unix", name)
	if err != nil {
		t.Fatal(err)
	}
	l := New(inner, Options{Total: 2})
	defer l.Close()
	var clients []net.Conn
	for range 3 {
		c, err := net.Dial("unix", name)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		clients = append(clients, c)
		s, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if user, err := unixpeer.UID(s); err != nil || int(user) != os.Getuid() {
			t.Errorf("user %d, %v", user, err)
		}
	}
	closed(t, clients[0])
}

func TestSources(t *testing.T) {
	for text, want := range map[string]string{"192.0.2.7": "192.0.2.7/32", "::ffff:192.0.2.7": "192.0.2.7/32", "2001:db8:1:2:3::4": "2001:db8:1:2::/64"} {
		if got := network(&net.TCPAddr{IP: net.ParseIP(text)}); got.String() != want {
			t.Errorf("%s is of %s, want %s", text, got, want)
		}
	}
	if n := Descriptors(); n < 1 || n > most {
		t.Errorf("%d connections", n)
	}
}
