package main

import (
	"github.com/spf13/cobra"

	"premix/internal/transfer"
)

func (a *app) transferCommand() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "transfer",
		Short: "Measure protocols on your own link, and copy by the fastest",
		Long: `Measure the speed of each program over your own link, and copy by the fastest.

  premix transfer bench link.yaml --out results --repeat 5 --packets
  premix transfer report results
  premix transfer get peer:/data/run7/ ./run7
  premix transfer why peer

premix help transfer has the page about it.`,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { // in place of root's
			if err := a.before(cmd); err != nil {
				return err
			}
			return transfer.CheckSilence()
		},
	})
	cmd.AddCommand(a.transferBench(), a.transferReport(), a.transferGet(), a.transferPut(), a.transferProbe(), a.transferWhy(), a.transferStream(), a.transferServe())
	return cmd
}
