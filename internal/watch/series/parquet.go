package series

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"os"
	"slices"
	"sync"

	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go/encoding/bytestreamsplit"
	"github.com/parquet-go/parquet-go/encoding/delta"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"

	"premix/internal/kit/parquetparts"
	"premix/internal/watch"
)

// Row groups are large enough for other programs to read fast. Pages of numbers hold whole
// series where possible, so that reading one series reads little more than its rows: a
// series with no more rows than a page lies in one page, and a longer one has pages of its
// own. Small pages are for columns of which queries read a few rows at a time, from many
// files. In these, each page of values is stored plain or split into streams of bytes,
// whichever is smaller, which makes up for the overhead of small pages. For millions of
// samples the split would cost more than it saves.
const (
	groupRows      = 512 << 10
	rawPageRows    = 8192
	fewPageRows    = 1536 // of samples that are too few for roll-ups of an hour
	rollupPageRows = 512
	textPageRows   = 16 << 10
)

// file writes a Parquet file of Row or RollupRow, series after series. It writes columns
// and lays out pages itself: the rows of a series share their texts, and a general writer
// would process each of them.
type file struct {
	f        *os.File
	at       int64               // bytes written
	meta     format.FileMetaData // the footer
	pageRows int
	splits   bool // whether to store values split into streams of bytes where that is smaller
	texts    [colTime]texts
	times    []int64              // of the page being filled, as are the fields below
	doubles  [][]float64          // by column, from colValue on
	counts   []int64              // of roll-ups
	chunks   []chunk              // of the row group being filled
	rows     int64                // of the same row group
	bounds   []format.ColumnIndex // of all chunks of all row groups
	places   []format.OffsetIndex // of the same chunks
	spans    []span
	next     int64  // the row after the last one written
	plain    []byte // the bytes of a page, as are the two fields below
	packed   []byte
	split    []byte
	other    []byte // the compressed bytes of split
}

// texts are the values of a column of texts in a row group, stored as runs.
type texts struct {
	number map[string]int // in words
	words  []string
	runs   []run // of the page being filled
	rows   int
}

type run struct{ word, rows int }

// chunk is a column of a row group: its pages and their statistics.
type chunk struct {
	encodings       []format.Encoding // each listed once
	pages           []byte
	size            int64 // of the uncompressed pages
	values          int64
	least, greatest []byte             // of all pages
	bounds          format.ColumnIndex // of each page; columns of texts only, as pages of numbers are small
	places          format.OffsetIndex // relative to the begin of pages
}

// The schemas that the footers of all files of a kind share.
var rowLayout, rollupLayout = sync.OnceValue(layoutOf[Row]), sync.OnceValue(layoutOf[RollupRow])

func layoutOf[T any]() format.FileMetaData {
	m, err := parquetparts.Metadata[T]()
	if err != nil {
		panic("series: a type that is not a row: " + err.Error())
	}
	return m
}

// encoder compresses pages. Several goroutines can use it at a time. It is shared because
// its tables are large beside the file of a window.
var encoder = sync.OnceValue(func() *zstd.Encoder {
	// Valid options return no error. Pages have checksums of their own.
	z, _ := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedDefault), zstd.WithZeroFrames(true), zstd.WithEncoderCRC(false))
	return z
})

func newFile(path string, r resolution, pageRows int) (*file, error) {
	o, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	f := &file{f: o, meta: rowLayout(), pageRows: pageRows, doubles: make([][]float64, 1), splits: pageRows < rawPageRows}
	if r != raw {
		f.meta, f.doubles = rollupLayout(), make([][]float64, 3)
	}
	f.chunks = make([]chunk, len(f.meta.Schema)-1) // the first element is the root
	f.begin()
	if err := f.write([]byte(parquetparts.Magic)); err != nil {
		return nil, errors.Join(err, o.Close())
	}
	return f, nil
}

// begin prepares for a row group.
func (f *file) begin() {
	for c := range f.chunks {
		f.chunks[c] = chunk{pages: f.chunks[c].pages[:0]}
	}
	for c := range f.texts {
		f.texts[c] = texts{number: make(map[string]int)}
	}
	f.rows = 0
}

