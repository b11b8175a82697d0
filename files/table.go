package files

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/zstd"
)

// Entry is a row of a scan.
type Entry struct {
	Dir       string `parquet:"dir,dict"`  // absolute path of the directory that it is in; of a root, its own
	Name      string `parquet:"name"`      // "." for a root
	Type      string `parquet:"type,dict"` // f(ile), d(irectory), l(ink), b(lock), c(haracter), p(ipe), s(ocket); ? if unknown
	Size      int64  `parquet:"size"`      // bytes, as stat(2) tells them
	Allocated int64  `parquet:"allocated"` // bytes on disk
	Entries   int64  `parquet:"entries"`   // of a directory: how many were listed in it; -1: it is none, or was not listed whole
	Mode      int32  `parquet:"mode,dict"` // permission bits, with set-user-ID, set-group-ID and sticky
	UID       int64  `parquet:"uid,dict"`
	GID       int64  `parquet:"gid,dict"`
	Links     int64  `parquet:"links,dict"` // hard links
	Inode     int64  `parquet:"inode"`      // the bits of an unsigned number
	Device    int64  `parquet:"device,dict"`
	Accessed  int64  `parquet:"accessed"` // ns since 1970, as the following
	Modified  int64  `parquet:"modified"`
	Changed   int64  `parquet:"changed"`
	Born      int64  `parquet:"born"`       // 0: the file system does not tell
	Error     string `parquet:"error,dict"` // why it is unread, "" if it is not
}

// Path is where the entry is.
func (e *Entry) Path() string {
	if e.Name == "." {
		return e.Dir
	}
	return filepath.Join(e.Dir, e.Name)
}

// Column is a column of a scan.
type Column int

// The columns, in the order of the fields of Entry.
const (
	ColumnDir Column = iota
	ColumnName
	ColumnType
	ColumnSize
	ColumnAllocated
	ColumnEntries
	ColumnMode
	ColumnUID
	ColumnGID
	ColumnLinks
	ColumnInode
	ColumnDevice
	ColumnAccessed
	ColumnModified
	ColumnChanged
	ColumnBorn
	ColumnError
	columns
)

// Keys of the metadata of the file.
const (
	keyFormat = "premix.files.format"
	keyRoots  = "premix.files.roots"
	keyBegun  = "premix.files.begun"
	keyEnded  = "premix.files.ended"
	format    = "1"
)

// groupRows is how many rows a row group has. A worker holds one.
const groupRows = 128 << 10

// writer writes a scan. Row groups are encoded by those who fill them, and written one
// at a time.
type writer struct {
	f    *os.File
	path string
	mu   sync.Mutex // held while a row group is written
	w    *parquet.GenericWriter[Entry]
}

func newWriter(path string) (*writer, error) {
	f, err := os.OpenFile(path+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
	if err != nil {
		return nil, &WriteError{path, err}
	}
	return &writer{f: f, path: path, w: parquet.NewGenericWriter[Entry](f,
		parquet.Compression(&zstd.Codec{Level: zstd.SpeedFastest}),
		parquet.MaxRowsPerRowGroup(groupRows),
		parquet.DataPageStatistics(false))}, nil
}

// close gives the file its name if the scan went well, or removes it, and returns err
// or else why the file could not be finished.
func (w *writer) close(err error) error {
	if err != nil {
		return errors.Join(err, w.f.Close(), os.Remove(w.f.Name()))
	}
	if err = w.w.Close(); err == nil {
		err = w.f.Sync()
	}
	if cerr := w.f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(w.f.Name(), w.path)
	}
	if err != nil {
		return &WriteError{w.path, errors.Join(err, os.Remove(w.f.Name()))}
	}
	return nil
}

// WriteError tells that a table could not be written.
type WriteError struct {
	Path string
	Err  error
}

func (e *WriteError) Error() string { return fmt.Sprintf("cannot write %s: %v", e.Path, e.Err) }
func (e *WriteError) Unwrap() error { return e.Err }

// Hint is the way out.
func (e *WriteError) Hint() string {
	return "name a file in a directory that you may write, on a disk with room for it"
}

// row is an entry as a worker keeps it until its row group is written.
type row struct {
	dir  string
	end  int32 // of the name, in group.names
	kind byte
	ints [len(intColumns)]int64
}

// intColumns are the integer columns, in the order of row.ints.
var intColumns = [...]Column{ColumnSize, ColumnAllocated, ColumnEntries, ColumnMode, ColumnUID, ColumnGID, ColumnLinks, ColumnInode, ColumnDevice, ColumnAccessed, ColumnModified, ColumnChanged, ColumnBorn}

// group collects the rows of a row group.
type group struct {
	rows  []row
	names []byte         // one after another
	wrong map[int]string // the column error, by row
	w     *writer
	rg    *parquet.ConcurrentRowGroupWriter
	vals  []parquet.Value
}

func newGroup(w *writer) *group {
	return &group{w: w, rg: w.w.BeginRowGroup(), rows: make([]row, 0, groupRows), vals: make([]parquet.Value, 0, 4096), wrong: make(map[int]string)}
}

