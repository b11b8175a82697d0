package series

import (
	"container/list"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go/encoding/bytestreamsplit"
	"github.com/parquet-go/parquet-go/encoding/delta"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"

	"premix/internal/kit/parquetparts"
)

// maxFiles and maxOpenSpans bound the number of files that stay open for later queries and
// the number of their series. Their pages take less memory.
const (
	maxFiles     = 512
	maxOpenSpans = 4 << 20
)

// files is a cache of open Parquet files.
type files struct {
	known *identities

	mu    sync.Mutex
	all   map[string]*list.Element // of *openFile, by path
	order list.List                // most recently used first
	spans int
}

// openFile is an open Parquet file.
type openFile struct {
	path  string
	f     *os.File
	size  int64
	spans []span
	pages [][]page // of each column of numbers, from colTime on
	uses  int      // guarded by files.mu
	gone  bool     // to be closed after its last use
}

// page is the place of a page of a column.
type page struct {
	at   int64
	row  int64 // the number of its first row
	size int32
}

func newFiles(known *identities) *files {
	return &files{known: known, all: make(map[string]*list.Element)}
}

// open returns an open file. The caller gives it back with release.
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
	if e, ok := c.all[path]; ok { // another goroutine was faster
		o.f.Close()
		o = e.Value.(*openFile)
		o.uses++
		return o, nil
	}
	o.uses = 1
	c.all[path] = c.order.PushFront(o)
	c.spans += o.weight()
	for e := c.order.Back(); e != nil && (len(c.all) > maxFiles || c.spans > maxOpenSpans); {
		before := e.Prev()
		if e.Value.(*openFile).uses == 0 {
			c.drop(e)
		}
		e = before
	}
	return o, nil
}

// drop removes a file from the cache. The caller holds mu.
func (c *files) drop(e *list.Element) {
	o := e.Value.(*openFile)
	c.order.Remove(e)
	delete(c.all, o.path)
	c.spans -= o.weight()
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

// forget closes a file that is about to be removed.
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

// weight is the number that a file counts toward maxOpenSpans.
func (o *openFile) weight() int {
	n := len(o.spans)
	for _, p := range o.pages {
		n += len(p)
	}
	return n
}

// tailBytes is the size of the first read from the end of a file: enough for most footers,
// and for the places of pages before them.
const tailBytes = 64 << 10

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
	o = &openFile{path: path, f: f, size: info.Size()}
	if err := o.readFooter(known); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", errDamaged, path, err)
	}
	return o, nil
}

// readFooter reads the list of series, and the places of the pages of columns of numbers.
// It skips the bounds of pages, which are for other readers.
func (o *openFile) readFooter(known *identities) error {
	from := max(0, o.size-tailBytes)
	tail := make([]byte, o.size-from)
	if _, err := o.f.ReadAt(tail, from); err != nil {
		return err
	}
	part := func(at, n int64) ([]byte, error) {
		if at < 0 || n < 0 || at > o.size || n > o.size-at {
			return nil, errors.New("the footer reaches beyond the file")
		}
		if at >= from {
			return tail[at-from : at-from+n], nil
		}
		b := make([]byte, n)
		_, err := o.f.ReadAt(b, at)
		return b, err
	}
	end := o.size - 8
	last, err := part(end, 8)
	if err != nil {
		return err
	}
	if string(last[4:]) != parquetparts.Magic {
		return errors.New("it has no footer")
	}
	n := int64(binary.LittleEndian.Uint32(last))
	b, err := part(end-n, n)
	if err != nil {
		return err
	}
	var meta format.FileMetaData
	protocol := new(thrift.CompactProtocol)
	if err := thrift.Unmarshal(protocol, b, &meta); err != nil {
		return err
	}
	i := slices.IndexFunc(meta.KeyValueMetadata, func(kv format.KeyValue) bool { return kv.Key == keySeries })
	if i < 0 {
		return errors.New("it has no list of series")
	}
	if o.spans, err = decodeSpans(meta.KeyValueMetadata[i].Value, known); err != nil {
		return err
	}
	if n := len(o.spans); n > 0 && o.spans[n-1].row+o.spans[n-1].rows != meta.NumRows {
		return errors.New("the list of series does not match its rows")
	}
	row := int64(0)
	o.pages = make([][]page, max(0, len(meta.Schema)-1-colTime))
	for _, g := range meta.RowGroups {
		if len(g.Columns) != len(meta.Schema)-1 {
			return errors.New("columns are missing")
		}
		for k := range o.pages {
			c := &g.Columns[colTime+k]
			if c.MetaData.Codec != format.Zstd {
				return fmt.Errorf("it is compressed by %v", c.MetaData.Codec)
			}
			b, err := part(c.OffsetIndexOffset, int64(c.OffsetIndexLength))
			if err != nil {
				return err
			}
			var places format.OffsetIndex
			if err := thrift.Unmarshal(protocol, b, &places); err != nil {
				return err
			}
			for _, l := range places.PageLocations {
				if l.Offset < 0 || l.CompressedPageSize < 0 || l.Offset > o.size-int64(l.CompressedPageSize) {
					return errors.New("a page lies outside the file")
				}
				o.pages[k] = append(o.pages[k], page{l.Offset, row + l.FirstRowIndex, l.CompressedPageSize})
			}
		}
		row += g.NumRows
	}
	return nil
}

