package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"premix/internal/blast/database"
)

// removedDatabaseRow is a database that was removed.
type removedDatabaseRow struct {
	Name string `json:"name"`
}

func (a *app) blastDBRm() *cobra.Command {
	return &cobra.Command{
		Use:   "rm NAME...",
		Short: "Remove databases from memory and disk",
		Long: `Remove databases from memory and disk, when their searches have ended. A published tree
of a database stays in its store: see premix store rm.`,
		Args: someArguments("NAME"),
		RunE: func(_ *cobra.Command, args []string) error {
			home, err := database.Home()
			if err != nil {
				return err
			}
			rows := []removedDatabaseRow{}
			for _, name := range args {
				if err := database.Remove(home, name); err != nil {
					return err
				}
				rows = append(rows, removedDatabaseRow{name})
				if !a.json {
					fmt.Fprintf(a.stdout, "removed %s\n", name)
				}
			}
			if a.json {
				return a.printJSON(rows)
			}
			return nil
		},
	}
}