func (f *file) write(b []byte) error {
	n, err := f.f.Write(b)
	f.at += int64(n)
	return err
}

// series writes the rows of a series, ordered by time. Samples have one column of doubles
// and no counts.
func (f *file) series(i *identity, unit watch.Unit, times []int64, counts []int64, doubles ...[]float64) error {
	n := len(times)
	if n == 0 {
		return nil
	}
	f.spans = append(f.spans, span{identity: i, unit: unit, row: f.next, rows: int64(n), first: times[0], last: times[n-1]})
	f.next += int64(n)
	f.rows += int64(n)
	for c, word := range [colTime]string{i.id.Name, i.labels, string(unit)} {
		t := &f.texts[c]
		t.add(word, n)
		if t.rows >= textPageRows {
			if err := f.textPage(c); err != nil {
				return err
			}
		}
	}
	if len(f.times)+n > f.pageRows {
		if err := f.numberPages(); err != nil {
			return err
		}
	}
	for len(times) > 0 {
		n := min(len(times), f.pageRows)
		f.times, times = append(f.times, times[:n]...), times[n:]
		for k := range doubles {
			f.doubles[k], doubles[k] = append(f.doubles[k], doubles[k][:n]...), doubles[k][n:]
		}
		if counts != nil {
			f.counts, counts = append(f.counts, counts[:n]...), counts[n:]
		}
		if len(times) > 0 {
			if err := f.numberPages(); err != nil {
				return err
			}
		}
	}
	if f.rows >= groupRows {
		return f.endGroup()
	}
	return nil
}

func (t *texts) add(word string, rows int) {
	n, ok := t.number[word]
	if !ok {
		n = len(t.words)
		t.number[word] = n
		t.words = append(t.words, word)
	}
	t.rows += rows
	if k := len(t.runs); k > 0 && t.runs[k-1].word == n {
		t.runs[k-1].rows += rows
		return
	}
	t.runs = append(t.runs, run{n, rows})
}

// textPage ends a page of texts: runs of indexes into words.
func (f *file) textPage(c int) error {
	t := &f.texts[c]
	if t.rows == 0 {
		return nil
	}
	width := max(1, bits.Len(uint(len(t.words)-1)))
	b := append(f.plain[:0], byte(width))
	least, greatest := t.words[t.runs[0].word], t.words[t.runs[0].word]
	for _, r := range t.runs {
		b = binary.AppendUvarint(b, uint64(r.rows)<<1)
		for k := 0; k < width; k += 8 {
			b = append(b, byte(r.word>>k))
		}
		least, greatest = min(least, t.words[r.word]), max(greatest, t.words[r.word])
	}
	f.plain = b
	k := &f.chunks[c]
	k.bounds.NullPages, k.bounds.NullCounts = append(k.bounds.NullPages, false), append(k.bounds.NullCounts, 0)
	k.bounds.MinValues, k.bounds.MaxValues = append(k.bounds.MinValues, []byte(least)), append(k.bounds.MaxValues, []byte(greatest))
	k.within([]byte(least), []byte(greatest), bytes.Compare)
	err := f.page(k, format.RLEDictionary, t.rows, f.pack(f.plain))
	t.runs, t.rows = t.runs[:0], 0
	return err
}

// numberPages ends the pages of all columns of numbers.
func (f *file) numberPages() error {
	if len(f.times) == 0 {
		return nil
	}
	if err := f.intPage(colTime, f.times); err != nil {
		return err
	}
	for k, values := range f.doubles {
		if err := f.doublePage(colValue+k, values); err != nil {
			return err
		}
		f.doubles[k] = values[:0]
	}
	if len(f.counts) > 0 {
		if err := f.intPage(colCount, f.counts); err != nil {
			return err
		}
	}
	f.times, f.counts = f.times[:0], f.counts[:0]
	return nil
}

