package main

import (
	"github.com/spf13/cobra"
)

func (a *app) blastCommand() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "blast",
		Short: "Search BLAST databases that are kept in memory",
		Long: `Keep BLAST databases cut into fragments and resident in memory, and search them with
the results of plain BLAST.

  premix blast db add nt.fa --name nt --type nucl --fragments 4
  premix blast warm nt
  premix blast blastn -db nt -query q.fa -outfmt 6
  premix blast serve --listen 127.0.0.1:8080`,
	})
	cmd.AddCommand(a.blastDB(), a.blastWarm(), a.blastEvict(), a.blastServe(), a.blastShard(), a.blastCluster(), a.blastDiamond())
	cmd.AddCommand(a.blastSearches()...)
	return cmd
}

func (a *app) blastDB() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "db",
		Short: "Make and manage BLAST databases",
	})
	cmd.AddCommand(a.blastDBAdd(), a.blastDBUpdate(), a.blastDBLs(), a.blastWarm(), a.blastEvict(), a.blastDBVerify(), a.blastDBRm())
	return cmd
}
