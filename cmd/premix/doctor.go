package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"premix/internal/hotstart"
)

func (a *app) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Report the abilities of this machine, and the packages to install for the rest",
		Args:  arguments(),
		RunE: func(*cobra.Command, []string) error {
			ctx, _ := interruptible()
			checks := hotstart.Doctor(ctx)
			if a.json {
				return a.printJSON(checks)
			}
			return writeChecks(a.stdout, checks)
		},
	}
}

// writeChecks writes checks for people, in columns of the necessary width. It writes a
// hint once, at the first check for which it helps.
func writeChecks(w io.Writer, checks []hotstart.Check) error {
	width := 0
	for _, c := range checks {
		width = max(width, len(c.Name))
	}
	told := map[string]bool{"": true}
	var b strings.Builder
	for _, c := range checks {
		mark := "ok"
		if !c.OK {
			mark = "--"
		}
		fmt.Fprintf(&b, "%s  %-*s  %s\n", mark, width, c.Name, c.Detail)
		if !told[c.Hint] {
			told[c.Hint] = true
			fmt.Fprintf(&b, "    %-*s  hint: %s\n", width, "", c.Hint)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
