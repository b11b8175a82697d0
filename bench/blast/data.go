package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// longest is the length of a sequence of the database, in letters.
const longest = 1_000_000

// origins are the sources of the database's sequences.
type origins struct {
	real [][]byte // contigs of genomes; if empty, all sequences are random
	from string   // description for the report
}

// genomes reads the bacteria and the yeast of PREMIX_TESTDATA, if it is set.
func genomes() (*origins, error) {
	top := os.Getenv("PREMIX_TESTDATA")
	if top == "" {
		return &origins{from: "random letters: PREMIX_TESTDATA is not set"}, nil
	}
	paths, err := filepath.Glob(filepath.Join(top, "bact14", "*.fa.gz"))
	if err != nil {
		return nil, err
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("%s: there are no genomes in bact14", top)
	}
	slices.Sort(paths)
	o := &origins{}
	total := 0
	for _, path := range paths {
		contigs, err := readFASTA(path)
		if err != nil {
			return nil, err
		}
		for _, c := range contigs {
			o.real = append(o.real, c)
			total += len(c)
		}
	}
	o.from = fmt.Sprintf("a quarter mutated copies, spread, of %d genomes (%d Mb) of PREMIX_TESTDATA, the rest random letters", len(paths), total/1_000_000)
	return o, nil
}

// readFASTA reads the sequences of a gzipped file; letters other than ACGT become A.
func readFASTA(path string) ([][]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var list [][]byte
	for line := range bytes.Lines(text) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] == '>' {
			list = append(list, nil)
			continue
		}
		if len(list) == 0 {
			return nil, fmt.Errorf("%s is not a FASTA file", path)
		}
		for _, c := range bytes.ToUpper(line) {
			if strings.IndexByte("ACGT", c) < 0 {
				c = 'A'
			}
			list[len(list)-1] = append(list[len(list)-1], c)
		}
	}
	return list, nil
}

// random fills b with random letters.
func random(r *rand.Rand, b []byte) {
	for k := 0; k < len(b); k += 32 {
		bits := r.Uint64()
		for j := k; j < min(k+32, len(b)); j, bits = j+1, bits>>2 {
			b[j] = "ACGT"[bits&3]
		}
	}
}

// mutate returns a copy of b in which about every nth letter is changed.
func mutate(r *rand.Rand, b []byte, n int) []byte {
	b = bytes.Clone(b)
	for i := r.IntN(2 * n); i < len(b); i += 1 + r.IntN(2*n) {
		b[i] = "ACGT"[r.IntN(4)]
	}
	return b
}

// write writes a database with this number of letters as FASTA.
func (o *origins) write(path string, letters int64) error {
	r := rand.New(rand.NewPCG(17, 19))
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	var done int64
	n := 0
	put := func(kind string, seq []byte) {
		n++
		fmt.Fprintf(w, ">s%d %s\n%s\n", n, kind, seq) // w keeps its error
		done += int64(len(seq))
	}
	seq := make([]byte, longest)
	fill := func(until int64) {
		for done < min(until, letters) {
			random(r, seq)
			put("random", seq)
		}
	}
	// Successive copies differ more and more from their originals. Random sequences are between
	// them, so that no fragment has more of them than others.
	var copied int64
	for every := 100; len(o.real) > 0 && copied < letters/4; every = max(3, every*2/3) {
		for _, contig := range o.real {
			for piece := range slices.Chunk(contig, longest) {
				if copied < letters/4 {
					put(fmt.Sprintf("mutated, 1 of %d letters", every), mutate(r, piece, every))
					copied += int64(len(piece))
					fill(4 * copied)
				}
			}
		}
	}
	fill(letters)
	return errors.Join(w.Flush(), f.Close())
}

// queries returns pieces of the database's sources, with some letters changed.
func (o *origins) queries(count, length int) []string {
	r := rand.New(rand.NewPCG(23, 29))
	contigs := slices.DeleteFunc(slices.Clone(o.real), func(c []byte) bool { return len(c) < 10*length })
	if len(contigs) == 0 {
		// The same seed as in write gives the first random sequences of the database.
		first := rand.New(rand.NewPCG(17, 19))
		for range 20 {
			seq := make([]byte, longest)
			random(first, seq)
			contigs = append(contigs, seq)
		}
	}
	var list []string
	for i := range count {
		c := contigs[r.IntN(len(contigs))]
		at := r.IntN(len(c) - length)
		list = append(list, fmt.Sprintf(">q%d\n%s\n", i, mutate(r, c[at:at+length], 40)))
	}
	return list
}
