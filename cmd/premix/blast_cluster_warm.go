package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"premix/internal/blast/cluster"
	"premix/internal/blast/database"
	"premix/internal/kit/units"
)

// placedRow is the plan of a database, as JSON.
type placedRow struct {
	Name     string          `json:"name"`
	ID       string          `json:"id"`
	Tree     string          `json:"tree"`
	Replicas int             `json:"replicas"`
	Nodes    []placedNodeRow `json:"nodes"`
}

// placedNodeRow is the share of one node.
type placedNodeRow struct {
	Node      string `json:"node"`
	Bytes     int64  `json:"bytes"`
	Fragments []int  `json:"fragments"`
}

func (a *app) blastClusterWarm() *cobra.Command {
	var (
		c        clusterFlags
		tree     string
		replicas = countFlag(2)
		dry      bool
	)
	cmd := &cobra.Command{
		Use:   "warm NAME --nodes NODES",
		Short: "Put the fragments of a database into the memory of the nodes",
		Long: `Give each fragment of a database to some of the nodes, within the memory that they have for
fragments, print the plan, and wait until every fragment is in the memory of as many nodes
as --replicas says. The nodes fetch the fragments from their origins: the database must be
in a store (premix blast db add --store).

From then on the nodes keep the plan by themselves. If one is lost, others load its
fragments; when it is back, it loads its own again. This command may be interrupted, and
the nodes go on. Run it again after nodes were added: only what moves is fetched.

  premix blast cluster warm nt --nodes 'n[1-4]' --replicas 2
  premix blast cluster warm nt --nodes /shared/nodes --dry-run`,
		Args: arguments("NAME"),
		RunE: func(_ *cobra.Command, args []string) error {
			home, err := database.Home()
			if err != nil {
				return err
			}
			d, published, err := database.Place(home, args[0])
			if err != nil {
				return err
			}
			if tree == "" {
				tree = published
			}
			h, err := c.head(a.noted)
			if err != nil {
				return err
			}
			defer h.Close()
			ctx, done := storeContext()
			defer done()
			p, _, err := h.Plan(ctx, args[0], d, tree, int(replicas))
			if err != nil {
				return err
			}
			row := placedRow{p.Name, p.ID, p.Tree, p.Replicas, planned(p, d)}
			if !a.json {
				for _, n := range row.Nodes {
					fmt.Fprintf(a.stdout, "%s: %s in fragments %s\n", n.Node, units.Size(n.Bytes), ranges(n.Fragments))
				}
			}
			if !dry {
				if err := h.Place(ctx, p); err != nil {
					return err
				}
				var last cluster.Progress
				stop := a.bar(func() string {
					return fmt.Sprintf("%s %d of %d fragments, %s", share(int64(last.Placed), int64(last.Fragments)), last.Placed, last.Fragments, units.Size(last.Bytes))
				})
				err = h.Wait(ctx, p, func(now cluster.Progress) { last = now })
				stop()
				if err != nil {
					return err
				}
			}
			if a.json {
				return a.printJSON(row)
			}
			if !dry {
				fmt.Fprintf(a.stdout, "%s: %d fragments, each in the memory of %d nodes\n", p.Name, len(p.Order), p.Replicas)
			}
			return nil
		},
	}
	f := cmd.Flags()
	c.register(f)
	f.Var(&replicas, "replicas", "number of nodes that hold each fragment (default: 2)")
	f.StringVar(&tree, "tree", "", "digest of the database's tree, if it was added from a mounted tree")
	f.BoolVar(&dry, "dry-run", false, "print the plan only")
	return cmd
}

// noted prints a message of a cluster.
func (a *app) noted(text string) { fmt.Fprintln(a.notes(), "note:", text) }

// planned returns the shares of the nodes.
func planned(p *cluster.Placement, d *database.Description) []placedNodeRow {
	rows := make([]placedNodeRow, len(p.Nodes))
	for i, n := range p.Nodes {
		rows[i] = placedNodeRow{Node: n, Fragments: []int{}}
	}
	sizes := d.Sizes()
	for f, order := range p.Order {
		for _, n := range order[:p.Replicas] {
			rows[n].Fragments = append(rows[n].Fragments, f)
			rows[n].Bytes += sizes[f]
		}
	}
	return rows
}

// ranges prints sorted numbers, as in 0-3,7.
func ranges(list []int) string {
	var parts []string
	for i := 0; i < len(list); {
		k := i
		for k+1 < len(list) && list[k+1] == list[k]+1 {
			k++
		}
		if k == i {
			parts = append(parts, fmt.Sprint(list[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", list[i], list[k]))
		}
		i = k + 1
	}
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, ",")
}
