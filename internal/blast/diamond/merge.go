package diamond

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"strconv"

	"premix/internal/kit/exit"
)

// target are the alignments of a query with one sequence of the database.
type target struct {
	query   int64 // its number
	subject int64 // its number in the whole database

	// Of the first alignment, which is the best.
	evalue                  interval
	score, qlength, slength int

	rows []byte // with the hidden columns; the number of the subject is the one in the whole
}

// MergeError is returned if results of fragments cannot be merged with certainty.
type MergeError struct{ reason string }

func (e *MergeError) Error() string { return "the results cannot be merged exactly: " + e.reason }

// ExitCode implements exit.Coded.
func (*MergeError) ExitCode() exit.Code { return exit.Failed }

// Hint returns the way to search without a merge.
func (*MergeError) Hint() string {
	return "add the database again with --fragments 1, or run diamond itself"
}

// source reads the results of one search, with the hidden columns.
type source struct {
	in    *bufio.Reader
	s     *scoring
	first int64   // number of the first sequence of the fragment in the whole database
	next  *target // nil after the end
	ahead *target // the first alignment of the target after it
}

func newSource(in io.Reader, s *scoring, first int64) (*source, error) {
	r := &source{in: bufio.NewReaderSize(in, 256<<10), s: s, first: first}
	var err error
	if r.ahead, err = r.row(); err != nil {
		return nil, err
	}
	return r, r.advance()
}

// advance reads the next target.
func (r *source) advance() error {
	before := r.next
	for r.next = r.ahead; r.next != nil; {
		t, err := r.row()
		if err != nil {
			return err
		}
		if r.ahead = t; t == nil || t.query != r.next.query || t.subject != r.next.subject {
			break
		}
		r.next.rows = append(r.next.rows, t.rows...)
	}
	if before == nil || r.next == nil {
		return nil
	}
	if c, err := compare(before, r.next); err == nil && c >= 0 {
		return &MergeError{fmt.Sprintf("those for the sequences %d and %d of the database are in another order than expected", before.subject, r.next.subject)}
	}
	return nil // where the order is not certain, it is the one of DIAMOND
}

// row reads one alignment; nil at the end.
func (r *source) row() (*target, error) {
	line, err := r.in.ReadBytes('\n')
	if errors.Is(err, io.EOF) && len(line) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, unexpected(err)
	}
	rest := line[:len(line)-1]
	var fields [7]string // of hidden
	for i := len(fields) - 1; i >= 0; i-- {
		at := bytes.LastIndexByte(rest, '\t')
		if at < 0 {
			return nil, &MergeError{fmt.Sprintf("a line lacks columns: %.200q", line)}
		}
		fields[i], rest = string(rest[at+1:]), rest[:at]
	}
	var n [6]int64
	for i := range n {
		if n[i], err = strconv.ParseInt(fields[i], 10, 64); err != nil {
			return nil, &MergeError{fmt.Sprintf("the column %s of a line is %q", hidden[i], fields[i])}
		}
	}
	score, slen, qlen, frame := int(n[2]), int(n[3]), int(n[4]), int(n[5])
	t := &target{query: n[0], subject: n[1] + r.first, score: score, slength: slen, qlength: r.s.queryLength(qlen, frame)}
	e := r.s.evalue(score, qlen, frame, slen)
	var ok bool
	if t.evalue, ok = e.printed(fields[6]); !ok {
		return nil, &MergeError{fmt.Sprintf("diamond prints the e-value %s, and %.3g is expected", fields[6], e.high)}
	}
	t.rows = append(t.rows, rest...)
	t.rows = fmt.Appendf(t.rows, "\t%d\t%d\t%d\t%d\t%d\t%d\t%s\n", t.query, t.subject, score, slen, qlen, frame, fields[6])
	return t, nil
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// compare returns a negative number if DIAMOND prints a before b: by query, e-value, score, and
// number of the sequence.
func compare(a, b *target) (int, error) {
	if c := cmp.Compare(a.query, b.query); c != 0 {
		return c, nil
	}
	least := cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(a.subject, b.subject))
	switch {
	case a.score == b.score && a.slength == b.slength && a.qlength == b.qlength, a.evalue == interval{} && b.evalue == interval{}:
		return least, nil
	case a.evalue.high < b.evalue.low:
		return -1, nil
	case a.evalue.low > b.evalue.high:
		return 1, nil
	}
	return 0, &MergeError{fmt.Sprintf("the sequences %d and %d of the database have nearly the same e-value, %g", a.subject, b.subject, b.evalue.high)}
}

// merge writes the best targets of each query, up to most of them (0: all), with or without
// the hidden columns.
func merge(sources []*source, most int, bare bool, w io.Writer) error {
	out := bufio.NewWriterSize(w, 256<<10)
	query, n := int64(-1), 0
	for {
		var best *source
		for _, r := range sources {
			if r.next == nil {
				continue
			}
			if best != nil {
				c, err := compare(r.next, best.next)
				if err != nil {
					return err
				}
				if c >= 0 {
					continue
				}
			}
			best = r
		}
		if best == nil {
			return out.Flush()
		}
		t := best.next
		if t.query != query {
			query, n = t.query, 0
		}
		if n++; most == 0 || n <= most {
			for line := range bytes.Lines(t.rows) {
				if bare {
					line = append(cut(line), '\n')
				}
				out.Write(line) // Flush returns errors
			}
		}
		if err := best.advance(); err != nil {
			return err
		}
	}
}

// cut removes the hidden columns of a line.
func cut(line []byte) []byte {
	for range hidden {
		line = line[:bytes.LastIndexByte(line, '\t')]
	}
	return line
}
