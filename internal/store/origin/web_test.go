package origin_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"premix/internal/store/origin"
	"premix/internal/testkit/faulty"
)

func TestOpenRefuses(t *testing.T) {
	for s, hint := range map[string]string{
		"":                                 "name a directory",
		"ftp://example.org/store":          "begins with http",
		"http://me:s3cret@example.org/":    "credentials file",
		"https://s3cret@example.org/":      "credentials file",
		"http://example.org/?token=s3cret": "root directory",
		"http://":                          "as in https",
		"http://me:s3cret@[::1/":           "as in https",
		"file://example.org/srv":           "file:///",
	} {
		_, err := origin.Open(s, quick())
		e, ok := errors.AsType[*origin.OpenError](err)
		if !ok || !strings.Contains(e.Hint(), hint) {
			t.Errorf("%q: %v, hint %q, want %q", s, err, e.Hint(), hint)
			continue
		}
		if strings.Contains(err.Error()+e.Hint(), "s3cret") {
			t.Errorf("%q: the message has the secret: %v", s, err)
		}
	}
	for _, p := range []string{"http://me:s3cret@proxy:3128", "ftp://proxy", "http://"} {
		o := quick()
		o.Proxies = []string{p}
		_, err := origin.Open("http://example.org", o)
		if _, ok := errors.AsType[*origin.OpenError](err); !ok || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("proxy %q: %v", p, err)
		}
	}
}

func TestParseCredentials(t *testing.T) {
	good := "# comment\nmachine a.example login me password pass # more\nmachine b.example:8443\n  token tok#en\nmachine http://c.example token x account y\n"
	if _, err := origin.ParseCredentials("f", []byte(good)); err != nil {
		t.Error(err)
	}
	for text, line := range map[string]int{
		"login me":                          1,
		"\ndefault login a password s3cret": 2,
		"machine a login b password":        1,
		"machine a token s3cret s3cret":     1,
		"machine a\nmachine b token x":      0,
		"machine a login b":                 0,
	} {
		_, err := origin.ParseCredentials("f", []byte(text))
		e, ok := errors.AsType[*origin.CredentialsError](err)
		if !ok || e.Line != line || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%q: %v", text, err)
		}
	}
	file := filepath.Join(t.TempDir(), "credentials")
	if err := os.WriteFile(file, []byte(good), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := origin.ReadCredentials(file); err == nil || !strings.Contains(err.Error(), "can be read or written by other users") {
		t.Errorf("a file that others may read: %v", err)
	}
	if err := os.Chmod(file, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := origin.ReadCredentials(file); err != nil {
		t.Error(err)
	}
}

func credentials(t *testing.T, text string) *origin.Credentials {
	t.Helper()
	c, err := origin.ParseCredentials("credentials", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCredentialsTravel(t *testing.T) {
	s := newSample(t, 1, 100)
	files := http.FileServer(http.Dir(s.dir))
	var remote atomic.Value
	stranger := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		remote.Store(r.Header.Clone())
		files.ServeHTTP(w, r)
	}))
	defer stranger.Close()
	var want atomic.Value
	want.Store("")
	home := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Authorization") != want.Load():
			w.WriteHeader(http.StatusUnauthorized)
		case strings.HasPrefix(r.URL.Path, "/moved/"):
			http.Redirect(w, r, stranger.URL+strings.TrimPrefix(r.URL.Path, "/moved"), http.StatusTemporaryRedirect)
		default:
			files.ServeHTTP(w, r)
		}
	}))
	defer home.Close()
	host := strings.TrimPrefix(home.URL, "http://")

	o := quick()
	if _, err := open(t, home.URL, o).File(context.Background(), "store.json"); err != nil {
		t.Fatal(err)
	}
	want.Store("Bearer s3cret")
	_, err := open(t, home.URL, o).File(context.Background(), "store.json")
	if origin.KindOf(err) != origin.Refused {
		t.Errorf("without credentials: %v", err)
	}
	o.Credentials = credentials(t, "machine "+host+" token s3cret")
	if _, err := open(t, home.URL, o).File(context.Background(), "store.json"); err != nil {
		t.Errorf("with a token: %v", err)
	}
	want.Store("Basic " + base64.StdEncoding.EncodeToString([]byte("me:pass")))
	o.Credentials = credentials(t, "machine other login me password pass\nmachine http://"+host+" login me password pass")
	if _, err := open(t, home.URL, o).File(context.Background(), "store.json"); err != nil {
		t.Errorf("with a password: %v", err)
	}
	// The other host differs only in its port, which is enough.
	if _, err := open(t, home.URL+"/moved", o).Object(context.Background(), s.digests[0]); err != nil {
		t.Errorf("a redirect to another host: %v", err)
	}
	if got := remote.Load().(http.Header); got.Get("Authorization") != "" || got.Get("Accept-Encoding") != "identity" {
		t.Errorf("another host was told %v", got)
	}

	o.Credentials = credentials(t, "machine example.org token s3cret")
	_, err = origin.Open("http://example.org", o)
	if e, ok := errors.AsType[*origin.CredentialsError](err); !ok || !strings.Contains(e.Hint(), "machine http://example.org") || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("credentials over plain HTTP: %v", err)
	}
	if _, err := origin.Open("https://example.org", o); err != nil {
		t.Errorf("credentials over TLS: %v", err)
	}
}

