package cache

import (
	"encoding/binary"
	"sync"

	"premix/internal/store/object"
)

// index finds a present chunk by its digest, in any tree. To stay small it holds only
// the first 8 bytes of each digest: the whole digest is in the tree, and is compared
// before the chunk is used. Of several present copies it knows one.
type index struct {
	mu sync.RWMutex
	m  map[uint64]uint64 // first 8 bytes of the digest -> tree's number << 32 | chunk
}

func key(d object.Digest) uint64 { return binary.LittleEndian.Uint64(d[:8]) }

func spot(t *Tree, chunk int) uint64 { return uint64(t.number)<<32 | uint64(chunk) }

func (x *index) add(t *Tree, chunk int, d object.Digest) {
	x.mu.Lock()
	x.m[key(d)] = spot(t, chunk)
	x.mu.Unlock()
}

func (x *index) remove(t *Tree, chunk int, d object.Digest) {
	x.mu.Lock()
	if x.m[key(d)] == spot(t, chunk) {
		delete(x.m, key(d))
	}
	x.mu.Unlock()
}

// find returns the number of a tree and of a chunk in it that may have the digest d.
func (x *index) find(d object.Digest) (number uint32, chunk int, ok bool) {
	x.mu.RLock()
	s, ok := x.m[key(d)]
	x.mu.RUnlock()
	return uint32(s >> 32), int(uint32(s)), ok
}
