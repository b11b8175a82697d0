package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"premix/internal/hotstart"
	"premix/internal/kit/outputs"
	"premix/internal/kit/units"
	"premix/internal/node"
)

// pulledRow is the output of pull.
type pulledRow struct {
	Snapshot string `json:"snapshot"`
	Name     string `json:"name"`
	State    string `json:"state"` // see stateOf
	Tree     string `json:"tree"`
	Dir      string `json:"dir"`     // of the mount
	Present  int64  `json:"present"` // bytes that had arrived when the snapshot was usable
	Total    int64  `json:"total"`
}

func (a *app) snapshotPull(snapshots *string) *cobra.Command {
	var (
		from            treeFlags
		profile, record string
		eager           bool
	)
	cmd := &cobra.Command{
		Use:   "pull NAME[:TAG] [--origin URL]...",
		Short: "Use a snapshot that another node has published",
		Long: `Mount the tree of a published snapshot, and add it to this node's snapshots: premix run
starts from it at once, and the tool's memory arrives as it is touched, in the order of
the profile if there is one. The tree stays mounted; after premix umount the snapshot is
prepared again when it is needed.

A snapshot runs with the rights of its user: pull only from stores from which you would
install software. A snapshot for another kernel, CPU or build of the tool is refused.`,
		Args: arguments("NAME"),
		RunE: func(_ *cobra.Command, args []string) error {
			store, err := openStore(*snapshots)
			if err != nil {
				return err
			}
			ctx, done := storeContext()
			defer done()
			r := from.request(args[0])
			r.Profile, r.Record, r.Eager = profile, record, eager
			m, err := node.Attach(ctx, r)
			if err != nil {
				return err
			}
			if m.Note != "" && !a.json {
				fmt.Fprintf(a.notes(), "note: %s\n", m.Note)
			}
			needs, err := hotstart.RequiredTrees(m.Dir)
			if err != nil {
				return err
			}
			for _, digest := range needs {
				data := from.request("data@" + digest)
				data.Profile = "none" // the tool has loaded it, and reads little more than metadata
				if _, err := node.Attach(ctx, data); err != nil {
					return fmt.Errorf("the data of %s: %w", args[0], err)
				}
			}
			s, err := hotstart.Import(store, m.Dir)
			if err != nil {
				var differs *hotstart.Mismatch
				if errors.As(err, &differs) {
					err = &hotstart.Unavailable{Kind: hotstart.Hot, Reason: fmt.Sprintf("%s was made on another machine: %v", args[0], err), HintText: "premix prepare makes one for this machine"}
				}
				return err
			}
			row := pulledRow{s.ID, s.Name, stateOf(s), m.Tree.String(), m.Dir, m.Present, m.Total}
			if a.json {
				return a.printJSON(row)
			}
			_, err = fmt.Fprintf(a.stdout, "snapshot %s of %s (%s); %s of %s have arrived\n", row.Snapshot, row.Name, row.State, units.Size(row.Present), units.Size(row.Total))
			return err
		},
	}
	f := cmd.Flags()
	from.register(cmd)
	f.StringVar(&profile, "profile", "", "profile to fetch ahead, or none (default: start, if the store has it)")
	outputFlag(cmd, &record, "record", "", outputs.Profile, "write the order in which chunks are touched to this file, at umount")
	f.BoolVar(&eager, "eager", false, "fetch all of the tree at once")
	return cmd
}
