package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"premix/internal/engine/queue"
	"premix/internal/kit/units"
)

func (a *app) taskPrune() *cobra.Command {
	var output bool
	cmd := &cobra.Command{
		Use:   "prune DIR",
		Short: "Remove files that are no longer needed",
		Long: `Remove the intermediates of groups that have succeeded, together with all groups that
come after them. premix task run does so itself where a group comes after. With --output,
the output of successful tasks is removed from the logs, too: premix task tail refuses to
print it from then on, with status 1.`,
		Args: arguments("DIR"),
		RunE: func(_ *cobra.Command, args []string) error {
			q, err := queue.Open(args[0], version, false)
			if err != nil {
				return err
			}
			defer q.Close()
			p, err := q.Prune(true, output)
			if a.json {
				return errors.Join(err, a.printJSON(p))
			}
			fmt.Fprintf(a.stdout, "%d files removed, %s freed\n", p.Files, units.Size(p.Bytes))
			return err
		},
	}
	cmd.Flags().BoolVar(&output, "output", false, "free the space of the output of successful tasks")
	return cmd
}
