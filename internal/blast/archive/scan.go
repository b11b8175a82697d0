package archive

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// FormatError is returned for a text that is not an archive as BLAST+ writes it.
type FormatError struct {
	Offset int64 // in the stream, in bytes
	Reason string
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("not a BLAST archive: %s at byte %d", e.Reason, e.Offset)
}

// kind is the kind of a token.
type kind byte

const (
	word   kind = iota + 1 // identifiers, numbers, ::=
	text                   // a string, with its quotes
	hex                    // '00FF'H
	open                   // {
	closed                 // }
	comma
)

// maxPart bounds the size of heads, tails and alignments, so that a damaged stream cannot
// use all memory. A head contains the sequences of a batch of queries.
const maxPart = 4 << 30

// scanner reads tokens, and keeps the bytes read until they are dropped.
type scanner struct {
	in     *bufio.Reader
	part   []byte // bytes read since the last drop
	offset int64  // of the end of part in the stream
}

func newScanner(r io.Reader) *scanner {
	return &scanner{in: bufio.NewReaderSize(r, 256<<10)}
}

// drop discards the bytes read so far.
func (s *scanner) drop() { s.part = s.part[:0] }

func (s *scanner) fail(reason string) error { return &FormatError{s.offset, reason} }

func (s *scanner) take(c byte) {
	s.part = append(s.part, c)
	s.offset++
}

func (s *scanner) read() (byte, error) {
	c, err := s.in.ReadByte()
	if err != nil {
		return 0, err
	}
	if len(s.part) >= maxPart {
		return 0, s.fail("a part of more than 4 GiB")
	}
	s.take(c)
	return c, nil
}

// next reads a token, which is part[from:]. It returns io.EOF if only white space is left.
func (s *scanner) next() (k kind, from int, err error) {
	for {
		c, err := s.read()
		if err != nil {
			return 0, 0, err
		}
		from = len(s.part) - 1
		switch c {
		case ' ', '\n', '\r', '\t':
			continue
		case '{':
			return open, from, nil
		case '}':
			return closed, from, nil
		case ',':
			return comma, from, nil
		case '"':
			return text, from, s.quoted('"')
		case '\'':
			if err := s.quoted('\''); err != nil {
				return 0, 0, err
			}
			// The letter H or B, for the base, follows at once.
			_, err := s.read()
			return hex, from, inside(err)
		}
		for {
			c, err := s.in.ReadByte()
			if errors.Is(err, io.EOF) {
				return word, from, nil
			}
			if err != nil {
				return 0, 0, err
			}
			switch c {
			case ' ', '\n', '\r', '\t', '{', '}', ',', '"', '\'':
				return word, from, s.in.UnreadByte()
			}
			s.take(c)
			if len(s.part) >= maxPart {
				return 0, 0, s.fail("a part of more than 4 GiB")
			}
		}
	}
}

// quoted reads to the end of a string whose opening quote has been read. A quote within it
// is doubled.
func (s *scanner) quoted(quote byte) error {
	for {
		b, err := s.in.ReadSlice(quote)
		s.part = append(s.part, b...)
		s.offset += int64(len(b))
		if len(s.part) >= maxPart {
			return s.fail("a part of more than 4 GiB")
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil {
			return inside(err)
		}
		after, err := s.in.Peek(1)
		if err != nil || after[0] != quote {
			return nil // an error of Peek is returned again by the next read
		}
		if _, err := s.read(); err != nil {
			return inside(err)
		}
	}
}

// skip reads to the brace that closes the one just read.
func (s *scanner) skip() error {
	for depth := 1; depth > 0; {
		k, _, err := s.next()
		if err != nil {
			return inside(err)
		}
		switch k {
		case open:
			depth++
		case closed:
			depth--
		}
	}
	return nil
}

// inside returns the error for a read inside of a value, where the stream must not end.
func inside(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// plain returns the text of a value in a form that does not depend on its layout: with one
// space between tokens, and without line breaks in strings.
func plain(value []byte) string {
	var b []byte
	quoted := false
	for _, c := range bytes.TrimSpace(value) {
		switch {
		case c == '"':
			quoted = !quoted
			b = append(b, c)
		case c != ' ' && c != '\n' && c != '\r' && c != '\t':
			b = append(b, c)
		case quoted && c == ' ':
			b = append(b, c)
		case !quoted && len(b) > 0 && b[len(b)-1] != ' ':
			b = append(b, ' ')
		}
	}
	return string(b)
}
