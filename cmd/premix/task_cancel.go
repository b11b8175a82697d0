package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"premix/internal/engine/queue"
)

func (a *app) taskCancel() *cobra.Command {
	var group string
	var all bool
	cmd := &cobra.Command{
		Use:   "cancel DIR TASK...",
		Short: "Cancel waiting tasks, and end running ones",
		Args:  atLeast,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && group == "" && !all {
				return &usageError{fmt.Errorf("no task is named"), "name tasks as in 1-100, a group with --group, or --all"}
			}
			return a.changeTasks(args, group, "cancelled", (*queue.Queue).Cancel, nil)
		},
	}
	cmd.Flags().StringVar(&group, "group", "", "only tasks of this group")
	cmd.Flags().BoolVar(&all, "all", false, "all tasks that have not ended")
	return cmd
}

// changeTasks requests a change for the tasks that args select by a directory and
// numbers.
func (a *app) changeTasks(args []string, group, done string, change func(*queue.Queue, *queue.Selection) (int, error), states []queue.State) error {
	s, err := selection(group, args[1:])
	if err != nil {
		return err
	}
	s.States = states
	q, err := queue.Open(args[0], version, false)
	if err != nil {
		return err
	}
	defer q.Close()
	n, err := change(q, s)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(map[string]int{"tasks": n})
	}
	_, err = fmt.Fprintf(a.stdout, "%d tasks %s\n", n, done)
	return err
}
