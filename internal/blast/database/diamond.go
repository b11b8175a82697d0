package database

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"premix/internal/blast/fasta"
)

// Program is a kind of programs that search databases of their own form.
type Program string

const (
	BLAST   Program = "blast"   // BLAST+
	DIAMOND Program = "diamond" // https://github.com/bbuchfink/diamond
)

// String returns the name that its authors use.
func (p Program) String() string {
	switch p {
	case BLAST:
		return "BLAST+"
	case DIAMOND:
		return "DIAMOND"
	}
	return string(p)
}

// DefaultBlock is the number of letters of a block by default, except with --very-sensitive.
const DefaultBlock = 2_000_000_000

// ParseBlock returns the number of letters of a block for a value of -b, as DIAMOND computes it.
func ParseBlock(value string) (int64, error) {
	b, err := strconv.ParseFloat(value, 64)
	if err != nil || !(b > 0) || b > 1e6 {
		return 0, &Error{Kind: Use, Message: fmt.Sprintf("%q is not a size of blocks", value), HintText: "give billions of letters, as in 0.4"}
	}
	return int64(b * 1e9), nil
}

// BlockValue returns the value of -b for a number of letters.
func BlockValue(letters int64) string { return strconv.FormatFloat(float64(letters)/1e9, 'f', -1, 64) }

// diamond makes a database for DIAMOND of a FASTA file. It reads the file three times: to check
// it, to find where the blocks end, and to format them.
func (b *builder) diamond(ctx context.Context, path string) error {
	o := b.o
	before, err := os.Stat(path)
	if err != nil {
		return err
	}
	o.Progress.Whole.Store(before.Size())
	check := func(count interface{ Add(int64) int64 }, each func(fasta.Sequence) error) (fasta.Summary, error) {
		r, err := fasta.Open(path)
		if err != nil {
			return fasta.Summary{}, err
		}
		defer r.Close()
		return fasta.Check(&countingReader{ctx, r, count}, path, fasta.Options{Alphabet: fasta.AminoAcids, Duplicates: o.Duplicates}, each)
	}
	sum, err := check(&o.Progress.Checked, func(fasta.Sequence) error { return nil })
	if err != nil {
		return err
	}
	block := int64(DefaultBlock)
	switch {
	case o.Block != "":
		if block, err = ParseBlock(o.Block); err != nil {
			return err
		}
	case o.FragmentSize > 0:
		block = o.FragmentSize
	case o.Fragments > 0:
		block = (sum.Letters + int64(o.Fragments) - 1) / int64(o.Fragments)
	}
	// Not every number of letters is the value of an option.
	for ; ; block++ {
		if n, err := ParseBlock(BlockValue(block)); err == nil && n == block {
			break
		}
	}
	var cuts []mark
	var at mark
	if _, err := check(nil, func(s fasta.Sequence) error {
		if len(cuts) == 0 || at.letters-cuts[len(cuts)-1].letters >= block {
			cuts = append(cuts, mark{s.Offset, at.sequences, at.letters})
		}
		at.sequences, at.letters = at.sequences+1, at.letters+s.Letters
		return nil
	}); err != nil {
		return err
	}
	o.Progress.Fragments.Store(int64(len(cuts)))
	r, err := fasta.Open(path)
	if err != nil {
		return err
	}
	defer r.Close()
	if _, err := io.CopyN(io.Discard, r, cuts[0].offset); err != nil {
		return err
	}
	for i, c := range cuts {
		end := mark{sum.Bytes, sum.Sequences, sum.Letters}
		if i+1 < len(cuts) {
			end = cuts[i+1]
		}
		volume := fmt.Sprintf("%s.%03d", o.Name, i)
		p := Range{Volumes: []string{volume}, First: c.sequences, Sequences: end.sequences - c.sequences, Letters: end.letters - c.letters}
		said, err := b.tool(ctx, io.LimitReader(&countingReader{ctx: ctx, r: r}, end.offset-c.offset), "diamond", "makedb", "--quiet", "-d", volume)
		if err != nil {
			return toolError("diamond", said, err)
		}
		// The block of a search ends where these numbers say.
		if sequences, letters, err := dmndSize(filepath.Join(b.data, volume+dmndEnding)); err != nil {
			return err
		} else if sequences != p.Sequences || letters != p.Letters {
			return &Error{Kind: Failed, Message: fmt.Sprintf("diamond has formatted %d sequences of %d letters, but there are %d of %d: %s", sequences, letters, p.Sequences, p.Letters, said)}
		}
		b.desc.Fragments = append(b.desc.Fragments, p)
		o.Progress.Formatted.Add(1)
	}
	if err := unchanged(path, before); err != nil {
		return err
	}
	b.desc.Program, b.desc.Block = DIAMOND, block
	b.desc.Type, b.desc.Title, b.desc.Date = Prot, o.Title, dateOf(before)
	if b.desc.Title == "" {
		b.desc.Title = path
	}
	return nil
}

const (
	dmndEnding = ".dmnd"
	dmndMagic  = 0x24af8a415ee186d
)

// dmndSize returns the numbers of sequences and letters in the head of a file of DIAMOND, whose
// numbers are little-endian: a magic number, the build and the version of the format (uint32),
// the sequences, and the letters (uint64).
//
// Source: dmnd.h of DIAMOND 2.1.
func dmndSize(path string) (sequences, letters int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	var head struct {
		Magic              uint64
		Build, Version     uint32
		Sequences, Letters int64
	}
	if err := binary.Read(f, binary.LittleEndian, &head); err != nil {
		return 0, 0, fmt.Errorf("%s: %w", path, err)
	}
	if head.Magic != dmndMagic {
		return 0, 0, fmt.Errorf("%s is not a database of DIAMOND", path)
	}
	return head.Sequences, head.Letters, nil
}
