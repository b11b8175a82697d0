package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"premix/internal/blast/database"
	"premix/internal/kit/units"
)

// verifiedDatabaseRow is the result of a verification.
type verifiedDatabaseRow struct {
	Name   string   `json:"name"`
	OK     bool     `json:"ok"`
	Bytes  int64    `json:"bytes"`
	Damage []string `json:"damage"`
}

func (a *app) blastDBVerify() *cobra.Command {
	return &cobra.Command{
		Use:   "verify NAME...",
		Short: "Compare databases, on disk and in memory, with their digests",
		Args:  someArguments("NAME"),
		RunE: func(_ *cobra.Command, args []string) error {
			home, err := database.Home()
			if err != nil {
				return err
			}
			ctx, done := storeContext()
			defer done()
			rows := []verifiedDatabaseRow{}
			damaged := ""
			for _, name := range args {
				v, err := database.Verify(ctx, home, name)
				if err != nil {
					return err
				}
				rows = append(rows, verifiedDatabaseRow{v.Name, len(v.Damage) == 0, v.Bytes, append([]string{}, v.Damage...)})
				if len(v.Damage) > 0 && damaged == "" {
					damaged = name
				}
				if a.json {
					continue
				}
				for _, d := range v.Damage {
					fmt.Fprintf(a.stdout, "%s: %s\n", name, d)
				}
				if len(v.Damage) == 0 {
					fmt.Fprintf(a.stdout, "%s: %s read, undamaged\n", name, units.Size(v.Bytes))
				}
			}
			if a.json {
				if err := a.printJSON(rows); err != nil {
					return err
				}
			}
			if damaged != "" {
				return &database.Error{Kind: database.Damaged, Message: fmt.Sprintf("the database %s is damaged", damaged), HintText: "if only the copy in memory is damaged, run premix blast evict and premix blast warm; otherwise remove the database and add it again"}
			}
			return nil
		},
	}
}