// typeNames are the strings of the column type, by their byte.
var typeNames = [...]string{'f': "f", 'd': "d", 'l': "l", 'b': "b", 'c': "c", 'p': "p", 's': "s", '?': "?"}

// flush writes the rows as a row group.
func (g *group) flush() error {
	if len(g.rows) == 0 {
		return nil
	}
	write := func(column Column, value func(i int, r *row) parquet.Value) error {
		for from := 0; from < len(g.rows); from += cap(g.vals) {
			vals := g.vals[:0]
			for i := from; i < min(from+cap(g.vals), len(g.rows)); i++ {
				vals = append(vals, value(i, &g.rows[i]))
			}
			if _, err := g.rg.ColumnWriters()[column].WriteRowValues(vals); err != nil {
				return err
			}
		}
		return nil
	}
	text := func(s string) parquet.Value { return parquet.ByteArrayValue(bytesOf(s)) }
	begin := int32(0)
	errs := []error{
		write(ColumnDir, func(_ int, r *row) parquet.Value { return text(r.dir) }),
		write(ColumnName, func(_ int, r *row) parquet.Value {
			v := parquet.ByteArrayValue(g.names[begin:r.end])
			begin = r.end
			return v
		}),
		write(ColumnType, func(_ int, r *row) parquet.Value { return text(typeNames[r.kind]) }),
		write(ColumnError, func(i int, _ *row) parquet.Value { return text(g.wrong[i]) }),
	}
	for k, c := range intColumns {
		if c == ColumnMode {
			errs = append(errs, write(c, func(_ int, r *row) parquet.Value { return parquet.Int32Value(int32(r.ints[k])) }))
		} else {
			errs = append(errs, write(c, func(_ int, r *row) parquet.Value { return parquet.Int64Value(r.ints[k]) }))
		}
	}
	errs = append(errs, g.rg.Flush())
	err := errors.Join(errs...)
	if err == nil {
		g.w.mu.Lock()
		_, err = g.rg.Commit()
		g.w.mu.Unlock()
	}
	if err != nil {
		return &WriteError{g.w.path, err}
	}
	g.rows, g.names = g.rows[:0], g.names[:0]
	clear(g.wrong)
	return nil
}

// Table is a scan that is read.
type Table struct {
	Path  string
	Roots []string
	Begun time.Time
	Ended time.Time
	Rows  int64

	f    *os.File
	file *parquet.File
}

// TableError tells that a file cannot be read as a scan.
type TableError struct {
	Path   string
	Reason string
	Err    error
}

func (e *TableError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("%s %s: %v", e.Path, e.Reason, e.Err)
	}
	return fmt.Sprintf("%s %s", e.Path, e.Reason)
}

func (e *TableError) Unwrap() error { return e.Err }

// Hint is the way out.
func (e *TableError) Hint() string {
	return "premix files scan DIR -o " + e.Path + " makes one"
}

// OpenTable opens a scan, which the caller closes. The error is a [TableError].
func OpenTable(path string) (_ *Table, err error) {
	t := &Table{Path: path}
	if t.f, err = os.Open(path); err != nil {
		return nil, &TableError{path, "cannot be opened", err}
	}
	defer func() {
		if err != nil {
			t.f.Close()
		}
	}()
	st, err := t.f.Stat()
	if err != nil {
		return nil, &TableError{path, "cannot be opened", err}
	}
	if t.file, err = parquet.OpenFile(t.f, st.Size(), parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true)); err != nil {
		return nil, &TableError{path, "is no Parquet file", err}
	}
	switch v, ok := t.file.Lookup(keyFormat); {
	case !ok:
		return nil, &TableError{path, "is not a scan: it was not written by premix files scan", nil}
	case v != format:
		return nil, &TableError{path, fmt.Sprintf("has the format %q, and this premix reads %q", v, format), nil}
	}
	roots, _ := t.file.Lookup(keyRoots)
	if err := json.Unmarshal([]byte(roots), &t.Roots); err != nil {
		return nil, &TableError{path, "has damaged metadata", err}
	}
	for key, at := range map[string]*time.Time{keyBegun: &t.Begun, keyEnded: &t.Ended} {
		v, _ := t.file.Lookup(key)
		if *at, err = time.Parse(time.RFC3339Nano, v); err != nil {
			return nil, &TableError{path, "has damaged metadata", err}
		}
	}
	t.Rows = t.file.NumRows()
	return t, nil
}

// Close closes the file.
func (t *Table) Close() error { return t.f.Close() }

// readRows is how many rows are read at a time.
const readRows = 4096

// Each calls f with each row. The entry is valid until f returns. An error of f ends
// the reading, and is returned.
func (t *Table) Each(f func(*Entry) error) error {
	r := parquet.NewGenericReader[Entry](t.file)
	defer r.Close()
	rows := make([]Entry, readRows)
	for {
		n, err := r.Read(rows)
		for i := range rows[:n] {
			if err := f(&rows[i]); err != nil {
				return err
			}
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return &TableError{t.Path, "is damaged", err}
		}
	}
}
