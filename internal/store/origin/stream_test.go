package origin_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	"premix/internal/store/object"
	"premix/internal/store/origin"
	"premix/internal/testkit/faulty"
)

// With any fault of the origin, a stream ends in the same error as a fetch, or in the right
// content if another origin has it. The content that it reports on the way is never longer
// than the object.
func TestStreamWithFaults(t *testing.T) {
	for _, fault := range faulty.All() {
		t.Run(string(fault), func(t *testing.T) {
			t.Parallel()
			s := newSample(t, 2, 300_000)
			h, server := s.serve(t)
			d := s.digests[0]
			size := int64(len(s.contents[d]))
			o := facing(fault)
			bad := open(t, server.URL, o)
			if _, err := origin.NewGroup([]origin.Origin{bad}, o).Verified(t.Context(), s.digests[1], -1); err != nil {
				t.Fatal(err)
			}
			h.Set(fault, "objects/")
			told := func(soFar []byte) {
				if int64(len(soFar)) > size {
					t.Errorf("told of %d bytes", len(soFar))
				}
			}
			content, err := origin.NewGroup([]origin.Origin{bad}, o).Stream(t.Context(), d, size, told)
			if kind := origin.KindOf(err); kind != wantKinds[fault] || content != nil {
				t.Errorf("%d bytes, %v (%s), want %s", len(content), err, kind, wantKinds[fault])
			}
			_, good := s.serve(t)
			content, err = origin.NewGroup([]origin.Origin{bad, open(t, good.URL, quick())}, o).Stream(t.Context(), d, size, told)
			if err != nil || !bytes.Equal(content, s.contents[d]) {
				t.Errorf("with another origin: %d bytes, %v", len(content), err)
			}
		})
	}
}

// Content is reported before the last of it was sent, in order, and never after the call
// has returned. A size that differs from the object's is an error.
func TestStream(t *testing.T) {
	content := make([]byte, 2_000_000)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range content {
		content[i] = "acgtnACGTN,.:;!?"[r.IntN(16)]
	}
	d, stored := object.Sum(content), object.Encode(nil, content)
	early := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(stored[:len(stored)/2])
		w.(http.Flusher).Flush()
		<-early
		_, _ = w.Write(stored[len(stored)/2:])
	}))
	defer server.Close()
	g := origin.NewGroup([]origin.Origin{open(t, server.URL, quick())}, quick())
	var last []byte
	once := sync.OnceFunc(func() { close(early) })
	defer once()
	got, err := g.Stream(t.Context(), d, int64(len(content)), func(soFar []byte) {
		if len(soFar) <= len(last) || !bytes.HasPrefix(content, soFar) {
			t.Errorf("%d bytes behind %d, or they are wrong", len(soFar), len(last))
		}
		if last = soFar; len(soFar) > len(content)/3 {
			once()
		}
	})
	if err != nil || !bytes.Equal(got, content) || !bytes.Equal(last, content) {
		t.Errorf("%d bytes, %v; told of %d", len(got), err, len(last))
	}
	for _, size := range []int64{0, int64(len(content)) - 1, int64(len(content)) + 1} {
		if got, err := g.Stream(t.Context(), d, size, func([]byte) {}); !object.IsCorrupt(err) || got != nil {
			t.Errorf("a size of %d: %d bytes, %v", size, len(got), err)
		}
	}
}

// A caller that gives a stream up gets no more reports, while other callers continue with
// it.
func TestStreamGivenUp(t *testing.T) {
	s := newSample(t, 1, 400_000)
	d := s.digests[0]
	stored := object.Encode(nil, s.contents[d])
	more := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(stored[:len(stored)/2])
		w.(http.Flusher).Flush()
		<-more
		_, _ = w.Write(stored[len(stored)/2:])
	}))
	defer server.Close()
	g := origin.NewGroup([]origin.Origin{open(t, server.URL, quick())}, quick())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	told := make(chan struct{}, 1)
	var gone atomic.Bool
	first := make(chan error)
	go func() {
		_, err := g.Stream(ctx, d, int64(len(s.contents[d])), func([]byte) {
			if gone.Load() {
				t.Error("told after it was given up")
			}
			select {
			case told <- struct{}{}:
			default:
			}
		})
		gone.Store(true)
		first <- err
	}()
	<-told
	second := make(chan error)
	go func() {
		content, err := g.Verified(t.Context(), d, -1)
		if !bytes.Equal(content, s.contents[d]) {
			t.Errorf("%d bytes", len(content))
		}
		second <- err
	}()
	// The test cannot see whether the second call has joined; both cases are right.
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	close(more)
	if err := <-second; err != nil {
		t.Error(err)
	}
}
