package frozen

import (
	"bytes"
	"encoding/binary"
	"path/filepath"
	"slices"
)

// component executes CPUID for leaf 13: where the area of XSAVE has one component of the
// extended state.
func component(index uint32) (size, offset uint32)

// vectors are the components of the extended state with the vector registers and their
// masks: XMM0 to XMM15, which the area has at a fixed place, and the rest by its number
// (Intel SDM, volume 1, 13.1).
var vectors = []uint32{2, 5, 6, 7}

const (
	xmmOffset, xmmSize = 160, 256
	xstateBV           = 512
	vectorBits         = 1<<1 | 1<<2 | 1<<5 | 1<<6 | 1<<7
)

// inCall reports whether a thread is at a system call in a function of the C library, in
// both preparations. By the calling convention (System V ABI, AMD64 supplement, 3.2.3) a
// caller does not expect vector registers to keep their content across a function, and the
// functions of the library that make system calls do no computation with them.
func (c *comparer) inCall(i int) bool {
	for k, im := range c.im {
		rip := im.Threads[i].Regs.Rip
		j := slices.IndexFunc(im.Maps, func(v VMA) bool { return rip >= v.Start && rip < v.End })
		if j < 0 || im.Maps[j].Kind != KindFile || filepath.Base(im.Maps[j].Path) != "libc.so.6" {
			return false
		}
		var b [2]byte
		if err := c.content(k, &im.Maps[j], int64(rip-im.Maps[j].Start), b[:]); err != nil || b != [2]byte{0x0f, 0x05} {
			return false
		}
	}
	return true
}

// forgetVectors makes the vector registers in b, the extended state of a thread, equal to
// those in a. It reports whether they were not.
func forgetVectors(a, b []byte) bool {
	if len(a) < xstateBV+8 || len(a) != len(b) {
		return false
	}
	before := bytes.Clone(b)
	copy(b[xmmOffset:xmmOffset+xmmSize], a[xmmOffset:])
	for _, index := range vectors {
		size, offset := component(index)
		if int(offset)+int(size) <= len(a) && offset >= xstateBV {
			copy(b[offset:offset+size], a[offset:])
		}
	}
	// Which components are in their initial state.
	x, y := binary.LittleEndian.Uint64(a[xstateBV:]), binary.LittleEndian.Uint64(b[xstateBV:])
	binary.LittleEndian.PutUint64(b[xstateBV:], y&^vectorBits|x&vectorBits)
	return !bytes.Equal(before, b)
}
