package inplace

import (
	"os"
	"slices"

	"premix/internal/hotstart/frozen"
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

// statParts is the number of additional late words for an input whose stat(2) result the
// tool keeps: see statWords.
const statParts = 7

// readPart reads a part of a file. Where the file ends before the part does, the error is
// io.EOF or io.ErrUnexpectedEOF.
func readPart(path string, offset, length int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := make([]byte, length)
	_, err = f.ReadAt(b, offset)
	return b, err
}
