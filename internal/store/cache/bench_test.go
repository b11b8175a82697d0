package cache

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"premix/internal/store/object"
)

// packed is an origin in memory that keeps objects in their stored form. It decodes and
// hashes them as an origin.Group does.
type packed struct {
	stored map[object.Digest][]byte
}

func (p packed) Verified(_ context.Context, d object.Digest, size int64) ([]byte, error) {
	return object.Decode(nil, d, size, p.stored[d])
}

// link is an origin behind a line with a given rate and round trip.
type link struct {
	packed
	mu   sync.Mutex
	free time.Time // when the line has sent everything so far
}

func (l *link) Verified(ctx context.Context, d object.Digest, size int64) ([]byte, error) {
	const rate, trip = 125e6, 20 * time.Millisecond
	l.mu.Lock()
	now := time.Now()
	if l.free.Before(now) {
		l.free = now
	}
	l.free = l.free.Add(time.Duration(float64(len(l.stored[d])) / rate * 1e9))
	arrives := l.free.Add(trip)
	l.mu.Unlock()
	time.Sleep(time.Until(arrives))
	return l.packed.Verified(ctx, d, size)
}

// BenchmarkLink reads a tree once over a line of 1 Gbit/s and 20 ms. It reports the rate of
// stored forms, of which the line can carry 125 MB/s.
func BenchmarkLink(b *testing.B) {
	p, s := benchTree(b)
	var stored int64
	for _, f := range p.stored {
		stored += int64(len(f))
	}
	buf := make([]byte, 128<<10)
	b.SetBytes(stored)
	for b.Loop() {
		b.StopTimer()
		c := openCache(b, b.TempDir(), Options{})
		tr := openTree(b, c, s.digest, &link{packed: p})
		b.StartTimer()
		for off := int64(0); off+int64(len(buf)) <= int64(len(s.image)); off += int64(len(buf)) {
			read(b, tr, buf, off)
		}
	}
}

// benchTree publishes a tree of about 256 MiB that compresses to about a half.
func benchTree(b *testing.B) (packed, sample) {
	b.Helper()
	w := newWorld()
	s := w.publish(b, shape{seed: 90, chunks: 1000, mean: 256 << 10, page: 4096})
	clear(w.contents)
	p := packed{map[object.Digest][]byte{}}
	r := rand.New(rand.NewPCG(1, 1))
	for i := range s.chunks {
		c := s.image[s.offs[i]:s.offs[i+1]]
		for j := range c {
			c[j] = "ACGTACGTacgtNNNN"[r.Uint32()&15]
		}
		s.chunks[i].Digest = w.add(c)
	}
	s.digest = w.index(b, s, 0, 4096)
	for d, content := range w.contents {
		p.stored[d] = object.Encode(nil, content)
	}
	return p, s
}

func read(b *testing.B, tr *Tree, p []byte, off int64) {
	b.Helper()
	if _, err := tr.ReadAt(context.Background(), p, off); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkColdSequential reads a tree once, 128 KiB at a time, as the kernel's
// readahead does.
func BenchmarkColdSequential(b *testing.B) {
	p, s := benchTree(b)
	buf := make([]byte, 128<<10)
	b.SetBytes(int64(len(s.image)))
	for b.Loop() {
		b.StopTimer()
		c := openCache(b, b.TempDir(), Options{})
		tr := openTree(b, c, s.digest, p)
		b.StartTimer()
		for off := int64(0); off+int64(len(buf)) <= int64(len(s.image)); off += int64(len(buf)) {
			read(b, tr, buf, off)
		}
		b.StopTimer()
		settle(b, c)
		b.StartTimer()
	}
}

// BenchmarkDecode measures the upper bound of a cold read: it decodes and hashes the same
// bytes on all cores, and does nothing else.
func BenchmarkDecode(b *testing.B) {
	p, s := benchTree(b)
	b.SetBytes(int64(len(s.image)) / int64(len(s.chunks)))
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		buf := make([]byte, 0, 1<<20)
		for i := 0; pb.Next(); i++ {
			c := s.chunks[i%len(s.chunks)]
			if _, err := object.Decode(buf, c.Digest, c.Size, p.stored[c.Digest]); err != nil {
				b.Error(err)
			}
		}
	})
}

func BenchmarkColdRandom4K(b *testing.B) {
	p, s := benchTree(b)
	r := rand.New(rand.NewPCG(2, 2))
	c := openCache(b, b.TempDir(), Options{})
	tr := openTree(b, c, s.digest, p)
	buf := make([]byte, 4096)
	order := r.Perm(len(s.chunks))
	n := 0
	for b.Loop() {
		if n == len(order) {
			b.StopTimer()
			settle(b, c)
			if err := c.Drop(s.digest); err != nil {
				b.Fatal(err)
			}
			n = 0
			b.StartTimer()
		}
		read(b, tr, buf[:min(4096, s.chunks[order[n]].Size)], s.offs[order[n]])
		n++
	}
}

func warm(b *testing.B) (*Tree, sample) {
	b.Helper()
	p, s := benchTree(b)
	c := openCache(b, b.TempDir(), Options{})
	tr := openTree(b, c, s.digest, p)
	if err := tr.Verify(b.Context()); err != nil {
		b.Fatal(err)
	}
	return tr, s
}

func BenchmarkWarmSequential(b *testing.B) {
	tr, s := warm(b)
	buf := make([]byte, 128<<10)
	b.SetBytes(int64(len(s.image)))
	for b.Loop() {
		for off := int64(0); off+int64(len(buf)) <= int64(len(s.image)); off += int64(len(buf)) {
			read(b, tr, buf, off)
		}
	}
}

func BenchmarkWarmRandom4K(b *testing.B) {
	tr, s := warm(b)
	r := rand.New(rand.NewPCG(3, 3))
	buf := make([]byte, 4096)
	b.SetBytes(4096)
	for b.Loop() {
		read(b, tr, buf, r.Int64N(int64(len(s.image))-4096)&^4095)
	}
}
