package record

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/beneath"
	"premix/internal/kit/exit"
	"premix/internal/kit/lines"
	"premix/internal/kit/owner"
)

// Format is the version of the JSON Lines tables that this package writes. A
// reader refuses a higher one and reads every lower one.
const Format = 1

// MaxLine is the longest line, in bytes, that is read. A longer one counts as
// torn.
const MaxLine = 1 << 20

// reserve is how much space, in bytes, a Writer keeps allocated behind the end
// of its file, so that failures can still be recorded on a full disk.
const reserve = 64 << 10

// Header is the first line of a table.
type Header struct {
	Table   string    `json:"table"`  // kind of record, for example "task"
	Format  int       `json:"format"` // version; see Format
	Premix  string    `json:"premix"` // version of the premix that wrote it
	Host    string    `json:"host"`
	PID     int       `json:"pid"`
	Created time.Time `json:"created"`
}

// FormatError reports that a table was written by a newer premix.
type FormatError struct {
	Path   string
	Format int
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("%s has format %d, this premix reads up to %d", e.Path, e.Format, Format)
}

// ExitCode implements exit.Coded.
func (*FormatError) ExitCode() exit.Code { return exit.Directory }

// Hint returns the hint for the user.
func (e *FormatError) Hint() string { return "use the version of premix that wrote it, or a newer one" }

// Writer appends records to a table. It is safe for concurrent use.
//
// Lock order: sync before mu. mu guards the buffer and is never held during
// I/O; sync is held by the one goroutine that writes on behalf of the others.
type Writer struct {
	f *os.File

	sync     sync.Mutex
	size     int64 // bytes of whole lines in the file; guarded by sync
	reserved int64 // size that space is reserved up to; guarded by sync

	mu      sync.Mutex
	pending *batch
}

// batch is the lines that one write and one fsync make durable.
type batch struct {
	lines bytes.Buffer
	once  sync.Once
	err   error
}

// Create makes a new table; it fails if path exists. The header is durable when
// Create returns.
func Create(path string, h Header) (*Writer, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, err
	}
	w := &Writer{f: f, pending: &batch{}}
	h.Format = Format
	if err := w.Commit(h); err != nil {
		f.Close()
		os.Remove(path)
		return nil, err
	}
	if err := beneath.SyncDir(filepath.Dir(path)); err != nil {
		f.Close()
		return nil, err
	}
	return w, nil
}

// Commit appends v as one line and returns when it is durable. On an error, such
// as a full disk, nothing of v stays in the file.
func (w *Writer) Commit(v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("record: %w", err)
	}
	w.mu.Lock()
	b := w.pending
	b.lines.Write(line)
	b.lines.WriteByte('\n')
	w.mu.Unlock()

	// The first of a batch's committers to get here writes for all of them;
	// commits that arrive during the write gather in the next batch.
	b.once.Do(func() {
		w.sync.Lock()
		defer w.sync.Unlock()
		w.mu.Lock()
		w.pending = &batch{}
		w.mu.Unlock()
		b.err = w.write(b.lines.Bytes())
	})
	return b.err
}

// write appends whole lines to the file. The caller holds sync.
func (w *Writer) write(text []byte) (err error) {
	if w.size, err = lines.Append(w.f, w.size, text, true); err != nil {
		w.reserved = 0
		return err
	}
	if w.reserved < w.size+reserve {
		// Not every file system can reserve; the table is whole without it.
		if unix.Fallocate(int(w.f.Fd()), unix.FALLOC_FL_KEEP_SIZE, w.size, 2*reserve) == nil {
			w.reserved = w.size + 2*reserve
		}
	}
	return nil
}

// Append appends whole lines that the caller has made, and returns where they begin
// when they are durable. On an error nothing of them stays in the file.
func (w *Writer) Append(lines []byte) (offset int64, err error) {
	w.sync.Lock()
	defer w.sync.Unlock()
	offset = w.size
	return offset, w.write(lines)
}

// Close gives back the reserved space and closes the file.
func (w *Writer) Close() error {
	w.sync.Lock()
	defer w.sync.Unlock()
	return errors.Join(w.f.Truncate(w.size), w.f.Close())
}

// Read calls f for each record of the table at path, in order, and returns the
// header and the number of torn lines. A table whose header itself is torn has
// no records. The error of f ends the reading and is returned as it is.
func Read[T any](path string, f func(*T) error) (h Header, torn int, err error) {
	file, err := owner.OpenOthers(path)
	if err != nil {
		return h, 0, err
	}
	defer file.Close()
	first := true
	torn, err = Lines(file, func(line []byte) (bool, error) {
		if first {
			first = false
			if json.Unmarshal(line, &h) != nil || h.Format < 1 {
				return false, errHeader
			}
			if h.Format > Format {
				return false, &FormatError{Path: path, Format: h.Format}
			}
			return true, nil
		}
		v := new(T)
		if json.Unmarshal(line, v) != nil {
			return false, nil
		}
		return true, f(v)
	})
	if errors.Is(err, errHeader) {
		return Header{}, torn + 1, nil
	}
	return h, torn, err
}

// Follow calls f for each whole line of a table that grows, from an offset on, and returns the
// offset for the next call. From 0 on it omits the header, and returns 0 as long as that is
// torn. See [lines.Read].
func Follow(table *os.File, from int64, f func(line []byte, at int64) error) (end int64, err error) {
	end, err = lines.Read(table, from, func(line []byte, at int64) error {
		if at > 0 {
			return f(line, at)
		}
		var h Header
		if json.Unmarshal(line, &h) != nil || h.Format < 1 {
			return errHeader
		}
		if h.Format > Format {
			return &FormatError{Path: table.Name(), Format: h.Format}
		}
		return nil
	})
	if errors.Is(err, errHeader) {
		err = nil
	}
	return end, err
}

// errHeader ends the reading of a table whose header is torn.
var errHeader = errors.New("torn header")

// Lines calls f for each line of r, without its newline, and returns how many
// were torn: longer than MaxLine, or reported as torn by f. The line is valid
// until f returns. An error of f ends the reading and is returned.
func Lines(r io.Reader, f func(line []byte) (whole bool, err error)) (torn int, err error) {
	in := bufio.NewReaderSize(r, MaxLine)
	for {
		line, err := in.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			torn++
			for errors.Is(err, bufio.ErrBufferFull) {
				_, err = in.ReadSlice('\n')
			}
		case err != nil && !errors.Is(err, io.EOF):
			return torn, err
		default:
			if line = bytes.TrimSuffix(line, []byte("\n")); len(line) > 0 {
				whole, ferr := f(line)
				if ferr != nil {
					return torn, ferr
				}
				if !whole {
					torn++
				}
			}
		}
		if errors.Is(err, io.EOF) {
			return torn, nil
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return torn, err
		}
	}
}
