package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"premix/internal/blast/database"
	"premix/internal/kit/units"
)

func (a *app) blastDBAdd() *cobra.Command {
	var (
		s         storeFlags
		o         database.AddOptions
		kind      string
		from      string
		profiles  string
		program   string
		ref       string
		fragments countFlag
		each      memoryFlag
	)
	cmd := &cobra.Command{
		Use:   "add SOURCE --name NAME",
		Short: "Format a database once, in fragments",
		Long: `Make a database of SOURCE, which is a FASTA file (gzip or not), an existing BLAST
database (its path without an extension), or a published directory, such as a
mounted tree, which is used in place.

Sequences are checked first. Fragments are runs of sequences with about equally many
letters. makeblastdb formats them once, and nothing is on the disk twice: the whole is
an alias of them. The volumes of an existing database are used unchanged.

With --profiles, SOURCE lists files with profiles, which psiblast writes with
-out_pssm, for makeprofiledb. psiblast needs -parse_deflines, so that each profile has
an id of its own.

With --program diamond, the database is one of proteins for premix blast diamond. Each
fragment is a block of DIAMOND, of the size that its option -b has: 2 billion letters
unless --block-size, --fragments or --fragment-size says otherwise.

With --store, or PREMIX_STORE, the database is published there, signed, as the tree
blast/NAME:latest. Equal input gives an equal tree.

  premix blast db add nt.fa.gz --name nt --type nucl --fragments 4
  premix blast db add /data/swissprot --name swissprot --fragments 2
  premix blast db add domains.txt --name domains --profiles rps
  premix blast db add nr.fa.gz --name nr --program diamond`,
		Args: arguments("SOURCE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			home, err := database.Home()
			if err != nil {
				return err
			}
			o.Source, o.Type, o.Fragments, o.FragmentSize, o.Progress = args[0], database.Type(kind), int(fragments), int64(each), &database.Progress{}
			if o.Type != "" && o.Type != database.Nucl && o.Type != database.Prot {
				return &usageError{fmt.Errorf("there is no type %q", kind), "give --type nucl or --type prot"}
			}
			o.From, o.Profiles, o.Program = database.From(from), database.Profiles(profiles), database.Program(program)
			publish, err := a.blastPublisher(&s, o.Name, ref)
			if err != nil {
				return err
			}
			row, err := a.changeDatabase(home, o.Name, o.Progress, publish, func(ctx context.Context) error {
				_, _, err := database.Add(ctx, home, o)
				return err
			})
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(row)
			}
			fmt.Fprintf(a.stdout, "%s: %d sequences, %d letters, %s, in %d fragments\n", row.Name, row.Sequences, row.Letters, units.Size(row.Bytes), len(row.Fragments))
			a.printTree(row)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Name, "name", "", "name of the database")
	f.StringVar(&kind, "type", "", "content of the FASTA file: nucl or prot")
	f.Var(&fragments, "fragments", "number of fragments (default: as many as cores)")
	f.Var(&each, "fragment-size", "in place of --fragments: memory for the letters of each fragment, as in 8G")
	f.StringVar(&o.Title, "title", "", "title that BLAST prints (default: SOURCE)")
	f.IntVar(&o.Version, "blastdb-version", 5, "version of BLAST databases: 4 or 5")
	f.BoolVar(&o.ParseIDs, "parse-seqids", false, "make BLAST parse the ids: needed for lists of ids and for taxonomy")
	f.IntVar(&o.TaxID, "taxid", 0, "taxonomy id of all sequences")
	f.StringVar(&o.TaxIDMap, "taxid-map", "", "file with an id and its taxonomy id on each line")
	f.StringSliceVar(&o.Masks, "mask", nil, "mask for searches that request it: dust (nucl) or seg (prot)")
	f.BoolVar(&o.Duplicates, "allow-duplicates", false, "accept ids that occur twice")
	f.StringVar(&from, "from", "", "fasta or database: where SOURCE may be either")
	f.StringVar(&profiles, "profiles", "", "make a database of profiles: rps for rpsblast and rpstblastn, delta for deltablast")
	f.StringVar(&program, "program", "blast", "program that searches the database: blast or diamond")
	f.StringVar(&o.Block, "block-size", "", "billions of letters in each fragment for DIAMOND, as its option -b")
	f.BoolVar(&o.Recut, "recut", false, "format an existing database again; its masks are lost")
	f.StringVar(&s.dir, "store", "", "store to publish in (default: $PREMIX_STORE, or none)")
	f.StringVar(&s.key, "key", "", "file of the store's private key (default: $PREMIX_HOME/keys/ID.key)")
	f.StringVar(&ref, "ref", "", "name of the published tree (default: blast/NAME:latest)")
	return cmd
}

// changeDatabase calls change, which adds or updates a database and reports to p, with a
// progress line. It publishes the database if publish is not nil, and returns its row.
func (a *app) changeDatabase(home, name string, p *database.Progress, publish func(context.Context, string) error, change func(context.Context) error) (databaseRow, error) {
	ctx, done := storeContext()
	defer done()
	stop := a.bar(func() string { return addedLine(p) })
	err := change(ctx)
	stop()
	if err == nil && publish != nil {
		err = publish(ctx, home)
	}
	if err != nil {
		return databaseRow{}, err
	}
	status, err := database.StatusOf(home, name)
	if err != nil {
		return databaseRow{}, err
	}
	return databaseRowOf(status), nil
}

// printTree prints the tree of a database that was published.
func (a *app) printTree(row databaseRow) {
	if row.Tree != "" {
		fmt.Fprintf(a.stdout, "%s is tree %s in %s\n", row.Ref, row.Tree, row.Store)
	}
}

// addedLine returns the progress of an added database.
func addedLine(p *database.Progress) string {
	if n := p.Fragments.Load(); n > 0 {
		return fmt.Sprintf("%s formatted %d of %d fragments", share(p.Formatted.Load(), n), p.Formatted.Load(), n)
	}
	return fmt.Sprintf("checking: %s read", units.Size(p.Checked.Load()))
}