func TestCertificates(t *testing.T) {
	s := newSample(t, 1, 100)
	server := httptest.NewTLSServer(http.FileServer(http.Dir(s.dir)))
	defer server.Close()
	plain := httptest.NewServer(http.FileServer(http.Dir(s.dir)))
	defer plain.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o644); err != nil {
		t.Fatal(err)
	}
	trusting := quick()
	trusting.CAFile = ca
	_, err := open(t, server.URL, quick()).File(context.Background(), "store.json")
	if origin.KindOf(err) != origin.Certificate {
		t.Errorf("a certificate of nobody: %v", err)
	}
	if _, err := open(t, server.URL, trusting).File(context.Background(), "store.json"); err != nil {
		t.Errorf("with its authority: %v", err)
	}
	_, err = open(t, strings.Replace(server.URL, "127.0.0.1", "localhost", 1), trusting).File(context.Background(), "store.json")
	if origin.KindOf(err) != origin.Certificate {
		t.Errorf("a certificate for another name: %v", err)
	}
	_, err = open(t, strings.Replace(plain.URL, "http", "https", 1), trusting).File(context.Background(), "store.json")
	if k := origin.KindOf(err); k != origin.Certificate {
		t.Errorf("a server without TLS: %v", err)
	}
	trusting.CAFile = filepath.Join(s.dir, "store.json")
	if _, err := origin.Open(server.URL, trusting); err == nil {
		t.Error("an authority's file without a certificate was taken")
	}
}

func TestRedirectDowngrade(t *testing.T) {
	s := newSample(t, 1, 100)
	_, plain := s.serve(t)
	server := httptest.NewTLSServer(http.RedirectHandler(plain.URL+"/store.json", http.StatusFound))
	defer server.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o644); err != nil {
		t.Fatal(err)
	}
	o := quick()
	o.CAFile = ca
	if _, err := open(t, server.URL, o).File(context.Background(), "store.json"); origin.KindOf(err) != origin.Redirected {
		t.Errorf("from https to http: %v", err)
	}
}

// proxy is a caching proxy that may be poisoned.
type proxy struct {
	*httptest.Server
	requests atomic.Int64
	poisoned atomic.Bool // returns wrong bytes until a request forbids the use of its cache
	stubborn atomic.Bool // returns wrong bytes even then
	noCache  atomic.Int64
}

func newProxy(t *testing.T) *proxy {
	p := &proxy{}
	forward := &httputil.ReverseProxy{Rewrite: func(*httputil.ProxyRequest) {}, ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) {
		w.WriteHeader(http.StatusBadGateway)
	}}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.requests.Add(1)
		if !r.URL.IsAbs() {
			t.Errorf("%s was not asked of a proxy", r.URL)
		}
		fresh := r.Header.Get("Cache-Control") == "no-cache"
		if fresh {
			p.noCache.Add(1)
		}
		if strings.Contains(r.URL.Path, "objects/") && (p.stubborn.Load() || p.poisoned.Load() && !fresh) {
			_, _ = io.WriteString(w, "poison")
			return
		}
		if fresh {
			p.poisoned.Store(false)
		}
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(p.Close)
	return p
}

func TestProxies(t *testing.T) {
	s := newSample(t, 6, 100)
	h, server := s.serve(t)
	one, two := newProxy(t), newProxy(t)
	get := func(g *origin.Group, i int) error {
		t.Helper()
		b, err := g.Verified(context.Background(), s.digests[i], -1)
		if err == nil && !bytes.Equal(b, s.contents[s.digests[i]]) {
			t.Error("wrong bytes")
		}
		return err
	}
	through := func(proxies ...string) *origin.Group {
		o := quick()
		o.Proxies = proxies
		return origin.NewGroup([]origin.Origin{open(t, server.URL, o)}, o)
	}

	g := through(one.URL, two.URL, "direct")
	if err := get(g, 0); err != nil || one.requests.Load() != 1 || two.requests.Load() != 0 {
		t.Errorf("%v, %d and %d requests of the proxies", err, one.requests.Load(), two.requests.Load())
	}

	// A poisoned cache is asked for a new copy, and returns right bytes afterwards.
	one.poisoned.Store(true)
	if err := get(g, 1); err != nil || one.noCache.Load() != 1 || one.poisoned.Load() {
		t.Errorf("%v, %d requests past the cache", err, one.noCache.Load())
	}
	if stats := g.Stats()[0]; stats.Corrupt != 1 || stats.State != origin.Healthy {
		t.Errorf("%+v", stats)
	}

	// If the proxy stays wrong, the client goes around it where the options allow that.
	one.stubborn.Store(true)
	before := h.Requests()
	if err := get(g, 2); err != nil || h.Requests() != before+1 {
		t.Errorf("%v, %d requests of the origin", err, h.Requests()-before)
	}
	if err := get(through(one.URL), 2); origin.KindOf(err) != origin.Corrupt {
		t.Errorf("only a proxy that lies: %v", err)
	}
	one.stubborn.Store(false)

	// If a proxy is down, the client uses the next one, and does not try the first one each
	// time.
	one.Close()
	g = through(one.URL, two.URL)
	for i := range 6 {
		if err := get(g, i); err != nil {
			t.Error(err)
		}
	}
	if n := two.requests.Load(); n != 6 {
		t.Errorf("the second proxy had %d requests", n)
	}
	two.Close()
	if err := get(through(one.URL, two.URL), 0); origin.KindOf(err) != origin.Unreachable || !strings.Contains(err.Error(), "over "+one.URL) {
		t.Errorf("no proxy left: %v", err)
	}
	if err := get(through(one.URL, two.URL, origin.Direct), 0); err != nil {
		t.Errorf("no proxy left, and a direct route: %v", err)
	}
}