func (f *file) intPage(c int, values []int64) (err error) {
	if f.plain, err = new(delta.BinaryPackedEncoding).EncodeInt64(f.plain, values); err != nil {
		return err
	}
	k := &f.chunks[c]
	bound := func(v int64) []byte { return binary.LittleEndian.AppendUint64(nil, uint64(v)) }
	k.within(bound(slices.Min(values)), bound(slices.Max(values)), func(a, b []byte) int {
		return cmp.Compare(int64(binary.LittleEndian.Uint64(a)), int64(binary.LittleEndian.Uint64(b)))
	})
	return f.page(k, format.DeltaBinaryPacked, len(values), f.pack(f.plain))
}

func (f *file) doublePage(c int, values []float64) error {
	f.plain = slices.Grow(f.plain[:0], 8*len(values))
	for _, v := range values {
		f.plain = binary.LittleEndian.AppendUint64(f.plain, math.Float64bits(v))
	}
	k := &f.chunks[c]
	least, greatest := slices.Min(values), slices.Max(values)
	// The format requires it: bounds that are zero must contain zeros of both signs.
	if least == 0 {
		least = math.Copysign(0, -1)
	}
	if greatest == 0 {
		greatest = 0
	}
	bound := func(v float64) []byte { return binary.LittleEndian.AppendUint64(nil, math.Float64bits(v)) }
	k.within(bound(least), bound(greatest), func(a, b []byte) int {
		return cmp.Compare(math.Float64frombits(binary.LittleEndian.Uint64(a)), math.Float64frombits(binary.LittleEndian.Uint64(b)))
	})
	packed := f.pack(f.plain)
	if f.splits {
		var err error
		if f.split, err = new(bytestreamsplit.Encoding).EncodeDouble(f.split, values); err != nil {
			return err
		}
		if f.other = encoder().EncodeAll(f.split, f.other[:0]); len(f.other) < len(packed) {
			return f.page(k, format.ByteStreamSplit, len(values), f.other)
		}
	}
	return f.page(k, format.Plain, len(values), packed)
}

// pack compresses bytes. The result is valid until the next call.
func (f *file) pack(plain []byte) []byte {
	f.packed = encoder().EncodeAll(plain, f.packed[:0])
	return f.packed
}

// within extends the bounds of a chunk.
func (c *chunk) within(least, greatest []byte, compare func(a, b []byte) int) {
	if c.least == nil || compare(least, c.least) < 0 {
		c.least = least
	}
	if c.greatest == nil || compare(greatest, c.greatest) > 0 {
		c.greatest = greatest
	}
}

// page adds a page of values to a chunk; plain are its uncompressed bytes. The size of the
// values counts as len(plain) in every encoding.
func (f *file) page(c *chunk, encoding format.Encoding, rows int, packed []byte) error {
	at := len(c.pages)
	err := c.append(format.PageHeader{Type: format.DataPage, DataPageHeader: thrift.New(format.DataPageHeader{
		NumValues: int32(rows), Encoding: encoding, DefinitionLevelEncoding: format.RLE, RepetitionLevelEncoding: format.RLE})}, len(f.plain), packed)
	if err != nil {
		return err
	}
	if !slices.Contains(c.encodings, encoding) {
		c.encodings = append(c.encodings, encoding)
	}
	c.places.PageLocations = append(c.places.PageLocations, format.PageLocation{Offset: int64(at), CompressedPageSize: int32(len(c.pages) - at), FirstRowIndex: c.values})
	c.values += int64(rows)
	return nil
}

// append adds a page header and compressed bytes to the pages of a chunk.
func (c *chunk) append(h format.PageHeader, plain int, packed []byte) error {
	pages, size, err := parquetparts.AppendPage(c.pages, h, packed, plain)
	c.pages, c.size = pages, c.size+size
	return err
}

