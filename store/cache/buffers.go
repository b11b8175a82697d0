package cache

import (
	"math/bits"
	"sync"

	"premix/store/tree"
)

// pool lends buffers, each of the next power of two above what is asked for, so
// that chunks of all sizes share few of them.
type pool struct{ classes [maxClass + 1]sync.Pool }

const (
	minClass = 12 // 4 KiB
	maxClass = 22 // tree.MaxChunk
)

var _ [1<<maxClass - tree.MaxChunk]struct{} // what is larger is not lent

var buffers pool

func class(n int64) int { return max(minClass, bits.Len64(uint64(max(n, 1)-1))) }

// get returns a buffer of n bytes with anything in them.
func (p *pool) get(n int64) []byte {
	if c := class(n); c <= maxClass {
		if b, ok := p.classes[c].Get().(*[]byte); ok {
			return (*b)[:n]
		}
		return make([]byte, n, 1<<c)
	}
	return make([]byte, n)
}

// put takes back what get returned. Nobody may use it any more.
func (p *pool) put(b []byte) {
	if c := class(int64(cap(b))); c <= maxClass && cap(b) == 1<<c {
		b = b[:0]
		p.classes[c].Put(&b)
	}
}
