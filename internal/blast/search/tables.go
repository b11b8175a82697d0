package search

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"premix/internal/blast/archive"
	"premix/internal/blast/part"
)

// Searches of blastn that print tables are merged row by row, without archives and without
// blast_formatter: see "Tables" in the package documentation.

// tabular returns the layout in which fragments print tables that can be merged, or nil if
// archives are needed.
func (r *Request) tabular() *layout {
	o := r.Options
	if !r.unlinked() || !r.Database.UniqueIDs || len(r.Database.Members) > 0 || len(o.show) > 0 || o.format != 6 && o.format != 7 && o.format != 10 {
		return nil
	}
	l := layoutWith(o.format, o.columns, "sseqid", "score", "evalue")
	// A title may contain tabs. Names of taxa come from a database that only this machine may have.
	if l == nil || slices.ContainsFunc(l.columns, func(c string) bool {
		return strings.HasSuffix(c, "title") || strings.HasSuffix(c, "titles") || strings.Contains(c, "name") || strings.Contains(c, "kingdom")
	}) {
		return nil
	}
	return l
}

// tables prints the merged tables of all parts.
func (r *Request) tables(ctx context.Context, s *scan, out *held) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Programs that are given longer lists of hits do not warn of short ones, and messages about
	// threads depend on their number.
	var messages chan error
	if s.away != nil || s.opt.hits > 0 && s.opt.hits < 5 || s.plan.parts[0].threads > 1 {
		messages = make(chan error, 1)
		go func() {
			_, err := s.voice(ctx, 6)
			messages <- err
		}()
	}
	err := s.rows(ctx, out)
	if err != nil {
		cancel()
	}
	if messages != nil {
		if e := <-messages; err == nil {
			err = e
		}
	}
	return err
}

// rows searches all parts and writes their merged tables.
func (s *scan) rows(ctx context.Context, out io.Writer) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w := bufio.NewWriterSize(out, 256<<10)
	m := &tableMerger{s: s, out: w, p: &printed{layout: s.table}}
	m.crowds = tableCrowds{s: s, ctx: ctx}
	defer func() { s.searchedAgain = m.crowds.count }()
	defer m.crowds.close()
	if s.away != nil {
		groups, done, err := s.remoteTables(ctx)
		if err != nil {
			return err
		}
		defer done()
		for _, sources := range groups {
			if err := m.merge(sources); err != nil {
				return err
			}
		}
		return m.end()
	}
	var running []*program
	var sources []*tableReader
	start := func() error {
		for i, share := range s.plan.parts {
			var paths []string
			for _, f := range share.fragments {
				paths = append(paths, f.Path)
			}
			dir, err := s.alias("part-"+strconv.Itoa(i), "", paths...)
			if err != nil {
				return err
			}
			p, out, err := s.start(ctx, dir, s.batch, share.threads, s.longer())
			if err != nil {
				return err
			}
			running, sources = append(running, p), append(sources, newTableReader(s.table, out))
		}
		return nil
	}
	if err = start(); err == nil {
		if err = m.merge(sources); err == nil {
			err = m.end()
		}
	}
	if err != nil {
		cancel()
	}
	for i, p := range running {
		e := p.wait()
		var exit *part.ExitError
		if errors.As(e, &exit) && (err == nil || len(exit.Stderr) > 0) {
			err = exit // better than the error of reading its output
		}
		if i == 0 && s.stderr == nil {
			s.stderr = p.stderr.Bytes()
		}
	}
	return err
}

// tableReader reads tables with comments (-outfmt 7), one query after the other.
type tableReader struct {
	l                         *layout
	in                        *bufio.Reader
	subject, score, evalue, n int // columns
	count                     int // queries so far
}

func newTableReader(l *layout, in io.Reader) *tableReader {
	return &tableReader{l: l, in: bufio.NewReaderSize(in, 256<<10), subject: l.column("sseqid"), score: l.column("score"), evalue: l.column("evalue"), n: len(l.columns)}
}

// table is the table of one query.
type table struct {
	head  []byte // comments, without the number of rows
	query []byte // the comment with its name
	rows  int
	hits  []tableHit // in the order of the program
}

// tableHit is one subject of a query.
type tableHit struct {
	score  int     // the best one
	evalue float64 // of it
	rows   []byte
}

var queryLine = []byte("# Query: ")

// next reads the next table, and returns io.EOF after the last one.
func (t *tableReader) next() (*table, error) {
	var b table
	for {
		line, err := t.line()
		if err != nil {
			return nil, err
		}
		if len(b.head) == 0 {
			if m := processedLine().FindSubmatch(line); m != nil {
				if string(m[1]) != strconv.Itoa(t.count) {
					return nil, fmt.Errorf("tables of %d queries, and the last line is %q", t.count, line)
				}
				return nil, io.EOF
			}
		}
		if m := foundLine().FindSubmatch(line); m != nil {
			if b.rows, err = strconv.Atoi(string(m[1])); err != nil {
				return nil, err
			}
			break
		}
		if line[0] != '#' {
			return nil, fmt.Errorf("a row where a comment should be: %.60q", line)
		}
		if bytes.HasPrefix(line, queryLine) {
			b.query = line
		}
		b.head = append(b.head, line...)
	}
	t.count++
	var subject []byte
	for range b.rows {
		line, err := t.line()
		if err != nil {
			return nil, err
		}
		columns := bytes.Split(bytes.TrimSuffix(line, []byte("\n")), []byte("\t"))
		if len(columns) != t.n || bytes.Contains(line, []byte("BL_ORD_ID")) {
			return nil, fmt.Errorf("a row with other columns than those that were asked for: %.200q", line)
		}
		score, err := strconv.Atoi(string(columns[t.score]))
		if err != nil {
			return nil, fmt.Errorf("a score that is not a number: %.20q", columns[t.score])
		}
		evalue, err := strconv.ParseFloat(string(columns[t.evalue]), 64)
		if err != nil {
			return nil, fmt.Errorf("an e-value that is not a number: %.20q", columns[t.evalue])
		}
		k := len(b.hits) - 1
		if k < 0 || !bytes.Equal(subject, columns[t.subject]) {
			subject = columns[t.subject]
			b.hits = append(b.hits, tableHit{score, evalue, line})
			continue
		}
		h := &b.hits[k]
		if h.rows = append(h.rows, line...); score > h.score {
			h.score, h.evalue = score, evalue
		}
	}
	return &b, nil
}

