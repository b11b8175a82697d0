package ondisk

import (
	"errors"
	"io"
	"os"
)

const (
	arrayBlock  = 16 << 10 // bytes, about
	arrayBlocks = 512      // kept in memory
)

// Array is an array of records of one size, which are zero at first.
type Array struct {
	f      *os.File
	size   int // of a record
	each   int64
	blocks map[int64]*block
	ring   []*block // in the order in which they are replaced
	hand   int
	last   *block
}

type block struct {
	number int64
	bytes  []byte
	dirty  bool
	used   bool // since the hand passed
}

// NewArray returns an array in the directory dir with records of size bytes.
func NewArray(dir string, size int) (*Array, error) {
	f, err := create(dir)
	if err != nil {
		return nil, err
	}
	return &Array{f: f, size: size, each: int64(arrayBlock / size), blocks: map[int64]*block{}}, nil
}

// Read returns a record, which is valid until the next call and must not be changed.
func (a *Array) Read(i int64) ([]byte, error) { return a.at(i, false) }

// Change returns a record that the caller may change until the next call.
func (a *Array) Change(i int64) ([]byte, error) { return a.at(i, true) }

func (a *Array) at(i int64, change bool) ([]byte, error) {
	number := i / a.each
	b := a.last
	if b == nil || b.number != number {
		var err error
		if b, err = a.block(number); err != nil {
			return nil, err
		}
		a.last = b
	}
	b.used = true
	b.dirty = b.dirty || change
	from := int(i%a.each) * a.size
	return b.bytes[from : from+a.size : from+a.size], nil
}

// block returns a block, perhaps in the place of one that was not used for long.
func (a *Array) block(number int64) (*block, error) {
	if b := a.blocks[number]; b != nil {
		return b, nil
	}
	var b *block
	if len(a.ring) < arrayBlocks {
		b = &block{bytes: make([]byte, int(a.each)*a.size)}
		a.ring = append(a.ring, b)
	} else {
		for ; a.ring[a.hand].used; a.hand = (a.hand + 1) % len(a.ring) {
			a.ring[a.hand].used = false
		}
		b = a.ring[a.hand]
		a.hand = (a.hand + 1) % len(a.ring)
		if b.dirty {
			if _, err := a.f.WriteAt(b.bytes, b.number*int64(len(b.bytes))); err != nil {
				return nil, err
			}
		}
		delete(a.blocks, b.number)
	}
	b.number, b.dirty = number, false
	n, err := a.f.ReadAt(b.bytes, number*int64(len(b.bytes)))
	if err != nil && !errors.Is(err, io.EOF) {
		b.number = -1
		return nil, err
	}
	clear(b.bytes[n:])
	a.blocks[number] = b
	return b, nil
}

// Close removes the array. A nil Array may be closed.
func (a *Array) Close() error {
	if a == nil {
		return nil
	}
	return a.f.Close()
}
