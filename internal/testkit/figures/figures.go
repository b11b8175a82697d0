package figures

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
)

// Figure is one result.
type Figure struct {
	Name  string  `json:"name"` // from the general to the particular, with slashes
	Value float64 `json:"value"`
	Unit  string  `json:"unit"` // s, B, 1/s, B/s or the name of the things counted
	// Peer is the name of the figure's peer; empty without one.
	Peer  string  `json:"peer,omitempty"`
	Ratio float64 `json:"ratio,omitempty"` // factor by which it is better than the peer
	Note  string  `json:"note,omitempty"`
}

// Results collects figures. It writes each to the file at once, so that an
// interruption loses none.
type Results struct {
	Human io.Writer // for tables
	All   []Figure  // of this run

	file *os.File
}

// Open appends to the file at path.
func Open(path string, human io.Writer) (*Results, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o666)
	if err != nil {
		return nil, err
	}
	return &Results{file: f, Human: human}, nil
}

// Add writes a figure to the file.
func (r *Results) Add(f Figure) error {
	r.All = append(r.All, f)
	b, err := json.Marshal(f)
	if err != nil {
		return err
	}
	if _, err := r.file.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("write a figure: %w", err)
	}
	return nil
}

// Table prints a table: rows of cells, the first row being the header.
func (r *Results) Table(title string, rows [][]string) {
	fmt.Fprintf(r.Human, "\n%s\n\n", title)
	w := tabwriter.NewWriter(r.Human, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, cells := range rows {
		fmt.Fprintln(w, strings.Join(cells, "\t")+"\t")
	}
	w.Flush()
}

// Close closes the file.
func (r *Results) Close() error { return r.file.Close() }

// Lower and Higher return the factor by which value is better than peer, where lower or
// higher values are better; 0 without a divisor.
func Lower(value, peer float64) float64  { return quotient(peer, value) }
func Higher(value, peer float64) float64 { return quotient(value, peer) }

func quotient(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}
