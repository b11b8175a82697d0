package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"premix/engine/queue"
)

func (a *app) taskPrune() *cobra.Command {
	var output bool
	cmd := &cobra.Command{
		Use:   "prune DIR",
		Short: "Remove what nobody needs any more",
		Long: `Remove the intermediates of groups that have succeeded, with all groups that come
after them. premix task run does so itself where a group comes after. With --output,
the space of what tasks that succeeded have printed is given back, too.`,
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
			fmt.Fprintf(a.stdout, "%d files removed, %s given back\n", p.Files, size(p.Bytes))
			return err
		},
	}
	cmd.Flags().BoolVar(&output, "output", false, "give back the space of what tasks printed that succeeded")
	return cmd
}