func TestProxySaysOriginIsDown(t *testing.T) {
	s := newSample(t, 1, 100)
	_, server := s.serve(t)
	p := newProxy(t)
	o := quick()
	o.Proxies = []string{p.URL}
	one := open(t, server.URL, o)
	server.Close()
	if _, err := one.File(context.Background(), "store.json"); origin.KindOf(err) != origin.Broken {
		t.Errorf("error %v", err)
	}
}

func TestProxyCredentials(t *testing.T) {
	s := newSample(t, 1, 100)
	_, server := s.serve(t)
	var got atomic.Value
	p := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got.Store(r.Header.Get("Proxy-Authorization"))
		w.WriteHeader(http.StatusProxyAuthRequired)
	}))
	defer p.Close()
	u, err := url.Parse(p.URL)
	if err != nil {
		t.Fatal(err)
	}
	o := quick()
	o.Proxies = []string{u.Host}
	o.Credentials = credentials(t, "machine "+u.Host+" login me password s3cret")
	_, err = open(t, server.URL, o).File(context.Background(), "store.json")
	if origin.KindOf(err) != origin.Unreachable || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("a proxy that refuses: %v", err)
	}
	if got.Load() != "Basic "+base64.StdEncoding.EncodeToString([]byte("me:s3cret")) {
		t.Errorf("the proxy was told %q", got.Load())
	}
}

func TestFilesAreAskedForAfresh(t *testing.T) {
	s := newSample(t, 1, 100)
	var header atomic.Value
	files := http.FileServer(http.Dir(s.dir))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header.Store(r.Header.Get("Cache-Control"))
		files.ServeHTTP(w, r)
	}))
	defer server.Close()
	o := open(t, server.URL, quick())
	if _, err := o.File(context.Background(), "store.json"); err != nil || header.Load() != "max-age=0" {
		t.Errorf("%v, Cache-Control %q", err, header.Load())
	}
	if _, err := o.Object(context.Background(), s.digests[0]); err != nil || header.Load() != "" {
		t.Errorf("%v, Cache-Control of an object %q", err, header.Load())
	}
}

func TestConnectionsAreBounded(t *testing.T) {
	s := newSample(t, 40, 100)
	h, server := s.serve(t)
	h.Set(faulty.Late, "objects/")
	o := quick()
	o.Connections = 3
	one := open(t, server.URL, o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	for _, d := range s.digests {
		go func() {
			_, err := one.Object(ctx, d)
			done <- err
		}()
	}
	for h.Requests() < 3 {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(20 * time.Millisecond)
	if n := h.Requests(); n != 3 {
		t.Errorf("%d requests at once, 3 are allowed", n)
	}
	cancel()
	for range s.digests {
		if err := <-done; err == nil {
			t.Error("an answer that never came")
		}
	}
}

// The connection of a missing file is used again. The one of a long text is not: it is not
// read.
func TestMissingFiles(t *testing.T) {
	for name, c := range map[string]struct {
		text        string
		connections int64
	}{"short": {"404 page not found", 1}, "long": {strings.Repeat("not here ", 1000), 3}} {
		t.Run(name, func(t *testing.T) {
			var connections atomic.Int64
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Length", strconv.Itoa(len(c.text)))
				w.WriteHeader(http.StatusNotFound)
				_, _ = io.WriteString(w, c.text)
			}))
			server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
				if state == http.StateNew {
					connections.Add(1)
				}
			}
			server.Start()
			defer server.Close()
			o := open(t, server.URL, quick())
			for range 3 {
				if _, err := o.File(t.Context(), "tags/none"); !errors.Is(err, origin.ErrNotFound) {
					t.Error(err)
				}
			}
			if n := connections.Load(); n != c.connections {
				t.Errorf("%d connections, want %d", n, c.connections)
			}
		})
	}
}
