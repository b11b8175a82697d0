package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"premix/internal/blast/database"
	"premix/internal/blast/part"
	"premix/internal/blast/search"
)

// blastSearches returns the commands of the programs that search.
func (a *app) blastSearches() []*cobra.Command {
	var list []*cobra.Command
	for _, program := range search.Programs() {
		list = append(list, a.blastSearch(program))
	}
	return list
}

// otherMachines is the help for the options of a search on other machines.
const otherMachines = `  --engine NAME    search the fragments on the nodes of slurm or kubernetes, as tasks;
                   each node has the database, or sees the directory of this one
  --engine-opt KEY=VALUE
                   option of the engine; may be repeated
  --work DIR       directory that all nodes see, for their results
                   (default: a new one in the working directory, removed at the end)
  --nodes NODES    search the fragments on the nodes of premix blast cluster that hold them
                   (default: $PREMIX_BLAST_NODES)
  --key FILE       key of the cluster (default: $PREMIX_BLAST_KEY)
`

func (a *app) blastSearch(program string) *cobra.Command {
	return &cobra.Command{
		Use:   program + " [--mode MODE] [--processes N] -db NAME [OPTION OF BLAST+]...",
		Short: "Search like BLAST+'s " + program,
		Long: `Search a database of premix blast db with the options of BLAST+, unchanged, and print
the output of BLAST+. Options of premix have two dashes and come first:

  --mode MODE      auto, fragments (side by side, merged), queries (groups of them side by
                   side) or whole (BLAST+ with threads)
  --processes N    simultaneous searches of fragments (default: as many as cores)
  --verbose        print the mode, the reason for it, settings and time
  --quiet          print no notes
  --json           print errors of premix as JSON
` + otherMachines + `
-num_threads is the number of cores to use (default: all).

  premix blast ` + program + ` -db nt -query q.fa -outfmt 6 -max_target_seqs 5`,
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			settings, args, err := searchSettings(args)
			if err != nil {
				return err
			}
			if settings.help {
				return cmd.Help()
			}
			a.json, a.quiet, a.verbose = settings.json, settings.quiet, settings.verbose
			if err := a.before(cmd); err != nil {
				return err
			}
			if err := behind(args); err != nil {
				return err
			}
			ctx, done := storeContext()
			defer done()
			return a.search(ctx, program, settings, args)
		},
	}
}

func (a *app) search(ctx context.Context, program string, settings searchFlags, args []string) error {
	options, err := search.ParseOptions(args)
	if err != nil {
		return err
	}
	r := search.Request{Program: program, Options: options, Settings: settings.Settings, Stdin: os.Stdin, Stdout: a.stdout, Stderr: a.stderr,
		Note: func(s string) { fmt.Fprintln(a.notes(), "note:", s) }}
	if a.verbose {
		r.Explain = func(s string) { a.detail("%s", s) }
	}
	if !options.Help() {
		if options.DB == "" {
			return &usageError{errors.New("-db is missing"), "name a database with -db; premix blast db ls lists them"}
		}
		home, err := database.Home()
		if err != nil {
			return err
		}
		if r.Database, err = database.OpenAll(home, options.DB); err != nil {
			return err
		}
		defer r.Database.Close()
		if program == "deltablast" {
			// BLAST+ may find a database of another name in BLASTDB.
			d, err := database.OpenAll(home, options.Domains())
			var known *database.Error
			switch {
			case err == nil:
				r.Domains = d
				defer d.Close()
			case !errors.As(err, &known) || known.Kind != database.NotThere && known.Kind != database.Use:
				return err
			}
		}
	}
	if !options.Help() {
		var done func()
		if r.Remote, done, err = a.elsewhere(settings, search.Parts{}, r.Database, r.Explain); err != nil {
			return err
		}
		defer done()
	}
	return ended(ctx, search.Run(ctx, r))
}

// ended returns the error of a command whose search has ended with err.
func ended(ctx context.Context, err error) error {
	var exit *part.ExitError
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &exit):
		return &commandStatus{exit.Code}
	}
	return err
}

// searchFlags are premix's own options of a search.
type searchFlags struct {
	search.Settings
	json, quiet, verbose bool
	help                 bool
	engine               engineFlags
	work                 string
	cluster              clusterFlags
}

// behind returns an error if args, the options of BLAST+, contain one of premix's own
// options. Options of BLAST+ begin with one dash.
func behind(args []string) error {
	for _, arg := range args {
		switch name, _, _ := strings.Cut(arg, "="); name {
		case "--mode", "--processes", "--json", "--quiet", "--verbose", "--engine", "--engine-opt", "--work", "--nodes", "--key":
			return &usageError{fmt.Errorf("%s comes after an option of BLAST+", name), "options of premix come first, as in premix blast blastn --mode fragments -db nt"}
		}
	}
	return nil
}

// searchSettings reads premix's own options at the start of a command line.
func searchSettings(args []string) (s searchFlags, rest []string, err error) {
	s.engine.name = engineLocal
	for len(args) > 0 && strings.HasPrefix(args[0], "--") {
		name, value, joined := strings.Cut(args[0], "=")
		args = args[1:]
		switch name {
		case "--help":
			s.help = true
			return s, nil, nil
		case "--verbose":
			s.verbose = true
			continue
		case "--quiet":
			s.quiet = true
			continue
		case "--json":
			s.json = true
			continue
		case "--mode", "--processes", "--engine", "--engine-opt", "--work", "--nodes", "--key":
		default:
			return s, nil, &usageError{fmt.Errorf("premix blast has no option %s", name), "options of BLAST+ have one dash"}
		}
		if !joined {
			if len(args) == 0 {
				return s, nil, &usageError{fmt.Errorf("%s has no value", name), "as in --mode fragments --processes 4"}
			}
			value, args = args[0], args[1:]
		}
		switch name {
		case "--engine":
			s.engine.name = value
		case "--engine-opt":
			s.engine.options = append(s.engine.options, value)
		case "--work":
			s.work = value
		case "--nodes":
			s.cluster.nodes = value
		case "--key":
			s.cluster.key = value
		case "--mode":
			mode, ok := map[string]search.Mode{"auto": search.Auto, "fragments": search.Fragments, "queries": search.Queries, "whole": search.Whole}[value]
			if !ok {
				return s, nil, &usageError{fmt.Errorf("there is no mode %q", value), "it is one of auto, fragments, queries and whole"}
			}
			s.Mode = mode
		case "--processes":
			if s.Processes, err = strconv.Atoi(value); err != nil || s.Processes < 1 {
				return s, nil, &usageError{fmt.Errorf("--processes %s is not a number of processes", value), "1 or more"}
			}
		}
	}
	if s.engine.name == engineLocal && (s.work != "" || len(s.engine.options) > 0) {
		return s, nil, &usageError{errors.New("--work and --engine-opt are for engines other than the local one"), "name the engine with --engine"}
	}
	return s, args, nil
}
