package main

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"premix/internal/files"
	"premix/internal/kit/exit"
	"premix/internal/kit/outputs"
	"premix/internal/kit/units"
)

func (a *app) filesScan() *cobra.Command {
	var (
		o       files.Options
		workers countFlag
	)
	cmd := &cobra.Command{
		Use:   "scan DIR... -o TABLE",
		Short: "Scan directories into a table",
		Long: `Walk through directories, many at a time, and write a row for each entry into a Parquet
file, which appears whole or not at all. Symlinks are not followed. An entry that cannot
be read has a row with the reason, and the exit code is then 1.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return &usageError{errors.New("DIR is missing"), "usage: " + cmd.UseLine()}
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			if o.Table == "" {
				return &usageError{errors.New("-o is missing"), "name the file for the table: -o scan.parquet"}
			}
			ctx, done := storeContext()
			defer done()
			var seen atomic.Pointer[files.Counts]
			seen.Store(&files.Counts{})
			o.Roots, o.Workers = args, int(workers)
			o.Progress = func(c files.Counts) { seen.Store(&c) }
			stop := a.bar(func() string {
				c := seen.Load()
				return fmt.Sprintf("%d entries, %s in files", c.Entries, units.Size(c.Bytes))
			})
			sum, err := files.Scan(ctx, o)
			stop()
			if err != nil {
				return err
			}
			if a.json {
				err = a.printJSON(sum)
			} else {
				err = a.printScan(sum)
			}
			if err == nil && sum.Unread > 0 {
				err = exit.Errorf(exit.Failed, "scan as a user who may read everything, such as root", "%d of %d entries could not be read; their rows in %s have the reasons", sum.Unread, sum.Entries, sum.Table)
			}
			return err
		},
	}
	f := cmd.Flags()
	outputFlag(cmd, &o.Table, "output", "o", outputs.Table, "file of the table")
	f.Var(&workers, "workers", "directories to read at the same time (default: twice the cores, at least 4)")
	f.BoolVar(&o.OneFS, "one-file-system", false, "don't enter other file systems")
	return cmd
}

func (a *app) printScan(sum *files.Summary) error {
	for _, p := range sum.Problems {
		fmt.Fprintf(a.notes(), "note: %s\n", shown(p))
	}
	if more := sum.Unread - int64(len(sum.Problems)); more > 0 {
		fmt.Fprintf(a.notes(), "note: and %d more\n", more)
	}
	rate := float64(sum.Entries) / max(sum.Took.Seconds(), 1e-9)
	_, err := fmt.Fprintf(a.stdout, "%d files and %d directories, %s in files, in %s (%.0f entries a second): %s\n",
		sum.Files, sum.Directories, units.Size(sum.Bytes), sum.Took.Round(10*time.Millisecond), rate, sum.Table)
	if err == nil && sum.Vanished > 0 {
		_, err = fmt.Fprintf(a.stdout, "%d entries vanished during the scan\n", sum.Vanished)
	}
	return err
}
