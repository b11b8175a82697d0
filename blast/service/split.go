package service

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// splitter takes apart what was printed for the queries of several jobs: for each job,
// which has as many queries as counts says, what would have been printed for it alone.
type splitter func(printed []byte, counts []int) ([][]byte, error)

// splitterOf is the splitter for a scan's format, and the format to print in. nil: there
// is none.
func splitterOf(s Scan) (split splitter, outfmt string) {
	kind, columns, _ := strings.Cut(s.Outfmt, " ")
	table := strings.TrimSpace("7 " + columns)
	switch kind {
	case "5":
		return splitXML, s.Outfmt
	case "6":
		return func(b []byte, n []int) ([][]byte, error) { return splitTables(b, n, rowsOnly) }, table
	case "7":
		return func(b []byte, n []int) ([][]byte, error) { return splitTables(b, n, withComments) }, table
	case "10":
		return func(b []byte, n []int) ([][]byte, error) { return splitTables(b, n, commas) }, table
	case "15":
		return splitJSON, s.Outfmt
	}
	return nil, ""
}

// share gives each job its part of what was printed for the queries, all in order.
func share(blocks [][]byte, counts []int) ([][][]byte, error) {
	total := 0
	for _, n := range counts {
		total += n
	}
	if len(blocks) != total {
		return nil, fmt.Errorf("results of %d queries instead of %d", len(blocks), total)
	}
	shares := make([][][]byte, len(counts))
	for i, n := range counts {
		shares[i], blocks = blocks[:n], blocks[n:]
	}
	return shares, nil
}

// What a table is printed with.
const (
	rowsOnly = iota
	withComments
	commas
)

var (
	foundLine = regexp.MustCompile(`^# ([0-9]+) hits found\n$`)
	lastLine  = regexp.MustCompile(`^# BLAST processed [0-9]+ queries\n$`)
)

// splitTables takes tables with comments (-outfmt 7) apart, which tell of each query
// how many rows follow. Rows alone (6) and with commas (10) are made of them.
func splitTables(printed []byte, counts []int, kind int) ([][]byte, error) {
	var blocks [][]byte
	for rest := printed; len(rest) > 0; {
		var block []byte
		rows := -1
		for rows < 0 {
			line, after, ok := cutLine(rest)
			if !ok {
				return nil, errors.New("a table is cut short")
			}
			rest = after
			if block == nil && lastLine.Match(line) {
				if len(rest) > 0 {
					return nil, errors.New("something follows the last table")
				}
				break
			}
			if line[0] != '#' {
				return nil, fmt.Errorf("a row where it should be said how many there are: %.60q", line)
			}
			if m := foundLine.FindSubmatch(line); m != nil {
				n, err := strconv.Atoi(string(m[1]))
				if err != nil {
					return nil, err
				}
				rows = n
			}
			if block = append(block, line...); kind != withComments {
				block = block[:0]
			}
		}
		if rows < 0 {
			break
		}
		for range rows {
			line, after, ok := cutLine(rest)
			if !ok {
				return nil, errors.New("a table is cut short")
			}
			rest = after
			if kind == commas {
				line = bytes.ReplaceAll(line, []byte("\t"), []byte(","))
			}
			block = append(block, line...)
		}
		blocks = append(blocks, block)
	}
	shares, err := share(blocks, counts)
	if err != nil {
		return nil, err
	}
	parts := make([][]byte, len(counts))
	for i, of := range shares {
		if parts[i] = bytes.Join(of, nil); kind == withComments {
			parts[i] = fmt.Appendf(parts[i], "# BLAST processed %d queries\n", counts[i])
		}
	}
	return parts, nil
}

// cutLine cuts the first line off, with its end.
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
	// Facts about the first query stand at the top, too.
	topFacts  = regexp.MustCompile(`(?s)<BlastOutput_query-ID>[^<]*</BlastOutput_query-ID>\n  <BlastOutput_query-def>[^<]*</BlastOutput_query-def>\n  <BlastOutput_query-len>[^<]*</BlastOutput_query-len>`)
	iterFacts = regexp.MustCompile(`(?s)^<Iteration>\n  <Iteration_iter-num>[0-9]+</Iteration_iter-num>\n  <Iteration_query-ID>Query_[0-9]+</Iteration_query-ID>\n  <Iteration_query-def>([^<]*)</Iteration_query-def>\n  <Iteration_query-len>([^<]*)</Iteration_query-len>\n`)
)

