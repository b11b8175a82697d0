package main

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"premix/internal/hotstart/dropin"
	"premix/internal/kit/units"
)

func (a *app) hotStatusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "List the snapshots of commands, and the reasons for cold starts",
		Args:  arguments(),
		RunE: func(*cobra.Command, []string) error {
			set, err := dropin.ReadSettings()
			if err != nil {
				return err
			}
			st, err := dropin.ReadStatus(set.Quota)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(st)
			}
			fmt.Fprintf(a.stdout, "%d snapshots in %s: %s of %s\n", len(st.Snapshots), st.Store, units.Size(st.Bytes), units.Size(st.Quota))
			w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
			if len(st.Snapshots) > 0 {
				fmt.Fprintln(w, "\nSNAPSHOT\tSIZE\tSTARTS\tSAVED\tLAST USE\tCOMMAND")
			}
			for _, s := range st.Snapshots {
				fmt.Fprintf(w, "%s\t%s\t%d\t%.1f s\t%s\t%s\n", s.ID, units.Size(s.Bytes), s.Starts, s.Saved, s.Used.Local().Format(time.DateTime), strings.Join(s.Argv, " "))
			}
			if err := w.Flush(); err != nil {
				return err
			}
			if len(st.Cold) > 0 {
				fmt.Fprintln(w, "\nTOOL\tCOLD STARTS\tLAST\tREASON")
			}
			for _, c := range st.Cold {
				fmt.Fprintf(w, "%s\t%d\t%s\t%s\n", c.Tool, c.Starts, c.Last.Local().Format(time.DateTime), c.Reason)
			}
			return w.Flush()
		},
	}
}
