package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"premix/internal/blast/database"
	"premix/internal/blast/diamond"
	"premix/internal/blast/search"
)

func (a *app) blastDiamond() *cobra.Command {
	return &cobra.Command{
		Use:   "diamond [OPTION OF PREMIX]... blastp|blastx -d NAME [OPTION OF DIAMOND]...",
		Short: "Search like DIAMOND's blastp and blastx",
		Long: `Search a database of premix blast db add --program diamond with the options of DIAMOND,
and print the lines of DIAMOND. The fragments are searched one after another, or where they
are in memory, and the results are merged. Options of premix come before blastp or blastx:

  --processes N    fragments to search at the same time (default: 1, with all cores)
  --verbose        print settings and time
  --quiet          print no notes
  --json           print errors of premix as JSON
` + otherMachines + `
DIAMOND compares the targets of a block (its option -b), so the blocks of a search have to be
the fragments. Searches that cannot be merged exactly are refused: the format is 6, and
options that compare targets of several blocks, such as --top, are not accepted.

  premix blast db add nr.fa.gz --name nr --program diamond
  premix blast diamond blastp -d nr -q q.faa -k 5 -f 6 qseqid sseqid evalue`,
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			settings, args, err := searchSettings(args)
			if err != nil {
				return err
			}
			if settings.help || len(args) == 0 || args[0] == "-h" {
				return cmd.Help()
			}
			a.json, a.quiet, a.verbose = settings.json, settings.quiet, settings.verbose
			if err := a.before(cmd); err != nil {
				return err
			}
			if settings.Mode != search.Auto {
				return &usageError{errors.New("--mode is for BLAST+"), "leave it out: DIAMOND's databases are searched by fragments"}
			}
			ctx, done := storeContext()
			defer done()
			return a.diamond(ctx, settings, args[0], args[1:])
		},
	}
}

func (a *app) diamond(ctx context.Context, settings searchFlags, tool string, args []string) error {
	options, err := diamond.ParseOptions(args)
	if err != nil {
		return err
	}
	if options.DB == "" {
		return &usageError{errors.New("-d is missing"), "name a database with -d; premix blast db ls lists them"}
	}
	home, err := database.Home()
	if err != nil {
		return err
	}
	r := diamond.Request{Tool: tool, Options: options, Processes: settings.Processes, Stdin: os.Stdin, Stdout: a.stdout, Stderr: a.stderr,
		Note: func(s string) { fmt.Fprintln(a.notes(), "note:", s) }}
	if a.verbose {
		r.Explain = func(s string) { a.detail("%s", s) }
	}
	if r.Database, err = database.Open(home, options.DB); err != nil {
		return err
	}
	defer r.Database.Close()
	remote, done, err := a.elsewhere(settings, diamond.Parts{}, r.Database, r.Explain)
	if err != nil {
		return err
	}
	defer done()
	r.Remote = remote
	return ended(ctx, diamond.Run(ctx, r))
}
