package archive

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
)

// Head is the part of an archive before its alignments.
type Head struct {
	Text    []byte   // up to and including "results {"
	Queries []string // their ids, in order
	Hitlist int      // HitlistSize: the highest number of hits of a query
}

// Tail is the part of an archive after its alignments.
type Tail struct {
	Text []byte // from the end of the alignments to the end
}

// Alignment is one Seq-align.
type Alignment struct {
	Text    []byte // "{ ... }"
	Query   string // its id, as in Head
	Subject string
	Evalue  float64 // the best one
	Score   int     // of the first HSP
	Best    int     // the best score
}

// Reader reads archives one after the other, and each of them alignment by alignment.
type Reader struct {
	s     *scanner
	where place
}

// ErrNoQueries is returned for an archive that has the names of its queries, but not their
// sequences. BLAST+ writes these if -parse_deflines finds ids of public databases, and no
// other ids, in a batch; blast_formatter then searches the sequences in other places.
var ErrNoQueries = errors.New("BLAST+ takes the queries for sequences of public databases, and writes archives without them")

// place is the kind of the next item in a Reader's input.
type place int

const (
	atHead       place = iota
	atResults          // before their first value
	atAlignments       // before one of them, or their end
	atTail
)

// NewReader returns a reader of the archives in a stream.
func NewReader(r io.Reader) *Reader { return &Reader{s: newScanner(r)} }

// Next reads the head of the next archive, and returns io.EOF after the last one. It skips
// the unread part of the previous archive.
func (r *Reader) Next() (*Head, error) {
	if r.where != atHead {
		if _, err := r.Tail(); err != nil {
			return nil, err
		}
	}
	r.s.drop()
	return r.head()
}

func (r *Reader) head() (*Head, error) {
	s := r.s
	_, start, err := s.next()
	if err != nil {
		return nil, err
	}
	if string(s.part[start:]) != "Blast4-archive" {
		return nil, s.fail("it does not begin with Blast4-archive")
	}
	h := &Head{Hitlist: math.MaxInt}
	// The last words before the current brace or value, and the names of the values around
	// it.
	var last, before string
	var path []string
	for {
		k, from, err := s.next()
		if err != nil {
			return nil, inside(err)
		}
		token := s.part[from:]
		switch k {
		case open:
			path = append(path, last)
			last, before = "", ""
			switch {
			case within(path, "::=", "results"):
				h.Text = slices.Clone(s.part[start:])
				r.where = atResults
				return h, nil
			case len(path) > 2 && last2(path) == [2]string{"seq", "id"} && path[len(path)-3] == "seq-set":
				id, err := r.first(s)
				if err != nil {
					return nil, err
				}
				h.Queries = append(h.Queries, id)
				path = path[:len(path)-1]
			case within(path, "::=", "request", "queue-search", "seq-loc-list"):
				return nil, ErrNoQueries
			}
		case closed:
			if len(path) == 0 {
				return nil, s.fail("a brace too many")
			}
			if path = path[:len(path)-1]; len(path) == 0 {
				return nil, s.fail("no results")
			}
			last, before = "", ""
		case comma:
			last = ""
		case text, hex, word:
			if before == `"HitlistSize"` && k == word && last == "integer" {
				n, err := strconv.Atoi(string(token))
				if err != nil {
					return nil, s.fail("HitlistSize is not a number")
				}
				h.Hitlist = n
			}
			if k == text && last == "name" {
				before = string(token)
			}
			last = string(token)
		}
	}
}

// first reads the first value between braces and skips the others. The opening brace has
// been read.
func (r *Reader) first(s *scanner) (string, error) {
	start, end := len(s.part), -1
	for depth := 1; depth > 0; {
		k, from, err := s.next()
		if err != nil {
			return "", inside(err)
		}
		switch {
		case k == open:
			depth++
		case k == closed:
			depth--
		}
		if end < 0 && (depth == 0 || depth == 1 && k == comma) {
			end = from
		}
	}
	return plain(s.part[start:end]), nil
}

func last2(path []string) [2]string {
	if len(path) < 2 {
		return [2]string{}
	}
	return [2]string{path[len(path)-2], path[len(path)-1]}
}

func within(path []string, names ...string) bool { return slices.Equal(path, names) }

// Alignment reads the next alignment of the archive, and returns io.EOF after the last one.
// Its text is valid until the next call.
func (r *Reader) Alignment() (*Alignment, error) {
	if r.where == atTail {
		return nil, io.EOF
	}
	if r.where != atResults && r.where != atAlignments {
		return nil, errors.New("no archive was begun")
	}
	s := r.s
	s.drop()
	k, from, err := s.next()
	if err != nil {
		return nil, inside(err)
	}
	if r.where == atResults {
		if k != word {
			return nil, s.fail("results without values")
		}
		if string(s.part[from:]) != "alignments" {
			r.where = atTail
			return nil, io.EOF
		}
		s.drop()
		if k, _, err = s.next(); err == nil && k != open {
			err = s.fail("alignments without a brace")
		}
		if err != nil {
			return nil, inside(err)
		}
		r.where = atAlignments
		s.drop()
		if k, from, err = s.next(); err != nil {
			return nil, inside(err)
		}
	}
	if k == comma {
		s.drop()
		if k, from, err = s.next(); err != nil {
			return nil, inside(err)
		}
	}
	if k == closed {
		// After the alignments: a comma, or the end of the results.
		s.drop()
		if k, _, err = s.next(); err != nil {
			return nil, inside(err)
		}
		switch k {
		case comma:
			s.drop()
		case closed:
		default:
			return nil, s.fail("no comma behind the alignments")
		}
		r.where = atTail
		return nil, io.EOF
	}
	if k != open {
		return nil, s.fail("not an alignment")
	}
	if err := s.skip(); err != nil {
		return nil, err
	}
	a := &Alignment{Text: s.part[from:]}
	if err := a.parse(); err != nil {
		return nil, s.fail(err.Error())
	}
	return a, nil
}