// endGroup writes a row group.
func (f *file) endGroup() error {
	if f.rows == 0 {
		return nil
	}
	if err := f.numberPages(); err != nil {
		return err
	}
	g := format.RowGroup{NumRows: f.rows, FileOffset: f.at, Ordinal: int16(len(f.meta.RowGroups))}
	for _, c := range []int32{0, 1, colTime} { // name, labels, time
		g.SortingColumns = append(g.SortingColumns, format.SortingColumn{ColumnIdx: c})
	}
	for c := range f.chunks {
		k := &f.chunks[c]
		begin := f.at
		m := format.ColumnMetaData{Codec: format.Zstd, NumValues: f.rows}
		if c < colTime {
			if err := f.textPage(c); err != nil {
				return err
			}
			dict, err := f.dictionary(c)
			if err != nil {
				return err
			}
			m.Encoding = append(m.Encoding, format.Plain)
			m.DictionaryPageOffset = begin
			k.size += dict.size
			if err := f.write(dict.pages); err != nil {
				return err
			}
		}
		m.DataPageOffset = f.at
		for p := range k.places.PageLocations {
			k.places.PageLocations[p].Offset += f.at
		}
		if err := f.write(k.pages); err != nil {
			return err
		}
		e := f.meta.Schema[1+c]
		m.Type, m.PathInSchema = e.Type.V, []string{e.Name}
		m.TotalUncompressedSize, m.TotalCompressedSize = k.size, f.at-begin
		m.Statistics = format.Statistics{MinValue: k.least, MaxValue: k.greatest}
		m.Encoding = append(append(m.Encoding, k.encodings...), format.RLE)
		g.TotalByteSize += m.TotalUncompressedSize
		g.TotalCompressedSize += m.TotalCompressedSize
		g.Columns = append(g.Columns, format.ColumnChunk{FileOffset: begin, MetaData: m})
		if c == 0 {
			k.bounds.BoundaryOrder = format.Ascending // rows are sorted by name first
		}
		f.bounds, f.places = append(f.bounds, k.bounds), append(f.places, k.places)
	}
	f.meta.RowGroups = append(f.meta.RowGroups, g)
	f.begin()
	return nil
}

// dictionary writes the page with the distinct words of a column.
func (f *file) dictionary(column int) (c chunk, err error) {
	words := f.texts[column].words
	f.plain = f.plain[:0]
	for _, w := range words {
		f.plain = binary.LittleEndian.AppendUint32(f.plain, uint32(len(w)))
		f.plain = append(f.plain, w...)
	}
	err = c.append(format.PageHeader{Type: format.DictionaryPage, DictionaryPageHeader: thrift.New(format.DictionaryPageHeader{NumValues: int32(len(words)), Encoding: format.Plain})},
		len(f.plain), f.pack(f.plain))
	return c, err
}

// close writes the last row group, then the bounds and the places of all pages, and the
// footer.
func (f *file) close() error {
	err := f.endGroup()
	if err == nil {
		err = f.footer()
	}
	if err == nil {
		err = f.f.Sync()
	}
	return errors.Join(err, f.f.Close())
}

func (f *file) footer() error {
	text, err := encodeSpans(f.spans)
	if err != nil {
		return err
	}
	protocol := new(thrift.CompactProtocol)
	var b []byte
	add := func(v any) (at int64, size int32) {
		m, merr := thrift.Marshal(protocol, v)
		err = errors.Join(err, merr)
		b = append(b, m...)
		return f.at + int64(len(b)-len(m)), int32(len(m))
	}
	n := len(f.chunks)
	for i := range f.bounds {
		if c := &f.meta.RowGroups[i/n].Columns[i%n]; i%n < colTime {
			c.ColumnIndexOffset, c.ColumnIndexLength = add(&f.bounds[i])
		}
	}
	for i := range f.places {
		c := &f.meta.RowGroups[i/n].Columns[i%n]
		c.OffsetIndexOffset, c.OffsetIndexLength = add(&f.places[i])
	}
	if err != nil {
		return fmt.Errorf("indexes of %s: %w", f.f.Name(), err)
	}
	f.meta.NumRows, f.meta.KeyValueMetadata = f.next, []format.KeyValue{{Key: keySeries, Value: text}}
	if b, err = parquetparts.AppendFooter(b, &f.meta); err != nil {
		return fmt.Errorf("footer of %s: %w", f.f.Name(), err)
	}
	return f.write(b)
}
