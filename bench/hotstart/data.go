package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

//go:embed synth/synth.c
var synthSource string

const (
	bases      = "ACGT"
	lineLength = 80
	// largeSize is the number of bases to which the large reference is filled up.
	largeSize = 200_000_000
	// smallSize is the number of bases of the generated reference that replaces yeast.
	smallSize = 12_000_000
	chunkSize = 10_000_000 // of a generated sequence, bases
	// pieceSize is the number of bases of the pieces that replace transcripts.
	pieceSize = 1500
	// shortest is the minimum length of a generated transcript, in bases: wgsim cuts no
	// pairs from sequences under 650.
	shortest = 700
	seed     = 20180101
)

// data is the directory of the prepared files. Every file and directory is made under a
// temporary name and renamed when it is whole, so that an existing one can be used.
type data struct {
	dir      string // absolute
	testdata string // PREMIX_TESTDATA; if empty, everything is generated
	log      func(format string, args ...any)
}

// make returns dir/name. If it does not exist, make calls fill to make it; fill gets a
// path that does not exist yet.
func (d *data) make(name string, fill func(path string) error) (string, error) {
	path := filepath.Join(d.dir, name)
	if _, err := os.Lstat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return "", err
	}
	part := path + ".part"
	if err := os.RemoveAll(part); err != nil {
		return "", err
	}
	d.log("preparing %s", name)
	if err := fill(part); err != nil {
		return "", fmt.Errorf("prepare %s: %w", name, err)
	}
	return path, os.Rename(part, path)
}

// real returns the path of a file of the test data, or "" without test data.
func (d *data) real(name string) string {
	if d.testdata == "" {
		return ""
	}
	return filepath.Join(d.testdata, name)
}

// small returns the path of the yeast genome, or of a generated one of its size.
func (d *data) small() (string, error) {
	return d.make("small.fa", func(path string) error {
		if gz := d.real("yeast/genome.R64.fa.gz"); gz != "" {
			return writeFile(path, func(w io.Writer) error { return unzip(w, gz) })
		}
		return writeFile(path, func(w io.Writer) error { return generate(w, smallSize, seed) })
	})
}

// large returns the path of the bacterial genomes, filled up with generated sequence.
func (d *data) large() (string, error) {
	return d.make("large.fa", func(path string) error {
		return writeFile(path, func(w io.Writer) error {
			var have counter
			if dir := d.real("bact14"); dir != "" {
				files, err := filepath.Glob(filepath.Join(dir, "*.fa.gz"))
				if err != nil {
					return err
				}
				slices.Sort(files)
				for _, f := range files {
					if err := unzip(io.MultiWriter(w, &have), f); err != nil {
						return err
					}
				}
			}
			return generate(w, largeSize-int(have), seed+1)
		})
	})
}

type counter int

func (c *counter) Write(p []byte) (int, error) { *c += counter(len(p)); return len(p), nil }

// pieces cuts a reference into sequences that are as long as transcripts.
func (d *data) pieces(name, fasta string) (string, error) {
	return d.make(name, func(path string) error {
		return writeFile(path, func(w io.Writer) error {
			in, err := os.Open(fasta)
			if err != nil {
				return err
			}
			defer in.Close()
			return cut(w, in)
		})
	})
}

// cut writes the sequences of a FASTA text in pieces of pieceSize; it leaves out shorter
// ends.
func cut(w io.Writer, fasta io.Reader) error {
	var piece []byte
	n := 0
	s := bufio.NewScanner(fasta)
	s.Buffer(nil, 64<<20)
	for s.Scan() {
		line := s.Bytes()
		if len(line) > 0 && line[0] == '>' {
			piece = piece[:0]
			continue
		}
		for piece = append(piece, line...); len(piece) >= pieceSize; {
			n++
			if _, err := fmt.Fprintf(w, ">t%d\n%s\n", n, piece[:pieceSize]); err != nil {
				return err
			}
			piece = append(piece[:0], piece[pieceSize:]...)
		}
	}
	return s.Err()
}

// transcripts returns the path of a generated transcriptome of largeSize bases.
// kallisto's index is made from transcripts: the index of a genome of this size, nearly
// all of whose k-mers differ, was not finished after half an hour.
func (d *data) transcripts() (string, error) {
	return d.make("transcripts.fa", func(path string) error {
		return writeFile(path, func(w io.Writer) error { return transcribe(w, largeSize, seed+2) })
	})
}

// transcribe writes transcripts with a total of n bases, or a few more. As in an animal,
// transcripts share exons: each gene has eight, of 100 to 400 random bases, and up to
// four transcripts, one with all exons and the others with some left out.
func transcribe(w io.Writer, n int, seed uint64) error {
	const exons, isoforms = 8, 4
	const all = 1<<exons - 1
	r := rand.New(rand.NewPCG(seed, 0))
	var exon [exons][]byte
	for gene := 1; n > 0; gene++ {
		for i := range exon {
			exon[i] = exon[i][:0]
			for range 100 + r.IntN(301) {
				exon[i] = append(exon[i], bases[r.IntN(len(bases))])
			}
		}
		written := map[int]bool{}
		for i := range isoforms {
			kept := all
			if i > 0 {
				kept = r.IntN(all+1) | r.IntN(all+1)
			}
			var t []byte
			for j, e := range exon {
				if kept>>j&1 == 1 {
					t = append(t, e...)
				}
			}
			if written[kept] || len(t) < shortest {
				continue
			}
			written[kept] = true
			n -= len(t)
			if _, err := fmt.Fprintf(w, ">g%d.%d\n%s\n", gene, i+1, t); err != nil {
				return err
			}
		}
	}
	return nil
}

