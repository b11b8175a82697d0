package archive

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// Source is a stream of archives from one fragment.
type Source struct {
	Archives io.Reader
	First    int64 // OID of the fragment's first sequence in the whole
}

// Merger reads the archives of fragments side by side. All must have been searched for
// the same queries, in the same batches, with the same options. Sources are in the order
// of their OIDs.
type Merger struct {
	inputs []*input
	keep   int // hits of a query; 0: as many as a source may have
	limit  int // of the lists of the sources
	head   *Head
	query  int // index in head.Queries of the next query
	last   Lists
}

// Lists describes the lists of hits from which a query's hits were merged.
type Lists struct {
	Limit int  // hits that are kept (-max_target_seqs)
	Hits  int  // hits in all lists
	Full  bool // a list has reached its own limit: its fragment may have more hits
}

// input is a source with its next hit.
type input struct {
	*Reader
	first int64
	ahead *Alignment // first alignment of the next hit; nil: there is none
	hit   hit
}

// hit consists of the alignments of one subject with one query.
type hit struct {
	query      string
	evalue     float64
	first      int // score of the first HSP, which has the best e-value
	best       int // best score of all HSPs
	alignments [][]byte
}

// NewMerger returns a merger of sources. If keep is not 0, the sources were searched with
// longer lists of hits, of which the merger keeps the first keep hits of each query, as if all
// had been searched so.
func NewMerger(sources []Source, keep int) *Merger {
	m := &Merger{keep: keep}
	for _, s := range sources {
		m.inputs = append(m.inputs, &input{Reader: NewReader(s.Archives), first: s.First})
	}
	return m
}

// Next moves to the next archive of all sources, and returns io.EOF after the last one. The
// head comes from the first source.
func (m *Merger) Next() (*Head, error) {
	var finished int
	for i, in := range m.inputs {
		h, err := in.Next()
		switch {
		case errors.Is(err, io.EOF):
			finished++
			continue
		case err != nil:
			return nil, fmt.Errorf("fragment %d: %w", i, err)
		case i == 0:
			m.head, m.query, m.limit = h, 0, h.Hitlist
			if m.keep > 0 {
				if err := h.shorten(m.keep); err != nil {
					return nil, err
				}
			}
		case finished > 0 || !slices.Equal(h.Queries, m.head.Queries):
			return nil, fmt.Errorf("fragment %d: %w", i, errBatches)
		}
		if err := in.advance(); err != nil {
			return nil, fmt.Errorf("fragment %d: %w", i, err)
		}
	}
	switch finished {
	case 0:
		return m.head, nil
	case len(m.inputs):
		return nil, io.EOF
	}
	return nil, errBatches
}

// shorten changes HitlistSize.
func (h *Head) shorten(hits int) error {
	// Within a string, quotes are doubled.
	_, rest, ok := bytes.Cut(h.Text, []byte(`name "HitlistSize",`))
	rest = bytes.TrimLeft(rest, " \n\r\t")
	number, ok2 := bytes.CutPrefix(rest, []byte("value integer "))
	old := strconv.Itoa(h.Hitlist)
	if !ok || !ok2 || !bytes.HasPrefix(number, []byte(old)) {
		return errors.New("an archive without HitlistSize")
	}
	at := len(h.Text) - len(number)
	h.Text = slices.Concat(h.Text[:at], strconv.AppendInt(nil, int64(hits), 10), number[len(old):])
	h.Hitlist = hits
	return nil
}

var errBatches = errors.New("the fragments were not searched for the same queries")

// Query merges the alignments of the archive's next query, which may have none. It returns
// io.EOF after the last query.
func (m *Merger) Query() ([][]byte, error) {
	if m.query == len(m.head.Queries) {
		for i, in := range m.inputs {
			if in.hit.alignments != nil {
				return nil, fmt.Errorf("fragment %d: an alignment of %s, which is not the next query", i, in.hit.query)
			}
		}
		return nil, io.EOF
	}
	id := m.head.Queries[m.query]
	m.query++
	m.last = Lists{Limit: m.head.Hitlist}
	var hits []hit
	sources := 0
	// For equal hits, the later sources come first, because their OIDs are higher.
	for _, in := range slices.Backward(m.inputs) {
		n := len(hits)
		for in.has(id) {
			hits = append(hits, in.hit)
			if err := in.advance(); err != nil {
				return nil, err
			}
		}
		if len(hits) > n {
			sources++
		}
		m.last.Full = m.last.Full || len(hits)-n >= m.limit
	}
	m.last.Hits = len(hits)
	// A single source is already in order.
	if sources > 1 {
		full := len(hits) > m.head.Hitlist
		slices.SortStableFunc(hits, func(g, h hit) int {
			return cmp.Or(cmp.Compare(significant(g.evalue), significant(h.evalue)), cmp.Compare(h.score(full), g.score(full)))
		})
	}
	var all [][]byte
	for _, h := range hits[:min(len(hits), m.head.Hitlist)] {
		all = append(all, h.alignments...)
	}
	return all, nil
}