// Quotes within strings are doubled, so that a pattern that contains a complete string
// cannot match inside another string.
var (
	scoreName = []byte(`id str "score",`)
	valueName = []byte(`id str "e_value",`)
	sumName   = []byte(`id str "sum_e",`) // of linked HSPs
	idsName   = []byte(`ids {`)
)

func (a *Alignment) parse() error {
	ids := bytes.Index(a.Text, idsName)
	if ids < 0 {
		return errors.New("an alignment without ids")
	}
	var ok bool
	if a.Query, a.Subject, ok = pair(a.Text[ids+len(idsName):]); !ok {
		return errors.New("an alignment whose ids are not two")
	}
	// Ungapped HSPs of a subject share one Seq-align, and each has its own scores.
	scored := false
	for rest := a.Text; ; {
		at := bytes.Index(rest, scoreName)
		if at < 0 {
			break
		}
		rest = rest[at:]
		text, ok := value(rest, scoreName, "int")
		score, err := strconv.Atoi(text)
		if !ok || err != nil {
			return fmt.Errorf("a score that is not a number: %.20q", text)
		}
		if !scored {
			a.Score, a.Best, scored = score, score, true
		}
		a.Best = max(a.Best, score)
		rest = rest[len(scoreName):]
	}
	if !scored {
		return errors.New("an alignment without score")
	}
	a.Evalue = math.Inf(1)
	for _, name := range [][]byte{valueName, sumName} {
		for rest := a.Text; ; {
			at := bytes.Index(rest, name)
			if at < 0 {
				break
			}
			rest = rest[at:]
			real, ok := value(rest, name, "real")
			if !ok {
				return errors.New("an e-value that is not a number")
			}
			e, err := parseReal(real)
			if err != nil {
				return err
			}
			a.Evalue = min(a.Evalue, e)
			rest = rest[len(name):]
		}
	}
	if math.IsInf(a.Evalue, 1) {
		return errors.New("an alignment without e-value")
	}
	return nil
}

// pair returns the two values before a closing brace.
func pair(b []byte) (first, second string, ok bool) {
	depth, quoted, from := 0, false, 0
	for i, c := range b {
		switch {
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{':
			depth++
		case c == ',' && depth == 0:
			if first != "" {
				return "", "", false
			}
			first, from = plain(b[from:i]), i+1
		case c == '}' && depth == 0:
			second = plain(b[from:i])
			return first, second, first != "" && second != ""
		case c == '}':
			depth--
		}
	}
	return "", "", false
}

// value finds "NAME value TYPE ..." and returns the text after it, up to the end of the
// line or of the value.
func value(b, name []byte, typ string) (string, bool) {
	at := bytes.Index(b, name)
	if at < 0 {
		return "", false
	}
	b = bytes.TrimLeft(b[at+len(name):], " \n\r\t")
	for _, w := range []string{"value", typ} {
		rest, ok := bytes.CutPrefix(b, []byte(w))
		if !ok {
			return "", false
		}
		b = bytes.TrimLeft(rest, " \n\r\t")
	}
	end := bytes.IndexAny(b, "}\n")
	if end < 0 {
		return "", false
	}
	return string(bytes.TrimRight(b[:end], " \r\t")), true
}

// parseReal parses "{ mantissa, base, exponent", or 0, in the notation of X.680.
func parseReal(s string) (float64, error) {
	var m, base, e int64
	if s == "0" {
		return 0, nil
	}
	if n, err := fmt.Sscanf(s, "{ %d, %d, %d", &m, &base, &e); n != 3 || err != nil || base != 10 {
		return 0, fmt.Errorf("a real number that is not one: %.30q", s)
	}
	// One conversion in place of a product gives the nearest number, without an overflow in
	// between.
	v, err := strconv.ParseFloat(strconv.FormatInt(m, 10)+"e"+strconv.FormatInt(e, 10), 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0, err
	}
	return v, nil
}

// Tail reads the rest of the archive.
func (r *Reader) Tail() (*Tail, error) {
	for r.where == atResults || r.where == atAlignments {
		if _, err := r.Alignment(); err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
	}
	if r.where != atTail {
		return nil, errors.New("no archive was begun")
	}
	s := r.s
	depth := 2 // inside of the results, inside of the archive
	// Alignment may have read the first token of the tail already.
	if string(bytes.TrimSpace(s.part)) == "}" {
		depth--
	}
	for depth > 0 {
		k, _, err := s.next()
		if err != nil {
			return nil, inside(err)
		}
		switch k {
		case open:
			depth++
		case closed:
			depth--
		}
	}
	t := &Tail{slices.Clone(s.part)}
	r.where = atHead
	s.drop()
	return t, nil
}
