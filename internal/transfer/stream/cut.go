package stream

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"

	"premix/internal/store"
)

// errShort is returned for a file that ended before its size.
var errShort = errors.New("the file is shorter than it was")

// windows hold the parts of a file that were read and not yet cut.
var windows = sync.Pool{New: func() any { b := make([]byte, 2*maxChunk); return &b }}

// cutFile cuts a file as a store does: at boundaries that depend on the content, and with
// holes in place of [store.HoleSize] zeros. It calls each with the pieces in order; data is
// nil for a hole, and valid until each returns.
func cutFile(ctx context.Context, f *os.File, size int64, each func(at, length int64, data []byte) error) error {
	w := windows.Get().(*[]byte)
	defer windows.Put(w)
	window := *w
	cutter := store.FileChunker(size)
	begin, kept := int64(0), 0 // offset of the window in the file; bytes in it that are not cut yet
	var hole int64             // length of the hole that ends at begin
	gap := func() error {
		if hole == 0 {
			return nil
		}
		n := hole
		hole = 0
		return each(begin-n, n, nil)
	}
	// cut removes the pieces from the front of data; if the data ends here, all of it.
	cut := func(data []byte, ends bool) (rest []byte, err error) {
		for len(data) >= maxChunk || ends && len(data) > 0 {
			if err := gap(); err != nil {
				return nil, err
			}
			n := cutter.Cut(data)
			if err := each(begin, int64(n), data[:n]); err != nil {
				return nil, err
			}
			begin, data = begin+int64(n), data[n:]
		}
		return data, nil
	}
	for at := int64(0); at < size; {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		n := int(min(maxChunk, size-at))
		if m, err := io.ReadFull(io.NewSectionReader(f, at, int64(n)), window[kept:kept+n]); err != nil {
			if m < n && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)) {
				return errShort
			}
			return err
		}
		at += int64(n)
		from, end := 0, kept+n
		for pos := kept; pos < end; {
			piece := min(store.HoleSize, end-pos)
			if zero(window[pos : pos+piece]) {
				if _, err := cut(window[from:pos], true); err != nil {
					return err
				}
				hole, begin = hole+int64(piece), begin+int64(piece)
				from = pos + piece
			}
			pos += piece
		}
		rest, err := cut(window[from:end], at == size)
		if err != nil {
			return err
		}
		if kept = copy(window, rest); kept == 0 && hole > 0 && at < size {
			// The file system may know where the hole ends.
			if next := nextData(f, at, size) / store.HoleSize * store.HoleSize; next > at {
				hole, begin, at = hole+next-at, begin+next-at, next
			}
		}
	}
	return gap()
}

// zero reports whether all bytes of p are 0.
func zero(p []byte) bool {
	for len(p) >= 8 {
		if p[0]|p[1]|p[2]|p[3]|p[4]|p[5]|p[6]|p[7] != 0 {
			return false
		}
		p = p[8:]
	}
	for _, b := range p {
		if b != 0 {
			return false
		}
	}
	return true
}