// splitXML takes BLAST's XML (-outfmt 5) apart. Queries are numbered afresh.
func splitXML(printed []byte, counts []int) ([][]byte, error) {
	at := bytes.Index(printed, xmlBegin)
	if at < 0 {
		return nil, errors.New("there is no iteration in the XML")
	}
	top, rest := printed[:at], printed[at:]
	if !topFacts.Match(top) {
		return nil, errors.New("the XML does not begin as usual")
	}
	var blocks [][]byte
	for bytes.HasPrefix(rest, xmlBegin) {
		end := bytes.Index(rest, xmlEnd)
		if end < 0 {
			return nil, errors.New("the XML is cut short")
		}
		end += len(xmlEnd)
		blocks, rest = append(blocks, rest[:end]), rest[end:]
	}
	shares, err := share(blocks, counts)
	if err != nil {
		return nil, err
	}
	parts := make([][]byte, len(counts))
	for i, of := range shares {
		var body []byte
		for k, block := range of {
			facts := iterFacts.FindSubmatch(block)
			if facts == nil {
				return nil, errors.New("an iteration of the XML does not begin as usual")
			}
			if k == 0 {
				head := fmt.Sprintf("<BlastOutput_query-ID>Query_1</BlastOutput_query-ID>\n  <BlastOutput_query-def>%s</BlastOutput_query-def>\n  <BlastOutput_query-len>%s</BlastOutput_query-len>", facts[1], facts[2])
				body = append(body, topFacts.ReplaceAllLiteral(top, []byte(head))...)
			}
			body = fmt.Appendf(body, "<Iteration>\n  <Iteration_iter-num>%d</Iteration_iter-num>\n  <Iteration_query-ID>Query_%[1]d</Iteration_query-ID>\n  <Iteration_query-def>%s</Iteration_query-def>\n  <Iteration_query-len>%s</Iteration_query-len>\n", k+1, facts[1], facts[2])
			body = append(body, block[len(facts[0]):]...)
		}
		parts[i] = append(body, rest...)
	}
	return parts, nil
}

var queryID = regexp.MustCompile(`"query_id": "Query_[0-9]+"`)

// splitJSON takes BLAST's JSON (-outfmt 15) apart: a list with a report for each query.
// Their text stays as it is, but for the numbers of the queries.
func splitJSON(printed []byte, counts []int) ([][]byte, error) {
	dec := json.NewDecoder(bytes.NewReader(printed))
	for _, want := range []json.Token{json.Delim('{'), "BlastOutput2", json.Delim('[')} {
		got, err := dec.Token()
		if err != nil {
			return nil, err
		}
		if got != want {
			return nil, fmt.Errorf("%v instead of %v", got, want)
		}
	}
	var blocks [][]byte
	var separator []byte
	first, last := -1, 0
	for dec.More() {
		before := last
		var report json.RawMessage
		if err := dec.Decode(&report); err != nil {
			return nil, err
		}
		last = int(dec.InputOffset())
		begin := last - len(report)
		switch len(blocks) {
		case 0:
			first = begin
		case 1:
			separator = printed[before:begin]
		}
		blocks = append(blocks, report)
	}
	shares, err := share(blocks, counts)
	if err != nil {
		return nil, err
	}
	if first < 0 {
		return nil, errors.New("there is no report in the JSON")
	}
	parts := make([][]byte, len(counts))
	for i, of := range shares {
		part := bytes.Clone(printed[:first])
		for k, report := range of {
			if k > 0 {
				part = append(part, separator...)
			}
			at := queryID.FindIndex(report)
			if at == nil {
				return nil, errors.New("a report does not name its query")
			}
			part = append(part, report[:at[0]]...)
			part = fmt.Appendf(part, `"query_id": "Query_%d"`, k+1)
			part = append(part, report[at[1]:]...)
		}
		parts[i] = append(part, printed[last:]...)
	}
	return parts, nil
}
