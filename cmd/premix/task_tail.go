package main

import (
	"github.com/spf13/cobra"

	"premix/internal/engine/queue"
)

func (a *app) taskTail() *cobra.Command {
	var (
		stderr bool
		follow bool
		bytes  int64
	)
	cmd := &cobra.Command{
		Use:   "tail DIR TASK",
		Short: "Print the output of a task",
		Long: `Print the standard output of a task, or with --stderr its standard error: of its last
try, or of the running one. With --follow, continue until the task has ended.`,
		Args: arguments("DIR", "TASK"),
		RunE: func(_ *cobra.Command, args []string) error {
			task, err := taskNumber(args[1])
			if err != nil {
				return err
			}
			q, err := queue.Open(args[0], version, false)
			if err != nil {
				return err
			}
			defer q.Close()
			if follow {
				return q.Follow(task, stderr, bytes, a.stdout)
			}
			return q.Output(task, stderr, bytes, a.stdout)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&stderr, "stderr", false, "standard error in place of standard output")
	f.BoolVarP(&follow, "follow", "f", false, "continue until the task and all its tries have ended")
	f.Int64Var(&bytes, "bytes", -1, "print at most this many bytes of the end")
	f.Lookup("bytes").DefValue = "all"
	return cmd
}
