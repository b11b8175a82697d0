package inplace

import (
	"os"

	"premix/internal/hotstart/frozen"
	"premix/internal/hotstart/late"
)

type (
	text        = late.Text
	span        = frozen.Span
	frozenPlace = frozen.WordPlace
)

// statParts is the number of additional late words for an input whose stat(2) result the
// tool keeps: see statWords.
const statParts = 10

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
