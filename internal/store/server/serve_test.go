package server

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"premix/internal/kit/access"
	"premix/internal/store/object"
	"premix/internal/store/origin"
)

type shop struct {
	dir    string
	d      object.Digest
	stored []byte
}

const tagName = "tags/refs/x/1.json"

func newShop(t testing.TB) *shop {
	t.Helper()
	content := make([]byte, 8<<20) // more than the buffer of a socket
	rand.Read(content)
	s := &shop{t.TempDir(), object.Sum(content), object.Encode(nil, content)}
	s.write(t, s.d.Path(), s.stored)
	s.write(t, "store.json", []byte("{}\n"))
	s.write(t, tagName, []byte("{\"one\": 1}\n"))
	s.write(t, "tags/refs/x/1.history.jsonl", []byte("{}\n"))
	s.write(t, "profiles/"+s.d.String()+"/start.json", []byte("{}\n"))
	return s
}

func (s *shop) write(t testing.TB, name string, content []byte) {
	t.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
}

func (s *shop) handler(t testing.TB, o Options) *Handler {
	t.Helper()
	h, err := NewHandler(s.dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

func ask(h http.Handler, method, path string, header ...string) *http.Response {
	r := httptest.NewRequest(method, "http://store/", nil)
	r.URL.Path = path
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func TestObjects(t *testing.T) {
	s := newShop(t)
	h := s.handler(t, Options{})
	path := "/" + s.d.Path()
	resp := ask(h, "GET", path)
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 || !bytes.Equal(body, s.stored) {
		t.Fatalf("%s, %d bytes, %v", resp.Status, len(body), err)
	}
	etag := resp.Header.Get("ETag")
	if c := resp.Header.Get("Cache-Control"); c != "public, max-age=31536000, immutable" || !strings.Contains(etag, s.d.String()) {
		t.Errorf("Cache-Control %q, ETag %q", c, etag)
	}
	if resp.ContentLength != int64(len(s.stored)) || resp.Header.Get("Last-Modified") != "" {
		t.Errorf("%v", resp.Header)
	}
	if resp := ask(h, "HEAD", path); resp.StatusCode != 200 || resp.ContentLength != int64(len(s.stored)) {
		t.Errorf("HEAD: %s, %d bytes", resp.Status, resp.ContentLength)
	}
	if resp := ask(h, "GET", path, "If-None-Match", etag); resp.StatusCode != 304 {
		t.Errorf("with its ETag: %s", resp.Status)
	}
	resp = ask(h, "GET", path, "Range", "bytes=10-19")
	if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != 206 || !bytes.Equal(body, s.stored[10:20]) {
		t.Errorf("a range: %s, %q, %v", resp.Status, body, err)
	}
}

func TestFiles(t *testing.T) {
	s := newShop(t)
	h := s.handler(t, Options{})
	resp := ask(h, "GET", "/"+tagName)
	etag := resp.Header.Get("ETag")
	if resp.StatusCode != 200 || resp.Header.Get("Cache-Control") != "no-cache" || etag == "" || resp.Header.Get("Content-Type") != "application/json" {
		t.Errorf("%s, %v", resp.Status, resp.Header)
	}
	if resp := ask(h, "GET", "/"+tagName, "If-None-Match", etag); resp.StatusCode != 304 {
		t.Errorf("with its ETag: %s", resp.Status)
	}
	s.write(t, tagName, []byte("{\"one\": 2}\n")) // the length is the same as before
	if resp := ask(h, "GET", "/"+tagName, "If-None-Match", etag); resp.StatusCode != 200 {
		t.Errorf("changed, with the ETag of before: %s", resp.Status)
	}
	for _, name := range []string{"store.json", "tags/refs/x/1.history.jsonl", "profiles/" + s.d.String() + "/start.json"} {
		if resp := ask(h, "GET", "/"+name); resp.StatusCode != 200 || resp.Header.Get("Cache-Control") != "no-cache" {
			t.Errorf("%s: %s, %v", name, resp.Status, resp.Header)
		}
	}
	s.write(t, "tags/refs/x/1.history.jsonl", bytes.Repeat([]byte("{}\n"), 1<<20))
	if resp := ask(h, "GET", "/tags/refs/x/1.history.jsonl"); resp.StatusCode != 200 || resp.ContentLength != 3<<20 {
		t.Errorf("a long history: %s, %d bytes", resp.Status, resp.ContentLength)
	}
}

func TestNothingElse(t *testing.T) {
	s := newShop(t)
	outside := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(outside, []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"tags/refs/x/2.json", object.Sum([]byte("link")).Path()} {
		s.write(t, name, nil)
		path := filepath.Join(s.dir, name)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(outside, path); err != nil {
			t.Fatal(err)
		}
	}
	s.write(t, "work/writers/1/lock", []byte("secret"))
	s.write(t, "secret.json", []byte("secret"))
	s.write(t, "tags/refs/x/.3.json.tmp", []byte("secret"))
	s.write(t, "objects/ab/secret", []byte("secret"))
	s.write(t, object.Sum([]byte("empty")).Path(), nil)
	if err := os.MkdirAll(filepath.Join(s.dir, "tags/refs/x/4.json"), 0o755); err != nil {
		t.Fatal(err)
	}
	h := s.handler(t, Options{})
	d := s.d.String()
	for _, path := range []string{
		"", "/", "/objects", "/objects/", "/objects/" + d[:2] + "/", "/tags/", "/tags/refs/x/", "/work/", "/work/writers/1/lock",
		"/secret.json", "/tags/refs/x/.3.json.tmp", "/objects/ab/secret", "/tags/refs/x/2.json", "/tags/refs/x/4.json",
		"/" + object.Sum([]byte("link")).Path(), "/" + object.Sum([]byte("empty")).Path(), "/" + object.Sum([]byte("none")).Path(),
		"/objects/" + d, "/objects/00/" + d, "//" + s.d.Path(), "/objects/" + d[:2] + "//" + d, "/objects/" + d[:2] + "/./" + d,
		"/objects/" + strings.ToUpper(d[:2]) + "/" + strings.ToUpper(d), "/" + s.d.Path() + "/", "/tags/../store.json", "/../store.json", "/tags/refs/x/../../../store.json",
		"/tags/refs/x/1.json\x00", "/profiles/" + d + "/../../store.json", "/profiles/" + d + "/.x.json", "/profiles/" + d, "/store.json/", "/tags/1.json",
		"/" + strings.TrimPrefix(outside, "/"), "/metrics",
	} {
		for _, method := range []string{"GET", "HEAD"} {
			resp := ask(h, method, path)
			body, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != 404 || bytes.Contains(body, []byte("secret")) || resp.Header.Get("Cache-Control") != "no-store" {
				t.Errorf("%s %q: %s, %q, %v", method, path, resp.Status, body, err)
			}
		}
	}
	for _, method := range []string{"POST", "PUT", "DELETE", "OPTIONS"} {
		if resp := ask(h, method, "/store.json"); resp.StatusCode != 405 || resp.Header.Get("Allow") == "" {
			t.Errorf("%s: %s", method, resp.Status)
		}
	}
}

func TestTokens(t *testing.T) {
	s := newShop(t)
	h := s.handler(t, Options{Tokens: access.NewTokens("one", "two")})
	for _, c := range []struct {
		header string
		status int
	}{
		{"", 401}, {"Bearer three", 401}, {"Bearer ", 401}, {"Bearer", 401}, {"one", 401}, {"Basic one", 401}, {"Bearer one", 200}, {"Bearer two", 200},
	} {
		resp := ask(h, "GET", "/"+s.d.Path(), "Authorization", c.header)
		if resp.StatusCode != c.status {
			t.Errorf("%q: %s, want %d", c.header, resp.Status, c.status)
		}
		if c := resp.Header.Get("Cache-Control"); strings.Contains(c, "public") {
			t.Errorf("Cache-Control %q where not everybody may read", c)
		}
	}
}

func TestAccessLog(t *testing.T) {
	s := newShop(t)
	var log bytes.Buffer
	h := s.handler(t, Options{Access: &log})
	ask(h, "GET", "/"+s.d.Path(), "User-Agent", "test \"agent\"\n")
	ask(h, "GET", "/none\n{}")
	if err := h.FlushLog(); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if len(lines) != 2 {
		t.Fatalf("%q", log.String())
	}
	var r record
	if err := json.Unmarshal([]byte(lines[0]), &r); err != nil || r.Status != 200 || r.Bytes != int64(len(s.stored)) || r.Path != "/"+s.d.Path() || r.Agent != "test \"agent\"\n" {
		t.Errorf("%+v, %v", r, err)
	}
	if err := json.Unmarshal([]byte(lines[1]), &r); err != nil || r.Status != 404 {
		t.Errorf("%+v, %v", r, err)
	}
}

// listen starts a server, which stops at the end of the test.
func listen(t *testing.T, h *Handler, o ServerOptions) (*Server, func() error) {
	t.Helper()
	o.Listen = "127.0.0.1:0"
	server, err := Listen(h, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx) }()
	stopped := false
	stop := func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-done
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return server, stop
}

func TestServer(t *testing.T) {
	s := newShop(t)
	server, _ := listen(t, s.handler(t, Options{}), ServerOptions{Metrics: "127.0.0.1:0"})
	o, err := origin.Open("http://"+server.Addr(), origin.Options{Proxies: []string{origin.Direct}, Patience: -1})
	if err != nil {
		t.Fatal(err)
	}
	g := origin.NewGroup([]origin.Origin{o}, origin.Options{Patience: -1})
	if _, err := g.Verified(context.Background(), s.d, -1); err != nil {
		t.Error(err)
	}
	if _, err := g.File(context.Background(), tagName); err != nil {
		t.Error(err)
	}
	metrics := func() []byte {
		t.Helper()
		resp, err := http.Get("http://" + server.MetricsAddr() + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return body
	}
	for _, want := range []string{
		`premix_store_requests_total{status="200",what="object"} 1`, `premix_store_requests_total{status="200",what="tag"} 1`,
		fmt.Sprintf(`premix_store_sent_bytes_total{what="object"} %v`, float64(len(s.stored))), "premix_store_connections 1", "process_open_fds",
	} {
		// A request is counted after its answer.
		body := metrics()
		for deadline := time.Now().Add(2 * time.Minute); !bytes.Contains(body, []byte(want)) && time.Now().Before(deadline); body = metrics() {
			time.Sleep(5 * time.Millisecond)
		}
		if !bytes.Contains(body, []byte(want)) {
			t.Errorf("the metrics lack %s:\n%s", want, body)
		}
	}
}

func TestServerStopsGracefully(t *testing.T) {
	s := newShop(t)
	server, stop := listen(t, s.handler(t, Options{}), ServerOptions{})
	conn, err := net.Dial("tcp", server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n", s.d.Path()); err != nil {
		t.Fatal(err)
	}
	first := make([]byte, 1)
	if _, err := io.ReadFull(conn, first); err != nil {
		t.Fatal(err)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	for {
		again, err := net.Dial("tcp", server.Addr())
		if err != nil {
			break
		}
		again.Close()
		time.Sleep(time.Millisecond)
	}
	rest, err := io.ReadAll(conn)
	if err != nil || !bytes.HasSuffix(rest, s.stored[len(s.stored)-100:]) {
		t.Errorf("an answer that had begun: %d bytes, %v", len(rest), err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// A connection beyond the limit replaces a connection that waits for its next request.
// Which of two such connections is older depends on when the server notes the end of their
// requests, which is after the client has its answers. The tests of package bounded check
// the order.
func TestServerLimitsConnections(t *testing.T) {
	s := newShop(t)
	server, _ := listen(t, s.handler(t, Options{}), ServerOptions{Connections: 2})
	request := fmt.Sprintf("HEAD /%s HTTP/1.1\r\nHost: localhost\r\n\r\n", s.d.Path())
	var conns []net.Conn
	ask := func(c net.Conn) error {
		if _, err := io.WriteString(c, request); err != nil {
			return err
		}
		_ = c.SetReadDeadline(time.Now().Add(2 * time.Minute))
		r, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: http.MethodHead})
		if err != nil {
			return err
		}
		return r.Body.Close()
	}
	for range 3 {
		c, err := net.Dial("tcp", server.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := ask(c); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	open := 0
	for _, c := range conns[:2] {
		if ask(c) == nil {
			open++
		}
	}
	if open != 1 {
		t.Errorf("%d of the two older connections are open, want 1", open)
	}
	if err := ask(conns[2]); err != nil {
		t.Errorf("the newest connection was closed: %v", err)
	}
}

func TestServerRefusesLongHeaders(t *testing.T) {
	s := newShop(t)
	server, _ := listen(t, s.handler(t, Options{}), ServerOptions{})
	req, err := http.NewRequest("GET", "http://"+server.Addr()+"/store.json", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Long", strings.Repeat("x", 64<<10))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("%s", resp.Status)
	}
}

func TestTLS(t *testing.T) {
	s := newShop(t)
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	writeCertificate(t, cert, key)
	server, _ := listen(t, s.handler(t, Options{Tokens: access.NewTokens("s3cret")}), ServerOptions{CertFile: cert, KeyFile: key})
	c, err := origin.ParseCredentials("c", []byte("machine "+server.Addr()+" token s3cret"))
	if err != nil {
		t.Fatal(err)
	}
	options := origin.Options{Proxies: []string{origin.Direct}, CAFile: cert, Credentials: c}
	o, err := origin.Open("https://"+server.Addr(), options)
	if err != nil {
		t.Fatal(err)
	}
	if stored, err := o.Object(context.Background(), s.d); err != nil || !bytes.Equal(stored, s.stored) {
		t.Errorf("%d bytes, %v", len(stored), err)
	}
	options.Credentials = nil
	if o, err = origin.Open("https://"+server.Addr(), options); err != nil {
		t.Fatal(err)
	}
	if _, err := o.Object(context.Background(), s.d); origin.KindOf(err) != origin.Refused {
		t.Errorf("without a token: %v", err)
	}
}

func writeCertificate(t *testing.T, cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "store"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
