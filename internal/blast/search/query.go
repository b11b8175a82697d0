package search

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
)

// queries describes a file of queries, as far as planning needs it.
type queries struct {
	path    string
	count   int   // number of queries
	letters int64 // of all
	last    int64 // of the last one
	fasta   bool  // the file begins with a record
	unnamed bool  // a record has no id: BLAST+ calls it by its number
	odd     bool  // it contains something besides headers and letters
}

// examine examines a file of queries. It leaves it to BLAST+ to report mistakes.
func examine(path string) (*queries, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	q := &queries{path: path}
	in := bufio.NewReaderSize(f, 256<<10)
	first, start := true, true
	for {
		line, err := in.ReadSlice('\n')
		if len(line) > 0 {
			text := bytes.TrimSpace(line)
			switch {
			case start && len(text) > 0 && text[0] == '>':
				q.fasta = q.fasta || first
				q.count++
				q.last = 0
				q.unnamed = q.unnamed || len(text) == 1 || text[1] == ' ' || text[1] == '\t'
			case start && len(text) > 0 && text[0] == ';':
				q.odd = true
			default:
				q.odd = q.odd || !lettersOnly(text)
				q.letters += int64(len(text))
				q.last += int64(len(text))
			}
			first = first && len(text) == 0
			start = line[len(line)-1] == '\n'
		}
		if errors.Is(err, io.EOF) {
			return q, nil
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return nil, err
		}
	}
}

// lettersOnly reports whether BLAST+ takes each byte of a line for a letter of a sequence.
func lettersOnly(line []byte) bool {
	for _, c := range line {
		if (c|0x20) < 'a' || (c|0x20) > 'z' {
			return false
		}
	}
	return true
}
