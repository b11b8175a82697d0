package inplace

import (
	"slices"

	"premix/hotstart/frozen"
)

type (
	span        = frozen.Span
	frozenPlace = frozen.WordPlace
)

// text is bytes with late words in them, as of preparation A.
type text struct {
	Bytes []byte
	Spans []span
}

// with returns the text with the late words of another call.
func (t text) with(words []string) []byte {
	b := slices.Clone(t.Bytes)
	for _, s := range t.Spans {
		copy(b[s.At:s.At+s.Length], words[s.Word][s.From:])
	}
	return b
}

// statParts is the number of late words that an input of which the tool keeps what stat(2)
// says stands for: see statWords.
const statParts = 7
