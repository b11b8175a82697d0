package object

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"

	"lukechampine.com/blake3/guts"
)

// LeafSize is the unit in which content can be verified, in bytes: BLAKE3 builds a tree
// of hashes over pieces of this size.
const LeafSize = guts.ChunkSize

// Run is a range of leaves of an object's content: From, and those before To.
type Run struct{ From, To int }

// Leaves returns the number of leaves of content of size bytes.
func Leaves(size int64) int { return int((size + LeafSize - 1) / LeafSize) }

// CheckRuns returns an error unless runs are ascending, separate, and within content of
// size bytes, as the runs of a slice have to be.
func CheckRuns(size int64, runs []Run) error {
	end := -1
	for _, r := range runs {
		if r.From <= end || r.To <= r.From || r.To > Leaves(size) {
			return fmt.Errorf("leaves %d to %d of an object of %d bytes", r.From, r.To, size)
		}
		end = r.To
	}
	if len(runs) == 0 {
		return fmt.Errorf("no leaves of an object of %d bytes", size)
	}
	return nil
}

// bytes returns the range of bytes of the content that a run covers.
func (r Run) bytes(size int64) (from, to int64) {
	return int64(r.From) * LeafSize, min(int64(r.To)*LeafSize, size)
}

// A slice is a part of an object's content that can be verified by the object's
// digest without the rest. It is
//
//	proof   the chaining values (32 bytes each, little-endian words) of the
//	        largest subtrees of BLAKE3's tree in which no leaf is wanted, from
//	        left to right
//	data    the wanted leaves
//
// The slice of all leaves is the content itself.

// SliceSize returns the length of a slice, in bytes, for valid runs.
func SliceSize(size int64, runs []Run) int64 {
	n := int64(hashSize * proofLength(0, Leaves(size), runs))
	for _, r := range runs {
		from, to := r.bytes(size)
		n += to - from
	}
	return n
}

const hashSize = 32

// half returns how many of n leaves, at least two, are in the left subtree: the largest
// power of two below n.
func half(n int) int { return 1 << (bits.Len(uint(n-1)) - 1) }

// inside reports whether some or all of the n leaves from leaf from on are wanted.
func inside(from, n int, runs []Run) (some, all bool) {
	i, _ := slices.BinarySearchFunc(runs, from, func(r Run, from int) int {
		if r.To <= from {
			return -1
		}
		return 1
	})
	if i == len(runs) || runs[i].From >= from+n {
		return false, false
	}
	return true, runs[i].From <= from && runs[i].To >= from+n
}

func proofLength(from, n int, runs []Run) int {
	some, all := inside(from, n, runs)
	switch {
	case !some:
		return 1
	case all:
		return 0
	}
	return proofLength(from, half(n), runs) + proofLength(from+half(n), n-half(n), runs)
}

// AppendSlice appends the slice of these runs, which must be valid, to dst.
func AppendSlice(dst, content []byte, runs []Run) []byte {
	var prove func(from, n int)
	prove = func(from, n int) {
		some, all := inside(from, n, runs)
		switch {
		case all:
		case !some:
			cv := subtree(part(content, from, n), from)
			for _, w := range cv {
				dst = binary.LittleEndian.AppendUint32(dst, w)
			}
		default:
			prove(from, half(n))
			prove(from+half(n), n-half(n))
		}
	}
	prove(0, Leaves(int64(len(content))))
	for _, r := range runs {
		from, to := r.bytes(int64(len(content)))
		dst = append(dst, content[from:to]...)
	}
	return dst
}

// OpenSlice verifies the slice of an object of size bytes, and then calls got for each
// run with its offset in the content and its bytes, which are part of slice. The error
// is a [CorruptError].
func OpenSlice(d Digest, size int64, runs []Run, slice []byte, got func(off int64, data []byte)) error {
	if err := CheckRuns(size, runs); err != nil {
		return &CorruptError{d, err.Error()}
	}
	if want := SliceSize(size, runs); int64(len(slice)) != want {
		return &CorruptError{d, fmt.Sprintf("a slice of %d bytes instead of %d", len(slice), want)}
	}
	proof := slice[:hashSize*proofLength(0, Leaves(size), runs)]
	data := slice[len(proof):]
	if whole := runs[0] == (Run{0, Leaves(size)}); whole {
		if sum := Sum(data); sum != d {
			return &CorruptError{d, "the content's digest is " + sum.Short()}
		}
	} else if sum := root(size, runs, proof, data); sum != d {
		return &CorruptError{d, "a slice of it leads to the digest " + sum.Short()}
	}
	for _, r := range runs {
		from, to := r.bytes(size)
		got(from, data[:to-from])
		data = data[to-from:]
	}
	return nil
}

// root computes the digest of an object from a slice that lacks some of its leaves.
func root(size int64, runs []Run, proof, data []byte) Digest {
	var climb func(from, n int) [8]uint32
	parent := func(from, n int) guts.Node {
		left := climb(from, half(n))
		return guts.ParentNode(left, climb(from+half(n), n-half(n)), &guts.IV, 0)
	}
	climb = func(from, n int) [8]uint32 {
		some, all := inside(from, n, runs)
		switch {
		case !some:
			var cv [8]uint32
			for i := range cv {
				cv[i] = binary.LittleEndian.Uint32(proof[4*i:])
			}
			proof = proof[hashSize:]
			return cv
		case all:
			length := min(int64(from+n)*LeafSize, size) - int64(from)*LeafSize
			cv := subtree(data[:length], from)
			data = data[length:]
			return cv
		}
		return guts.ChainingValue(parent(from, n))
	}
	// A slice that lacks leaves belongs to content of two leaves or more, so the root
	// is a parent.
	top := parent(0, Leaves(size))
	top.Flags |= guts.FlagRoot
	var d Digest
	for i, w := range guts.ChainingValue(top) {
		binary.LittleEndian.PutUint32(d[4*i:], w)
	}
	return d
}

// part returns the bytes of n leaves of the content.
func part(content []byte, from, n int) []byte {
	return content[from*LeafSize : min((from+n)*LeafSize, len(content))]
}

// subtree returns the chaining value of the subtree over b, whose first leaf has the
// number from. The subtree is not the whole tree.
func subtree(b []byte, from int) [8]uint32 {
	const wide = guts.MaxSIMD * guts.ChunkSize
	if len(b) <= wide {
		var buf *[wide]byte
		if cap(b) >= wide {
			buf = (*[wide]byte)(b[:wide])
		} else {
			buf = new([wide]byte)
			copy(buf[:], b)
		}
		return guts.ChainingValue(guts.CompressBuffer(buf, len(b), &guts.IV, uint64(from), 0))
	}
	left := half(Leaves(int64(len(b))))
	return guts.ChainingValue(guts.ParentNode(
		subtree(b[:left*LeafSize], from), subtree(b[left*LeafSize:], from+left), &guts.IV, 0))
}
