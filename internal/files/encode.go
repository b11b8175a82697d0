package files

import (
	"encoding/binary"

	"github.com/parquet-go/parquet-go/compress/snappy"
	"github.com/parquet-go/parquet-go/encoding/delta"
	"github.com/parquet-go/parquet-go/encoding/rle"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"

	"premix/internal/kit/parquetparts"
)

// The columns of a scan are encoded here and not by parquet-go's writer, which passes each
// value through a parquet.Value and compresses all of them: that cost a third of the CPU
// time that the system calls of a scan take. Most columns repeat few values, for which a
// dictionary is small, or count up. Only columns that repeat in other ways are compressed,
// by Snappy: Zstandard made tables an eighth smaller, but scans 3 to 5 % slower.

const (
	// groupRows is the number of rows of a row group.
	groupRows = 128 << 10
	// pageRows is the number of rows of a page. This many values of all columns stay in the
	// cache of a core until they are encoded.
	pageRows = 4096
	// dictionaryBits and mostKnown bound the dictionary of a column of integers.
	dictionaryBits = 14
	mostKnown      = 1 << (dictionaryBits - 1)
)

// intColumns are the integer columns, in the order of group.ints.
var intColumns = [...]Column{ColumnSize, ColumnAllocated, ColumnEntries, ColumnMode, ColumnUID, ColumnGID, ColumnLinks, ColumnInode, ColumnDevice, ColumnAccessed, ColumnModified, ColumnChanged, ColumnBorn}

// textColumns are the columns of strings with many equal values, in the order of
// group.texts.
var textColumns = [...]Column{ColumnDir, ColumnType, ColumnError}

const (
	textDir = iota
	textType
	textError
)

// chunk is a column of a row group.
type chunk struct {
	pages      blocks // including their headers
	plain      int64  // their uncompressed size
	compressed bool
	indexed    bool            // a page has indexes into the dictionary
	direct     bool            // a page has values,
	other      format.Encoding // in this encoding
}

func (c *chunk) reset() {
	c.pages.reset()
	*c = chunk{pages: c.pages, compressed: c.compressed}
}

// blocks is a list of bytes that grows without being copied. What it held is used again.
type blocks struct {
	list [][]byte // the full ones, and the one that is being filled
	free [][]byte
	size int
}

const blockSize = 64 << 10

func (b *blocks) write(p []byte) {
	b.size += len(p)
	for len(p) > 0 {
		n := len(b.list) - 1
		if n < 0 || len(b.list[n]) == blockSize {
			if k := len(b.free); k > 0 {
				b.list, b.free = append(b.list, b.free[k-1]), b.free[:k-1]
			} else {
				b.list = append(b.list, make([]byte, 0, blockSize))
			}
			n++
		}
		some := min(len(p), blockSize-len(b.list[n]))
		b.list[n] = append(b.list[n], p[:some]...)
		p = p[some:]
	}
}

func (b *blocks) reset() {
	for _, p := range b.list {
		b.free = append(b.free, p[:0])
	}
	b.list, b.size = b.list[:0], 0
}

// encoder holds the buffers in which a worker encodes its columns.
type encoder struct {
	codec   snappy.Codec
	numbers [pageRows]int32 // scratch space, as are the fields below
	body    []byte
	packed  []byte
	paged   []byte
}

func newEncoder() *encoder { return &encoder{} }

// page appends a page to b, and also returns its uncompressed size.
func (e *encoder) page(b, body []byte, compress bool, header format.PageHeader) (_ []byte, plain int64, err error) {
	size := len(body)
	if compress {
		if e.packed, err = e.codec.Encode(e.packed[:cap(e.packed)], body); err != nil {
			return b, 0, err
		}
		body = e.packed
	}
	return parquetparts.AppendPage(b, header, body, size)
}

// data appends a page of values to a chunk.
func (e *encoder) data(c *chunk, body []byte, rows int, encoding format.Encoding) error {
	header := format.PageHeader{Type: format.DataPageV2}
	header.DataPageHeaderV2 = thrift.New(format.DataPageHeaderV2{
		NumValues: int32(rows), NumRows: int32(rows), Encoding: encoding, IsCompressed: thrift.New(c.compressed)})
	if encoding == format.RLEDictionary {
		c.indexed = true
	} else {
		c.direct, c.other = true, encoding
	}
	page, plain, err := e.page(e.paged[:0], body, c.compressed, header)
	c.pages.write(page)
	e.paged, c.plain = page, c.plain+plain
	return err
}

// index appends a page of indexes into the dictionary.
func (e *encoder) index(c *chunk, numbers []int32) (err error) {
	if e.body, err = new(rle.DictionaryEncoding).EncodeInt32(e.body[:0], numbers); err != nil {
		return err
	}
	return e.data(c, e.body, len(numbers), format.RLEDictionary)
}

