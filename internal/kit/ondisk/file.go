package ondisk

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
)

const fileBuffer = 64 << 10

// create returns a new file in dir that has no name.
func create(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, "ondisk-")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// File is a temporary file to which bytes are appended, and which may be read at any time.
type File struct {
	f    *os.File
	buf  []byte // the end of the file, not yet written
	base int64  // position of buf
	err  error  // the first
}

// NewFile returns an empty file in the directory dir.
func NewFile(dir string) (*File, error) {
	f, err := create(dir)
	if err != nil {
		return nil, err
	}
	return &File{f: f, buf: make([]byte, 0, fileBuffer)}, nil
}

// Write appends p.
func (f *File) Write(p []byte) (int, error) {
	if len(f.buf)+len(p) > cap(f.buf) {
		if err := f.flush(); err != nil {
			return 0, err
		}
	}
	if len(p) > cap(f.buf) {
		_, f.err = f.f.WriteAt(p, f.base)
		f.base += int64(len(p))
		return len(p), f.err
	}
	f.buf = append(f.buf, p...)
	return len(p), f.err
}

func (f *File) flush() error {
	if len(f.buf) > 0 && f.err == nil {
		_, f.err = f.f.WriteAt(f.buf, f.base)
	}
	f.base, f.buf = f.base+int64(len(f.buf)), f.buf[:0]
	return f.err
}

// Size returns the number of bytes that were appended.
func (f *File) Size() int64 { return f.base + int64(len(f.buf)) }

// Truncate removes all bytes behind the first size.
func (f *File) Truncate(size int64) error {
	if err := f.flush(); err != nil {
		return err
	}
	f.base = size
	f.err = f.f.Truncate(size)
	return f.err
}

// ReadAt reads bytes of the file.
func (f *File) ReadAt(p []byte, off int64) (int, error) {
	if off+int64(len(p)) > f.base {
		if err := f.flush(); err != nil {
			return 0, err
		}
	}
	return f.f.ReadAt(p, off)
}

// Close removes the file. A nil File may be closed.
func (f *File) Close() error {
	if f == nil {
		return nil
	}
	return f.f.Close()
}

// Reader returns a reader that begins at off and has a buffer of this size.
func (f *File) Reader(off int64, buffer int) *Reader {
	return &Reader{from: f, at: off, buf: make([]byte, 0, buffer)}
}

// Reader reads a File in order. After the first error, all its methods return zero values,
// and Err the error.
type Reader struct {
	from io.ReaderAt
	at   int64  // position of the byte behind buf
	buf  []byte // read from the file, from pos on not yet returned
	pos  int
	err  error
}

// Err returns the first error. It is io.ErrUnexpectedEOF where the file ended too early.
func (r *Reader) Err() error { return r.err }

// Offset returns the position of the next byte.
func (r *Reader) Offset() int64 { return r.at - int64(len(r.buf)-r.pos) }

// MoveTo continues at off.
func (r *Reader) MoveTo(off int64) {
	if start := r.at - int64(len(r.buf)); off >= start && off <= r.at {
		r.pos = int(off - start)
		return
	}
	r.at, r.buf, r.pos = off, r.buf[:0], 0
}

// More reports whether there are further bytes.
func (r *Reader) More() bool {
	return r.err == nil && (r.pos < len(r.buf) || r.fill(1) && r.err == nil)
}

// fill makes n bytes available, and reports whether there are so many.
func (r *Reader) fill(n int) bool {
	rest := copy(r.buf[:cap(r.buf)], r.buf[r.pos:])
	if n > cap(r.buf) {
		r.buf = append(make([]byte, 0, n), r.buf[:rest]...)
	}
	k, err := r.from.ReadAt(r.buf[rest:cap(r.buf)], r.at)
	r.buf, r.pos, r.at = r.buf[:rest+k], 0, r.at+int64(k)
	if len(r.buf) >= n {
		return true
	}
	if !errors.Is(err, io.EOF) {
		r.err = err
	}
	return false
}

// Next returns the next n bytes, which are valid until the next call.
func (r *Reader) Next(n int) []byte {
	if r.err != nil {
		return nil
	}
	if len(r.buf)-r.pos < n && !r.fill(n) {
		if r.err == nil {
			r.err = io.ErrUnexpectedEOF
		}
		return nil
	}
	b := r.buf[r.pos : r.pos+n]
	r.pos += n
	return b
}

// Skip passes over n bytes.
func (r *Reader) Skip(n int64) { r.MoveTo(r.Offset() + n) }

// Byte returns the next byte.
func (r *Reader) Byte() byte {
	if r.err == nil && r.pos < len(r.buf) {
		r.pos++
		return r.buf[r.pos-1]
	}
	if b := r.Next(1); b != nil {
		return b[0]
	}
	return 0
}

// Uvarint returns the next number, as binary.AppendUvarint writes it.
func (r *Reader) Uvarint() uint64 {
	if r.err == nil {
		if v, n := binary.Uvarint(r.buf[r.pos:]); n > 0 {
			r.pos += n
			return v
		}
	}
	v, err := binary.ReadUvarint(byteReader{r})
	if r.err == nil && err != nil {
		r.err = err
	}
	return v
}

type byteReader struct{ r *Reader }

func (b byteReader) ReadByte() (byte, error) {
	c := b.r.Byte()
	return c, b.r.err
}

// Bytes returns the next bytes, whose number precedes them as a Uvarint. They are valid until
// the next call.
func (r *Reader) Bytes() []byte { return r.Next(int(r.Uvarint())) }
