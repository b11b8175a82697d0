package search

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"

	"premix/internal/kit/regex"
)

// For several archives, blast_formatter prints several reports one after another, in
// formats for people and in format 7. The functions below join them.

// spacing is the text between two queries in formats for people.
var spacing = []byte("\n\n")

// texts reads the reports of formats 0 to 4, of which each archive has its own.
type texts struct {
	in     *bufio.Reader
	buf    []byte
	prolog []byte
	epilog []byte
	done   bool
}

const spaceLine = "\nEffective search space used: "

// next reads up to the prolog of the next report. All reports have the same prolog.
func (t *texts) next() ([]byte, error) {
	if t.done {
		return nil, io.EOF
	}
	if t.prolog == nil {
		if err := t.begin(); err != nil {
			return nil, err
		}
	}
	at := -1
	for from := 0; ; {
		if at = bytes.Index(t.buf[from:], t.prolog); at >= 0 {
			at += from
			break
		}
		from = max(0, len(t.buf)-len(t.prolog))
		if err := t.more(); errors.Is(err, io.EOF) {
			t.done = true
			at = len(t.buf)
			break
		} else if err != nil {
			return nil, err
		}
	}
	body := t.buf[:at]
	rest := t.buf[at:]
	if !t.done {
		rest = rest[len(t.prolog):]
	}
	t.buf = append([]byte(nil), rest...)
	// The epilog begins after the line with the search space.
	end := bytes.LastIndex(body, []byte(spaceLine))
	if end < 0 {
		return nil, errors.New("blast_formatter printed no search space")
	}
	end += 1 + bytes.IndexByte(body[end+1:], '\n') + 1
	if t.epilog == nil {
		t.epilog = append([]byte(nil), body[end:]...)
	}
	return body[:end:end], nil
}

// begin finds the prolog: all lines before the first one about a query.
func (t *texts) begin() error {
	for {
		for _, mark := range []string{"\nQuery= ", "\n<b>Query=</b> "} {
			if at := bytes.Index(t.buf, []byte(mark)); at >= 0 {
				t.prolog = append([]byte(nil), t.buf[:at+1]...)
				t.buf = t.buf[at+1:]
				return nil
			}
		}
		if err := t.more(); err != nil {
			return err
		}
	}
}

func (t *texts) more() error {
	chunk := make([]byte, 64<<10)
	n, err := t.in.Read(chunk)
	t.buf = append(t.buf, chunk[:n]...)
	if n > 0 {
		return nil
	}
	return err
}

// footer splits the output for a query before the Karlin-Altschul parameters.
//
// BLAST+ prints the columns a, alpha and sigma with them if it has their values. Archives
// do not have them (CBlastAncillaryData::GetGumbelBlk is empty after a round trip), so that
// blast_formatter omits them. For a query without any parameters, it prints placeholders.
func footer(body []byte) (before, from []byte) {
	end := bytes.LastIndex(body, []byte(spaceLine)) + 1
	at := end
	for at > 0 {
		line := bytes.LastIndexByte(body[:at-1], '\n') + 1
		if !parameters(body[line : at-1]) {
			break
		}
		at = line
	}
	// x_PrintOneQueryFooter prints an empty line, the parameters, an empty line, those of
	// gapped alignments, and an empty line.
	if first := bytes.Index(body[at:end], []byte("Lambda ")); first > 0 {
		at += first - 1
		if bytes.HasSuffix(body[:at+1], []byte("\nGapped\n")) {
			// Only those of gapped alignments, after two empty lines and "Gapped".
			at -= len("\n\nGapped") - 1
		}
	} else {
		at = max(at, end-3)
	}
	return body[:at], body[at:]
}

var parameterLine = regex.Lazy(`^(Gapped|Lambda .*|[ 0-9.e+-]*)$`)

var processedLine = regex.Lazy(`^# BLAST processed ([0-9]+) queries\n$`)

func parameters(line []byte) bool { return parameterLine().Match(line) }

// processed passes on the tables of format 7, and replaces the counts of queries of single
// archives by one total.
func processed(w io.Writer, r io.Reader) error {
	in := bufio.NewReaderSize(r, 256<<10)
	out := bufio.NewWriterSize(w, 256<<10)
	queries := 0
	for {
		line, err := in.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			out.Write(line) // a line of this length is not a count; Flush returns errors
			continue
		}
		if m := processedLine().FindSubmatch(line); m != nil {
			n, err := strconv.Atoi(string(m[1]))
			if err != nil {
				return err
			}
			queries += n
		} else {
			out.Write(line)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "# BLAST processed %d queries\n", queries)
	return out.Flush()
}

// commandLine replaces blast_formatter's command line by the user's in the header of SAM.
func commandLine(w io.Writer, r io.Reader, command string) error {
	in := bufio.NewReaderSize(r, 256<<10)
	for {
		line, err := in.ReadBytes('\n')
		if bytes.HasPrefix(line, []byte("@PG\t")) {
			if at, end := bytes.Index(line, []byte("\tCL:")), bytes.LastIndex(line, []byte("\tPN:")); 0 <= at && at < end {
				line = bytes.Join([][]byte{line[:at], []byte("\tCL:" + command + " "), line[end:]}, nil)
			}
		}
		if _, err := w.Write(line); err != nil {
			return err
		}
		if errors.Is(err, io.EOF) || err == nil && (len(line) == 0 || line[0] != '@') {
			break
		}
		if err != nil {
			return err
		}
	}
	_, err := io.Copy(w, in)
	return err
}

// splitFooters returns the footer of each query, as footer splits it off, from one report
// in a format for people.
func splitFooters(report []byte) [][]byte {
	var list [][]byte
	for at := 0; ; {
		i := bytes.Index(report[at:], []byte(spaceLine))
		if i < 0 {
			return list
		}
		at += i + 1
		if end := bytes.IndexByte(report[at:], '\n'); end >= 0 {
			at += end + 1
		} else {
			at = len(report)
		}
		_, f := footer(report[:at])
		list = append(list, f)
		at-- // the line break may begin the next line
	}
}
