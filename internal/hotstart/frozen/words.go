package frozen

import "bytes"

// LateWord is a late word with its values in two preparations. Both values have the same
// length. At each place where both have the same byte, the values of all later calls have
// this byte too.
type LateWord struct {
	A, B []byte
	// Whole is true if only whole occurrences of the word can be replaced.
	Whole bool
}

// Span is a part of some bytes that holds a part of a late word.
type Span struct {
	At     int // offset in the bytes
	Word   int // index of the word
	From   int // offset in the word
	Length int
	// Short is true if so few bytes differ that this may be a coincidence. A third
	// preparation must show that it is not.
	Short bool
}

// spanMinimum is the number of differing bytes from which on a part of a word is not Short.
const spanMinimum = 2

// Words finds late words in memory.
type Words struct {
	words []LateWord
	at    map[[2]byte][]wordByte // where a differing pair of bytes stands
}

type wordByte struct{ word, at int }

// NewWords returns a Words for some late words.
func NewWords(words []LateWord) *Words {
	w := &Words{words: words, at: map[[2]byte][]wordByte{}}
	for k, word := range words {
		for i := range min(len(word.A), len(word.B)) {
			if pair := [2]byte{word.A[i], word.B[i]}; pair[0] != pair[1] {
				w.at[pair] = append(w.at[pair], wordByte{k, i})
			}
		}
	}
	return w
}

// Exchange finds the parts of a, of one preparation, and b, of the other, that differ by
// late words, and makes b equal to a there. What differs after that is not explained by
// late words. No Span is Short.
func (w *Words) Exchange(a, b []byte) []Span { return w.exchange(a, b, 0, min(len(a), len(b)), false) }

// exchange does the same as Exchange, for the differences in [from, to).
func (w *Words) exchange(a, b []byte, from, to int, short bool) []Span {
	var spans []Span
	for i := from; i < to; i++ {
		if a[i] == b[i] {
			continue
		}
		best := Span{}
		for _, c := range w.at[[2]byte{a[i], b[i]}] {
			if s, ok := w.around(a, b, i, c); ok && s.Length > best.Length && (short || !s.Short) {
				best = s
			}
		}
		if best.Length > 0 {
			copy(b[best.At:best.At+best.Length], a[best.At:])
			spans = append(spans, best)
			i = best.At + best.Length - 1
		}
	}
	return spans
}

// around extends an occurrence of one byte of a word as far as the word is there.
func (w *Words) around(a, b []byte, i int, c wordByte) (Span, bool) {
	word := w.words[c.word]
	lo, hi := c.at, c.at+1
	is := func(k int) bool { at := i - c.at + k; return a[at] == word.A[k] && b[at] == word.B[k] }
	for lo > 0 && i-c.at+lo > 0 && is(lo-1) {
		lo--
	}
	for hi < len(word.A) && i-c.at+hi < min(len(a), len(b)) && is(hi) {
		hi++
	}
	part := hi-lo < len(word.A)
	if word.Whole && part {
		return Span{}, false
	}
	differ := hi - lo - equalBytes(word.A[lo:hi], word.B[lo:hi])
	return Span{At: i - c.at + lo, Word: c.word, From: lo, Length: hi - lo, Short: part && differ < spanMinimum}, true
}

func equalBytes(a, b []byte) int {
	n := 0
	for i := range a {
		if a[i] == b[i] {
			n++
		}
	}
	return n
}

// Same reports whether a and b differ by late words alone, and returns their places in a.
func (w *Words) Same(a, b []byte) ([]Span, bool) {
	if len(a) != len(b) {
		return nil, false
	}
	left := bytes.Clone(b)
	spans := w.Exchange(a, left)
	return spans, bytes.Equal(a, left)
}

// Offset is a register of a frozen process that holds the first byte of a late word plus
// a constant. The comparison of two strings leaves this value. An Offset is always Short.
type Offset struct {
	Thread   int // index into Image.Threads
	Register int // index of the field of unix.PtraceRegs
	Word     int
	Constant int32
}

// Value returns the value of the register for a late word. ok is false if the sum is 0:
// the comparison of the two strings then went past the first byte.
func (o Offset) Value(word string) (value uint32, ok bool) {
	v := int32(word[0]) + o.Constant
	return uint32(v), v != 0
}

// Late has the late words of a call, and the places in a frozen process to which a start
// writes them.
type Late struct {
	Places  []WordPlace
	Offsets []Offset
	Words   []string
}

// WordPlace is a part of the memory of a frozen process that holds a part of a late word.
type WordPlace struct {
	Address uint64
	Thread  int  // of a register, index into Image.Threads
	Xstate  bool // Address is an offset in the extended state of Thread
	Span         // At is 0
}
