package series

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"math"
	"os"

	"premix/internal/watch"
)

// A journal is a file of frames:
//
//	magic    8 bytes, at the beginning of the file only
//	window   8 bytes, little endian: begin of the window, ms since 1970; at the beginning only
//	length   4 bytes, little endian, of the payload
//	crc      4 bytes, little endian: CRC-32C of the payload
//	payload  records
//
// A record is a byte for its kind and then
//
//	1: uvarint number, then name, unit, uvarint number of labels, key and value of each;
//	   each string has its length, a uvarint, before it. From here on the number denotes
//	   this series. Numbers count up from 0.
//	2: uvarint number of samples, varint time of the first, then of each: varint
//	   difference of its series number to the number of the sample before + 1, varint
//	   difference of its time to the time of the sample before, value (8 bytes, little endian).
//
// Reading ends at the first frame that is not whole; the bytes after it were never synced.
const (
	journalMagic = "pmxwatch"
	journalHead  = 16
	frameHead    = 8
	maxFrame     = 64 << 20

	recordSeries  = 1
	recordSamples = 2
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var errJournal = errors.New("not a journal of samples")

func appendText(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

func appendSeries(b []byte, number int, id watch.ID, unit watch.Unit) []byte {
	b = append(b, recordSeries)
	b = binary.AppendUvarint(b, uint64(number))
	b = appendText(b, id.Name)
	b = appendText(b, string(unit))
	b = binary.AppendUvarint(b, uint64(len(id.Labels)))
	for _, l := range id.Labels {
		b = appendText(b, l.Key)
		b = appendText(b, l.Value)
	}
	return b
}

// entry is a sample in a journal.
type entry struct {
	series int
	time   int64
	value  float64
}

func appendSamples(b []byte, entries []entry) []byte {
	b = append(b, recordSamples)
	b = binary.AppendUvarint(b, uint64(len(entries)))
	last := entry{series: -1}
	if len(entries) > 0 {
		last.time = entries[0].time
		b = binary.AppendVarint(b, last.time)
	}
	for _, e := range entries {
		b = binary.AppendVarint(b, int64(e.series-last.series-1))
		b = binary.AppendVarint(b, e.time-last.time)
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(e.value))
		last = e
	}
	return b
}

// beginFrame appends space for the head of a frame. endFrame fills it in for the payload
// appended since.
func beginFrame(b []byte) (with []byte, at int) {
	return append(b, make([]byte, frameHead)...), len(b)
}

func endFrame(b []byte, at int) {
	payload := b[at+frameHead:]
	binary.LittleEndian.PutUint32(b[at:], uint32(len(payload)))
	binary.LittleEndian.PutUint32(b[at+4:], crc32.Checksum(payload, castagnoli))
}

// replay reads a journal, and calls series and samples for its contents. It returns the
// begin of the window and the size of the valid part, after which the file may be
// truncated.
func replay(f *os.File, series func(number int, id watch.ID, unit watch.Unit) error, samples func(entry) error) (window, size int64, err error) {
	head := make([]byte, journalHead)
	if _, err := io.ReadFull(f, head); err != nil || string(head[:8]) != journalMagic {
		return 0, 0, errJournal
	}
	window, size = int64(binary.LittleEndian.Uint64(head[8:])), journalHead
	var payload []byte
	for {
		var h [frameHead]byte
		if _, err := io.ReadFull(f, h[:]); err != nil {
			return window, size, nil
		}
		n := binary.LittleEndian.Uint32(h[:])
		if n > maxFrame {
			return window, size, nil
		}
		if cap(payload) < int(n) {
			payload = make([]byte, n)
		}
		payload = payload[:n]
		if _, err := io.ReadFull(f, payload); err != nil || crc32.Checksum(payload, castagnoli) != binary.LittleEndian.Uint32(h[4:]) {
			return window, size, nil
		}
		if err := readRecords(payload, series, samples); err != nil {
			return window, size, err
		}
		size += frameHead + int64(n)
	}
}

// readRecords decodes the payload of a frame of the journal. It calls series for each new
// series, and samples for each value.
func readRecords(b []byte, series func(number int, id watch.ID, unit watch.Unit) error, samples func(entry) error) error {
	p := parser{b: b}
	for len(p.b) > 0 && !p.bad {
		switch kind := p.byte(); kind {
		case recordSeries:
			number := p.uvarint(math.MaxInt32)
			id, unit := watch.ID{Name: p.text()}, watch.Unit(p.text())
			for range p.uvarint(uint64(len(p.b))) {
				id.Labels = append(id.Labels, watch.Label{Key: p.text(), Value: p.text()})
			}
			if p.bad {
				return errJournal
			}
			if err := series(int(number), id, unit); err != nil {
				return err
			}
		case recordSamples:
			count := p.uvarint(uint64(len(p.b)))
			last := entry{series: -1}
			if count > 0 {
				last.time = p.varint()
			}
			for range count {
				last.series += int(p.varint()) + 1
				last.time += p.varint()
				last.value = p.float()
				if p.bad {
					return errJournal
				}
				if err := samples(last); err != nil {
					return err
				}
			}
		default:
			return errJournal
		}
	}
	if p.bad {
		return errJournal
	}
	return nil
}

// parser decodes values from the front of a slice. After the first failure bad is set, and
// all further values are zero.
type parser struct {
	b   []byte
	bad bool
}

func (p *parser) fail() {
	p.b, p.bad = nil, true
}

func (p *parser) byte() byte {
	if len(p.b) == 0 {
		p.fail()
		return 0
	}
	c := p.b[0]
	p.b = p.b[1:]
	return c
}

// uvarint returns a number that is at most limit.
func (p *parser) uvarint(limit uint64) uint64 {
	v, n := binary.Uvarint(p.b)
	if n <= 0 || v > limit {
		p.fail()
		return 0
	}
	p.b = p.b[n:]
	return v
}

func (p *parser) varint() int64 {
	v, n := binary.Varint(p.b)
	if n <= 0 {
		p.fail()
		return 0
	}
	p.b = p.b[n:]
	return v
}

func (p *parser) float() float64 {
	if len(p.b) < 8 {
		p.fail()
		return 0
	}
	v := math.Float64frombits(binary.LittleEndian.Uint64(p.b))
	p.b = p.b[8:]
	return v
}

func (p *parser) text() string {
	n := p.uvarint(math.MaxInt64)
	if p.bad || n > uint64(len(p.b)) { // the bytes left after the length
		p.fail()
		return ""
	}
	s := string(p.b[:n])
	p.b = p.b[n:]
	return s
}
