package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"premix/hotstart"
)

func (a *app) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Say what this machine can do, and what to install for the rest",
		Args:  arguments(),
		RunE: func(*cobra.Command, []string) error {
			ctx, _ := interruptible()
			checks := hotstart.Doctor(ctx)
			if a.json {
				return a.printJSON(checks)
			}
			for _, c := range checks {
				mark := "ok"
				if !c.OK {
					mark = "--"
				}
				fmt.Fprintf(a.stdout, "%s  %-12s %s\n", mark, c.Name, c.Detail)
				if c.Hint != "" {
					fmt.Fprintf(a.stdout, "                 hint: %s\n", c.Hint)
				}
			}
			return nil
		},
	}
}
