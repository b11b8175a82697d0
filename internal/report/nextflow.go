package report

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"premix/internal/hotstart/calls"
	"premix/internal/kit/problem"
)

// Nextflow is a trace file of Nextflow with the starts of the tools in each task.
type Nextflow struct {
	columns []string
	rows    [][]string
}

// startColumns are the columns behind those of the trace file: hot starts, cold starts,
// seconds of loading that hot starts saved, and bytes of memory that they did not load.
var startColumns = []string{"hot", "cold", "saved_seconds", "not_loaded_bytes"}

// taskDir matches the end of a task's work directory, or a directory in it. The groups are the
// two parts of the hash that a trace file has.
var taskDir = regexp.MustCompile(`/([0-9a-f]{2})/([0-9a-f]{6})[0-9a-f]{24}(?:/|$)`)

// ReadNextflow reads a trace file, with a header and the column hash, and adds the starts that
// the table of this user has for the work directory of each task.
func ReadNextflow(path string) (*Nextflow, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	c := problem.Collector{File: path}
	n := &Nextflow{}
	hash, status := -1, -1
	line := 0
	for row := range strings.Lines(string(text)) {
		line++
		fields := strings.Split(strings.TrimRight(row, "\r\n"), "\t")
		if line == 1 {
			n.columns = fields
			for i, name := range fields {
				switch name {
				case "hash":
					hash = i
				case "status":
					status = i
				}
			}
			continue
		}
		if len(fields) != len(n.columns) {
			c.Add(line, "give the file that Nextflow writes with -with-trace", "the line has %d fields, and the header has %d", len(fields), len(n.columns))
			break
		}
		n.rows = append(n.rows, fields)
	}
	if hash < 0 {
		c.Add(1, "give the file that Nextflow writes with -with-trace, with hash among trace.fields", "there is no column hash")
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	by, err := startsByTask()
	if err != nil {
		return nil, err
	}
	for i, fields := range n.rows {
		var t calls.Sum
		// A cached task has run in an earlier execution of the pipeline.
		if status < 0 || fields[status] != "CACHED" {
			t = by[fields[hash]]
		}
		n.rows[i] = append(fields, strconv.Itoa(t.Hot), strconv.Itoa(t.Cold), strconv.FormatFloat(t.Saved, 'f', 1, 64), strconv.FormatInt(t.Bytes, 10))
	}
	return n, nil
}

// startsByTask returns the sums of all starts of this user in work directories of Nextflow, by
// the hash of the task.
func startsByTask() (map[string]calls.Sum, error) {
	by := map[string]calls.Sum{}
	err := calls.Starts(time.Time{}, func(s calls.Start) {
		m := taskDir.FindStringSubmatch(s.Dir)
		if m == nil {
			return
		}
		t := by[m[1]+"/"+m[2]]
		t.Add(s)
		by[m[1]+"/"+m[2]] = t
	})
	return by, err
}

// WriteText writes the trace file with the further columns.
func (n *Nextflow) WriteText(w io.Writer) error {
	b := bufio.NewWriter(w)
	fmt.Fprintln(b, strings.Join(append(n.columns, startColumns...), "\t"))
	for _, fields := range n.rows {
		fmt.Fprintln(b, strings.Join(fields, "\t"))
	}
	return b.Flush()
}

// WriteJSON writes a list of objects, with the columns as keys and texts as values.
func (n *Nextflow) WriteJSON(w io.Writer) error {
	all := []map[string]string{}
	for _, fields := range n.rows {
		row := map[string]string{}
		for i, name := range append(n.columns, startColumns...) {
			row[name] = fields[i]
		}
		all = append(all, row)
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(all)
}
