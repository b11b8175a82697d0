package frozen

import (
	"bytes"
	"reflect"
	"slices"
)

// late finds the late words and late variables in a part of a VMA, which begins at offset
// at in the VMA, and makes b equal to a there.
func (c *comparer) late(v *VMA, at int64, a, b []byte) {
	begin := v.Start + uint64(at)
	for _, r := range c.free {
		lo, hi := max(r.Start, begin), min(r.End, begin+uint64(len(a)))
		if lo < hi {
			copy(b[lo-begin:hi-begin], a[lo-begin:hi-begin])
		}
	}
	for _, p := range c.written.Places {
		if !p.Xstate && p.Address >= begin && p.Address+uint64(p.Length) <= begin+uint64(len(a)) {
			copy(a[p.Address-begin:], c.written.Words[p.Word][p.From:p.From+p.Length])
		}
	}
	c.places(c.words.Exchange(a, b), WordPlace{Address: begin}, where(v))
}

// writes reports whether a start writes into a part of a VMA.
func (c *comparer) writes(v *VMA, e Extent) bool {
	begin := v.Start + uint64(e.Offset)
	return slices.ContainsFunc(c.written.Places, func(p WordPlace) bool {
		return !p.Xstate && p.Address < begin+uint64(e.Size) && p.Address+uint64(p.Length) > begin
	})
}

// start applies the writes of a start to the registers and the extended state of a thread.
func (c *comparer) start(thread int, t *Thread) {
	registers := reflect.ValueOf(&t.Regs).Elem()
	for _, o := range c.written.Offsets {
		if v, ok := o.Value(c.written.Words[o.Word]); ok && o.Thread == thread {
			registers.Field(o.Register).SetUint(uint64(v))
		}
	}
	t.Xstate = slices.Clone(t.Xstate)
	for _, p := range c.written.Places {
		if p.Xstate && p.Thread == thread {
			copy(t.Xstate[p.Address:], c.written.Words[p.Word][p.From:p.From+p.Length])
		}
	}
}

// short explains a word of 8 bytes of a part of a VMA, at offset off of the part, by single
// bytes of late words, and makes b equal to a there. It reports whether they are all of the
// difference.
func (c *comparer) short(v *VMA, at int64, a, b []byte, off int) bool {
	lo, hi := max(0, off-256), min(len(a), off+264)
	left := bytes.Clone(b[lo:hi])
	spans := c.words.exchange(a[lo:hi], left, off-lo, off-lo+8, true)
	if !bytes.Equal(a[off:off+8], left[off-lo:off-lo+8]) {
		return false
	}
	copy(b[lo:hi], left)
	c.places(spans, WordPlace{Address: v.Start + uint64(at) + uint64(lo)}, where(v))
	return true
}

// places notes places of late words.
func (c *comparer) places(spans []Span, place WordPlace, name string) {
	base := place.Address
	for _, s := range spans {
		place.Address, place.Span = base+uint64(s.At), s
		place.At = 0
		c.out.Words = append(c.out.Words, place)
		c.explained(RuleWord, Difference{Where: name, Address: place.Address, Length: s.Length, At: -1})
	}
}

// offset finds registers that hold the first byte of a late word minus a byte of a string
// that it was compared with. Where the first bytes are equal in one of the two images, the
// register holds the difference of later bytes there.
func (c *comparer) offset(thread, register int, x, y uint64) bool {
	if x>>32 != 0 || y>>32 != 0 {
		return false
	}
	dx, dy := int32(x), int32(y)
	found := false
	for k, w := range c.words.words {
		if w.Whole || len(w.A) == 0 || w.A[0] == w.B[0] {
			continue
		}
		constant := dx - int32(w.A[0])
		switch {
		case dx-dy == int32(w.A[0])-int32(w.B[0]):
		case constant == -int32(w.B[0]) && isByteDifference(dy):
		case dy-int32(w.B[0]) == -int32(w.A[0]) && isByteDifference(dx):
			constant = -int32(w.A[0])
		default:
			continue
		}
		c.out.Offsets = append(c.out.Offsets, Offset{thread, register, k, constant})
		found = true
	}
	return found
}

// isByteDifference reports whether two bytes can differ by d.
func isByteDifference(d int32) bool {
	return d > -256 && d < 256
}
