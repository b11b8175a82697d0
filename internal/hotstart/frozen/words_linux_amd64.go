package frozen

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"

	"golang.org/x/sys/unix"

	"premix/internal/hotstart/tracer"
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
			copy(a[p.Address-begin:], c.written.part(p))
		}
	}
	c.places(c.words.Exchange(a, b), WordPlace{Address: begin}, where(v))
	c.hold(begin, a, b)
}

// hold compares the known dates in a part of a VMA with the second image, and makes b equal to
// a where they are right.
func (c *comparer) hold(begin uint64, a, b []byte) {
	seconds := passed(c.prep[0].Began.Realtime, c.prep[1].Began.Realtime)
	for _, d := range c.known {
		if d.Address < begin || d.Address >= begin+uint64(len(a)) {
			continue
		}
		d.At = int(d.Address - begin)
		for _, held := range Hold([]Date{d.Date}, a, b, seconds) {
			held.At = 0
			c.out.Dates = append(c.out.Dates, DatePlace{d.Address, held})
		}
	}
}

// writes reports whether a start writes into a part of a VMA, or keeps bytes of it.
func (c *comparer) writes(v *VMA, e Extent) bool {
	begin := v.Start + uint64(e.Offset)
	if slices.ContainsFunc(c.known, func(d DatePlace) bool {
		return d.Address < begin+uint64(e.Size) && d.Address+uint64(d.Length) > begin
	}) {
		return true
	}
	if h := c.heads[0]; h != nil && slices.ContainsFunc(h.Free, func(r Range) bool { return r.Start < begin+uint64(e.Size) && r.End > begin }) {
		return true
	}
	return slices.ContainsFunc(c.written.Places, func(p WordPlace) bool {
		return !p.Xstate && p.Address < begin+uint64(e.Size) && p.Address+uint64(p.Length) > begin
	})
}

// register returns the field of r with an index.
func register(r *unix.PtraceRegs, index int) reflect.Value {
	return reflect.ValueOf(r).Elem().Field(index)
}

// part returns the part of a late word that belongs at a place.
func (l *Late) part(p WordPlace) []byte {
	return []byte(l.Words[p.Word][p.From : p.From+p.Length])
}

// With returns an image with late words in the registers and in the extended state of its
// threads. It does not change im.
func (im *Image) With(l *Late) (*Image, error) {
	other := *im
	other.Threads = slices.Clone(im.Threads)
	for i := range other.Threads {
		other.Threads[i].Xstate = slices.Clone(other.Threads[i].Xstate)
	}
	for _, o := range l.Offsets {
		v, ok := o.Value(l.Words[o.Word])
		if !ok {
			return nil, fmt.Errorf("the tool compares %q with a text that begins with the same letter", l.Words[o.Word])
		}
		register(&other.Threads[o.Thread].Regs, o.Register).SetUint(uint64(v))
	}
	for _, p := range l.Places {
		if p.Xstate {
			copy(other.Threads[p.Thread].Xstate[p.Address:], l.part(p))
		}
	}
	return &other, nil
}

// Write writes late words into the memory of a process that Image.Start has made.
func (l *Late) Write(p *tracer.Proc) error {
	for _, place := range l.Places {
		if place.Xstate {
			continue
		}
		if err := p.Write(place.Address, l.part(place)); err != nil {
			return err
		}
	}
	return nil
}

// ConfirmedOffsets returns the offsets whose registers hold the values for the late words of another
// preparation.
func ConfirmedOffsets(im *Image, offsets []Offset, words []string) []Offset {
	return slices.DeleteFunc(slices.Clone(offsets), func(o Offset) bool {
		v, ok := o.Value(words[o.Word])
		return !ok || uint32(register(&im.Threads[o.Thread].Regs, o.Register).Uint()) != v
	})
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
