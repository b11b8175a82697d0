package files

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"
	"golang.org/x/sys/unix"

	"premix/internal/kit/beneath"
	"premix/internal/kit/exit"
	"premix/internal/kit/parquetparts"
)

// Entry is a row of a scan.
type Entry struct {
	Dir       string `parquet:"dir,dict"`  // absolute path of the parent directory; a root has its own path here
	Name      string `parquet:"name"`      // "." for a root
	Type      string `parquet:"type,dict"` // f(ile), d(irectory), l(ink), b(lock), c(haracter), p(ipe), s(ocket); ? if unknown
	Size      int64  `parquet:"size"`      // bytes, as in stat(2)
	Allocated int64  `parquet:"allocated"` // bytes on disk
	Entries   int64  `parquet:"entries"`   // number of entries listed in a directory; -1: not a directory, or not listed to its end
	Mode      int32  `parquet:"mode,dict"` // permission bits, with set-user-ID, set-group-ID and sticky
	UID       int64  `parquet:"uid,dict"`
	GID       int64  `parquet:"gid,dict"`
	Links     int64  `parquet:"links,dict"` // number of hard links
	Inode     int64  `parquet:"inode"`      // an unsigned number, bit for bit
	Device    int64  `parquet:"device,dict"`
	Accessed  int64  `parquet:"accessed"` // ns since 1970, as are the times below
	Modified  int64  `parquet:"modified"`
	Changed   int64  `parquet:"changed"`
	Born      int64  `parquet:"born"`       // 0: the file system does not record it
	Error     string `parquet:"error,dict"` // why the entry is unread, or ""
}

// Path returns the absolute path of the entry.
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
	keyFormat   = "premix.files.format"
	keyRoots    = "premix.files.roots"
	keyStarted  = "premix.files.begun"
	keyFinished = "premix.files.ended"
	tableFormat = "1"
)

// writer writes a scan. Each worker encodes its own row groups; they are written one at a
// time.
type writer struct {
	f    *beneath.File
	path string
	mu   sync.Mutex // held while a row group is written
	meta format.FileMetaData
	at   int64 // bytes written
}

func newWriter(path string) (_ *writer, err error) {
	w := &writer{path: path, at: int64(len(parquetparts.Magic))}
	if w.meta, err = parquetparts.Metadata[Entry](); err != nil {
		return nil, CannotWrite(path, err)
	}
	if w.f, err = beneath.Create(path, 0o666); err != nil {
		return nil, CannotWrite(path, err)
	}
	if _, err = w.f.WriteString(parquetparts.Magic); err != nil {
		return nil, w.close(CannotWrite(path, err))
	}
	return w, nil
}

// say sets a value of the metadata.
func (w *writer) say(key, value string) {
	w.meta.KeyValueMetadata = append(w.meta.KeyValueMetadata, format.KeyValue{Key: key, Value: value})
}

// footer writes the footer of the file.
func (w *writer) footer() error {
	b, err := parquetparts.AppendFooter(nil, &w.meta)
	if err != nil {
		return err
	}
	_, err = w.f.Write(b)
	return err
}

// CannotWrite is the error for a file of results.
func CannotWrite(path string, err error) error {
	return exit.Errorf(exit.Directory, "name a file in a directory that you can write to, on a disk with enough free space", "cannot write %s: %w", path, err)
}

// close renames the file to its final name, or removes it if err is not nil. It returns
// err, or the reason why the file could not be finished.
func (w *writer) close(err error) error {
	if err != nil {
		return errors.Join(err, w.f.Discard())
	}
	if err = w.footer(); err != nil {
		err = errors.Join(err, w.f.Discard())
	} else {
		err = w.f.Commit(beneath.Durable)
	}
	if err != nil {
		return CannotWrite(w.path, err)
	}
	return nil
}

// group collects the rows of a row group. It keeps full pages encoded, and the rows of one
// page as they came.
type group struct {
	w    *writer
	e    *encoder
	rows int // in pages
	n    int // in the page that is being filled

	// Columns are an odd number of cache lines apart, so that the values of a row fall into
	// different sets of the cache.
	values [len(intColumns)][pageRows + 8]int64
	names  []byte // one after another
	ends   [pageRows + 1]uint32
	name   chunk
	ints   [len(intColumns)]ints
	texts  [len(textColumns)]texts
}

