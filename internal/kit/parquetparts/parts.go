package parquetparts

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"
)

// Magic is the first and the last four bytes of a Parquet file.
const Magic = "PAR1"

// Metadata returns the metadata that the library makes for a file of type Row without rows:
// the schema, whose first element is the root, and the orders of columns.
func Metadata[Row any]() (format.FileMetaData, error) {
	var b bytes.Buffer
	if err := parquet.NewGenericWriter[Row](&b).Close(); err != nil {
		return format.FileMetaData{}, err
	}
	f, err := parquet.OpenFile(bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil {
		return format.FileMetaData{}, err
	}
	m := *f.Metadata()
	m.CreatedBy, m.RowGroups = "premix", nil
	return m, nil
}

// AppendPage appends a page to b: its header, to which it adds sizes in bytes and the
// checksum, and its body, whose uncompressed size is plain. It also returns the
// uncompressed size of the page with its header.
func AppendPage(b []byte, header format.PageHeader, body []byte, plain int) (_ []byte, size int64, err error) {
	header.UncompressedPageSize, header.CompressedPageSize = int32(plain), int32(len(body))
	header.CRC = int32(crc32.ChecksumIEEE(body))
	head, err := thrift.Marshal(new(thrift.CompactProtocol), &header)
	if err != nil {
		return b, 0, err
	}
	return append(append(b, head...), body...), int64(len(head) + plain), nil
}

// AppendFooter appends the footer of a file to b.
func AppendFooter(b []byte, m *format.FileMetaData) ([]byte, error) {
	text, err := thrift.Marshal(new(thrift.CompactProtocol), m)
	if err != nil {
		return b, err
	}
	b = binary.LittleEndian.AppendUint32(append(b, text...), uint32(len(text)))
	return append(b, Magic...), nil
}
