package main

import (
	"github.com/spf13/cobra"
)

func (a *app) filesCommand() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "files",
		Short: "Scan directories of millions of files, and move files by rules",
		Long: `Scan directories into a table, one row per file, and see which files take the space.

  premix files scan /project -o scan.parquet
  premix files report scan.parquet
  premix files du scan.parquet /project/anna
  premix files find scan.parquet /project/anna --name '*.bam' --larger 1G
  premix files diff last-week.parquet scan.parquet
  premix files policy rules.sql scan.parquet --dry-run
  premix files mount --tiers tiers.yaml /project

The table is Parquet: DuckDB, pandas and R read it too.`,
	})
	cmd.AddCommand(a.filesScan(), a.filesReport(), a.filesDu(), a.filesFind(), a.filesDiff(), a.filesPolicy(), a.filesUnpack(), a.filesRemount(), a.filesMount())
	return cmd
}
