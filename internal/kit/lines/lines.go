package lines

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrShorter is the error for a file from which bytes at the end were removed.
var ErrShorter = errors.New("the file is shorter than it was")

// Append writes text at end, which is the end of the whole records of a file, and returns
// their new end. With sync they are on the disk. On an error the file keeps nothing of text.
func Append(f *os.File, end int64, text []byte, sync bool) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return end, err
	}
	switch size := info.Size(); {
	case size < end:
		return end, &fs.PathError{Op: "append", Path: f.Name(), Err: ErrShorter}
	case size > end: // truncating a file of the right size would release space reserved behind its end
		if err := f.Truncate(end); err != nil {
			return end, err
		}
	}
	_, err = writeAt(f, text, end)
	if err == nil && sync {
		if err = fdatasync(int(f.Fd())); err != nil {
			err = &fs.PathError{Op: "sync", Path: f.Name(), Err: err}
		}
	}
	if err != nil {
		return end, errors.Join(err, f.Truncate(end))
	}
	return end + int64(len(text)), nil
}

// writeAt and fdatasync are replaced by fault tests.
var (
	writeAt   = (*os.File).WriteAt
	fdatasync = unix.Fdatasync
)

// Read calls f with each whole line of r that begins at or after an offset, its newline
// included, and returns the end of the last one. A line may have any length, and is valid
// until f returns. An error of f stops Read; the returned end is before that line.
//
// Lines are read repeatedly until two readings are equal: a writer may replace a partial
// line during a reading, which would then return the start of the old line with the end of
// the new one.
func Read(r io.ReaderAt, from int64, f func(line []byte, at int64) error) (end int64, err error) {
	// Most calls find little or nothing new: a worker that gets one task at a time calls
	// Read a few times for each.
	const little, much = 4 << 10, 256 << 10
	buf, again := make([]byte, little), make([]byte, little)
	end = from
	for {
		n, err := r.ReadAt(buf, end)
		for bytes.IndexByte(buf[:n], '\n') >= 0 {
			var m int
			if m, err = r.ReadAt(again[:n], end); m == n && bytes.Equal(buf[:n], again[:n]) {
				break
			}
			buf, again, n = again, buf, m
		}
		text := buf[:n]
		started := 0
		for {
			i := bytes.IndexByte(text[started:], '\n')
			if i < 0 {
				break
			}
			if err := f(text[started:started+i+1], end+int64(started)); err != nil {
				return end + int64(started), err
			}
			started += i + 1
		}
		end += int64(started)
		if err != nil && !errors.Is(err, io.EOF) {
			return end, err
		}
		if n < len(buf) {
			return end, nil
		}
		if size := max(much, 2*len(buf)); len(buf) < much || started == 0 {
			buf, again = make([]byte, size), make([]byte, size)
		}
	}
}

// Last returns the last lines of a text, at most n, as valid UTF-8 and without empty lines at
// the end. Of a line that a program has rewritten in place it returns the last state.
func Last(text []byte, n int) []string {
	text = bytes.TrimRight(text, "\r\n")
	if len(text) == 0 {
		return nil
	}
	list := strings.Split(strings.ToValidUTF8(string(text), "?"), "\n")
	list = list[max(0, len(list)-n):]
	for i, l := range list {
		l = strings.TrimRight(l, "\r")
		list[i] = l[strings.LastIndexByte(l, '\r')+1:]
	}
	return list
}
