package origin_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"premix/internal/store/origin"
)

// A file of any size comes in pieces as it is, and its beginning is reported while it
// arrives. So does a file from a server that ignores ranges, or fails for some of them; such
// a server is not asked for pieces again.
func TestBootstrapInPieces(t *testing.T) {
	const piece = 13 << 10
	random := rand.NewChaCha8([32]byte{1})
	ranged := func(w http.ResponseWriter, r *http.Request, content []byte) {
		http.ServeContent(w, r, "x", time.Time{}, bytes.NewReader(content))
	}
	for name, c := range map[string]struct {
		serve    func(w http.ResponseWriter, r *http.Request, content []byte)
		requests int64 // of two fetches, the second from another client where the first has pieces
	}{
		"ranges": {ranged, 16},
		"no ranges": {func(w http.ResponseWriter, _ *http.Request, content []byte) {
			_, _ = w.Write(content)
		}, -1},
		"a piece fails": {func(w http.ResponseWriter, r *http.Request, content []byte) {
			if strings.HasPrefix(r.Header.Get("Range"), "bytes=26624-") {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			ranged(w, r, content)
		}, -1},
		"a piece is cut off": {func(w http.ResponseWriter, r *http.Request, content []byte) {
			if strings.HasPrefix(r.Header.Get("Range"), "bytes=0-") {
				w.Header().Set("Content-Length", "13312")
				w.WriteHeader(http.StatusPartialContent)
				_, _ = w.Write(content[:min(100, len(content))])
				return
			}
			ranged(w, r, content)
		}, -1},
	} {
		t.Run(name, func(t *testing.T) {
			for _, size := range []int{1, piece - 1, piece, piece + 1, 3*piece + 5, 8 * piece, 9 * piece, origin.MaxFile} {
				content := make([]byte, size)
				_, _ = random.Read(content)
				var requests, whole atomic.Int64
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					requests.Add(1)
					if r.Header.Get("Range") == "" {
						whole.Add(1)
					}
					c.serve(w, r, content)
				}))
				h := open(t, server.URL, quick()).(origin.Opener)
				for k := range 2 {
					if k == 1 && c.requests > 0 {
						h = open(t, server.URL, quick()).(origin.Opener)
					}
					before := 0
					got, err := h.Bootstrap(t.Context(), "openings/x", func(soFar []byte) {
						if !bytes.HasPrefix(content, soFar) {
							t.Errorf("%d bytes: %d others on the way", size, len(soFar))
						}
						before = len(soFar)
					})
					if err != nil || !bytes.Equal(got, content) || before != size {
						t.Errorf("%d bytes: %d, %d on the way, %v", size, len(got), before, err)
					}
				}
				if c.requests > 0 && (requests.Load() != c.requests || whole.Load() != 0) {
					t.Errorf("%d bytes: %d requests, %d of them for the whole", size, requests.Load(), whole.Load())
				}
				if c.requests < 0 && whole.Load() != 2 {
					t.Errorf("%d bytes: %d requests for the whole", size, whole.Load())
				}
				server.Close()
			}
		})
	}
}

// A file that is missing or larger than permitted is an error as for a plain request, and so
// is the end of the caller's context. Through a proxy the file is requested whole, so that
// the proxy can keep it.
func TestBootstrapInPiecesFails(t *testing.T) {
	var plain atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Range") == "" {
			plain.Add(1)
		}
		switch {
		case strings.HasSuffix(r.URL.Path, "large"):
			http.ServeContent(w, r, "x", time.Time{}, bytes.NewReader(make([]byte, origin.MaxFile+1)))
		case strings.HasSuffix(r.URL.Path, "small"):
			http.ServeContent(w, r, "x", time.Time{}, strings.NewReader("small"))
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	get := func(ctx context.Context, name string, o origin.Options) ([]byte, error) {
		return open(t, server.URL, o).(origin.Opener).Bootstrap(ctx, name, nil)
	}
	if _, err := get(t.Context(), "none", quick()); !errors.Is(err, origin.ErrNotFound) {
		t.Error(err)
	}
	if n := plain.Load(); n != 0 {
		t.Errorf("%d requests for the whole of a missing file", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := get(ctx, "small", quick()); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if n := plain.Load(); n != 0 {
		t.Errorf("%d requests after the caller has gone", n)
	}
	o := quick()
	o.Proxies = []string{server.URL}
	if b, err := get(t.Context(), "small", o); err != nil || string(b) != "small" || plain.Load() != 1 {
		t.Errorf("through a proxy: %q, %v, %d requests for the whole", b, err, plain.Load())
	}
	if b, err := get(t.Context(), "large", quick()); origin.KindOf(err) != origin.TooLarge || b != nil {
		t.Errorf("a large file: %d bytes, %v", len(b), err)
	}
}

// The connections of all pieces serve the next requests, also those of pieces behind the end
// of the file.
func TestBootstrapKeepsConnections(t *testing.T) {
	const many = 8
	var connections atomic.Int64
	var together sync.WaitGroup // of the requests that run at the same time
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		together.Done()
		together.Wait()
		http.ServeContent(w, r, "x", time.Unix(1e9, 0), strings.NewReader("small"))
	}))
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			connections.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	h := open(t, server.URL, quick()).(origin.Opener)
	together.Add(many)
	if b, err := h.Bootstrap(t.Context(), "openings/x", nil); err != nil || string(b) != "small" {
		t.Fatalf("%q, %v", b, err)
	}
	time.Sleep(100 * time.Millisecond) // the client keeps a connection a moment after the end of a body
	together.Add(many)
	var files sync.WaitGroup
	for range many {
		files.Go(func() {
			if b, err := h.File(t.Context(), "store.json"); err != nil || string(b) != "small" {
				t.Errorf("%q, %v", b, err)
			}
		})
	}
	files.Wait()
	if n := connections.Load(); n != many {
		t.Errorf("%d connections for twice %d requests", n, many)
	}
}

// A file that is replaced while its pieces arrive is requested again as a whole: its pieces are
// not mixed.
func TestBootstrapChanges(t *testing.T) {
	before, after := bytes.Repeat([]byte("old "), 20<<10), bytes.Repeat([]byte("new "), 20<<10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		content, time := after, time.Unix(2e9, 0)
		if strings.HasPrefix(r.Header.Get("Range"), "bytes=0-") {
			content, time = before, time.Add(-1e9)
		}
		http.ServeContent(w, r, "x", time, bytes.NewReader(content))
	}))
	defer server.Close()
	got, err := open(t, server.URL, quick()).(origin.Opener).Bootstrap(t.Context(), "openings/x", nil)
	if err != nil || !bytes.Equal(got, after) {
		t.Errorf("%d bytes that begin with %.4q, %v", len(got), got, err)
	}
}
