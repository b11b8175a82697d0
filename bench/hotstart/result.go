package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// figure is one result.
type figure struct {
	Name  string  `json:"name"` // case/what/kind
	Value float64 `json:"value"`
	Unit  string  `json:"unit"` // s, B, 1/s, samples
	// Peer is the kind that the figure is compared with; empty: with none.
	Peer  string  `json:"peer,omitempty"`
	Ratio float64 `json:"ratio,omitempty"` // how many times better than the peer
	Note  string  `json:"note,omitempty"`
}

// results collects figures, one line of the file each as they come: what was
// measured before an interruption is not lost.
type results struct {
	file  *os.File
	human io.Writer
	all   []figure
}

func openResults(path string, human io.Writer) (*results, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o666)
	if err != nil {
		return nil, err
	}
	return &results{file: f, human: human}, nil
}

func (r *results) add(f figure) error {
	r.all = append(r.all, f)
	b, err := json.Marshal(f)
	if err != nil {
		return err
	}
	if _, err := r.file.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("write a figure: %w", err)
	}
	return nil
}

// lower and higher say which of two values is the better one.
func lower(value, peer float64) float64  { return quotient(peer, value) }
func higher(value, peer float64) float64 { return quotient(value, peer) }

func quotient(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// table prints a table: rows of cells, the first row being the header.
func (r *results) table(title string, rows [][]string) {
	fmt.Fprintf(r.human, "\n%s\n\n", title)
	w := tabwriter.NewWriter(r.human, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, cells := range rows {
		fmt.Fprintln(w, strings.Join(cells, "\t")+"\t")
	}
	w.Flush()
}

func (r *results) close() error { return r.file.Close() }

// median of at least one value.
func median[T time.Duration | float64](values []T) T {
	s := slices.Sorted(slices.Values(values))
	n := len(s)
	if n%2 == 1 {
		return s[n/2]
	}
	return (s[n/2-1] + s[n/2]) / 2
}

// Texts for people, with three figures that count.

func seconds(v float64) string {
	switch {
	case v < 0.001:
		return fmt.Sprintf("%.3g us", v*1e6)
	case v < 1:
		return fmt.Sprintf("%.3g ms", v*1e3)
	case v < 100:
		return fmt.Sprintf("%.3g s", v)
	}
	return fmt.Sprintf("%.0f s", v)
}

func size(v float64) string {
	switch {
	case v < 1<<20:
		return fmt.Sprintf("%.3g KiB", v/(1<<10))
	case v < 1000<<20:
		return fmt.Sprintf("%.3g MiB", v/(1<<20))
	}
	return fmt.Sprintf("%.3g GiB", v/(1<<30))
}

func times(v float64) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf("%.3gx", v)
}
