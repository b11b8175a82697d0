package placeholder

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/zeebo/blake3"
)

// format is the format of a file's content, without the compression.
type format string

const (
	formatEmpty  format = "empty"
	formatFASTQ  format = "FASTQ"
	formatFASTA  format = "FASTA"
	formatSAM    format = "SAM"
	formatText   format = "text" // VCF and tables too: lines that begin with # or %, and the names of columns, are its header
	formatBAM    format = "BAM"
	formatBCF    format = "BCF"
	formatBinary format = "binary" // everything else
)

// packing is the compression of a file.
type packing string

const (
	packingNone packing = ""
	packingGzip packing = "gzip"
	packingBGZF packing = "BGZF"
)

const (
	// headSize is the number of bytes from which formatOf finds the format.
	headSize = 64 << 10
	// longSize is the headSize of a content that may be FASTQ.
	longSize = 1 << 20
	// maxHeader is the size from which on a header is too large to be read, bytes.
	maxHeader = 64 << 20
	// maxSample is the number of bytes of records that a placeholder is made of.
	maxSample = 4 << 20
)

// source is a file that is being read, decompressed.
type source struct {
	f       *os.File
	r       *bufio.Reader
	packing packing
	format  format
}

func open(path string) (*source, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	s := &source{f: f}
	if err := s.begin(); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

func (s *source) Close() error { return s.f.Close() }

// begin finds out the packing and the format.
func (s *source) begin() error {
	s.r = bufio.NewReaderSize(s.f, 1<<20)
	magic, err := s.r.Peek(18)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if s.packing = packingOf(magic); s.packing != packingNone {
		z, err := gzip.NewReader(s.r)
		if err != nil {
			return err
		}
		s.r = bufio.NewReaderSize(z, 1<<20)
	}
	head, err := s.r.Peek(headSize)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if s.format = formatOf(head); s.format == formatBinary && head[0] == '@' {
		// A long read, perhaps.
		if head, err = s.r.Peek(longSize); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		s.format = formatOf(head)
	}
	return nil
}

// packingOf returns the packing of a file by its first 18 bytes (RFC 1952, 2.3.1).
func packingOf(b []byte) packing {
	if len(b) < 2 || b[0] != 0x1f || b[1] != 0x8b {
		return packingNone
	}
	const extra = 4 // FLG.FEXTRA
	if len(b) >= 18 && b[3]&extra != 0 && b[12] == 'B' && b[13] == 'C' && b[14] == 2 && b[15] == 0 {
		return packingBGZF
	}
	return packingGzip
}

// formatOf returns the format of a content by its first bytes.
func formatOf(head []byte) format {
	switch {
	case len(head) == 0:
		return formatEmpty
	case bytes.HasPrefix(head, []byte("BAM\x01")):
		return formatBAM
	case bytes.HasPrefix(head, []byte("BCF\x02")):
		return formatBCF
	case !isText(head):
		return formatBinary
	case head[0] == '>':
		return formatFASTA
	case head[0] == '@':
		return formatOfAt(head)
	case bytes.IndexByte([]byte("{[<"), bytes.TrimLeft(head, " \t\r\n\xef\xbb\xbf")[0]) >= 0:
		return formatBinary // JSON, XML: parts of it are not valid
	}
	return formatText
}

// formatOfAt returns the format of a content that begins with '@'.
func formatOfAt(head []byte) format {
	lines := bytes.SplitN(head, []byte("\n"), 4)
	if len(lines) == 4 && bytes.HasPrefix(lines[2], []byte("+")) {
		return formatFASTQ
	}
	for _, tag := range []string{"@HD\t", "@SQ\t", "@RG\t", "@PG\t", "@CO\t"} {
		if bytes.HasPrefix(head, []byte(tag)) {
			return formatSAM
		}
	}
	return formatBinary // as FASTQ with records of several lines
}

// isText reports whether a text has no control characters other than white space,
// and is not white space only.
func isText(head []byte) bool {
	if len(bytes.TrimSpace(head)) == 0 {
		return false
	}
	for _, c := range head {
		if c < ' ' && c != '\t' && c != '\n' && c != '\r' && c != '\f' && c != '\v' || c == 0x7f {
			return false
		}
	}
	return true
}

// errLarge is the error for a header or a record that is too large for memory.
var errLarge = errors.New("too large")

// header reads the part of the content before the first record. Each placeholder has the
// same header.
func (s *source) header() ([]byte, error) {
	switch s.format {
	case formatBAM:
		return s.headerBAM()
	case formatBCF:
		return s.sized(5)
	case formatSAM:
		return s.linesWith("@")
	case formatText:
		all, err := s.linesWith("#%")
		if err != nil {
			return nil, err
		}
		names, err := s.columns()
		return append(all, names...), err
	}
	return nil, nil
}

// linesWith reads the lines at the beginning that begin with one of some characters.
func (s *source) linesWith(marks string) ([]byte, error) {
	var all []byte
	for {
		c, err := s.r.Peek(1)
		if errors.Is(err, io.EOF) || err == nil && bytes.IndexByte([]byte(marks), c[0]) < 0 {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		line, err := s.line()
		if err != nil {
			return nil, err
		}
		if all = append(all, line...); len(all) > maxHeader {
			return nil, errLarge
		}
	}
}

// line reads one line with its end; at the end of the content it is empty.
func (s *source) line() ([]byte, error) {
	var all []byte
	for {
		part, err := s.r.ReadSlice('\n')
		if all = append(all, part...); len(all) > maxHeader {
			return nil, errLarge
		}
		switch {
		case err == nil || errors.Is(err, io.EOF):
			return all, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}

// sized reads bytes, a length after them, and as many bytes as that says.
func (s *source) sized(before int) ([]byte, error) {
	head := make([]byte, before+4)
	if _, err := io.ReadFull(s.r, head); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(head[before:])
	if n > maxHeader {
		return nil, errLarge
	}
	all := append(head, make([]byte, n)...)
	_, err := io.ReadFull(s.r, all[len(head):])
	return all, err
}

// headerBAM reads the text and the reference sequences (SAM specification, 4.2).
func (s *source) headerBAM() ([]byte, error) {
	all, err := s.sized(4)
	if err != nil {
		return nil, err
	}
	var b [4]byte
	if _, err := io.ReadFull(s.r, b[:]); err != nil {
		return nil, err
	}
	all = append(all, b[:]...)
	for range binary.LittleEndian.Uint32(b[:]) {
		name, err := s.sized(0)
		if err != nil {
			return nil, err
		}
		if _, err := io.ReadFull(s.r, b[:]); err != nil {
			return nil, err
		}
		if all = append(append(all, name...), b[:]...); len(all) > maxHeader {
			return nil, errLarge
		}
	}
	return all, nil
}

// record reads the next record. It returns io.EOF after the last record.
func (s *source) record() ([]byte, error) {
	if _, err := s.r.Peek(1); err != nil {
		return nil, err
	}
	switch s.format {
	case formatBAM:
		return s.sized(0)
	case formatBCF:
		var b [8]byte // l_shared, l_indiv
		if _, err := io.ReadFull(s.r, b[:]); err != nil {
			return nil, err
		}
		n := uint64(binary.LittleEndian.Uint32(b[:])) + uint64(binary.LittleEndian.Uint32(b[4:]))
		if n > maxHeader {
			return nil, errLarge
		}
		all := append(b[:], make([]byte, n)...)
		_, err := io.ReadFull(s.r, all[8:])
		return all, err
	case formatFASTQ:
		var all []byte
		for i := range 4 {
			line, err := s.line()
			if err != nil {
				return nil, err
			}
			if i == 2 && !bytes.HasPrefix(line, []byte("+")) || i == 0 && !bytes.HasPrefix(line, []byte("@")) {
				return nil, errNotFASTQ
			}
			all = append(all, line...)
		}
		return all, nil
	case formatFASTA:
		all, err := s.line()
		for err == nil && len(all) < maxSample {
			var c []byte
			if c, err = s.r.Peek(1); err != nil || c[0] == '>' {
				break
			}
			var line []byte
			line, err = s.line()
			all = append(all, line...)
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return all, err
	}
	return s.line()
}

// errNotFASTQ is the error for FASTQ with records of more than four lines.
var errNotFASTQ = errors.New("records of several lines")

// Kind describes the properties of a file that its placeholders have too: packing,
// format, the digest of a header, and the marks of reads. With plain, the packing does not count.
func Kind(path string, plain bool) (string, error) {
	s, err := open(path)
	if err != nil {
		return "", err
	}
	defer s.Close()
	kind := string(s.format)
	if s.packing != packingNone && !plain {
		kind += " in " + string(s.packing)
	}
	h, err := s.header()
	if errors.Is(err, errLarge) {
		return kind + " with a large header", nil
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	if s.format == formatFASTQ || s.format == formatFASTA {
		marks, err := s.marks()
		if err != nil && !errors.Is(err, errNotFASTQ) && !errors.Is(err, errLarge) {
			return "", fmt.Errorf("%s: %w", path, err)
		}
		return kind + marks, nil
	}
	if len(h) > 0 {
		sum := blake3.Sum256(h)
		kind += " with header " + hex.EncodeToString(sum[:6])
	}
	return kind, nil
}

// marks describes the first reads in the properties that both placeholders take from them.
func (s *source) marks() (string, error) {
	records, err := s.records()
	var lower, carriage, other, named bool
	for _, r := range records {
		carriage = carriage || bytes.Contains(r, []byte("\r\n"))
		lines := bytes.Split(bytes.TrimRight(bytes.ReplaceAll(r, []byte("\r"), nil), "\n"), []byte("\n"))
		if s.format == formatFASTQ {
			named = named || len(lines[2]) > 1
			lines = lines[:2]
		}
		for _, line := range lines[1:] {
			lower = lower || bytes.ContainsAny(line, "acgtnu")
			other = other || len(bytes.Trim(line, "ACGTNacgtn")) > 0
		}
	}
	var text string
	for _, mark := range []struct {
		has  bool
		name string
	}{{lower, "small letters"}, {carriage, "carriage returns"}, {other, "letters other than ACGTN"}, {named, "names in the third line"}} {
		if mark.has {
			text += ", " + mark.name
		}
	}
	return text, err
}

// FullyVariable reports whether two placeholders of a Kind differ in all properties by which tools
// tell files of a format from each other, such as the length and the names of reads. The
// records of other formats are copied, and have such properties in common.
func FullyVariable(kind string) bool {
	return strings.HasPrefix(kind, string(formatFASTQ)) || strings.HasPrefix(kind, string(formatFASTA))
}

// PackedOnly returns the name of the format of a compressed file that tools read only
// in this form, or "".
func PackedOnly(path string) (string, error) {
	s, err := open(path)
	if err != nil {
		return "", err
	}
	defer s.Close()
	if s.packing == packingNone {
		return "", nil
	}
	head, err := s.r.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	for magic, name := range map[string]string{"BAM\x01": "BAM", "BCF\x02": "BCF", "TBI\x01": "tabix index", "CSI\x01": "CSI index"} {
		if bytes.HasPrefix(head, []byte(magic)) {
			return name, nil
		}
	}
	return "", nil
}
