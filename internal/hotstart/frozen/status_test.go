package frozen

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// TestFindStatus finds the status of an input whole and in single words.
func TestFindStatus(t *testing.T) {
	status := func(inode, size, read, written uint64) []byte {
		b := make([]byte, statusSize)
		for at, x := range map[int]uint64{0: 5, statusInode: inode, 24: 0x81a4, statusBytes: size, statusRead: read, statusWrite: written} {
			binary.LittleEndian.PutUint64(b[at:], x)
		}
		return b
	}
	inputs := [2][]Input{
		{{"missing", nil}, {"r1", status(100, 1, 7, 7)}},
		{{"missing", nil}, {"r1", status(200, 1<<42, 9, 9)}},
	}
	alike := [2][]Input{
		{{"r1", status(100, 1, 7, 7)}, {"r2", status(101, 1, 7, 7)}},
		{{"r1", status(200, 1<<42, 9, 9)}, {"r2", status(201, 1<<42, 9, 9)}},
	}
	other := [2][]Input{alike[0], {{"r1", status(200, 1<<42, 9, 9)}, {"r2", status(201, 1<<42-1, 9, 9)}}}
	short := [2][]Input{{{"r1", status(100, 10, 7, 7)}}, {{"r1", status(200, 20, 9, 9)}}}
	words := func(list ...uint64) (b []byte) {
		for _, x := range list {
			b = binary.LittleEndian.AppendUint64(b, x)
		}
		return b
	}
	around := func(b []byte) []byte { return append(append(words(3), b...), words(4)...) }
	for _, c := range []struct {
		name   string
		inputs [2][]Input
		a, b   []byte
		off    int
		want   StatusPlace // Size 0: not found
	}{
		{"whole", inputs, around(status(100, 1, 7, 7)), around(status(200, 1<<42, 9, 9)), 8 + statusBytes, StatusPlace{0x1008, "r1", 0, statusSize}},
		{"read since", inputs, around(status(100, 1, 70, 7)), around(status(200, 1<<42, 90, 9)), 8 + statusInode, StatusPlace{0x1008, "r1", 0, statusSize}},
		{"cut off", inputs, status(100, 1, 7, 7)[:64], status(200, 1<<42, 9, 9)[:64], 24, StatusPlace{}},
		{"of one input only", inputs, around(status(100, 1, 7, 7)), around(status(201, 1<<42, 9, 9)), 8 + statusInode, StatusPlace{}},
		{"inode", inputs, words(1, 100, 2), words(1, 200, 2), 8, StatusPlace{0x1008, "r1", statusInode, 8}},
		{"time", inputs, words(7), words(9), 0, StatusPlace{0x1000, "r1", statusWrite, 8}},
		{"size", inputs, words(1), words(1 << 42), 0, StatusPlace{0x1000, "r1", statusBytes, 8}},
		{"size of an input that was read", short, words(10), words(20), 0, StatusPlace{}},
		{"size of either input", alike, words(1), words(1 << 42), 0, StatusPlace{}},
		{"time of either input", alike, words(7), words(9), 0, StatusPlace{}},
		{"inode of the second input", alike, words(101), words(201), 0, StatusPlace{0x1000, "r2", statusInode, 8}},
		{"whole, of the second input", alike, around(status(101, 1, 7, 7)), around(status(201, 1<<42, 9, 9)), 8 + statusInode, StatusPlace{0x1008, "r2", 0, statusSize}},
		{"size of the second input", other, words(1), words(1<<42 - 1), 0, StatusPlace{0x1000, "r2", statusBytes, 8}},
		{"twice the size", inputs, words(2), words(1 << 43), 0, StatusPlace{}},
		{"exchanged", inputs, words(200), words(100), 0, StatusPlace{}},
	} {
		b := bytes.Clone(c.b)
		got, ok := findStatus(c.inputs, 0x1000, c.a, b, c.off)
		if got != c.want || ok != (c.want.Size > 0) {
			t.Errorf("%s: %+v, %v, want %+v", c.name, got, ok, c.want)
		}
		if ok && !bytes.Equal(b, c.a) {
			t.Errorf("%s: the other memory is not made equal", c.name)
		}
	}
}
