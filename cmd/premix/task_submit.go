package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"premix/internal/engine/pilot"
	"premix/internal/engine/queue"
)

func (a *app) taskSubmit() *cobra.Command {
	var (
		out    string
		flags  batchFlags
		engine engineFlags
		packed pilot.Options
	)
	cmd := &cobra.Command{
		Use:   "submit FILE|- --out DIR",
		Short: "Add tasks to a directory",
		Long: `Add tasks to a directory: one command on each line, JSON Lines, or the rows of a table
with a template. All of them are added, or none. A running premix task run of the
directory runs them, too. With --engine, premix submits jobs for them and does not wait.`,
		Args: arguments("FILE"),
		RunE: func(_ *cobra.Command, args []string) error {
			if out == "" {
				return &usageError{errors.New("--out is missing"), "name the directory for the tasks: --out DIR"}
			}
			if err := flags.check(args[0]); err != nil {
				return err
			}
			eng, err := engine.open(&packed)
			if err != nil {
				return err
			}
			in, err := flags.open(out, args[0])
			if err != nil {
				return err
			}
			defer in.Close()
			q, err := queue.Open(out, version, true)
			if err != nil {
				return err
			}
			defer q.Close()
			s, err := flags.submit(q, in)
			if err != nil {
				return err
			}
			if eng != nil {
				packed.Detach = true
				if _, err := a.dispatchTasks(q, eng, packed, false); err != nil {
					return err
				}
			}
			if a.json {
				return a.printJSON(s)
			}
			_, err = fmt.Fprintf(a.stdout, "%d tasks submitted, numbers %d to %d\n", s.Tasks, s.First, s.First+s.Tasks-1)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&out, "out", "", "task directory: tasks, records and output")
	flags.register(cmd)
	engine.register(cmd)
	return cmd
}
