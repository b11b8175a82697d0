package fasta

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"slices"
	"strings"

	"github.com/zeebo/blake3"

	"premix/internal/kit/problem"
)

// Alphabet is the alphabet of a sequence.
type Alphabet uint8

const (
	Nucleotides Alphabet = iota
	AminoAcids
)

func (a Alphabet) String() string {
	if a == AminoAcids {
		return "amino acid"
	}
	return "nucleotide"
}

// Options select the sequences to accept. A limit of 0 is not checked.
type Options struct {
	Alphabet     Alphabet
	Duplicates   bool  // ids may be repeated
	Headless     bool  // letters may come before the first header, as in a pasted query
	MaxSequences int64 // more sequences are a [LimitError]
	MaxLetters   int64 // the same for the letters of all sequences
	Sums         bool  // compute the digest of each sequence
}

// Sequence describes one sequence.
type Sequence struct {
	Offset  int64 // of its header in the uncompressed stream, bytes
	Line    int64 // of its header, from 1
	ID      []byte
	Letters int64

	// Sum is a digest of its header and its letters, wherever lines of letters are broken; only
	// with Options.Sums.
	Sum [16]byte
}

// Summary describes all sequences of a stream.
type Summary struct {
	Sequences int64
	Letters   int64
	Bytes     int64 // uncompressed
}

// Problem is a mistake in a file.
type Problem = problem.Problem

// Problems is the list of mistakes in a file, ordered by line. It has at most
// problem.Enough entries.
type Problems = problem.List

// LimitError is returned if a stream has more than [Options] permit.
type LimitError struct {
	What  string // "sequences" or "letters"
	Limit int64
}

func (e *LimitError) Error() string { return fmt.Sprintf("more than %d %s", e.Limit, e.What) }

// errEnough ends a check that has found problem.Enough problems.
var errEnough = errors.New("enough problems")

// The classes of characters.
const (
	letter = 1 << iota
	blank
	strange
)

var classes = [2][256]byte{table("ACGTURYSWKMBDHVN"), table("ABCDEFGHIJKLMNOPQRSTUVWXYZ*")}

func table(letters string) (t [256]byte) {
	for i := range t {
		t[i] = strange
	}
	for _, c := range letters {
		t[c] = letter
		t[strings.ToLower(string(c))[0]] = letter
	}
	t[' '], t['\t'], t['\r'] = blank, blank, blank
	return t
}

// The kinds of the current line.
const (
	lineStart = iota
	headerLine
	lettersLine
	commentLine
)

// idLength is the length to which ids are compared. BLAST+ itself accepts local ids of 50
// characters.
const idLength = 1 << 10

type checker struct {
	o      Options
	file   string
	each   func(Sequence) error
	class  *[256]byte
	offset int64 // of the current piece
	line   int64 // number of the current line, from 1
	kind   int
	began  bool // a sequence has begun
	now    Sequence
	idDone bool // its id has ended
	packed bool // the stream begins like a compressed file
	sum    Summary
	seeds  [2]maphash.Seed
	ids    ids
	found  Problems
	hash   *blake3.Hasher // of the current sequence; nil: not needed
	headed bool           // its header has been hashed
}

// Check reads a stream to its end and calls each for every sequence, in order. The argument
// is valid during the call. Mistakes are returned as [Problems], which call the input file.
func Check(r io.Reader, file string, o Options, each func(Sequence) error) (Summary, error) {
	c := &checker{o: o, file: file, each: each, class: &classes[o.Alphabet], line: 1, seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}}
	if o.Sums {
		c.hash = blake3.New()
	}
	err := c.read(r)
	if errors.Is(err, errEnough) {
		err = nil
	}
	if len(c.found) > 0 {
		slices.SortStableFunc(c.found, func(a, b Problem) int { return a.Line - b.Line })
		return c.sum, c.found
	}
	return c.sum, err
}

func (c *checker) problem(line int64, hint, format string, args ...any) error {
	c.found = append(c.found, Problem{File: c.file, Line: int(line), Message: fmt.Sprintf(format, args...), Hint: hint})
	if len(c.found) >= problem.MaxProblems {
		return errEnough
	}
	return nil
}

func (c *checker) read(r io.Reader) error {
	buf := make([]byte, 256<<10)
	in := bufio.NewReaderSize(r, 16) // larger reads do not use the buffer
	head, _ := in.Peek(3)            // the next read returns the error again
	c.packed = bytes.HasPrefix(head, []byte{0x1f}) || bytes.HasPrefix(head, []byte("PK")) || bytes.HasPrefix(head, []byte("BZh"))
	for {
		n, err := in.Read(buf)
		if err := c.piece(buf[:n]); err != nil {
			return err
		}
		c.offset += int64(n)
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c.file, err)
		}
	}
	c.sum.Bytes = c.offset
	if err := c.end(); err != nil {
		return err
	}
	if c.sum.Sequences == 0 && len(c.found) == 0 {
		return c.problem(0, "a sequence is a line that begins with >, and lines of letters after it", "the file has no sequence")
	}
	return nil
}

