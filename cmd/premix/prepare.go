package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"premix/internal/engine/local"
	"premix/internal/hotstart"
)

func (a *app) prepareCommand() *cobra.Command {
	var (
		o       local.PrepareOptions
		start   = startFlag(hotstart.Auto)
		threads countFlag
		from    treeFlags
	)
	cmd := &cobra.Command{
		Use:   "prepare RECIPE",
		Short: "Make and prove the snapshot of a recipe",
		Long: `Make and prove the snapshot for hot starts of a recipe. This is optional: run does it
if it is needed. The proof uses the recipe's probe, or the first sample of the sheet
of --probe; without either, the first run does the proof.`,
		Args: arguments("RECIPE"),
		RunE: func(_ *cobra.Command, args []string) (err error) {
			if o.Store, err = snapshotStore(o.Store, false); err != nil {
				return err
			}
			ctx, _ := interruptible()
			o.From = a.sources(ctx, &from)
			o.Recipe, o.Start, o.Threads = args[0], hotstart.Kind(start), int(threads)
			if !a.json {
				o.Messages = a.notes()
			}
			p, err := local.Prepare(ctx, o)
			if p == nil {
				return err
			}
			if a.json {
				return errors.Join(err, a.printJSON(p))
			}
			_, perr := fmt.Fprintf(a.stdout, "%s: tasks start %s: %s (prepared in %.1f s)\n", p.Recipe, p.Start, p.Reason, p.Seconds)
			return errors.Join(err, perr)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Sheet, "probe", "", "sample sheet whose first sample is the probe")
	f.Var(&start, "start", "kind of start to prepare: auto, hot or cold")
	f.BoolVar(&o.Trust, "trust", false, "start hot even if memory differs without a known reason")
	f.Var(&threads, "threads", "threads of one task (default: the recipe's)")
	snapshotsFlag(f, &o.Store)
	from.registerData(cmd)
	return cmd
}
