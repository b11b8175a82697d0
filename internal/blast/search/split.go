package search

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"premix/internal/kit/regex"
)

// printed is the output for some queries, split into a block for each query and the parts
// that occur once. A part of the blocks can be joined again as if it had been printed
// alone.
type printed struct {
	layout            *layout
	top, between, end []byte
	blocks            [][]byte
}

// layout describes a format that can be split.
type layout struct {
	outfmt string // the format in which the group is searched
	apart  func(*layout, []byte) (*printed, error)
	put    func(p *printed, blocks [][]byte, at position) ([]byte, error)
	hsps   func(*layout, []byte) ([]hsp, error) // of a block; the format determines how much is known about them

	// For tables.
	hidden  []string // columns added after all others
	columns []string // all printed columns, including the hidden ones
}

// position is the position of blocks in the output.
type position struct {
	before int // number of queries before them
	last   bool
}

// single returns the position of blocks that are the whole output.
func wholeOutput() position { return position{last: true} }

// hsp is the position of an alignment in a query, and its runs of equal letters.
type hsp struct {
	begin int   // of the query's letters, from 1
	runs  []run // of equal letters
}

type run struct{ begin, length int } // in the query, from 1

// layoutOf returns the layout of a format, or nil if it cannot be split. If inner is true,
// the blocks contain their HSPs.
func layoutOf(format int, columns string, inner bool) *layout {
	if inner {
		return layoutWith(format, columns, "qstart", "btop")
	}
	return layoutWith(format, columns)
}

// layoutWith returns the layout of a format, or nil if it cannot be split. Blocks of tables have
// these further columns.
func layoutWith(format int, columns string, further ...string) *layout {
	switch format {
	case 5:
		return &layout{outfmt: "5", apart: apartXML, put: putXML, hsps: hspsXML}
	case 15:
		return &layout{outfmt: "15", apart: apartJSON, put: putJSON, hsps: hspsJSON}
	case 6, 7, 10:
	default:
		return nil
	}
	l := &layout{apart: apartTable, hsps: hspsTable, put: putRows}
	switch format {
	case 7:
		l.put = putTable
	case 10:
		l.put = putCommas
	}
	asked, ok := columnsOf(columns)
	if !ok {
		return nil
	}
	l.columns = asked
	for _, name := range further {
		if l.column(name) < 0 {
			l.hidden = append(l.hidden, name)
			l.columns = append(l.columns, name)
		}
	}
	if columns == "" && len(l.hidden) > 0 {
		columns = "std"
	}
	l.outfmt = strings.TrimSpace("7 " + strings.Join(append([]string{columns}, l.hidden...), " "))
	return l
}

// column returns the index of a column, or -1.
func (l *layout) column(name string) int {
	for i, c := range l.columns {
		if c == name {
			return i
		}
	}
	return -1
}

// The columns of tables (CBlastTabularInfo of the toolkit), and those that "std" includes.
const (
	standard   = "qaccver saccver pident length mismatch gapopen qstart qend sstart send evalue bitscore"
	allColumns = "qseqid qgi qacc qaccver qlen sseqid sallseqid sgi sallgi sacc saccver sallacc slen qstart qend sstart send qseq sseq evalue bitscore score length " +
		"pident nident mismatch positive gapopen gaps ppos frames qframe sframe btop staxid ssciname scomname sblastname sskingdom staxids sscinames scomnames sblastnames " +
		"sskingdoms stitle salltitles sstrand qcovs qcovhsp qcovus"
)

// columnsOf returns the columns as BLAST+ prints them, each once. It fails if a word is not
// the name of a column.
func columnsOf(text string) ([]string, bool) {
	known := map[string]bool{}
	for _, c := range strings.Fields(allColumns) {
		known[c] = true
	}
	var list []string
	seen := map[string]bool{}
	if text == "" {
		text = "std"
	}
	for _, word := range strings.Fields(text) {
		words := []string{word}
		if word == "std" {
			words = strings.Fields(standard)
		} else if !known[word] {
			return nil, false
		}
		for _, w := range words {
			if !seen[w] {
				seen[w] = true
				list = append(list, w)
			}
		}
	}
	return list, true
}

// share returns the blocks of each job. counts are the jobs' numbers of queries.
func (p *printed) share(counts []int) ([][][]byte, error) {
	total := 0
	for _, n := range counts {
		total += n
	}
	if len(p.blocks) != total {
		return nil, fmt.Errorf("results of %d queries instead of %d", len(p.blocks), total)
	}
	shares, blocks := make([][][]byte, len(counts)), p.blocks
	for i, n := range counts {
		shares[i], blocks = blocks[:n], blocks[n:]
	}
	return shares, nil
}

