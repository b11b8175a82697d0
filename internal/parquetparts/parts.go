package parquetparts

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"
)

// Magic is what a Parquet file begins and ends with.
const Magic = "PAR1"

// Metadata is that of a file with no rows of type Row, as the library makes it of the tags
// of the type: the schema, whose first element is the root, and the orders of columns.
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

// AppendPage appends a page to b: its header, to which sizes in bytes and the checksum are
// added, and its body, which takes plain bytes before it is compressed. It returns also
// what the page takes before that, with its header.
func AppendPage(b []byte, header format.PageHeader, body []byte, plain int) (_ []byte, size int64, err error) {
	header.UncompressedPageSize, header.CompressedPageSize = int32(plain), int32(len(body))
	header.CRC = int32(crc32.ChecksumIEEE(body))
	head, err := thrift.Marshal(new(thrift.CompactProtocol), &header)
	if err != nil {
		return b, 0, err
	}
	return append(append(b, head...), body...), int64(len(head) + plain), nil
}

// AppendFooter appends the end of a file to b.
func AppendFooter(b []byte, m *format.FileMetaData) ([]byte, error) {
	text, err := thrift.Marshal(new(thrift.CompactProtocol), m)
	if err != nil {
		return b, err
	}
	b = binary.LittleEndian.AppendUint32(append(b, text...), uint32(len(text)))
	return append(b, Magic...), nil
}