func newGroup(w *writer) *group {
	g := &group{w: w, e: newEncoder(), name: chunk{compressed: true}}
	for k, c := range intColumns {
		g.ints[k].narrow = c == ColumnMode
		switch c {
		case ColumnSize, ColumnAccessed, ColumnModified, ColumnChanged, ColumnBorn: // many values equal earlier ones, and those in between are far apart
			g.ints[k].compressed = true
		}
	}
	for k := range g.texts {
		g.texts[k].known, g.texts[k].compressed = make(map[string]int32), true
	}
	return g
}

// typeNames are the strings of the column type, by their byte.
var typeNames = [...]string{'f': "f", 'd': "d", 'l': "l", 'b': "b", 'c': "c", 'p': "p", 's': "s", '?': "?"}

// add adds a row.
func (g *group) add(dir string, name []byte, kind byte, entries int64, reason string, st *unix.Statx_t) error {
	i := g.n
	g.texts[textDir].numbers[i] = g.texts[textDir].number(dir)
	g.texts[textType].numbers[i] = g.texts[textType].number(typeNames[kind])
	g.texts[textError].numbers[i] = g.texts[textError].number(reason)
	g.names = append(g.names, name...)
	g.ends[i+1] = uint32(len(g.names))
	v := &g.values // in the order of intColumns
	v[0][i], v[1][i], v[2][i] = int64(st.Size), int64(st.Blocks)*512, entries
	v[3][i], v[4][i], v[5][i], v[6][i] = int64(st.Mode&^unix.S_IFMT), int64(st.Uid), int64(st.Gid), int64(st.Nlink)
	v[7][i], v[8][i] = int64(st.Ino), int64(device(st))
	v[9][i], v[10][i], v[11][i], v[12][i] = nanoseconds(st.Atime), nanoseconds(st.Mtime), nanoseconds(st.Ctime), nanoseconds(st.Btime)
	if g.n++; g.n < pageRows {
		return nil
	}
	if err := g.page(); err != nil {
		return err
	}
	if g.rows < groupRows {
		return nil
	}
	return g.flush()
}

// page encodes the rows added since the last page.
func (g *group) page() error {
	if g.n == 0 {
		return nil
	}
	errs := []error{g.e.strings(&g.name, g.names, g.ends[:g.n+1])}
	for k := range g.ints {
		errs = append(errs, g.ints[k].add(g.e, g.values[k][:g.n]))
	}
	for k := range g.texts {
		errs = append(errs, g.e.index(&g.texts[k].chunk, g.texts[k].numbers[:g.n]))
	}
	g.rows += g.n
	g.n, g.names = 0, g.names[:0]
	if err := errors.Join(errs...); err != nil {
		return CannotWrite(g.w.path, err)
	}
	return nil
}

// flush writes the rows as a row group.
func (g *group) flush() error {
	err := g.page()
	if err != nil || g.rows == 0 {
		return err
	}
	g.w.mu.Lock()
	err = g.write()
	g.w.mu.Unlock()
	if err != nil {
		return CannotWrite(g.w.path, err)
	}
	g.rows = 0
	g.name.reset()
	for k := range g.ints {
		g.ints[k].reset()
	}
	for k := range g.texts {
		g.texts[k].reset()
	}
	return nil
}