var (
	foundLine = regex.Lazy(`^# ([0-9]+) hits found\n$`)
	fieldLine = []byte("# Fields: ")
	// fieldNames are the names of the hidden columns in the output.
	fieldNames = map[string]string{"qstart": ", q. start", "btop": ", BTOP", "sseqid": ", subject id", "score": ", score", "evalue": ", evalue"}
)

// apartTable splits tables with comments (-outfmt 7), which have the number of rows of each
// query. Tables without comments (6) and with commas (10) are made from them.
func apartTable(l *layout, text []byte) (*printed, error) {
	p := &printed{layout: l}
	for rest := text; len(rest) > 0; {
		begin, rows := rest, -1
		for rows < 0 {
			line, after, ok := cutLine(rest)
			if !ok {
				return nil, errors.New("a table is cut short")
			}
			first := len(rest) == len(begin)
			rest = after
			if first && processedLine().Match(line) {
				if len(rest) > 0 {
					return nil, errors.New("something follows the last table")
				}
				return p, nil
			}
			if line[0] != '#' {
				return nil, fmt.Errorf("a row where it should be said how many there are: %.60q", line)
			}
			if m := foundLine().FindSubmatch(line); m != nil {
				n, err := strconv.Atoi(string(m[1]))
				if err != nil {
					return nil, err
				}
				rows = n
			}
		}
		for range rows {
			_, after, ok := cutLine(rest)
			if !ok {
				return nil, errors.New("a table is cut short")
			}
			rest = after
		}
		p.blocks = append(p.blocks, begin[:len(begin)-len(rest)])
	}
	return nil, errors.New("a table has no end")
}

// rows calls each for the lines of a block, without the hidden columns.
func (l *layout) rows(block []byte, each func(line []byte, comment bool) error) error {
	comments := true
	for line := range bytes.Lines(block) {
		// Comments end with the line that has the number of rows.
		was := comments
		if was && foundLine().Match(line) {
			comments = false
		}
		switch {
		case len(l.hidden) == 0:
		case was && bytes.HasPrefix(line, fieldLine):
			for i := len(l.hidden) - 1; i >= 0; i-- {
				cut, ok := bytes.CutSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte(fieldNames[l.hidden[i]]))
				if !ok {
					return fmt.Errorf("the columns are not the ones that were asked for: %.200q", line)
				}
				line = append(bytes.Clone(cut), '\n')
			}
		case !was:
			cut := bytes.TrimSuffix(line, []byte("\n"))
			for range l.hidden {
				at := bytes.LastIndexByte(cut, '\t')
				if at < 0 {
					return fmt.Errorf("a row lacks columns: %.200q", line)
				}
				cut = cut[:at]
			}
			line = append(bytes.Clone(cut), '\n')
		}
		if err := each(line, was); err != nil {
			return err
		}
	}
	return nil
}

func putTable(p *printed, blocks [][]byte, at position) ([]byte, error) {
	var out []byte
	for _, b := range blocks {
		if err := p.layout.rows(b, func(line []byte, _ bool) error { out = append(out, line...); return nil }); err != nil {
			return nil, err
		}
	}
	if at.last {
		out = fmt.Appendf(out, "# BLAST processed %d queries\n", at.before+len(blocks))
	}
	return out, nil
}

func putRows(p *printed, blocks [][]byte, _ position) ([]byte, error) {
	return putPlain(p, blocks, '\t')
}

func putCommas(p *printed, blocks [][]byte, _ position) ([]byte, error) {
	return putPlain(p, blocks, ',')
}