// Lists returns the lists from which the last call of Query has merged.
func (m *Merger) Lists() Lists { return m.last }

// Tail reads the tails of the archives and returns the first one.
func (m *Merger) Tail() (*Tail, error) { return m.inputs[0].Tail() }

func (in *input) has(query string) bool { return in.hit.alignments != nil && in.hit.query == query }

// advance reads the next hit.
func (in *input) advance() error {
	in.hit = hit{}
	var subject string
	for {
		a := in.ahead
		in.ahead = nil
		if a == nil {
			var err error
			if a, err = in.Alignment(); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
			a.Text = shift(a.Text, in.first)
		}
		if in.hit.alignments == nil {
			in.hit = hit{query: a.Query, evalue: a.Evalue, first: a.Score, best: a.Best}
			subject = a.Subject
		} else if a.Query != in.hit.query || a.Subject != subject {
			in.ahead = a
			return nil
		}
		in.hit.evalue = min(in.hit.evalue, a.Evalue)
		in.hit.best = max(in.hit.best, a.Best)
		in.hit.alignments = append(in.hit.alignments, a.Text)
	}
}

// score returns the score by which BLAST+ compares hits of equal e-values, which is the
// score of the first HSP at that time. The HSPs of a hit are sorted by score until the list
// of hits is full. When a further hit comes, they are sorted by e-value
// (Blast_HitListUpdate). The orders differ if HSPs are linked.
func (h *hit) score(full bool) int {
	if full {
		return h.first
	}
	return h.best
}

// significant returns an e-value in the form in which BLAST+ compares it.
func significant(e float64) float64 {
	if e < 1e-180 {
		return 0
	}
	return e
}

var ordinal = []byte(`db "BL_ORD_ID",`)

// shift copies an alignment and adds first to the OIDs in it.
func shift(b []byte, first int64) []byte {
	if first == 0 {
		return slices.Clone(b)
	}
	out := make([]byte, 0, len(b)+16)
	for {
		at := bytes.Index(b, ordinal)
		if at < 0 {
			return append(out, b...)
		}
		at += len(ordinal)
		for at < len(b) && (b[at] == ' ' || b[at] == '\n' || b[at] == '\r') {
			at++
		}
		at += len(prefix(b[at:], "tag id "))
		out = append(out, b[:at]...)
		b = b[at:]
		end := 0
		for end < len(b) && b[end] >= '0' && b[end] <= '9' {
			end++
		}
		if n, err := strconv.ParseInt(string(b[:end]), 10, 64); err == nil {
			out = strconv.AppendInt(out, n+first, 10)
			b = b[end:]
		}
	}
}

// prefix returns p if b begins with it, and nil otherwise.
func prefix(b []byte, p string) []byte {
	if bytes.HasPrefix(b, []byte(p)) {
		return b[:len(p)]
	}
	return nil
}

// Rename copies the alignments of a query, and changes the query's id from from to to. Ids
// are as in [Head].
func Rename(alignments [][]byte, from, to string) ([][]byte, error) {
	if from == to {
		return alignments, nil
	}
	const local = `local str "`
	if !strings.HasPrefix(from, local) || !strings.HasPrefix(to, local) {
		return nil, fmt.Errorf("queries with the ids %.60s and %.60s cannot be distinguished from others", from, to)
	}
	list := make([][]byte, len(alignments))
	for i, text := range alignments {
		a := Alignment{Text: text}
		if err := a.parse(); err != nil {
			return nil, err
		}
		if a.Query != from || a.Subject == from {
			return nil, fmt.Errorf("an alignment of %.60s and %.60s, where one of %.60s should be", a.Query, a.Subject, from)
		}
		list[i] = bytes.ReplaceAll(text, []byte(from), []byte(to))
	}
	return list, nil
}
