package placeholder

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"slices"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
)

// maxRecords is the number of records that a placeholder is made of.
const maxRecords = 1000

// maxWhole is the size up to which content that cannot be cut is copied whole, and
// partSize the number of bytes that are copied of larger content.
const (
	maxWhole = 64 << 20
	partSize = 64 << 10
)

// copies is the number of reads in one of the placeholders of a file with one read.
const copies = 50

// Make writes a placeholder for the file real to a new file. number, 0 or 1, chooses
// between two placeholders with different content. With plain, the placeholder is not
// compressed. If the format cannot be divided, the placeholder has the whole content of
// real, and cut is false.
func Make(real, to string, number int, plain bool) (cut bool, err error) {
	s, err := open(real)
	if err != nil {
		return false, err
	}
	defer s.Close()
	content, err := s.part(number)
	if errors.Is(err, errLarge) || errors.Is(err, errNotFASTQ) || err == nil && content == nil {
		return false, whole(real, to, number, plain)
	}
	if err != nil {
		return false, fmt.Errorf("%s: %w", real, err)
	}
	p := s.packing
	if plain {
		p = packingNone
	}
	return true, write(to, content, p)
}

// part returns the content of a placeholder, or nil if the format cannot be divided.
func (s *source) part(number int) ([]byte, error) {
	if s.format == formatBinary || s.format == formatEmpty {
		return nil, nil
	}
	header, err := s.header()
	if err != nil {
		return nil, err
	}
	records, err := s.records()
	if err != nil {
		return nil, err
	}
	reads := s.format == formatFASTQ || s.format == formatFASTA
	// The order of records stays, since they may be sorted. The first one of number 0 is
	// not the first one of the sample.
	var chosen [][]byte
	switch n := len(records) / 2; {
	case len(records) > 1 && number == 0:
		chosen = records[n:]
	case len(records) > 1 && reads:
		chosen = records[:1] // a tool may count them
	case len(records) > 1:
		for i := 0; i < n; i += 2 {
			chosen = append(chosen, records[i])
		}
	case len(records) == 1 && reads && number == 0 && len(records[0]) < partSize:
		chosen = slices.Repeat([][]byte{endLine(s.format, records[0])}, copies)
	case len(records) == 1 && reads:
		chosen = records
	case len(records) == 1 && len(header) > 0 && number == 1:
		chosen = [][]byte{endLine(s.format, records[0]), records[0]}
	case len(records) == 1 && len(header) > 0:
	default:
		return nil, nil
	}
	for i, r := range chosen {
		if reads {
			r = shorten(s.format, r, number, i)
		} else if i < len(chosen)-1 {
			r = endLine(s.format, r)
		}
		header = append(header, r...)
	}
	return header, nil
}

// records reads the first records.
func (s *source) records() ([][]byte, error) {
	var records [][]byte
	for size := 0; len(records) < maxRecords; {
		r, err := s.record()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		// Mates of a pair have the same number of records, whatever their size.
		if size += len(r); size > maxSample && len(records) > 0 && s.format != formatFASTQ {
			break
		}
		records = append(records, r)
	}
	return records, nil
}

// endLine completes the last line of a text.
func endLine(f format, line []byte) []byte {
	if f == formatBAM || f == formatBCF || bytes.HasSuffix(line, []byte("\n")) {
		return line
	}
	return append(bytes.Clone(line), '\n')
}

// shorten returns record i of FASTQ or FASTA without some of its last letters.
func shorten(f format, record []byte, number, i int) []byte {
	n := 1 + i%5 + 4*number
	lines := bytes.Split(bytes.TrimRight(record, "\n"), []byte("\n"))
	var b bytes.Buffer
	last := len(lines) - 1
	unknown := i%2 == 0
	for i, line := range lines {
		line, end := bytes.TrimRight(line, "\r"), line
		end = end[len(line):] // kindOfReads has it
		if i == 0 && number == 1 && len(line) > 1 {
			line = otherName(line)
		}
		if f == formatFASTQ && i == 1 && number == 1 && unknown && len(line) > 0 {
			line = append([]byte{'N'}, line[1:]...)
		}
		if f == formatFASTQ && (i == 1 || i == 3) || f == formatFASTA && i == last && i > 0 {
			line = line[:max(min(1, len(line)), len(line)-n)]
		}
		if f == formatFASTQ && i == 3 && number == 1 {
			line = bytes.Repeat([]byte{'h'}, len(line)) // of scales that begin at 33 and at 64
		}
		b.Write(line)
		b.Write(end)
		b.WriteByte('\n')
	}
	return b.Bytes()
}

// otherName returns the first line of a record with another first letter of its name, without
// the number of the mate, and without a comment: names of one sample begin with the same
// letters, and have comments or not.
func otherName(line []byte) []byte {
	line = bytes.Clone(line)
	if i := bytes.IndexAny(line, " \t"); i > 1 {
		line = line[:i]
	}
	if n := len(line) - 2; n > 1 && line[n] == '/' {
		line = line[:n]
	}
	if line[1] == 'x' {
		line[1] = 'y'
	} else if line[1] > ' ' {
		line[1] = 'x'
	}
	return line
}

// whole copies content that cannot be cut.
func whole(real, to string, number int, plain bool) error {
	s, err := open(real)
	if err != nil {
		return err
	}
	defer s.Close()
	st, err := s.f.Stat()
	if err != nil {
		return err
	}
	var in io.Reader = s.f
	if plain {
		in = s.r
	} else if _, err := s.f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if st.Size() > maxWhole {
		in = io.LimitReader(in, partSize>>number)
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	if _, err := io.Copy(out, in); err != nil {
		return fmt.Errorf("%s: %w", real, err)
	}
	return out.Close()
}

func write(to string, content []byte, p packing) error {
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	switch p {
	case packingNone:
		_, err = out.Write(content)
	case packingGzip:
		z := gzip.NewWriter(out)
		if _, err = z.Write(content); err == nil {
			err = z.Close()
		}
	case packingBGZF:
		err = writeBGZF(out, content)
	}
	if err != nil {
		return err
	}
	return out.Close()
}

// blockSize is the number of bytes of content in a member of BGZF: it stays below
// 64 KiB where it cannot be compressed.
const blockSize = 0xff00

// writeBGZF writes the members of content, and the empty one at the end.
func writeBGZF(out io.Writer, content []byte) error {
	for {
		block := content[:min(len(content), blockSize)]
		content = content[len(block):]
		if err := writeBlock(out, block); err != nil {
			return err
		}
		if len(block) == 0 {
			return nil
		}
	}
}

func writeBlock(out io.Writer, block []byte) error {
	var packed bytes.Buffer
	z, err := flate.NewWriter(&packed, flate.DefaultCompression)
	if err != nil {
		return err
	}
	if _, err := z.Write(block); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	data := packed.Bytes()
	if len(block) == 0 {
		data = []byte{3, 0} // the marker of the end has these bytes exactly
	}
	b := []byte{0x1f, 0x8b, 8, 4, 0, 0, 0, 0, 0, 0xff, 6, 0, 'B', 'C', 2, 0}
	b = binary.LittleEndian.AppendUint16(b, uint16(len(b)+2+len(data)+8-1))
	b = append(b, data...)
	b = binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(block))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(block)))
	_, err = out.Write(b)
	return err
}
