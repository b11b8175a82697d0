package aligner

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
)

// magic begins the file of a reference.
const magic = "premix demo\n"

// headSize is the size of the head of the file of a reference.
const headSize = 16

// bases are the letters of the values 0 to 3.
const bases = "ACGT"

// name is the name of the only sequence of a reference.
const name = "demo"

// Reference is a sequence of bases, 2 bits each.
type Reference struct {
	packed []byte
	length int
}

// NewReference returns the reference of the given length, which is the same each time.
func NewReference(length int) *Reference {
	r := &Reference{packed: make([]byte, (length+3)/4), length: length}
	// Reading from ChaCha8 never fails.
	_, _ = rand.NewChaCha8([32]byte{'p', 'r', 'e', 'm', 'i', 'x'}).Read(r.packed)
	return r
}

// base returns the value of one base.
func (r *Reference) base(i int) byte { return r.packed[i/4] >> (i % 4 * 2) & 3 }

// Write writes the file of the reference.
func (r *Reference) Write(w io.Writer) error {
	head := binary.LittleEndian.AppendUint32([]byte(magic), uint32(r.length))
	if _, err := w.Write(head); err != nil {
		return err
	}
	_, err := w.Write(r.packed)
	return err
}

// WriteFASTA writes the reference as text, for other aligners.
func (r *Reference) WriteFASTA(w io.Writer) error {
	out := bufio.NewWriterSize(w, 1<<20)
	fmt.Fprintf(out, ">%s\n", name)
	var four [256][4]byte
	for b := range four {
		for i := range 4 {
			four[b][i] = bases[b>>(2*i)&3]
		}
	}
	const line = 80 // a multiple of 4
	for i := 0; i < r.length; i += 4 {
		if i > 0 && i%line == 0 {
			out.WriteByte('\n')
		}
		out.Write(four[r.packed[i/4]][:min(4, r.length-i)])
	}
	out.WriteByte('\n')
	return out.Flush() // and any earlier error
}

// load reads the file of a reference.
func load(path string) (*Reference, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	head := make([]byte, headSize)
	if _, err := io.ReadFull(f, head); err != nil || string(head[:len(magic)]) != magic {
		return nil, fmt.Errorf("%s is not a reference of the demonstration", path)
	}
	r := &Reference{length: int(binary.LittleEndian.Uint32(head[len(magic):]))}
	r.packed = make([]byte, (r.length+3)/4)
	if _, err := io.ReadFull(f, r.packed); err != nil {
		return nil, errors.Join(fmt.Errorf("%s has not all bases", path), err)
	}
	return r, nil
}

// Sample writes reads of a sample in FASTQ: pieces of the reference from places that depend
// on the number of the sample, half of them from the other strand, with a wrong base in some.
func (r *Reference) Sample(w io.Writer, number, reads int) error {
	const length = 150
	out := bufio.NewWriter(w)
	random := rand.New(rand.NewPCG(uint64(number), 1))
	quality := make([]byte, length)
	for i := range quality {
		quality[i] = 'I'
	}
	read := make([]byte, length)
	for n := range reads {
		at := random.IntN(r.length - length)
		for i := range read {
			read[i] = r.base(at + i)
		}
		if random.IntN(4) == 0 {
			i := random.IntN(length)
			read[i] = (read[i] + 1) % 4
		}
		if random.IntN(2) == 0 {
			reverse(read)
		}
		for i, b := range read {
			read[i] = bases[b]
		}
		fmt.Fprintf(out, "@s%d.%d\n%s\n+\n%s\n", number, n+1, read, quality)
	}
	return out.Flush()
}

// reverse replaces a read by its reverse complement.
func reverse(read []byte) {
	for i, j := 0, len(read)-1; i <= j; i, j = i+1, j-1 {
		read[i], read[j] = 3-read[j], 3-read[i]
	}
}
