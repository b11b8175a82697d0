package chunker

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"sync"

	"github.com/zeebo/blake3"
)

// gear returns the table of the rolling fingerprint. It is made when first used:
// nothing runs before main.
var gear = sync.OnceValue(func() *[256]uint64 {
	var t [256]uint64
	for b := range t {
		sum := blake3.Sum256(append([]byte("premix gear 1"), byte(b)))
		t[b] = binary.LittleEndian.Uint64(sum[:])
	}
	return &t
})

// Chunker cuts content into chunks within given sizes. It holds no state, and any
// number of goroutines may use one.
type Chunker struct {
	min, mean, max int
	rare, often    uint64 // thresholds before and behind mean
}

// New returns a chunker for sizes in bytes. The mean must be a power of two.
func New(minimum, mean, maximum int) *Chunker {
	if minimum < 64 || mean <= minimum || maximum <= mean || mean&(mean-1) != 0 {
		panic(fmt.Sprintf("chunker: sizes %d, %d and %d", minimum, mean, maximum))
	}
	n := bits.TrailingZeros(uint(mean))
	return &Chunker{
		min: minimum, mean: mean, max: maximum,
		rare:  1 << (64 - n - 2),
		often: 1 << (64 - n + 2),
	}
}

// Cut returns the length of the first chunk of p, which is 0 only where p is
// empty. Unless the content ends with p, p must have the largest size of a chunk, or more.
func (c *Chunker) Cut(p []byte) int {
	if len(p) <= c.min {
		return len(p)
	}
	if len(p) > c.max {
		p = p[:c.max]
	}
	table := gear()
	// The fingerprint depends on 64 bytes: begin with the 64 bytes before the first
	// place at which a chunk may end.
	var f uint64
	for _, b := range p[c.min-64 : c.min] {
		f += f + table[b]
	}
	normal := min(c.mean, len(p))
	for i, b := range p[c.min:normal] {
		f += f + table[b]
		if f < c.rare {
			return c.min + i + 1
		}
	}
	for i, b := range p[normal:] {
		f += f + table[b]
		if f < c.often {
			return normal + i + 1
		}
	}
	return len(p)
}