// piece checks the next bytes. Lines may be split anywhere.
func (c *checker) piece(b []byte) error {
	for at := 0; at < len(b); {
		rest := b[at:]
		if c.kind == lineStart {
			switch rest[0] {
			case '>':
				if err := c.end(); err != nil {
					return err
				}
				c.begin(c.offset + int64(at))
				at++
				continue
			case ';':
				c.kind = commentLine
			case '\n':
				c.line++
				at++
				continue
			case '\r', ' ', '\t':
				// A line of letters is recognised by its first letter.
				at++
				continue
			default:
				if err := c.letters(c.offset + int64(at)); err != nil {
					return err
				}
			}
		}
		end := bytes.IndexByte(rest, '\n')
		whole := end >= 0
		if whole {
			rest = rest[:end]
		}
		switch c.kind {
		case headerLine:
			c.header(rest)
		case lettersLine:
			if err := c.sequence(rest); err != nil {
				return err
			}
		}
		at += len(rest)
		if whole {
			at++
			c.line++
			c.kind = lineStart
		}
	}
	return nil
}

// begin begins a sequence.
func (c *checker) begin(offset int64) {
	c.kind, c.began, c.idDone = headerLine, true, false
	if c.hash != nil {
		c.hash.Reset()
		c.headed = false
	}
	c.now = Sequence{Offset: offset, Line: c.line, ID: c.now.ID[:0]}
}

// letters begins a line of letters.
func (c *checker) letters(offset int64) error {
	c.kind = lettersLine
	if c.began {
		return nil
	}
	c.begin(offset)
	c.kind, c.idDone = lettersLine, true
	if c.o.Headless {
		return nil
	}
	return c.problem(c.line, "write a line that begins with > and the id before each sequence", "the first sequence has no header")
}

// digest adds bytes of a line to the digest of the sequence, without carriage returns.
func (c *checker) digest(b []byte) {
	for c.hash != nil && len(b) > 0 {
		part, rest, _ := bytes.Cut(b, []byte("\r"))
		_, _ = c.hash.Write(part) // it never fails
		b = rest
	}
}

// header checks a part of a header.
func (c *checker) header(b []byte) {
	c.digest(b)
	if c.idDone {
		return
	}
	if i := bytes.IndexAny(b, " \t\r"); i >= 0 {
		b, c.idDone = b[:i], true
	}
	if room := idLength - len(c.now.ID); len(b) > room {
		b, c.idDone = b[:room], true
	}
	c.now.ID = append(c.now.ID, b...)
}

// sequence checks a part of a line of letters.
func (c *checker) sequence(b []byte) error {
	if c.hash != nil && !c.headed {
		c.headed = true
		_, _ = c.hash.Write([]byte{'\n'})
	}
	c.digest(b)
	var all byte
	t := c.class
	i := 0
	for ; i+8 <= len(b); i += 8 {
		p := b[i : i+8 : i+8]
		all |= t[p[0]] | t[p[1]] | t[p[2]] | t[p[3]] | t[p[4]] | t[p[5]] | t[p[6]] | t[p[7]]
	}
	for ; i < len(b); i++ {
		all |= t[b[i]]
	}
	blanks := 0
	if all != letter {
		for i, ch := range b {
			switch t[ch] {
			case blank:
				blanks++
			case strange:
				c.now.Letters += int64(i - blanks + 1) // whatever it is, the sequence is not empty
				return c.strange(b, i)
			}
		}
	}
	c.now.Letters += int64(len(b) - blanks)
	return nil
}

// strange reports a character that is not a letter, once for each line.
func (c *checker) strange(b []byte, i int) error {
	c.kind = commentLine
	hint := "write the one-letter codes of IUPAC: ACGTU, and RYSWKMBDHVN for ambiguous bases"
	if c.o.Alphabet == AminoAcids {
		hint = "write the one-letter codes of IUPAC, and * for a stop"
	}
	switch ch := b[i]; {
	case ch == '-' || ch == '.':
		hint = "this looks like an alignment: take the gaps out, for instance with seqkit seq -g"
	case ch == '>':
		hint = "a header begins at the beginning of a line"
	case ch == 0x1f || c.packed && c.line == 1:
		hint = "this looks like a compressed file; gzip is the format that is read"
	case ch == '@' && c.sum.Sequences == 0:
		hint = "this looks like FASTQ: make it FASTA, for instance with seqkit fq2fa"
	case c.o.Alphabet == Nucleotides && classes[AminoAcids][ch] == letter:
		hint += "; if these are proteins, say --type prot"
	}
	return c.problem(c.line, hint, "%q is not a valid %s", rune(b[i]), c.o.Alphabet)
}

// end ends the current sequence, if there is one.
func (c *checker) end() error {
	if !c.began {
		return nil
	}
	s := c.now
	c.began = false
	if c.hash != nil {
		var sum [32]byte
		c.hash.Sum(sum[:0])
		s.Sum = [16]byte(sum[:16])
	}
	if s.Letters == 0 {
		if err := c.problem(s.Line, "take the header away, or give it its letters", "the sequence %q is empty", s.ID); err != nil {
			return err
		}
	}
	c.sum.Sequences++
	c.sum.Letters += s.Letters
	if c.o.MaxSequences > 0 && c.sum.Sequences > c.o.MaxSequences {
		return &LimitError{What: "sequences", Limit: c.o.MaxSequences}
	}
	if c.o.MaxLetters > 0 && c.sum.Letters > c.o.MaxLetters {
		return &LimitError{What: "letters", Limit: c.o.MaxLetters}
	}
	if !c.o.Duplicates && len(s.ID) > 0 {
		if c.ids.add(maphash.Bytes(c.seeds[0], s.ID), uint32(maphash.Bytes(c.seeds[1], s.ID))) {
			if err := c.problem(s.Line, "give every sequence an id of its own", "an earlier sequence has the same id %q", s.ID); err != nil {
				return err
			}
		}
	}
	if c.each == nil {
		return nil
	}
	return c.each(s)
}
