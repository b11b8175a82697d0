package aligner

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
)

// Sizes of the index. A word of 24 bases is at one random place of the reference by chance
// with a probability of 200e6 / 4^24, below one in a million.
const (
	word = 24
	step = 64 // a word is in the index at every step-th base
)

// maxDifferent is the most bases in which a read may differ from its place.
const maxDifferent = 15

// index finds the places of words: a table with open addressing, of which a slot is 0 or a
// place divided by step, plus 1.
type index struct {
	*Reference
	slots []uint32
	mask  uint64
}

// slot returns the first slot of a word.
func (x *index) slot(w uint64) uint64 {
	w *= 0x9e3779b97f4a7c15
	return (w ^ w>>29) >> 16 & x.mask
}

// wordAt returns the word at a place, which is a multiple of 4.
func (r *Reference) wordAt(place int) (w uint64) {
	for i, b := range r.packed[place/4 : place/4+word/4] {
		w |= uint64(b) << (8 * i)
	}
	return w
}

func newIndex(r *Reference) *index {
	size := uint64(1)
	for size < 2*uint64(r.length/step+1) {
		size *= 2
	}
	x := &index{r, make([]uint32, size), size - 1}
	for place := 0; place+word <= r.length; place += step {
		i := x.slot(r.wordAt(place))
		for x.slots[i] != 0 {
			i = (i + 1) & x.mask
		}
		x.slots[i] = uint32(place/step) + 1
	}
	return x
}

// Align writes the places of the reads of a FASTQ file in a reference, in SAM.
func Align(w io.Writer, reference, reads string) error {
	r, err := load(reference)
	if err != nil {
		return err
	}
	x := newIndex(r)
	f, err := os.Open(reads)
	if err != nil {
		return err
	}
	defer f.Close()
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, "@HD\tVN:1.6\tSO:unsorted\n@SQ\tSN:%s\tLN:%d\n@PG\tID:premix-demo\tPN:premix-demo\n", name, r.length)
	in := bufio.NewScanner(f)
	var record [4][]byte
	for n := 0; in.Scan(); n++ {
		record[n%4] = append(record[n%4][:0], in.Bytes()...)
		if n%4 == 3 {
			if err := x.align(out, record); err != nil {
				return fmt.Errorf("%s:%d: %w", reads, n-2, err)
			}
		}
	}
	if err := in.Err(); err != nil {
		return fmt.Errorf("%s: %w", reads, err)
	}
	return out.Flush()
}

// align writes the line of one read: of its first place with few differences, on either
// strand.
func (x *index) align(out *bufio.Writer, record [4][]byte) error {
	id, ok := bytes.CutPrefix(record[0], []byte("@"))
	if !ok || len(record[1]) != len(record[3]) {
		return fmt.Errorf("not a read in FASTQ")
	}
	forward := make([]byte, len(record[1]))
	for i, letter := range record[1] {
		v := bytes.IndexByte([]byte(bases), letter)
		if v < 0 {
			v = 0 // an unknown base counts as a difference, three times of four
		}
		forward[i] = byte(v)
	}
	backward := bytes.Clone(forward)
	reverse(backward)
	if place, different, ok := x.find(forward); ok {
		return write(out, id, 0, place, different, record[1], record[3])
	}
	if place, different, ok := x.find(backward); ok {
		sequence := make([]byte, len(backward))
		for i, b := range backward {
			sequence[i] = bases[b]
		}
		quality := bytes.Clone(record[3])
		for i, j := 0, len(quality)-1; i < j; i, j = i+1, j-1 {
			quality[i], quality[j] = quality[j], quality[i]
		}
		return write(out, id, 16, place, different, sequence, quality)
	}
	_, err := fmt.Fprintf(out, "%s\t4\t*\t0\t0\t*\t*\t0\t0\t%s\t%s\n", id, record[1], record[3])
	return err
}

func write(out io.Writer, id []byte, flag, place, different int, sequence, quality []byte) error {
	_, err := fmt.Fprintf(out, "%s\t%d\t%s\t%d\t60\t%dM\t*\t0\t0\t%s\t%s\tNM:i:%d\n", id, flag, name, place+1, len(sequence), sequence, quality, different)
	return err
}

// find returns the place of a read on the forward strand, and in how many bases it differs.
func (x *index) find(read []byte) (place, different int, ok bool) {
	for from := 0; from+word <= len(read); from++ {
		var w uint64
		for i, b := range read[from : from+word] {
			w |= uint64(b) << (2 * i)
		}
		for i := x.slot(w); x.slots[i] != 0; i = (i + 1) & x.mask {
			at := int(x.slots[i]-1) * step
			if x.wordAt(at) != w {
				continue
			}
			if place = at - from; place < 0 || place+len(read) > x.length {
				continue
			}
			different = 0
			for i, b := range read {
				if x.base(place+i) != b {
					different++
				}
			}
			if different <= maxDifferent {
				return place, different, true
			}
		}
	}
	return 0, 0, false
}
