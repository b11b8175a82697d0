package late

import (
	"bytes"
	"slices"

	"premix/internal/hotstart/frozen"
)

// Text is bytes with late words in them, as of one preparation.
type Text struct {
	Bytes []byte
	Spans []frozen.Span
}

// With returns the text with the late words of another call.
func (t Text) With(words []string) []byte {
	b := slices.Clone(t.Bytes)
	for _, s := range t.Spans {
		copy(b[s.At:s.At+s.Length], words[s.Word][s.From:])
	}
	return b
}

// EqualButNumbers reports whether two texts are equal apart from numbers, which may be times.
func EqualButNumbers(a, b []byte) bool { return bytes.Equal(blankNumbers(a), blankNumbers(b)) }

// blankNumbers puts one character in the place of each number. A time that has passed is
// negative by the clock of another preparation.
func blankNumbers(text []byte) []byte {
	var out []byte
	for i, c := range text {
		digit := c >= '0' && c <= '9' || (c == '.' || c == '-') && i+1 < len(text) && text[i+1] >= '0' && text[i+1] <= '9'
		switch {
		case !digit:
			out = append(out, c)
		case len(out) == 0 || out[len(out)-1] != 0:
			out = append(out, 0)
		}
	}
	return out
}
