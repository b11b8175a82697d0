package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"premix/internal/doctor"
)

func (a *app) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Report the abilities of this machine, and the packages to install for the rest",
		Long: `Check which features of premix this machine has for this user, and print the needs of
the others. It changes nothing. With --json it also prints the table of features by kernel and
privilege, which premix help features shows.`,
		Args: arguments(),
		RunE: func(*cobra.Command, []string) error {
			ctx, _ := interruptible()
			checks := doctor.Run(ctx)
			if a.json {
				return a.printJSON(map[string]any{"checks": checks, "features": doctor.Features()})
			}
			return writeChecks(a.stdout, checks)
		},
	}
}

// writeChecks writes checks for people, in columns of the necessary width. It writes a
// hint once, at the first check for which it helps.
func writeChecks(w io.Writer, checks []doctor.Check) error {
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
