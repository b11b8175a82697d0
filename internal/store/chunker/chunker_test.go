package chunker

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/zeebo/blake3"
)

const k = 1 << 10

func random(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	p := make([]byte, n+8)
	for i := 0; i < n; i += 8 {
		binary.LittleEndian.PutUint64(p[i:], r.Uint64())
	}
	return p[:n]
}

func cut(c *Chunker, p []byte) [][]byte {
	var list [][]byte
	for len(p) > 0 {
		n := c.Cut(p)
		list, p = append(list, p[:n]), p[n:]
	}
	return list
}

func TestSizes(t *testing.T) {
	c := New(64*k, 256*k, 1024*k)
	content := random(1, 64<<20)
	list := cut(c, content)
	if !bytes.Equal(bytes.Join(list, nil), content) {
		t.Fatal("the chunks are not the content")
	}
	for i, p := range list {
		if len(p) > 1024*k || len(p) < 64*k && i < len(list)-1 {
			t.Errorf("chunk %d has %d bytes", i, len(p))
		}
	}
	if mean := len(content) / len(list); mean < 200*k || mean > 350*k {
		t.Errorf("mean size %d", mean)
	}
	for _, p := range cut(c, make([]byte, 5<<20)) {
		if len(p) != 1024*k {
			t.Errorf("a chunk of zeros has %d bytes", len(p))
		}
	}
}

func TestShort(t *testing.T) {
	c := New(64*k, 256*k, 1024*k)
	for _, n := range []int{0, 1, 63, 64, 64*k - 1, 64 * k} {
		if got := c.Cut(random(2, n)); got != n {
			t.Errorf("the first chunk of %d bytes has %d", n, got)
		}
	}
}

// The end of a chunk depends neither on the bytes that follow it nor on the bytes before
// the chunk.
func TestOnlyTheContentDecides(t *testing.T) {
	c := New(64*k, 256*k, 1024*k)
	a := random(3, 16<<20)
	n := c.Cut(a)
	if got := c.Cut(a[:n+1]); got != n {
		t.Errorf("%d with one byte behind it, %d with many", got, n)
	}
	if got := c.Cut(a[:max(n, c.max)]); got != n {
		t.Errorf("%d with Max bytes, %d with many", got, n)
	}
	for _, at := range []int{0, 5 << 20, 16<<20 - 1} {
		b := slices.Insert(slices.Clone(a), at, 'x')
		known := map[[32]byte]bool{}
		for _, p := range cut(c, a) {
			known[blake3.Sum256(p)] = true
		}
		fresh := 0
		for _, p := range cut(c, b) {
			if !known[blake3.Sum256(p)] {
				fresh++
			}
		}
		if fresh > 3 {
			t.Errorf("a byte inserted at %d changed %d chunks", at, fresh)
		}
	}
}

// The cuts are part of the format of the store, because other cuts would make other trees.
func TestCutsStayWhereTheyAre(t *testing.T) {
	var got []int
	for _, p := range cut(New(2*k, 8*k, 32*k), random(4, 64*k)) {
		got = append(got, len(p))
	}
	want := []int{17741, 9052, 8691, 8671, 9848, 9663, 1870}
	if !slices.Equal(got, want) {
		t.Errorf("cuts %v, want %v", got, want)
	}
}

func BenchmarkCut(b *testing.B) {
	c := New(64*k, 256*k, 1024*k)
	p := random(5, 64<<20)
	b.SetBytes(int64(len(p)))
	for b.Loop() {
		for rest := p; len(rest) > 0; {
			rest = rest[c.Cut(rest):]
		}
	}
}