// find returns the spans of series with a name, or with a prefix if the name ends in *.
func (o *openFile) find(name string) []span {
	prefix, many := strings.CutSuffix(name, "*")
	from := sort.Search(len(o.spans), func(i int) bool { return o.spans[i].id.Name >= prefix })
	to := from
	for to < len(o.spans) && (o.spans[to].id.Name == prefix || many && strings.HasPrefix(o.spans[to].id.Name, prefix)) {
		to++
	}
	return o.spans[from:to]
}

// rowReader reads columns of a file. It keeps the last page read of each.
type rowReader struct {
	o       *openFile
	ints    [columnsOfNumbers]lastPage[int64]
	floats  [columnsOfNumbers]lastPage[float64]
	header  format.PageHeader
	in      thrift.BytesReader // over packed; nil before the first page
	headers *thrift.Decoder    // of in
	packed  []byte
	plain   []byte
}

// columnsOfNumbers is the highest number of these columns in a file.
const columnsOfNumbers = colCount - colTime + 1

// lastPage is the last page read of a column.
type lastPage[T int64 | float64] struct {
	first  int64 // row of the first value
	values []T
}

// turn switches to another file; buffers stay.
func (r *rowReader) turn(o *openFile) {
	r.o = o
	for c := range r.ints {
		r.ints[c].values, r.floats[c].values = r.ints[c].values[:0], r.floats[c].values[:0]
	}
}

// readInts appends rows of a column of integers.
func (r *rowReader) readInts(col int, row, rows int64, to []int64) ([]int64, error) {
	return readRows(r, col, &r.ints[col-colTime], decodeInts, row, rows, to)
}

// readFloats appends rows of a column of numbers.
func (r *rowReader) readFloats(col int, row, rows int64, to []float64) ([]float64, error) {
	return readRows(r, col, &r.floats[col-colTime], decodeFloats, row, rows, to)
}

func readRows[T int64 | float64](r *rowReader, col int, last *lastPage[T], decode func(format.Encoding, []byte, []T) ([]T, error), row, rows int64, to []T) (_ []T, err error) {
	defer func() {
		if p := recover(); p != nil { // of the library, for damaged pages
			err = fmt.Errorf("%w: %v", errDamaged, p)
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", filepath.Base(filepath.Dir(r.o.path))+"/"+filepath.Base(r.o.path), err)
		}
	}()
	for rows > 0 {
		if row < last.first || row >= last.first+int64(len(last.values)) {
			p, err := r.o.page(col, row)
			if err != nil {
				return to, err
			}
			encoding, plain, count, err := r.load(p)
			if err != nil {
				last.values = last.values[:0]
				return to, err
			}
			last.first = p.row
			if last.values, err = decode(encoding, plain, last.values); err != nil {
				return to, err
			}
			if len(last.values) != count || row >= p.row+int64(count) {
				last.values = last.values[:0]
				return to, fmt.Errorf("%w: the page for row %d does not contain it", errDamaged, row)
			}
		}
		from := row - last.first
		n := min(rows, int64(len(last.values))-from)
		to = append(to, last.values[from:from+n]...)
		row, rows = row+n, rows-n
	}
	return to, nil
}