// spread writes count sequences of a FASTA file, evenly spaced. Each sequence must be on
// one line. If wgsim gets few pairs and many sequences, it makes no pairs.
func (d *data) spread(name, fasta string, count int) (string, error) {
	return d.make(name, func(path string) error {
		return writeFile(path, func(w io.Writer) error {
			text, err := os.ReadFile(fasta)
			if err != nil {
				return err
			}
			total := bytes.Count(text, []byte{'>'})
			n, taken := 0, 0
			for line := range bytes.Lines(text) {
				if line[0] == '>' {
					n++
				}
				if (n-1)*count/total < taken {
					continue
				}
				if _, err := w.Write(line); err != nil {
					return err
				}
				if line[0] != '>' {
					taken++
				}
			}
			return nil
		})
	})
}

// generate writes n random bases as FASTA sequences of chunkSize.
func generate(w io.Writer, n int, seed uint64) error {
	r := rand.New(rand.NewPCG(seed, 0))
	line := make([]byte, 0, lineLength+1)
	for i := 0; n > 0; i++ {
		if _, err := fmt.Fprintf(w, ">generated%d\n", i+1); err != nil {
			return err
		}
		left := min(n, chunkSize)
		n -= left
		for left > 0 {
			line = line[:0]
			bits := r.Uint64()
			for j := range min(left, lineLength) {
				if j%32 == 0 && j > 0 {
					bits = r.Uint64()
				}
				line = append(line, bases[bits&3])
				bits >>= 2
			}
			left -= len(line)
			if _, err := w.Write(append(line, '\n')); err != nil {
				return err
			}
		}
	}
	return nil
}

// pairs returns a pair of FASTQ files with n read pairs: real ones where they exist,
// otherwise pairs that wgsim cuts from the reference.
func (d *data) pairs(name, fasta string, real [2]string, n int) ([2]string, error) {
	var reads [2]string
	dir, err := d.make(fmt.Sprintf("reads/%s-%d", name, n), func(path string) error {
		if err := os.Mkdir(path, 0o777); err != nil {
			return err
		}
		if d.testdata != "" && real[0] != "" {
			for i, gz := range real {
				if err := d.head(filepath.Join(path, fmt.Sprintf("r%d.fq", i+1)), gz, n); err != nil {
					return err
				}
			}
			return nil
		}
		return run(path, "wgsim", "-S", "11", "-N", strconv.Itoa(n), "-1", "100", "-2", "100", "-e", "0.005",
			fasta, "r1.fq", "r2.fq")
	})
	for i := range reads {
		reads[i] = filepath.Join(dir, fmt.Sprintf("r%d.fq", i+1))
	}
	return reads, err
}

// singles returns a FASTQ file of n reads.
func (d *data) singles(name, fasta, real string, n int) (string, error) {
	if d.testdata == "" || real == "" {
		reads, err := d.pairs(name, fasta, [2]string{}, n)
		return reads[0], err
	}
	return d.make(fmt.Sprintf("reads/%s-%d.fq", name, n), func(path string) error { return d.head(path, real, n) })
}

// head writes the first n records of a compressed FASTQ file of the test data.
func (d *data) head(path, name string, n int) error {
	return writeFile(path, func(w io.Writer) error {
		in, err := os.Open(d.real(name))
		if err != nil {
			return err
		}
		defer in.Close()
		z, err := gzip.NewReader(in)
		if err != nil {
			return err
		}
		r := bufio.NewReaderSize(z, 1<<20)
		for range 4 * n {
			line, err := r.ReadBytes('\n')
			if _, werr := w.Write(line); werr != nil {
				return werr
			}
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// synth compiles the synthetic process.
func (d *data) synth() (string, error) {
	return d.make("synth", func(path string) error { return compile(path, synthSource) })
}

// compile compiles a C program.
func compile(path, source string) error {
	cmd := exec.Command("gcc", "-O2", "-o", path, "-x", "c", "-")
	cmd.Stdin = strings.NewReader(source)
	return output(cmd)
}

// run executes a program in dir; its output is shown only if it fails.
func run(dir, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	return output(cmd)
}

func output(cmd *exec.Cmd) error {
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	lines := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
	lines = lines[max(0, len(lines)-8):]
	return fmt.Errorf("%s: %w\n%s", cmd.Args[0], err, bytes.Join(lines, []byte("\n")))
}

func writeFile(path string, fill func(w io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	err = fill(w)
	if err == nil {
		err = w.Flush()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

func unzip(w io.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	z, err := gzip.NewReader(bufio.NewReaderSize(f, 1<<20))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if _, err := io.Copy(w, z); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
