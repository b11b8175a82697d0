package parquetparts

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"
)

// TestParts assembles a file by hand, with one page of integers, and reads it with the library.
func TestParts(t *testing.T) {
	type row struct {
		N int64 `parquet:"n"`
	}
	want := []row{{3}, {1}, {1 << 40}}
	m, err := Metadata[row]()
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Schema) != 2 || m.Schema[1].Name != "n" || m.NumRows != 0 || m.CreatedBy != "premix" {
		t.Fatalf("%+v", m)
	}
	var body []byte
	for _, r := range want {
		body = binary.LittleEndian.AppendUint64(body, uint64(r.N))
	}
	header := format.PageHeader{Type: format.DataPage, DataPageHeader: thrift.New(format.DataPageHeader{
		NumValues: int32(len(want)), Encoding: format.Plain, DefinitionLevelEncoding: format.RLE, RepetitionLevelEncoding: format.RLE})}
	file, size, err := AppendPage([]byte(Magic), header, body, len(body))
	if err != nil {
		t.Fatal(err)
	}
	if int64(len(file)) != int64(len(Magic))+size {
		t.Errorf("a page that is not compressed takes %d bytes, %d are told", len(file)-len(Magic), size)
	}
	m.NumRows = int64(len(want))
	m.RowGroups = []format.RowGroup{{NumRows: m.NumRows, TotalByteSize: size, FileOffset: int64(len(Magic)), Columns: []format.ColumnChunk{{
		MetaData: format.ColumnMetaData{Type: format.Int64, Encoding: []format.Encoding{format.Plain}, PathInSchema: []string{"n"}, Codec: format.Uncompressed,
			NumValues: m.NumRows, DataPageOffset: int64(len(Magic)), TotalCompressedSize: size, TotalUncompressedSize: size}}}}}
	if file, err = AppendFooter(file, &m); err != nil {
		t.Fatal(err)
	}
	rows, err := parquet.Read[row](bytes.NewReader(file), int64(len(file)))
	if err != nil || len(rows) != len(want) || rows[0] != want[0] || rows[2] != want[2] {
		t.Errorf("%v, %v", rows, err)
	}
	// The checksum covers the body: a flipped bit is detected.
	file[len(Magic)+int(size)-1] ^= 1
	if rows, err := parquet.Read[row](bytes.NewReader(file), int64(len(file))); err == nil {
		t.Errorf("a damaged page was read: %v", rows)
	}
}