// line reads a line into memory of its own.
func (t *tableReader) line() ([]byte, error) {
	line, err := t.in.ReadBytes('\n')
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF // a table has an end
	}
	return line, err
}

// tableMerger writes merged tables.
type tableMerger struct {
	s      *scan
	out    *bufio.Writer
	p      *printed
	crowds tableCrowds
	before int // queries
}

// merge merges the tables of sources, which are in the order of their OIDs and have been
// searched for the same queries.
func (m *tableMerger) merge(sources []*tableReader) error {
	for {
		var list []*table
		for _, t := range sources {
			b, err := t.next()
			if errors.Is(err, io.EOF) {
				continue
			}
			if err != nil {
				return err
			}
			list = append(list, b)
		}
		if len(list) == 0 {
			return nil
		}
		for _, b := range list {
			if len(list) != len(sources) || !bytes.Equal(b.query, list[0].query) {
				return errors.New("the fragments were not searched for the same queries")
			}
		}
		b, lists, err := m.one(list)
		if err != nil {
			return err
		}
		if b, err = m.crowds.query(m.before, b, lists); err != nil {
			return err
		}
		if err := m.put([][]byte{b.text()}, position{before: m.before}); err != nil {
			return err
		}
		m.before++
	}
}

// one merges the tables of one query. Hits are in the order of BLAST+: see [archive.Merger]. As
// e-values fall with the score, the score alone decides.
func (m *tableMerger) one(list []*table) (*table, archive.Lists, error) {
	merged := &table{head: list[0].head, query: list[0].query}
	lists := archive.Lists{Limit: m.s.hits()}
	// For equal hits, the later sources come first, because their OIDs are higher.
	for _, b := range slices.Backward(list) {
		if len(b.hits) > 0 {
			merged.head = b.head // only such a table has the names of columns
		}
		lists.Full = lists.Full || len(b.hits) >= m.s.longer()
		if err := descending(b.hits); err != nil {
			return nil, lists, err
		}
		merged.hits = append(merged.hits, b.hits...)
	}
	lists.Hits = len(merged.hits)
	slices.SortStableFunc(merged.hits, func(g, h tableHit) int { return h.score - g.score })
	if err := descending(merged.hits); err != nil {
		return nil, lists, err
	}
	merged.hits = merged.hits[:min(len(merged.hits), lists.Limit)]
	return merged, lists, nil
}

// descending fails if hits are not in the order of their scores, or their e-values are not in
// the same order.
func descending(hits []tableHit) error {
	for i := 1; i < len(hits); i++ {
		g, h := hits[i-1], hits[i]
		if h.score > g.score || h.evalue < g.evalue || h.score == g.score && h.evalue != g.evalue {
			return fmt.Errorf("hits with the scores %d and %d have the e-values %g and %g", g.score, h.score, g.evalue, h.evalue)
		}
	}
	return nil
}

// text returns a table in the form in which it was read.
func (b *table) text() []byte {
	rows := 0
	for _, h := range b.hits {
		rows += bytes.Count(h.rows, []byte("\n"))
	}
	text := fmt.Appendf(slices.Clone(b.head), "# %d hits found\n", rows)
	for _, h := range b.hits {
		text = append(text, h.rows...)
	}
	return text
}

func (m *tableMerger) put(blocks [][]byte, at position) error {
	text, err := m.s.table.put(m.p, blocks, at)
	if err != nil {
		return err
	}
	_, err = m.out.Write(text)
	return err
}

// end ends the output.
func (m *tableMerger) end() error {
	if err := m.put(nil, position{m.before, true}); err != nil {
		return err
	}
	return m.out.Flush()
}

// tableCrowds replaces the tables of crowded queries by those of a search of the whole database:
// see [crowds].
type tableCrowds struct {
	s     *scan
	ctx   context.Context
	count int // crowded queries

	end    context.CancelFunc
	whole  *program
	in     *tableReader
	passed int // queries
}

// query returns the table of query i, given the merged one.
func (c *tableCrowds) query(i int, merged *table, lists archive.Lists) (*table, error) {
	if !c.s.crowded(lists) {
		return merged, nil
	}
	c.count++
	if c.whole == nil {
		dir, err := alias(c.s.dir, c.s.db, "crowded", "", c.s.db.Whole)
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithCancel(c.ctx)
		p, out, err := c.s.start(ctx, dir, c.s.batch, c.s.cores, c.s.opt.hits)
		if err != nil {
			cancel()
			return nil, err
		}
		c.whole, c.end, c.in = p, cancel, newTableReader(c.s.table, out)
	}
	for {
		b, err := c.in.next()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, fmt.Errorf("search the whole database for crowded queries: %w", err)
		}
		c.passed++
		if c.passed <= i {
			continue
		}
		if !bytes.Equal(b.query, merged.query) {
			return nil, errors.New("the whole database was searched for other queries than the fragments")
		}
		return b, nil
	}
}

// close ends the search of the whole.
func (c *tableCrowds) close() {
	if c.whole != nil {
		c.end()
		_ = c.whole.wait() // it has given all that was needed
	}
}