// strings appends a page of strings without a dictionary.
func (e *encoder) strings(c *chunk, all []byte, offsets []uint32) (err error) {
	if e.body, err = new(delta.LengthByteArrayEncoding).EncodeByteArray(e.body[:0], all, offsets); err != nil {
		return err
	}
	return e.data(c, e.body, len(offsets)-1, format.DeltaLengthByteArray)
}

// ints is a column of integers. Its pages are indexes into a dictionary while that saves
// space. Later pages hold the values themselves if the column is compressed, or else their
// differences.
type ints struct {
	chunk
	narrow bool    // of 32 bits: it has few values, and always uses a dictionary
	known  []int64 // the dictionary
	slots  [1 << dictionaryBits]uint16
	given  bool // the dictionary was abandoned
	least  int64
	most   int64
	any    bool // least and most are the bounds of the values written without the dictionary
}

func (c *ints) reset() {
	c.chunk.reset()
	clear(c.slots[:])
	c.known, c.given, c.any = c.known[:0], false, false
}

// number returns the index of a value in the dictionary, to which it adds the value. It
// returns -1 if the dictionary is full.
func (c *ints) number(v int64) int32 {
	at := uint64(v) * 0x9E3779B97F4A7C15 >> (64 - dictionaryBits)
	for {
		n := c.slots[at]
		if n == 0 {
			break
		}
		if c.known[n-1] == v {
			return int32(n - 1)
		}
		at = (at + 1) & (1<<dictionaryBits - 1)
	}
	if len(c.known) == mostKnown {
		return -1
	}
	c.known = append(c.known, v)
	c.slots[at] = uint16(len(c.known))
	return int32(len(c.known) - 1)
}

// add appends a page.
func (c *ints) add(e *encoder, values []int64) (err error) {
	if !c.given {
		before := len(c.known)
		if c.look(e.numbers[:len(values)], values) && (c.narrow || len(c.known)-before <= len(values)/2) {
			return e.index(&c.chunk, e.numbers[:len(values)])
		}
		c.known, c.given = c.known[:before], true
	}
	if !c.any {
		c.least, c.most, c.any = values[0], values[0], true
	}
	for _, v := range values {
		c.least, c.most = min(c.least, v), max(c.most, v)
	}
	if c.compressed {
		e.body = e.body[:0]
		for _, v := range values {
			e.body = binary.LittleEndian.AppendUint64(e.body, uint64(v))
		}
		return e.data(&c.chunk, e.body, len(values), format.Plain)
	}
	if e.body, err = new(delta.BinaryPackedEncoding).EncodeInt64(e.body[:0], values); err != nil {
		return err
	}
	return e.data(&c.chunk, e.body, len(values), format.DeltaBinaryPacked)
}

// look finds the indexes of values, and reports whether all values have one.
func (c *ints) look(numbers []int32, values []int64) bool {
	last, n := values[0], c.number(values[0])
	for i, v := range values {
		if v != last {
			last, n = v, c.number(v)
		}
		if n < 0 {
			return false
		}
		numbers[i] = n
	}
	return true
}

// dictionary appends the content of the dictionary page, in order of indexes.
func (c *ints) dictionary(b []byte) []byte {
	for _, v := range c.known {
		if c.narrow {
			b = binary.LittleEndian.AppendUint32(b, uint32(v))
		} else {
			b = binary.LittleEndian.AppendUint64(b, uint64(v))
		}
	}
	return b
}

// bounds returns the least and the greatest value in the form of Parquet statistics.
func (c *ints) bounds() (least, most []byte) {
	low, high := c.least, c.most
	if !c.any {
		low, high = c.known[0], c.known[0]
	}
	for _, v := range c.known {
		low, high = min(low, v), max(high, v)
	}
	if c.narrow {
		return binary.LittleEndian.AppendUint32(nil, uint32(low)), binary.LittleEndian.AppendUint32(nil, uint32(high))
	}
	return binary.LittleEndian.AppendUint64(nil, uint64(low)), binary.LittleEndian.AppendUint64(nil, uint64(high))
}

// texts is a column of strings with many equal values.
type texts struct {
	chunk
	numbers [pageRows]int32 // indexes of the rows of a page
	known   map[string]int32
	values  []byte // the dictionary
	last    string // last argument of number
	found   int32
}

func (c *texts) reset() {
	c.chunk.reset()
	clear(c.known)
	c.values, c.last, c.found = c.values[:0], "", 0
}

// number returns the index of a string in the dictionary, to which it adds the string. The
// dictionary keeps s.
func (c *texts) number(s string) int32 {
	if s == c.last && len(c.known) > 0 {
		return c.found
	}
	n, ok := c.known[s]
	if !ok {
		n = int32(len(c.known))
		c.known[s] = n
		c.values = append(binary.LittleEndian.AppendUint32(c.values, uint32(len(s))), s...)
	}
	c.last, c.found = s, n
	return n
}

// bounds returns the least and the greatest string.
func (c *texts) bounds() (least, most []byte) {
	low, high := c.last, c.last
	for s := range c.known {
		low, high = min(low, s), max(high, s)
	}
	return []byte(low), []byte(high)
}
