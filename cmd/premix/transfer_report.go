package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"premix/internal/kit/outputs"
	"premix/internal/transfer/summary"
)

func (a *app) transferReport() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "report DIR",
		Short: "Sum up measured copies, and write a page about them",
		Long: `Sum up the copies in a directory of results. It writes to the directory report.html,
a self-contained page; transfers.parquet with all rows; transfers.csv and report.json with
the table and the comparisons; and all figures as SVG.`,
		Args: arguments("DIR"),
		RunE: func(_ *cobra.Command, args []string) error {
			r, err := summary.Read(args[0])
			if err != nil {
				return err
			}
			page, err := r.Write()
			if err != nil {
				return &usageError{err, "make the directory writable; the rows in it are complete"}
			}
			if a.json {
				return r.WriteJSON(a.stdout)
			}
			if err := r.WriteText(a.stdout); err != nil {
				return err
			}
			_, err = fmt.Fprintf(a.stdout, "\npage: %s\n", page)
			return err
		},
	}
	outputNames(cmd, func(args []string) []string { return []string{filepath.Join(args[0], "report.html")} }, outputs.Page)
	outputNames(cmd, func(args []string) []string { return []string{filepath.Join(args[0], "transfers.parquet")} }, outputs.Table)
	outputNames(cmd, func(args []string) []string {
		list, _ := filepath.Glob(filepath.Join(args[0], "figures", "*.svg")) // the pattern is right
		return list
	}, outputs.Text)
	// The other two files have no mark. If the table is premix's, they are premix's too.
	outputNames(cmd, func(args []string) []string {
		if _, err := os.Stat(filepath.Join(args[0], "transfers.parquet")); err == nil {
			return nil
		}
		return []string{filepath.Join(args[0], "transfers.csv"), filepath.Join(args[0], "report.json")}
	}, outputs.Text)
	return cmd
}