// page returns the page of a column that contains a row.
func (o *openFile) page(col int, row int64) (page, error) {
	if col-colTime < len(o.pages) {
		pages := o.pages[col-colTime]
		if i := sort.Search(len(pages), func(i int) bool { return pages[i].row > row }); i > 0 {
			return pages[i-1], nil
		}
	}
	return page{}, fmt.Errorf("%w: column %d has no row %d", errDamaged, col, row)
}

// decoder decompresses pages. It bounds their size, as the writer does.
var decoder = sync.OnceValue(func() *zstd.Decoder {
	z, _ := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(maxPage)) // valid options return no error
	return z
})

// maxPage bounds the uncompressed size of a page, in bytes.
const maxPage = 64 << 20

// load reads a page and returns the encoding of its values, the values, and their number.
func (r *rowReader) load(p page) (format.Encoding, []byte, int, error) {
	r.packed = slices.Grow(r.packed[:0], int(p.size))[:p.size]
	if _, err := r.o.f.ReadAt(r.packed, p.at); err != nil {
		return 0, nil, 0, err
	}
	if r.in == nil {
		r.in = new(thrift.CompactProtocol).NewReaderFromBytes(nil)
		r.headers = thrift.NewDecoder(r.in)
	}
	r.in.ResetBytes(r.packed)
	h := &r.header
	*h = format.PageHeader{}
	if err := r.headers.Decode(h); err != nil {
		return 0, nil, 0, fmt.Errorf("header of a page: %w", err)
	}
	packed := r.packed[r.in.BytesRead():]
	if int(h.CompressedPageSize) != len(packed) {
		return 0, nil, 0, errors.New("header of a page: it has another size")
	}
	if uint32(h.CRC) != crc32.ChecksumIEEE(packed) {
		return 0, nil, 0, errors.New("the checksum of a page does not match its content")
	}
	// Columns here have a value in each row, so that pages hold only values.
	var encoding format.Encoding
	var count int32
	switch {
	case h.DataPageHeader.Valid:
		encoding, count = h.DataPageHeader.V.Encoding, h.DataPageHeader.V.NumValues
	case h.DataPageHeaderV2.Valid: // of earlier versions of premix
		encoding, count = h.DataPageHeaderV2.V.Encoding, h.DataPageHeaderV2.V.NumValues
	default:
		return 0, nil, 0, fmt.Errorf("a page of type %v in place of a page of values", h.Type)
	}
	var err error
	if r.plain, err = decoder().DecodeAll(packed, r.plain[:0]); err != nil {
		return 0, nil, 0, err
	}
	return encoding, r.plain, int(count), nil
}

func decodeInts(e format.Encoding, b []byte, to []int64) ([]int64, error) {
	if e != format.DeltaBinaryPacked {
		return to[:0], fmt.Errorf("integers are encoded as %v", e)
	}
	return new(delta.BinaryPackedEncoding).DecodeInt64(to[:0], b)
}

func decodeFloats(e format.Encoding, b []byte, to []float64) ([]float64, error) {
	switch e {
	case format.Plain:
		to = slices.Grow(to[:0], len(b)/8)[:len(b)/8]
		for k := range to {
			to[k] = math.Float64frombits(binary.LittleEndian.Uint64(b[8*k:]))
		}
		return to, nil
	case format.ByteStreamSplit:
		return new(bytestreamsplit.Encoding).DecodeDouble(to[:0], b)
	}
	return to[:0], fmt.Errorf("numbers are encoded as %v", e)
}
