package main

import (
	"fmt"
	"premix/internal/kit/units"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
)

// treeRow is a tag in the output of ls.
type treeRow struct {
	Name     string    `json:"name"`
	Tag      string    `json:"tag"`
	Tree     string    `json:"tree,omitempty"`
	Serial   int64     `json:"serial"`
	Time     time.Time `json:"time"`
	Inodes   int64     `json:"inodes"`
	Bytes    int64     `json:"bytes"`            // of all files
	Stored   int64     `json:"stored,omitempty"` // with --sizes: of the tree's objects
	Profiles []string  `json:"profiles"`
	Damage   string    `json:"damage,omitempty"`
}

func (a *app) storeLs(o *storeFlags) *cobra.Command {
	var sizes bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the published trees",
		Long: `List all tags with their trees. BYTES is the size of the files of a tree; with --sizes,
STORED is the size of its objects, some of which other trees may use, too.`,
		Args: arguments(),
		RunE: func(*cobra.Command, []string) error {
			s, err := o.open()
			if err != nil {
				return err
			}
			list, err := s.List()
			if err != nil {
				return err
			}
			rows := []treeRow{}
			for _, l := range list {
				r := treeRow{Name: l.Ref.Name, Tag: l.Ref.Tag, Profiles: append([]string{}, l.Profiles...)}
				if l.Record != nil {
					r.Tree, r.Serial, r.Time = l.Record.Tree.String(), l.Record.Serial, l.Record.Time
				}
				if l.Manifest != nil {
					r.Inodes, r.Bytes = l.Manifest.Inodes, l.Manifest.Bytes
				}
				if l.Err != nil {
					r.Damage = l.Err.Error()
				} else if sizes {
					t, err := s.Tree(l.Record.Tree)
					if err != nil {
						return err
					}
					r.Stored = t.StoredSize()
				}
				rows = append(rows, r)
			}
			if a.json {
				return a.printJSON(rows)
			}
			w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
			fmt.Fprint(w, "NAME\tTREE\tENTRIES\tBYTES\t")
			if sizes {
				fmt.Fprint(w, "STORED\t")
			}
			fmt.Fprintln(w, "SERIAL\tPUBLISHED\tPROFILES")
			for _, r := range rows {
				if r.Damage != "" {
					fmt.Fprintf(w, "%s:%s\tdamaged: %s\n", r.Name, r.Tag, r.Damage)
					continue
				}
				fmt.Fprintf(w, "%s:%s\t%s\t%d\t%s\t", r.Name, r.Tag, r.Tree[:12], r.Inodes, units.Size(r.Bytes))
				if sizes {
					fmt.Fprintf(w, "%s\t", units.Size(r.Stored))
				}
				profiles := strings.Join(r.Profiles, ",")
				if profiles == "" {
					profiles = "-"
				}
				fmt.Fprintf(w, "%d\t%s\t%s\n", r.Serial, r.Time.Local().Format(time.DateTime), profiles)
			}
			return w.Flush()
		},
	}
	cmd.Flags().BoolVar(&sizes, "sizes", false, "print the size of the objects of each tree")
	return cmd
}