func putPlain(p *printed, blocks [][]byte, between byte) ([]byte, error) {
	var out []byte
	for _, b := range blocks {
		err := p.layout.rows(b, func(line []byte, comment bool) error {
			if comment {
				return nil
			}
			if between != '\t' {
				line = bytes.ReplaceAll(line, []byte("\t"), []byte{between})
			}
			out = append(out, line...)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

func hspsTable(l *layout, block []byte) ([]hsp, error) {
	var list []hsp
	comments := true
	at, how := l.column("qstart"), l.column("btop")
	for line := range bytes.Lines(block) {
		if comments {
			comments = !foundLine().Match(line)
			continue
		}
		columns := strings.Split(strings.TrimSuffix(string(line), "\n"), "\t")
		if len(columns) != len(l.columns) {
			return nil, errUnclear
		}
		begin, err := strconv.Atoi(columns[at])
		if err != nil {
			return nil, errUnclear
		}
		list = append(list, hsp{begin, traced(begin, columns[how])})
	}
	return list, nil
}

// errUnclear is returned for HSPs in an unexpected form.
var errUnclear = errors.New("the alignments of a block cannot be read")

// traced parses a traceback of BLAST+ (btop): numbers of equal letters, and between them
// pairs of different letters, or of a letter and a gap.
func traced(begin int, trace string) []run {
	var runs []run
	for i := 0; i < len(trace); {
		n := 0
		from := i
		for ; i < len(trace) && '0' <= trace[i] && trace[i] <= '9'; i++ {
			n = 10*n + int(trace[i]-'0')
		}
		if i > from {
			runs = append(runs, run{begin, n})
			begin += n
			continue
		}
		if trace[i] != '-' {
			begin++
		}
		i += 2
	}
	return runs
}

// aligned compares the two rows of an alignment.
func aligned(begin int, query, subject []byte) []run {
	var runs []run
	n := 0
	for i := range min(len(query), len(subject)) {
		if query[i] == subject[i] && query[i] != '-' {
			n++
			begin++
			continue
		}
		if n > 0 {
			runs = append(runs, run{begin - n, n})
		}
		n = 0
		if query[i] != '-' {
			begin++
		}
	}
	if n > 0 {
		runs = append(runs, run{begin - n, n})
	}
	return runs
}

// cutLine splits off the first line, including its end.
func cutLine(b []byte) (line, rest []byte, ok bool) {
	i := bytes.IndexByte(b, '\n')
	if i < 0 {
		return nil, nil, false
	}
	return b[:i+1], b[i+1:], true
}

var (
	xmlBegin = []byte("<Iteration>\n")
	xmlEnd   = []byte("</Iteration>\n")
	// Facts about the first query also appear at the top.
	topFacts  = regex.Lazy(`(?s)<BlastOutput_query-ID>[^<]*</BlastOutput_query-ID>\n  <BlastOutput_query-def>[^<]*</BlastOutput_query-def>\n  <BlastOutput_query-len>[^<]*</BlastOutput_query-len>`)
	iterFacts = regex.Lazy(`(?s)^<Iteration>\n  <Iteration_iter-num>([0-9]+)</Iteration_iter-num>\n  <Iteration_query-ID>Query_[0-9]+</Iteration_query-ID>\n  <Iteration_query-def>([^<]*)</Iteration_query-def>\n  <Iteration_query-len>([^<]*)</Iteration_query-len>\n`)
	hspXML    = regex.Lazy(`<Hsp_query-from>([0-9]+)</Hsp_query-from>(?s:.*?)<Hsp_qseq>([^<]*)</Hsp_qseq>\s*<Hsp_hseq>([^<]*)</Hsp_hseq>`)
	hspJSON   = regex.Lazy(`"query_from": ([0-9]+)(?s:.*?)"qseq": "([^"]*)",\s*"hseq": "([^"]*)"`)
)

// apartXML splits BLAST's XML (-outfmt 5).
func apartXML(l *layout, text []byte) (*printed, error) {
	at := bytes.Index(text, xmlBegin)
	if at < 0 {
		return nil, errors.New("there is no iteration in the XML")
	}
	p := &printed{layout: l, top: text[:at]}
	if !topFacts().Match(p.top) {
		return nil, errors.New("the XML does not begin as usual")
	}
	rest := text[at:]
	for bytes.HasPrefix(rest, xmlBegin) {
		end := bytes.Index(rest, xmlEnd)
		if end < 0 {
			return nil, errors.New("the XML is cut short")
		}
		end += len(xmlEnd)
		p.blocks, rest = append(p.blocks, rest[:end]), rest[end:]
	}
	p.end = rest
	return p, nil
}

// putXML joins blocks and numbers their queries.
func putXML(p *printed, blocks [][]byte, at position) ([]byte, error) {
	var out []byte
	for k, block := range blocks {
		facts := iterFacts().FindSubmatch(block)
		if facts == nil {
			return nil, errors.New("an iteration of the XML does not begin as usual")
		}
		if at.before+k == 0 {
			head := fmt.Sprintf("<BlastOutput_query-ID>Query_1</BlastOutput_query-ID>\n  <BlastOutput_query-def>%s</BlastOutput_query-def>\n  <BlastOutput_query-len>%s</BlastOutput_query-len>", facts[2], facts[3])
			out = append(out, topFacts().ReplaceAllLiteral(p.top, []byte(head))...)
		}
		out = fmt.Appendf(out, "<Iteration>\n  <Iteration_iter-num>%d</Iteration_iter-num>\n  <Iteration_query-ID>Query_%[1]d</Iteration_query-ID>\n  <Iteration_query-def>%s</Iteration_query-def>\n  <Iteration_query-len>%s</Iteration_query-len>\n", at.before+k+1, facts[2], facts[3])
		rest, err := renumber(block[len(facts[0]):], messageXML(), string(facts[1]), at.before+k+1, facts[2])
		if err != nil {
			return nil, err
		}
		out = append(out, rest...)
	}
	if at.last {
		out = append(out, p.end...)
	}
	return out, nil
}

// The messages about queries in the reports of BLAST+.
var (
	messageXML  = regex.Lazy(`<Iteration_message>[^<]*</Iteration_message>`)
	messageJSON = regex.Lazy(`(?m)^ +"message": ".*"$`)
)

// renumber changes the number of the query in messages about it. They also contain the
// query's title, which must not contain a similar text.
func renumber(block []byte, message *regexp.Regexp, from string, to int, title []byte) ([]byte, error) {
	old := []byte("Query_" + from + " ")
	if strconv.Itoa(to) == from {
		return block, nil
	}
	var err error
	text := message.ReplaceAllFunc(block, func(m []byte) []byte {
		switch {
		case bytes.Contains(title, old):
			err = errors.New("a message names a query in an unclear way")
		case bytes.Contains(m, old):
			return bytes.ReplaceAll(m, old, fmt.Appendf(nil, "Query_%d ", to))
		}
		return m
	})
	return text, err
}

func hspsXML(_ *layout, block []byte) ([]hsp, error) {
	return hspsOf(block, hspXML(), bytes.Count(block, []byte("<Hsp>")))
}

func hspsOf(block []byte, form *regexp.Regexp, count int) ([]hsp, error) {
	found := form.FindAllSubmatch(block, -1)
	if len(found) != count {
		return nil, errUnclear
	}
	var list []hsp
	for _, m := range found {
		begin, err := strconv.Atoi(string(m[1]))
		if err != nil {
			return nil, errUnclear
		}
		list = append(list, hsp{begin, aligned(begin, m[2], m[3])})
	}
	return list, nil
}

var queryID = regex.Lazy(`"query_id": "Query_[0-9]+"`)

// apartJSON splits BLAST's JSON (-outfmt 15): a list with a report for each query. Their
// text stays the same, except for the numbers of queries.
func apartJSON(l *layout, text []byte) (*printed, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	for _, want := range []json.Token{json.Delim('{'), "BlastOutput2", json.Delim('[')} {
		got, err := dec.Token()
		if err != nil {
			return nil, err
		}
		if got != want {
			return nil, fmt.Errorf("%v instead of %v", got, want)
		}
	}
	p := &printed{layout: l}
	last := 0
	for dec.More() {
		before := last
		var report json.RawMessage
		if err := dec.Decode(&report); err != nil {
			return nil, err
		}
		last = int(dec.InputOffset())
		begin := last - len(report)
		switch len(p.blocks) {
		case 0:
			p.top = text[:begin]
		case 1:
			p.between = text[before:begin]
		}
		p.blocks = append(p.blocks, report)
	}
	if len(p.blocks) == 0 {
		return nil, errors.New("there is no report in the JSON")
	}
	if p.between == nil {
		p.between = []byte("\n,\n") // the separator, for an output with only one report
	}
	p.end = text[last:]
	return p, nil
}

func putJSON(p *printed, blocks [][]byte, at position) ([]byte, error) {
	var out []byte
	for k, report := range blocks {
		switch {
		case at.before+k == 0:
			out = append(out, p.top...)
		default:
			out = append(out, p.between...)
		}
		id := queryID().FindIndex(report)
		if id == nil {
			return nil, errors.New("a report does not name its query")
		}
		number := strings.TrimSuffix(string(report[id[0]+len(`"query_id": "Query_`):id[1]]), `"`)
		report, err := renumber(report, messageJSON(), number, at.before+k+1, nil)
		if err != nil {
			return nil, err
		}
		out = append(out, report[:id[0]]...)
		out = fmt.Appendf(out, `"query_id": "Query_%d"`, at.before+k+1)
		out = append(out, report[id[1]:]...)
	}
	if at.last {
		out = append(out, p.end...)
	}
	return out, nil
}

func hspsJSON(_ *layout, block []byte) ([]hsp, error) {
	return hspsOf(block, hspJSON(), bytes.Count(block, []byte(`"hseq": "`)))
}
