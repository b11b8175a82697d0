package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"premix/internal/files"
	"premix/internal/kit/units"
)

func (a *app) filesDu() *cobra.Command {
	var (
		depth countFlag = 1
		top   countFlag
	)
	cmd := &cobra.Command{
		Use:   "du TABLE [DIR]",
		Short: "Sum up the directories of a scan",
		Long: `Print the bytes and files of a directory of a scan and of its subdirectories, those with
most bytes on disk first. Name one of them as DIR to look into it. Without DIR it is the
scanned directory. A file with several names counts once.

  premix files du scan.parquet
  premix files du scan.parquet /project/anna --depth 2 --top 20`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 {
				return nil
			}
			return arguments("TABLE")(cmd, args)
		},
		RunE: func(_ *cobra.Command, args []string) error {
			t, err := files.OpenTable(args[0])
			if err != nil {
				return err
			}
			defer t.Close()
			dirs := t.Roots
			if len(args) == 2 {
				dir, err := filepath.Abs(args[1])
				if err != nil {
					return err
				}
				dirs = []string{dir}
			}
			var all []*files.Subtree
			for _, dir := range dirs {
				list, err := t.Subtrees(dir, int(depth))
				if err != nil {
					return err
				}
				all = append(all, list...)
			}
			if top > 0 {
				all = all[:min(len(all), int(top))]
			}
			if a.json {
				return a.printJSON(all)
			}
			return a.printSubtrees(all)
		},
	}
	cmd.Flags().Var(&depth, "depth", "levels of subdirectories")
	cmd.Flags().Var(&top, "top", "rows (default: all)")
	return cmd
}

func (a *app) printSubtrees(all []*files.Subtree) error {
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "ON DISK\tBYTES\tFILES\tENTRIES\tMODIFIED\t  DIRECTORY")
	var errs error
	unread := int64(0)
	for _, s := range all {
		_, err := fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\t  %s\n", units.Size(s.Allocated), units.Size(s.Bytes), s.Files, s.Entries, time.Unix(0, s.Modified).Local().Format(time.DateOnly), shown(s.Path))
		errs = errors.Join(errs, err)
		if s.Depth == 0 {
			unread += s.Unread
		}
	}
	if errs = errors.Join(errs, w.Flush()); errs == nil && unread > 0 {
		_, errs = fmt.Fprintf(a.stdout, "%d entries could not be read\n", unread)
	}
	return errs
}
