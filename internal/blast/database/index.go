package database

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"strings"
)

// index is the head of a volume's index file (.nin, .pin). Numbers are big-endian except
// for the letters:
//
//	version    uint32  4 or 5
//	type       uint32  0: nucleotides, 1: amino acids
//	volume     uint32  only in version 5
//	title      uint32 length, then bytes
//	lmdb       the same, only in version 5: the file with the ids
//	date       the same, padded with NULs so that the next field is aligned to 8 bytes
//	sequences  uint32
//	letters    uint64, little-endian
//	longest    uint32
//
// Source: the NCBI C++ Toolkit, which contains BLAST+ (writedb_files.cpp).
type index struct {
	version   int
	kind      Type
	title     string
	lmdb      string // in version 5, the file with the ids
	date      string
	dateAt    int64 // offset of the date's bytes
	dateRoom  int   // their number, including padding
	sequences int64
	letters   int64
}

// maxHead is larger than the head of any index, because titles are limited to less.
const maxHead = 1 << 20

func readIndex(path string) (*index, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxHead))
	if err != nil {
		return nil, err
	}
	x, err := parseIndex(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return x, nil
}

func parseIndex(b []byte) (*index, error) {
	at, short := 0, false
	take := func(n uint32) []byte {
		if short || uint64(n) > uint64(len(b)-at) {
			short = true
			return make([]byte, min(n, 8))
		}
		at += int(n)
		return b[at-int(n) : at]
	}
	number := func() uint32 { return binary.BigEndian.Uint32(take(4)) }
	x := &index{version: int(number())}
	if x.version != 4 && x.version != 5 {
		return nil, fmt.Errorf("an index of version %d: only 4 and 5 are supported", x.version)
	}
	x.kind = Nucl
	if number() == 1 {
		x.kind = Prot
	}
	if x.version == 5 {
		number()
	}
	x.title = string(take(number()))
	if x.version == 5 {
		x.lmdb = strings.TrimRight(string(take(number())), "\x00")
	}
	room := number()
	x.dateAt, x.dateRoom = int64(at), int(room)
	x.date = strings.TrimRight(string(take(room)), "\x00")
	x.sequences = int64(number())
	x.letters = int64(binary.LittleEndian.Uint64(take(8)))
	if short || x.letters < 0 {
		return nil, fmt.Errorf("the index is cut short")
	}
	return x, nil
}

// setDate sets the date of an index, with the padding that makeblastdb would write. The
// file does not contain offsets into itself.
func setDate(path, date string) error {
	x, err := readIndex(path)
	if err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	head := make([]byte, x.dateAt)
	if _, err := io.ReadFull(f, head); err != nil {
		return err
	}
	room := len(date) + int(-(x.dateAt+int64(len(date)))&7)
	binary.BigEndian.PutUint32(head[x.dateAt-4:], uint32(room))
	head = append(append(head, date...), make([]byte, room-len(date))...)
	if _, err := f.Seek(x.dateAt+int64(x.dateRoom), io.SeekStart); err != nil {
		return err
	}
	return writeAll(path, io.MultiReader(bytes.NewReader(head), f))
}

// dateForm is the format of makeblastdb's dates.
const dateForm = "Jan 2, 2006  3:04 PM"
