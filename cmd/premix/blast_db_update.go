package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"premix/internal/blast/database"
	"premix/internal/kit/units"
)

// updatedDatabaseRow is a database that was updated.
type updatedDatabaseRow struct {
	databaseRow
	Kept      int `json:"kept_fragments"`
	Formatted int `json:"formatted_fragments"`
}

func (a *app) blastDBUpdate() *cobra.Command {
	var (
		s   storeFlags
		o   database.AddOptions
		ref string
	)
	cmd := &cobra.Command{
		Use:   "update NAME FASTA",
		Short: "Format only the fragments of a database that changed",
		Long: `Replace the content of a database, which premix blast db add made of FASTA, by a newer
FASTA file. Fragments whose sequences are in it without a change are kept, wherever they
are; the rest is formatted. Searches that run go on with the former version.

A database in memory is loaded again. Nodes of premix blast cluster get the new version
by another premix blast cluster warm.

  premix blast db update nt nt-new.fa.gz`,
		Args: arguments("NAME", "FASTA"),
		RunE: func(_ *cobra.Command, args []string) error {
			home, err := database.Home()
			if err != nil {
				return err
			}
			o.Name, o.Source, o.Progress = args[0], args[1], &database.Progress{}
			publish, err := a.blastPublisher(&s, o.Name, ref)
			if err != nil {
				return err
			}
			var n database.Updated
			changed, err := a.changeDatabase(home, o.Name, o.Progress, publish, func(ctx context.Context) (err error) {
				_, _, n, err = database.Update(ctx, home, o)
				return err
			})
			if err != nil {
				return err
			}
			row := updatedDatabaseRow{changed, n.Kept, n.Formatted}
			if a.json {
				return a.printJSON(row)
			}
			fmt.Fprintf(a.stdout, "%s: %d sequences, %d letters, %s: kept %d fragments, formatted %d\n", row.Name, row.Sequences, row.Letters, units.Size(row.Bytes), n.Kept, n.Formatted)
			a.printTree(changed)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Title, "title", "", "another title that BLAST prints; all fragments are formatted")
	f.IntVar(&o.TaxID, "taxid", 0, "taxonomy id of all sequences, if premix blast db add had one")
	f.StringVar(&o.TaxIDMap, "taxid-map", "", "file with an id and its taxonomy id on each line, if premix blast db add had one; another content means that all fragments are formatted")
	f.BoolVar(&o.Duplicates, "allow-duplicates", false, "accept ids that occur twice")
	f.StringVar(&s.dir, "store", "", "store to publish in (default: $PREMIX_STORE, or none)")
	f.StringVar(&s.key, "key", "", "file of the store's private key (default: $PREMIX_HOME/keys/ID.key)")
	f.StringVar(&ref, "ref", "", "name of the published tree (default: blast/NAME:latest)")
	return cmd
}
