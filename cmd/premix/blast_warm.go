package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"premix/internal/blast/database"
	"premix/internal/kit/units"
)

// warmRow is a database that was made resident.
type warmRow struct {
	Name       string `json:"name"`
	Dir        string `json:"ram_dir,omitempty"`
	Bytes      int64  `json:"bytes"`
	InMemory   int64  `json:"in_memory_bytes"`
	DiskCached int64  `json:"disk_cached_bytes"`
	DiskMapped []int  `json:"disk_mapped_by,omitempty"`
	Error      string `json:"error,omitempty"`
}

func (a *app) blastWarm() *cobra.Command {
	var all bool
	var memory memoryFlag
	cmd := &cobra.Command{
		Use:   "warm NAME... | --all",
		Short: "Put databases into this machine's memory",
		Long: `Put all fragments of databases into memory, on a tmpfs (PREMIX_BLAST_RAM, or a directory
of yours in /dev/shm), where searches find them from then on. The copy on disk leaves the
page cache, so that there is one copy in memory for all searches.

A database that does not fit is refused. It may take the available memory, less a tenth of
the machine's, within the limits of cgroups and of the tmpfs. --memory sets another limit.

After a reboot premix blast warm --all loads the databases that were in memory again, from
the copy on disk.`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case all && len(args) > 0:
				return &usageError{errors.New("names and --all exclude each other"), "leave one of them out"}
			case !all && len(args) == 0:
				return arguments("NAME")(cmd, args)
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			home, err := database.Home()
			if err != nil {
				return err
			}
			ctx, done := storeContext()
			defer done()
			var list []database.WarmResult
			if all {
				if list, err = database.WarmAll(ctx, home, int64(memory)); err != nil {
					return err
				}
			}
			for _, name := range args {
				w := database.WarmResult{Name: name}
				w.Resident, w.Err = database.Warm(ctx, home, name, int64(memory))
				list = append(list, w)
			}
			rows := []warmRow{}
			var errs []error
			for _, w := range list {
				row := warmRow{Name: w.Name}
				if r := w.Resident; r != nil {
					row.Dir, row.Bytes, row.InMemory, row.DiskCached = r.Dir, r.Bytes, r.InMemory, r.DiskCached
					row.DiskMapped = r.DiskMapped
					if !a.json {
						fmt.Fprintf(a.stdout, "%s: %s in memory, %s of the copy on disk cached\n", w.Name, units.Size(r.InMemory), units.Size(r.DiskCached))
						if len(r.DiskMapped) > 0 {
							fmt.Fprintf(a.stdout, "%s: processes that still have the copy on disk mapped: %v\n", w.Name, r.DiskMapped)
						}
					}
				}
				if w.Err != nil {
					row.Error = w.Err.Error()
					errs = append(errs, w.Err)
				}
				rows = append(rows, row)
			}
			if a.json {
				if err := a.printJSON(rows); err != nil {
					return err
				}
			}
			if len(errs) > 1 {
				for _, err := range errs[1:] {
					a.tell(err)
				}
			}
			if len(errs) > 0 {
				return errs[0]
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "all databases that were in memory, as after a reboot")
	cmd.Flags().Var(&memory, "memory", "most memory of a database, as in 16G (default: the available memory)")
	return cmd
}

// evictedRow is a database that was removed from memory.
type evictedRow struct {
	Name  string `json:"name"`
	Freed int64  `json:"freed_bytes"`
}

func (a *app) blastEvict() *cobra.Command {
	return &cobra.Command{
		Use:   "evict NAME...",
		Short: "Take databases out of memory",
		Long: `Take databases out of memory, after the searches that use them there have ended. Searches
that begin in the meantime use the copy on disk.`,
		Args: someArguments("NAME"),
		RunE: func(_ *cobra.Command, args []string) error {
			home, err := database.Home()
			if err != nil {
				return err
			}
			rows := []evictedRow{}
			for _, name := range args {
				freed, err := database.Evict(home, name)
				if err != nil {
					return err
				}
				rows = append(rows, evictedRow{name, freed})
				if !a.json {
					fmt.Fprintf(a.stdout, "%s: freed %s of memory\n", name, units.Size(freed))
				}
			}
			if a.json {
				return a.printJSON(rows)
			}
			return nil
		},
	}
}

// someArguments requires at least one argument.
func someArguments(name string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return arguments(name)(cmd, args)
		}
		return nil
	}
}
