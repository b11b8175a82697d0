package cache

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"premix/internal/store/object"
	"premix/internal/store/tree"
)

// world is an origin in memory. It returns contents without verification, which is the task
// of package origin and is tested there.
type world struct {
	mu       sync.Mutex
	contents map[object.Digest][]byte
	asked    map[object.Digest]int

	requests atomic.Int64
	bytes    atomic.Int64
	running  atomic.Int64
	most     atomic.Int64 // highest value of running
	down     atomic.Bool
	delay    atomic.Int64          // delay of each answer, in nanoseconds
	gate     func(d object.Digest) // called before each answer
}

var errDown = errors.New("the origin is down")

func newWorld() *world {
	return &world{contents: map[object.Digest][]byte{}, asked: map[object.Digest]int{}}
}

func (w *world) Verified(ctx context.Context, d object.Digest, _ int64) ([]byte, error) {
	w.requests.Add(1)
	for n := w.running.Add(1); ; {
		most := w.most.Load()
		if n <= most || w.most.CompareAndSwap(most, n) {
			break
		}
	}
	defer w.running.Add(-1)
	if w.gate != nil {
		w.gate(d)
	}
	if n := w.delay.Load(); n > 0 {
		select {
		case <-time.After(time.Duration(n)):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if w.down.Load() {
		return nil, errDown
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked[d]++
	content, ok := w.contents[d]
	if !ok {
		return nil, errors.New("there is no such object")
	}
	w.bytes.Add(int64(len(content)))
	return bytes.Clone(content), nil
}

// fetched returns how often an object was fetched. Fetches in the background may increase
// it at any time.
func (w *world) fetched(d object.Digest) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.asked[d]
}

// fetches returns how often each object was fetched.
func (w *world) fetches() map[object.Digest]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.asked)
}

func (w *world) add(content []byte) object.Digest {
	d := object.Sum(content)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.contents[d] = content
	return d
}

// sample is a published tree together with its image.
type sample struct {
	digest object.Digest
	image  []byte
	chunks []tree.Chunk
	offs   []int64
}

// shape describes a sample.
type shape struct {
	seed   uint64
	chunks int
	mean   int // mean size of a chunk in bytes; sizes vary from 1 byte to twice the mean
	meta   int // number of chunks of metadata
	page   int // number of chunks in an index page
	holes  bool
	same   []sample // trees from which some chunks are taken
}

func (w *world) publish(t testing.TB, s shape) sample {
	t.Helper()
	r := rand.New(rand.NewPCG(s.seed, 1))
	var out sample
	var image bytes.Buffer
	var meta int64
	for i := range s.chunks {
		var content []byte
		switch {
		case s.holes && i > 0 && r.IntN(8) == 0:
			n := 1 + r.IntN(4*s.mean)
			out.chunks = append(out.chunks, tree.Chunk{Size: int64(n)})
			image.Write(make([]byte, n))
			continue
		case len(out.chunks) > 2 && r.IntN(16) == 0: // repeat an earlier chunk
			if c := r.IntN(len(out.chunks)); !out.chunks[c].Hole() {
				content = w.contents[out.chunks[c].Digest]
			}
		case len(s.same) > 0 && r.IntN(2) == 0:
			o := s.same[r.IntN(len(s.same))]
			if c := r.IntN(len(o.chunks)); !o.chunks[c].Hole() {
				content = w.contents[o.chunks[c].Digest]
			}
		}
		if content == nil {
			content = make([]byte, 1+r.IntN(2*s.mean))
			fill(r, content)
		}
		out.chunks = append(out.chunks, tree.Chunk{Digest: w.add(content), Size: int64(len(content))})
		image.Write(content)
		if i < s.meta {
			meta += int64(len(content))
		}
	}
	out.image, out.offs = image.Bytes(), tree.Offsets(0, out.chunks)
	out.digest = w.index(t, out, meta, s.page)
	return out
}

// index publishes the index pages and the manifest of a sample whose chunks are already
// published.
func (w *world) index(t testing.TB, s sample, meta int64, page int) object.Digest {
	t.Helper()
	m := &tree.Manifest{Size: int64(len(s.image)), Meta: meta, Inodes: 1}
	for rest := s.chunks; len(rest) > 0; {
		n := min(page, len(rest))
		content, p, err := tree.MarshalPage(rest[:n])
		if err != nil {
			t.Fatal(err)
		}
		w.add(content)
		m.Pages, rest = append(m.Pages, p), rest[n:]
	}
	content, err := m.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return w.add(content)
}

func fill(r *rand.Rand, b []byte) {
	for i := 0; i+8 <= len(b); i += 8 {
		v := r.Uint64()
		for j := range 8 {
			b[i+j] = byte(v >> (8 * j))
		}
	}
	for i := len(b) &^ 7; i < len(b); i++ {
		b[i] = byte(r.Uint32())
	}
}

func openCache(t testing.TB, dir string, o Options) *Cache {
	t.Helper()
	c, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func openTree(t testing.TB, c *Cache, d object.Digest, f Fetcher) *Tree {
	t.Helper()
	tr, err := c.Tree(t.Context(), d, f)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// mustRead reads n bytes at off and compares them with the image of the sample.
func mustRead(t testing.TB, tr *Tree, s sample, off, n int64) {
	t.Helper()
	b := bytes.Repeat([]byte{0xa5}, int(n))
	got, err := tr.ReadAt(context.Background(), b, off)
	want := s.image[min(off, int64(len(s.image))):min(off+n, int64(len(s.image)))]
	if err != nil && (!errors.Is(err, io.EOF) || int64(len(want)) == n) {
		t.Fatalf("read of %d bytes at %d: %v", n, off, err)
	}
	if got != len(want) || !bytes.Equal(b[:got], want) {
		t.Fatalf("read of %d bytes at %d: %d bytes, which are wrong", n, off, got)
	}
}

func readAll(t testing.TB, tr *Tree, s sample) {
	t.Helper()
	for off := int64(0); off < int64(len(s.image)); off += 100_000 {
		mustRead(t, tr, s, off, 100_000)
	}
}

// settle waits until no fetch is running. Readers do not wait until chunks are written, nor
// for read-ahead.
func settle(t testing.TB, c *Cache) {
	t.Helper()
	waitFor(t, "the last fetch", func() bool {
		fl := c.flights
		fl.mu.Lock()
		defer fl.mu.Unlock()
		return fl.running == 0 && len(fl.m) == len(fl.recent)
	})
}

// waitFor waits until is returns true.
func waitFor(t testing.TB, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !is(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s never came", what)
		}
	}
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }
