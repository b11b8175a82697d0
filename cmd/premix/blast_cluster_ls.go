package main

import (
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"premix/internal/blast/cluster"
	"premix/internal/kit/units"
)

// clusterRow is a node, as JSON.
type clusterRow struct {
	Address string          `json:"address"`
	Status  *cluster.Status `json:"status,omitempty"`
	Error   string          `json:"error,omitempty"`
}

func (a *app) blastClusterLs() *cobra.Command {
	var c clusterFlags
	cmd := &cobra.Command{
		Use:   "ls --nodes NODES",
		Short: "Show the nodes of a cluster and the fragments that they hold",
		Long: `Show the nodes, their memory for fragments, and the fragments that each has. The kernel of
each node says how much of a fragment is in memory (mincore(2)): a tmpfs can be swapped out.
Exit status 5 if a node does not answer.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			h, err := c.head(a.noted)
			if err != nil {
				return err
			}
			defer h.Close()
			ctx, done := storeContext()
			defer done()
			rows := []clusterRow{}
			var errs []error
			for _, n := range h.Ask(ctx, true) {
				row := clusterRow{Address: n.Address, Status: n.Status}
				if n.Err != nil {
					row.Error = n.Err.Error()
					errs = append(errs, n.Err)
				}
				rows = append(rows, row)
			}
			if a.json {
				return errors.Join(a.printJSON(rows), errors.Join(errs...))
			}
			w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
			fmt.Fprintln(w, "NODE\tMEMORY\tSEARCHES\tDATABASE\tFRAGMENTS\tIN MEMORY")
			for _, row := range rows {
				if row.Status == nil {
					fmt.Fprintf(w, "%s\t-\t-\t-\t-\tit does not answer\n", row.Address)
					continue
				}
				s := row.Status
				first := fmt.Sprintf("%s\t%s of %s\t%d", row.Address, units.Size(s.Used), units.Size(s.Budget), s.Searches)
				printed := false
				for _, d := range s.Databases {
					var list []int
					var bytes, in int64
					for _, f := range d.Fragments {
						if f.Complete {
							list = append(list, f.Number)
							bytes, in = bytes+f.Bytes, in+f.InMemory
						} else {
							fmt.Fprintf(w, "%s\t%s\t%d\t%s\n", first, d.Name, f.Number, f.Error)
							printed = true
						}
					}
					if len(list) > 0 {
						fmt.Fprintf(w, "%s\t%s\t%s\t%s of %s\n", first, d.Name, ranges(list), units.Size(in), units.Size(bytes))
						printed = true
					}
				}
				if !printed {
					fmt.Fprintf(w, "%s\t-\t-\t-\n", first)
				}
			}
			return errors.Join(w.Flush(), errors.Join(errs...))
		},
	}
	c.register(cmd.Flags())
	return cmd
}
