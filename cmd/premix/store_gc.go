package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"premix/internal/kit/units"
	"premix/internal/store"
)

// collectedRow is the output of gc.
type collectedRow struct {
	DryRun   bool  `json:"dry_run"`
	Trees    int   `json:"trees"`   // kept
	Objects  int64 `json:"objects"` // kept
	Bytes    int64 `json:"bytes"`
	Young    int64 `json:"young"`   // objects that a running publish may rely on
	Removed  int64 `json:"removed"` // objects
	Freed    int64 `json:"freed"`   // bytes of them
	Profiles int   `json:"profiles"`
	Writers  int   `json:"writers"` // killed publishes whose files were removed
}

func (a *app) storeGC(o *storeFlags) *cobra.Command {
	keep := countFlag(1)
	keepFor := durationFlag(24 * time.Hour)
	var dryRun, now bool
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "Remove objects that no tag needs",
		Long: `Remove the objects that no tag needs any more. Former trees of a tag stay for
--keep-for, since nodes may have them mounted, and so do the last --keep trees of each
tag. Publishes may run at the same time.

Nothing is removed if a tag or a tree cannot be read.`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if now && cmd.Flags().Changed("keep-for") {
				return &usageError{errors.New("--now and --keep-for exclude each other"), "leave one of them out"}
			}
			s, err := o.open()
			if err != nil {
				return err
			}
			ctx, done := storeContext()
			defer done()
			opt := store.GCOptions{DryRun: dryRun, Keep: int(keep), KeepFor: time.Duration(keepFor)}
			if now {
				opt.KeepFor = 0
			}
			c, err := s.GC(ctx, opt)
			if err != nil {
				return err
			}
			row := collectedRow{dryRun, c.Trees, c.Objects, c.Bytes, c.Young, c.Removed, c.Freed, c.Profiles, c.Writers}
			if a.json {
				return a.printJSON(row)
			}
			verb := "removed"
			if dryRun {
				verb = "would remove"
			}
			_, err = fmt.Fprintf(a.stdout, "%s %d objects, %s; kept %d objects, %s, of %d trees\n", verb, row.Removed, units.Size(row.Freed), row.Objects, units.Size(row.Bytes), row.Trees)
			if err == nil && row.Young > 0 {
				_, err = fmt.Fprintf(a.stdout, "left %d objects that a running premix may need\n", row.Young)
			}
			return err
		},
	}
	f := cmd.Flags()
	f.Var(&keep, "keep", "number of trees of each tag that stay, with the current one (default 1)")
	f.Var(&keepFor, "keep-for", "time for which former trees of a tag stay (default 1d)")
	f.BoolVar(&now, "now", false, "keep no former trees because of their age")
	f.BoolVar(&dryRun, "dry-run", false, "print what would be removed, and remove nothing")
	return cmd
}
