package main

import (
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"premix/internal/kit/units"
	"premix/internal/transfer"
	"premix/internal/transfer/choose"
)

func (a *app) transferWhy() *cobra.Command {
	var put, open bool
	var data string
	var files countFlag
	cmd := &cobra.Command{
		Use:   "why PEER",
		Short: "Show the protocol that would be chosen for a copy, and the reason",
		Long: `Show the order in which protocols would be tried for a copy, the expected time of each by
measurements of the link, and the reasons why others are left out.

  premix transfer why peer --size 2G
  premix transfer why peer --put --size 40M --files 10000`,
		Args: arguments("PEER"),
		RunE: func(_ *cobra.Command, args []string) error {
			n, err := units.ParseSize(data)
			if err == nil && n == 0 {
				err = errors.New("--size must be more than 0")
			}
			if err != nil {
				return &usageError{err, units.SizeHint}
			}
			home, err := transferHome()
			if err != nil {
				return err
			}
			l, known, err := home.Find(args[0])
			if err != nil {
				return nameError(err)
			}
			copies, err := known.Measurements()
			if err != nil {
				return err
			}
			t := choose.Task{Direction: transfer.Get, Size: n, Files: max(1, int(files)), Open: open}
			if put {
				t.Direction = transfer.Put
			}
			order := choose.Order(l, copies, t)
			if a.json {
				return a.printJSON(order)
			}
			fmt.Fprintf(a.stdout, "%s %s over %s, by %d measured copies:\n", t.Direction, transfer.DataName(t.Size, t.Files), known.Name, len(copies))
			w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
			for i, e := range order {
				place := fmt.Sprint(i + 1)
				if e.Left {
					place = "-"
				}
				fmt.Fprintf(w, "%s\t%s\t%s\n", place, e.Protocol, e.Why)
			}
			if err := w.Flush(); err != nil {
				return err
			}
			if len(copies) == 0 {
				fmt.Fprintf(a.stdout, "hint: premix transfer probe %s measures it in under a minute\n", args[0])
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.BoolVar(&put, "put", false, "for a copy to the peer")
	f.BoolVar(&open, "allow-open", false, "also protocols without encryption, or with a port that is open to all")
	f.StringVar(&data, "size", "1G", "size of the data")
	f.Var(&files, "files", "number of its files (default: 1)")
	return cmd
}
