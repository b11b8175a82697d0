package origin_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"premix/internal/store/object"
	"premix/internal/store/origin"
	"premix/internal/testkit/faulty"
)

// sample is a directory with the files of a store that origins read.
type sample struct {
	dir      string
	contents map[object.Digest][]byte
	digests  []object.Digest
}

const tagName = "tags/refs/x/1.json"

func newSample(t testing.TB, objects, size int) *sample {
	t.Helper()
	s := &sample{t.TempDir(), map[object.Digest][]byte{}, nil}
	r := rand.New(rand.NewPCG(1, 2))
	for i := range objects {
		b := make([]byte, size+i)
		for j := range b {
			b[j] = byte(r.Uint32())
		}
		d := object.Sum(b)
		s.contents[d], s.digests = b, append(s.digests, d)
		s.write(t, d.Path(), object.Encode(nil, b))
	}
	s.write(t, "store.json", []byte(`{"format": "premix store 1"}`+"\n"))
	s.write(t, tagName, []byte(`{"signed": {}}`+"\n"))
	return s
}

func (s *sample) write(t testing.TB, name string, content []byte) {
	t.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
}

// serve starts a file server for the sample that can produce faults.
func (s *sample) serve(t testing.TB) (*faulty.Handler, *httptest.Server) {
	t.Helper()
	h := faulty.New(http.FileServer(http.Dir(s.dir)))
	server := httptest.NewServer(h)
	t.Cleanup(func() { h.Stop(); server.CloseClientConnections(); server.Close() })
	return h, server
}

// quick returns options that lose no time on a failing origin, and wait long for a healthy
// one, because the machine may be slow.
func quick() origin.Options {
	return origin.Options{
		Proxies: []string{origin.Direct},
		Connect: time.Minute, Header: time.Minute, Stall: time.Minute, StallBytes: 4 << 10,
		Patience: -1, Rest: 5 * time.Millisecond, RestMost: 20 * time.Millisecond, Cooldown: 10 * time.Millisecond,
	}
}

// hasty returns options with limits that a test can wait for. On a slow machine, a healthy
// origin may exceed them.
func hasty() origin.Options {
	o := quick()
	o.Connect, o.Header, o.Stall = 2*time.Second, 500*time.Millisecond, 500*time.Millisecond
	return o
}

// facing returns options with a short limit if only that limit ends the fault.
func facing(fault faulty.Fault) origin.Options {
	o := quick()
	switch fault {
	case faulty.Late:
		o.Header = hasty().Header
	case faulty.Stall, faulty.Trickle:
		o.Stall = hasty().Stall
	}
	return o
}

func open(t testing.TB, url string, o origin.Options) origin.Origin {
	t.Helper()
	one, err := origin.Open(url, o)
	if err != nil {
		t.Fatal(err)
	}
	return one
}

// TestOrigins checks the behaviour that all kinds of origins have in common.
func TestOrigins(t *testing.T) {
	s := newSample(t, 3, 1000)
	_, server := s.serve(t)
	below := httptest.NewServer(http.StripPrefix("/some/store", http.FileServer(http.Dir(s.dir))))
	defer below.Close()
	for name, o := range map[string]origin.Origin{
		"directory":      open(t, s.dir, quick()),
		"file":           open(t, "file://"+s.dir, quick()),
		"http":           open(t, server.URL, quick()),
		"http, slash":    open(t, server.URL+"/", quick()),
		"http, path":     open(t, below.URL+"/some/store/", quick()),
		"group":          origin.NewGroup([]origin.Origin{open(t, t.TempDir(), quick()), open(t, s.dir, quick())}, quick()),
		"group of group": origin.NewGroup([]origin.Origin{origin.NewGroup([]origin.Origin{open(t, s.dir, quick())}, quick())}, quick()),
		"registry":       pushed(t, s, nil),
		"registry without ranges": pushed(t, s, func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				r.Header.Del("Range")
				h.ServeHTTP(w, r)
			})
		}),
	} {
		t.Run(name, func(t *testing.T) { conforms(t, s, o) })
	}
}

func conforms(t *testing.T, s *sample, o origin.Origin) {
	ctx := context.Background()
	for _, d := range s.digests {
		stored, err := o.Object(ctx, d)
		if err != nil {
			t.Fatal(err)
		}
		content, err := object.Decode(nil, d, int64(len(s.contents[d])), stored)
		if err != nil || !bytes.Equal(content, s.contents[d]) {
			t.Errorf("object %s: %d bytes, %v", d.Short(), len(content), err)
		}
	}
	for _, name := range []string{"store.json", tagName} {
		want, err := os.ReadFile(filepath.Join(s.dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := o.File(ctx, name); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if _, err := o.Object(ctx, object.Sum([]byte("none"))); !errors.Is(err, origin.ErrNotFound) {
		t.Errorf("an object that is not there: %v", err)
	}
	if _, err := o.File(ctx, "tags/refs/x/2.json"); !errors.Is(err, origin.ErrNotFound) {
		t.Errorf("a file that is not there: %v", err)
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := o.Object(cancelled, s.digests[0]); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that has given up: %v", err)
	}
	if o.String() == "" {
		t.Error("it has no name")
	}
}

func TestDirKeepsInside(t *testing.T) {
	s := newSample(t, 1, 10)
	outside := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(outside, []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(s.dir, "tags", "link.json")); err != nil {
		t.Fatal(err)
	}
	s.write(t, "tags/large.json", make([]byte, origin.MaxFile+1))
	o := open(t, s.dir, quick())
	for name, want := range map[string]origin.Kind{
		"tags/link.json":  origin.Broken,
		"../secret":       origin.Misnamed,
		"/etc/passwd":     origin.Misnamed,
		"tags":            origin.Unexpected,
		"tags/large.json": origin.TooLarge,
	} {
		if b, err := o.File(context.Background(), name); origin.KindOf(err) != want {
			t.Errorf("%s: %d bytes, %v, want %s", name, len(b), err, want)
		}
	}
	if err := os.RemoveAll(s.dir); err != nil {
		t.Fatal(err)
	}
	if _, err := o.File(context.Background(), "store.json"); origin.KindOf(err) != origin.Unreachable {
		t.Errorf("without its directory: %v", err)
	}
}
