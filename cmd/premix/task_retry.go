package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"premix/internal/engine/queue"
)

func (a *app) taskRetry() *cobra.Command {
	var (
		group  string
		failed bool
	)
	cmd := &cobra.Command{
		Use:   "retry DIR TASK...",
		Short: "Run failed or cancelled tasks again",
		Long: `Run failed or cancelled tasks again. They have all their tries again, and start before
others of their group. A running premix task run of the directory starts them; otherwise
premix task run --out DIR does.`,
		Args: atLeast,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 1 && group == "" && !failed {
				return &usageError{fmt.Errorf("no task is named"), "name tasks as in 1-100, a group with --group, or --failed"}
			}
			var states []queue.State
			if failed {
				states = []queue.State{queue.Failed}
			}
			return a.changeTasks(args, group, "wait again", (*queue.Queue).Retry, states)
		},
	}
	cmd.Flags().StringVar(&group, "group", "", "only tasks of this group")
	cmd.Flags().BoolVar(&failed, "failed", false, "only tasks that failed")
	return cmd
}
