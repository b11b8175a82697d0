package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"premix/internal/engine/queue"
)

func (a *app) taskLs() *cobra.Command {
	var (
		all, failed bool
		group       string
		states      []string
	)
	cmd := &cobra.Command{
		Use:   "ls DIR [TASK...]",
		Short: "Show the progress of groups of tasks, or single tasks",
		Args:  atLeast,
		RunE: func(_ *cobra.Command, args []string) error {
			q, err := queue.Open(args[0], version, false)
			if err != nil {
				return err
			}
			defer q.Close()
			if all || failed || len(states) > 0 || len(args) > 1 {
				s, err := selection(group, args[1:])
				if err != nil {
					return err
				}
				if failed {
					s.States = []queue.State{queue.Failed}
				}
				for _, text := range states {
					if err := s.ParseState(text); err != nil {
						return err
					}
				}
				list, err := q.Tasks(s)
				if err != nil {
					return err
				}
				return a.listTasks(list)
			}
			st := q.Status()
			if a.json {
				return a.printJSON(st)
			}
			w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "GROUP\tTASKS\tWAITING\tRUNNING\tSUCCEEDED\tFAILED\tCANCELLED\tSKIPPED\tAFTER")
			for _, g := range st.Groups {
				if group != "" && g.Group != group {
					continue
				}
				after := strings.Join(g.After, ",")
				if after == "" {
					after = "-"
				}
				fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%s\n", g.Group, g.Tasks, g.Waiting, g.Running, g.Succeeded, g.Failed, g.Cancelled, g.Skipped, after)
			}
			return w.Flush()
		},
	}
	f := cmd.Flags()
	f.BoolVar(&all, "tasks", false, "print one line for each task")
	f.BoolVar(&failed, "failed", false, "print one line for each failed task")
	f.StringSliceVar(&states, "state", nil, "print one line for each task in this state: waiting, running, succeeded, failed, cancelled or skipped")
	f.StringVar(&group, "group", "", "only this group")
	return cmd
}

// listTasks prints one line for each task.
func (a *app) listTasks(list []queue.TaskStatus) error {
	w := bufio.NewWriter(a.stdout)
	if a.json {
		enc := json.NewEncoder(w)
		for i := range list {
			if err := enc.Encode(&list[i]); err != nil {
				return err
			}
		}
		return w.Flush()
	}
	fmt.Fprintf(w, "%8s  %-10s %5s  %s\n", "TASK", "STATE", "TRIES", "GROUP")
	for _, t := range list {
		fmt.Fprintf(w, "%8d  %-10s %5d  %s\n", t.Task, t.State, t.Tries, t.Group)
	}
	return w.Flush()
}