// write appends the row group to the file, and its place to the metadata.
func (g *group) write() error {
	w := g.w
	rg := format.RowGroup{Columns: make([]format.ColumnChunk, columns), NumRows: int64(g.rows), FileOffset: w.at, Ordinal: int16(len(w.meta.RowGroups))}
	put := func(column Column, c *chunk, known int, dictionary []byte, least, most []byte) error {
		leaf := w.meta.Schema[column+1] // after the root
		m := format.ColumnMetaData{Type: leaf.Type.V, PathInSchema: []string{leaf.Name}, NumValues: int64(g.rows), Codec: format.Uncompressed,
			TotalUncompressedSize: c.plain, Statistics: format.Statistics{MinValue: least, MaxValue: most}}
		if c.compressed {
			m.Codec = format.Snappy
		}
		begin := w.at
		if known > 0 {
			header := format.PageHeader{Type: format.DictionaryPage}
			header.DictionaryPageHeader = thrift.New(format.DictionaryPageHeader{NumValues: int32(known), Encoding: format.Plain})
			page, plain, err := g.e.page(nil, dictionary, c.compressed, header)
			if err != nil {
				return err
			}
			if _, err := w.f.Write(page); err != nil {
				return err
			}
			m.DictionaryPageOffset = w.at
			m.TotalUncompressedSize += plain
			m.Encoding = append(m.Encoding, format.Plain)
			w.at += int64(len(page))
		}
		for _, block := range c.pages.list {
			if _, err := w.f.Write(block); err != nil {
				return err
			}
		}
		m.DataPageOffset = w.at
		w.at += int64(c.pages.size)
		m.TotalCompressedSize = w.at - begin
		if c.indexed {
			m.Encoding = append(m.Encoding, format.RLEDictionary)
		}
		if c.direct {
			m.Encoding = append(m.Encoding, c.other)
		}
		rg.TotalByteSize += m.TotalUncompressedSize
		rg.Columns[column] = format.ColumnChunk{FileOffset: begin, MetaData: m}
		return nil
	}
	errs := []error{put(ColumnName, &g.name, 0, nil, nil, nil)}
	for k, column := range intColumns {
		c := &g.ints[k]
		g.e.body = c.dictionary(g.e.body[:0])
		least, most := c.bounds()
		errs = append(errs, put(column, &c.chunk, len(c.known), g.e.body, least, most))
	}
	for k, column := range textColumns {
		c := &g.texts[k]
		var least, most []byte
		if column == ColumnDir { // Bounds of other columns are not used, and "" is not a valid bound in this format
			least, most = c.bounds()
		}
		errs = append(errs, put(column, &c.chunk, len(c.known), c.values, least, most))
	}
	rg.TotalCompressedSize = w.at - rg.FileOffset
	w.meta.RowGroups = append(w.meta.RowGroups, rg)
	w.meta.NumRows += int64(g.rows)
	return errors.Join(errs...)
}

// Table is an open scan.
type Table struct {
	Path     string
	Roots    []string
	Started  time.Time
	Finished time.Time
	Rows     int64

	f    *os.File
	file *parquet.File
}

// TableError is returned for a file that cannot be read as a scan.
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

// ExitCode implements exit.Coded.
func (*TableError) ExitCode() exit.Code { return exit.Usage }

func (e *TableError) Unwrap() error { return e.Err }

// Hint returns the command that makes a scan.
func (e *TableError) Hint() string {
	if errors.Is(e.Err, fs.ErrNotExist) {
		return "premix files scan DIR -o " + e.Path + " makes one"
	}
	return "name a table of premix files scan; premix files scan DIR -o NEW makes one, where NEW does not exist yet"
}

// OpenTable opens a scan. The caller closes it. The error is a [TableError].
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
		return nil, &TableError{path, "is not a Parquet file", err}
	}
	switch v, ok := t.file.Lookup(keyFormat); {
	case !ok:
		return nil, &TableError{path, "is not a scan: it was not written by premix files scan", nil}
	case v != tableFormat:
		return nil, &TableError{path, fmt.Sprintf("has the format %q, and this premix reads %q", v, tableFormat), nil}
	}
	roots, _ := t.file.Lookup(keyRoots)
	if err := json.Unmarshal([]byte(roots), &t.Roots); err != nil {
		return nil, &TableError{path, "has damaged metadata", err}
	}
	for key, at := range map[string]*time.Time{keyStarted: &t.Started, keyFinished: &t.Finished} {
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

// readRows is the number of rows read at a time.
const readRows = 4096

// Each calls f for each row. The entry is valid until f returns. If f returns an error,
// Each stops and returns it.
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
