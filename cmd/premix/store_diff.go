package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"premix/internal/kit/units"
	"premix/internal/store"
)

// differenceRow is the output of diff.
type differenceRow struct {
	First   string      `json:"first"` // digests
	Second  string      `json:"second"`
	Bytes   [2]int64    `json:"bytes"`  // of the distinct chunks of each
	Shared  int64       `json:"shared"` // bytes of the chunks that both have
	Changes []changeRow `json:"changes"`
}

type changeRow struct {
	Path string   `json:"path"`
	Kind string   `json:"kind"`
	What []string `json:"what,omitempty"`
	Dir  bool     `json:"dir"`
}

func (a *app) storeDiff(o *storeFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "diff NAME NAME",
		Short: "Compare two trees",
		Long: `Compare two trees of a store: + was added, - was removed, ~ was changed, with the changed
properties. The last line has the bytes of chunks that both share: a node that has the
first does not fetch them for the second.`,
		Args: arguments("NAME", "NAME"),
		RunE: func(_ *cobra.Command, args []string) error {
			s, err := o.open()
			if err != nil {
				return err
			}
			first, err := resolve(s, args[0])
			if err != nil {
				return err
			}
			second, err := resolve(s, args[1])
			if err != nil {
				return err
			}
			ctx, done := storeContext()
			defer done()
			d, err := s.Diff(ctx, first.Tree, second.Tree)
			if err != nil {
				return err
			}
			row := differenceRow{First: first.Tree.String(), Second: second.Tree.String(), Bytes: [2]int64{d.First, d.Second}, Shared: d.Shared, Changes: []changeRow{}}
			for _, c := range d.Changes {
				row.Changes = append(row.Changes, changeRow(c))
			}
			if a.json {
				return a.printJSON(row)
			}
			return a.printDifference(row)
		},
	}
}

func (a *app) printDifference(row differenceRow) error {
	signs := map[string]string{store.Added: "+", store.Removed: "-", store.Changed: "~"}
	counts := map[string]int{}
	for _, c := range row.Changes {
		counts[c.Kind]++
		name := c.Path
		if c.Dir && name != "." {
			name += "/"
		}
		what := ""
		if len(c.What) > 0 {
			what = "  (" + strings.Join(c.What, ", ") + ")"
		}
		fmt.Fprintf(a.stdout, "%s %s%s\n", signs[c.Kind], shown(name), what)
	}
	_, err := fmt.Fprintf(a.stdout, "%d added, %d removed, %d changed; %s and %s of chunks, %s shared\n",
		counts[store.Added], counts[store.Removed], counts[store.Changed], units.Size(row.Bytes[0]), units.Size(row.Bytes[1]), units.Size(row.Shared))
	return err
}
