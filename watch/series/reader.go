package series

import (
	"container/list"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"

	"github.com/parquet-go/parquet-go"
)

// maxFiles and maxOpenSpans bound what is kept open for queries to come: files, and series
// in them.
const (
	maxFiles     = 512
	maxOpenSpans = 4 << 20
)

// files keeps Parquet files open.
type files struct {
	known *identities

	mu    sync.Mutex
	all   map[string]*list.Element // of *openFile, by path
	order list.List                // the one used last is in front
	spans int
}

// openFile is a Parquet file that is read.
type openFile struct {
	path  string
	f     *os.File
	pf    *parquet.File
	spans []span
	uses  int  // guarded by files.mu
	gone  bool // to be closed after the last use
}

func newFiles(known *identities) *files {
	return &files{known: known, all: make(map[string]*list.Element)}
}

// open returns a file, which is to be given back with release.
func (c *files) open(path string) (*openFile, error) {
	c.mu.Lock()
	if e, ok := c.all[path]; ok {
		o := e.Value.(*openFile)
		o.uses++
		c.order.MoveToFront(e)
		c.mu.Unlock()
		return o, nil
	}
	c.mu.Unlock()
	o, err := openParquet(path, c.known)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.all[path]; ok { // somebody else was faster
		o.f.Close()
		o = e.Value.(*openFile)
		o.uses++
		return o, nil
	}
	o.uses = 1
	c.all[path] = c.order.PushFront(o)
	c.spans += len(o.spans)
	for e := c.order.Back(); e != nil && (len(c.all) > maxFiles || c.spans > maxOpenSpans); {
		before := e.Prev()
		if e.Value.(*openFile).uses == 0 {
			c.drop(e)
		}
		e = before
	}
	return o, nil
}

// drop forgets a file. The caller holds mu.
func (c *files) drop(e *list.Element) {
	o := e.Value.(*openFile)
	c.order.Remove(e)
	delete(c.all, o.path)
	c.spans -= len(o.spans)
	if o.gone = true; o.uses == 0 {
		o.f.Close()
	}
}

func (c *files) release(o *openFile) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o.uses--; o.gone && o.uses == 0 {
		o.f.Close()
	}
}

// forget closes a file that is going to be removed.
func (c *files) forget(path string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.all[path]; ok {
		c.drop(e)
	}
}

func (c *files) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for e := c.order.Front(); e != nil; e = c.order.Front() {
		c.drop(e)
	}
}

func openParquet(path string, known *identities) (o *openFile, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if r := recover(); r != nil { // of the library, for a damaged footer
			o, err = nil, fmt.Errorf("%w: %s: %v", errDamaged, path, r)
		}
		if err != nil {
			f.Close()
		}
	}()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	pf, err := parquet.OpenFile(f, info.Size(), parquet.SkipBloomFilters(true), parquet.ReadBufferSize(32<<10))
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", errDamaged, path, err)
	}
	text, ok := pf.Lookup(keySeries)
	if !ok {
		return nil, fmt.Errorf("%w: %s has no list of series", errDamaged, path)
	}
	spans, err := decodeSpans(text, known)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", errDamaged, path, err)
	}
	if n := len(spans); n > 0 && spans[n-1].row+spans[n-1].rows != pf.NumRows() {
		return nil, fmt.Errorf("%w: %s: the list of series is not that of its rows", errDamaged, path)
	}
	return &openFile{path: path, f: f, pf: pf, spans: spans}, nil
}

// find returns the spans of series with a name, or with a prefix if it ends in *.
func (o *openFile) find(name string) []span {
	prefix, many := strings.CutSuffix(name, "*")
	from := sort.Search(len(o.spans), func(i int) bool { return o.spans[i].id.Name >= prefix })
	to := from
	for to < len(o.spans) && (o.spans[to].id.Name == prefix || many && strings.HasPrefix(o.spans[to].id.Name, prefix)) {
		to++
	}
	return o.spans[from:to]
}

// rowReader reads columns of a file. It is fast where rows are asked for in their order.
type rowReader struct {
	o       *openFile
	cursors map[int]*cursor
}

func newRowReader(o *openFile) *rowReader { return &rowReader{o: o, cursors: make(map[int]*cursor)} }

func (r *rowReader) close() {
	for _, c := range r.cursors {
		c.close()
	}
}

func (r *rowReader) column(col int) *cursor {
	c := r.cursors[col]
	if c == nil {
		c = &cursor{pf: r.o.pf, column: col, group: -1}
		r.cursors[col] = c
	}
	return c
}

// ints appends rows of a column of integers.
func (r *rowReader) ints(col int, row, rows int64, to []int64) ([]int64, error) {
	err := r.column(col).read(row, rows, func(p parquet.Page, from, until int64) {
		d := p.Data()
		to = append(to, d.Int64()[from:until]...)
	})
	return to, r.wrap(err)
}

// floats appends rows of a column of numbers.
func (r *rowReader) floats(col int, row, rows int64, to []float64) ([]float64, error) {
	err := r.column(col).read(row, rows, func(p parquet.Page, from, until int64) {
		d := p.Data()
		to = append(to, d.Double()[from:until]...)
	})
	return to, r.wrap(err)
}

func (r *rowReader) wrap(err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(filepath.Dir(r.o.path))+"/"+filepath.Base(r.o.path), err)
	}
	return nil
}

// cursor is a place in a column.
type cursor struct {
	pf     *parquet.File
	column int
	group  int   // row group; -1 before the first
	base   int64 // first row of the group
	rows   int64 // of the group
	pages  parquet.Pages
	page   parquet.Page
	first  int64 // row of the page
}

func (c *cursor) close() {
	if c.page != nil {
		parquet.Release(c.page)
		c.page = nil
	}
	if c.pages != nil {
		c.pages.Close()
		c.pages = nil
	}
}

// read calls f for pages that hold rows row to row+rows-1, and which of their rows these
// are.
func (c *cursor) read(row, rows int64, f func(p parquet.Page, from, until int64)) (err error) {
	defer func() {
		if r := recover(); r != nil { // of the library, for damaged pages
			err = fmt.Errorf("%w: %v", errDamaged, r)
		}
	}()
	for rows > 0 {
		if err := c.seek(row); err != nil {
			return err
		}
		from := row - c.first
		n := min(rows, c.page.NumRows()-from)
		f(c.page, from, from+n)
		row, rows = row+n, rows-n
	}
	return nil
}

// seek brings the page with a row.
func (c *cursor) seek(row int64) error {
	if c.page != nil && row >= c.first && row < c.first+c.page.NumRows() {
		return nil
	}
	if c.group < 0 || row < c.base || row >= c.base+c.rows {
		base := int64(0)
		c.close()
		for i, g := range c.pf.RowGroups() {
			if row < base+g.NumRows() {
				c.group, c.base, c.rows, c.pages = i, base, g.NumRows(), g.ColumnChunks()[c.column].Pages()
				c.first = base
				break
			}
			base += g.NumRows()
		}
		if c.pages == nil {
			return errors.New("there is no such row")
		}
	}
	after := c.first // row that the next page begins with
	if c.page != nil {
		after += c.page.NumRows()
		parquet.Release(c.page)
		c.page = nil
	}
	if row != after {
		if err := c.pages.SeekToRow(row - c.base); err != nil {
			return err
		}
	}
	p, err := c.pages.ReadPage()
	if err != nil {
		return err
	}
	c.page, c.first = p, row
	return nil
}
