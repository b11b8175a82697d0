package cache

import (
	"math/bits"
	"sync"

	"premix/internal/store/tree"
)

// pool recycles buffers. A buffer's capacity is the next power of two, so that chunks
// of all sizes share few of them.
type pool struct{ classes [maxClass + 1]sync.Pool }

const (
	minClass = 12 // 4 KiB
	maxClass = 22 // tree.MaxChunk
)

var _ [1<<maxClass - tree.MaxChunk]struct{} // larger buffers are not pooled

var buffers pool

func class(n int64) int { return max(minClass, bits.Len64(uint64(max(n, 1)-1))) }

// get returns a buffer of n bytes with arbitrary content.
func (p *pool) get(n int64) []byte {
	if c := class(n); c <= maxClass {
		if b, ok := p.classes[c].Get().(*[]byte); ok {
			return (*b)[:n]
		}
		return make([]byte, n, 1<<c)
	}
	return make([]byte, n)
}

// put returns a buffer from get to the pool. It must no longer be used.
func (p *pool) put(b []byte) {
	if c := class(int64(cap(b))); c <= maxClass && cap(b) == 1<<c {
		b = b[:0]
		p.classes[c].Put(&b)
	}
}
