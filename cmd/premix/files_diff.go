package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"premix/internal/files"
	"premix/internal/kit/units"
)

func (a *app) filesDiff() *cobra.Command {
	var top countFlag = 10
	cmd := &cobra.Command{
		Use:   "diff TABLE TABLE",
		Short: "Compare two scans",
		Long: `Compare two scans of the same directories: the entries that were added, removed and
changed, their places and owners, and the files that gained or lost most.`,
		Args: arguments("TABLE", "TABLE"),
		RunE: func(_ *cobra.Command, args []string) error {
			var tables [2]*files.Table
			for i, path := range args {
				t, err := files.OpenTable(path)
				if err != nil {
					return err
				}
				defer t.Close()
				tables[i] = t
			}
			d, err := files.Compare(tables[0], tables[1], int(top))
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(d)
			}
			return a.printFilesDifference(d)
		},
	}
	cmd.Flags().Var(&top, "top", "rows of each table")
	return cmd
}

// gained prints a number of bytes with its sign.
func gained(n int64) string {
	if n < 0 {
		return "-" + units.Size(-n)
	}
	return "+" + units.Size(n)
}

func (a *app) printFilesDifference(d *files.Difference) error {
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, c := range []struct {
		how string
		files.Change
	}{{"added", d.Added}, {"removed", d.Removed}, {"changed", d.Changed}} {
		fmt.Fprintf(w, "%s\t%d\t%s\t\n", c.how, c.Count, gained(c.Bytes))
	}
	fmt.Fprintf(w, "the same\t%d\t\t\n", d.Same)
	for _, t := range []struct {
		name string
		list []files.Growth
	}{{"WHERE", d.Growth}, {"OWNER", d.Owners}} {
		if len(t.list) > 0 {
			fmt.Fprintf(w, "\nENTRIES\tBYTES\t  %s\n", t.name)
		}
		for _, g := range t.list {
			fmt.Fprintf(w, "%d\t%s\t  %s\n", g.Count, gained(g.Bytes), shown(g.Name))
		}
	}
	if len(d.Largest) > 0 {
		fmt.Fprint(w, "\nBYTES\t  FILE\n")
	}
	for _, c := range d.Largest {
		fmt.Fprintf(w, "%s\t  %s (%s)\n", gained(c.Bytes), shown(c.Path), c.How)
	}
	return w.Flush()
}
