package report

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"premix/internal/hotstart"
	"premix/internal/hotstart/calls"
	"premix/internal/kit/units"
)

// Node sums up the starts of this user's commands on this machine.
type Node struct {
	Node  string    `json:"node"`
	Since time.Time `json:"since"`
	calls.Sum
	Tools []NodeTool `json:"tools"`
}

// NodeTool is the part of one tool in a Node.
type NodeTool struct {
	Tool string `json:"tool"`
	calls.Sum
	Why string `json:"why,omitempty"` // of the last cold start
}

// ReadNode sums up the starts since a time.
func ReadNode(since time.Time) (*Node, error) {
	here := calls.ThisMachine()
	n := &Node{Node: here.Name(), Since: since, Tools: []NodeTool{}}
	at := map[string]int{}
	err := calls.Starts(since, func(s calls.Start) {
		if !here.Has(s) {
			return // of another machine with the same home directory
		}
		i, ok := at[s.Tool]
		if !ok {
			i = len(n.Tools)
			at[s.Tool], n.Tools = i, append(n.Tools, NodeTool{Tool: s.Tool})
		}
		t := &n.Tools[i]
		t.Add(s)
		n.Add(s)
		if s.Start == string(hotstart.Cold) {
			t.Why = s.Why
		}
	})
	slices.SortFunc(n.Tools, func(a, b NodeTool) int { return strings.Compare(a.Tool, b.Tool) })
	return n, err
}

// WriteJSON writes the summary for programs.
func (n *Node) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(n)
}

// WriteText writes the summary for people.
func (n *Node) WriteText(w io.Writer) error {
	fmt.Fprintf(w, "%s since %s: %d hot starts and %d cold ones; hot starts saved %s of loading, and %s of memory were not loaded\n",
		n.Node, n.Since.Local().Format(time.DateTime), n.Hot, n.Cold, time.Duration(n.Saved*float64(time.Second)).Round(100*time.Millisecond), units.Size(n.Bytes))
	if len(n.Tools) == 0 {
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\nTOOL\tHOT\tCOLD\tSAVED\tNOT LOADED\tLAST COLD START")
	for _, r := range n.Tools {
		fmt.Fprintf(t, "%s\t%d\t%d\t%.1f s\t%s\t%s\n", r.Tool, r.Hot, r.Cold, r.Saved, units.Size(r.Bytes), r.Why)
	}
	return t.Flush()
}
