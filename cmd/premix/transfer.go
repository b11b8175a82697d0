package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"premix/transfer"
	"premix/transfer/capture"
	"premix/transfer/peer"
	"premix/transfer/testbed"
)

func (a *app) transferCommand() *cobra.Command {
	cmd := group("bench, report, get, put, probe, why, stream or serve", &cobra.Command{
		Use:   "transfer",
		Short: "Measure protocols on your own link, and copy by the best",
		Long: `Measure how fast each program copies over a link of yours, and copy by the one that is
fastest there.

  premix transfer bench link.yaml --out results --repeat 5 --packets
  premix transfer report results
  premix transfer get peer:/data/run7/ ./run7
  premix transfer why peer

See docs/transfer.md.`,
	})
	cmd.AddCommand(a.transferBench(), a.transferReport(), a.transferGet(), a.transferPut(), a.transferProbe(), a.transferWhy(), a.transferStream(), a.transferServe())
	return cmd
}

// failedCopies is the error of a bench, of which some copies failed.
type failedCopies struct{ failed, all int }

func (e *failedCopies) Error() string {
	return fmt.Sprintf("%d of %d copies failed; the others are measured", e.failed, e.all)
}
func (e *failedCopies) Hint() string { return "the cause of each is in its row of transfers-*.jsonl" }

// rate is a number of bytes a second as those who have links say it.
func rate(v float64) string {
	v *= 8
	switch {
	case v >= 1e9:
		return fmt.Sprintf("%.3g Gbit/s", v/1e9)
	case v >= 1e6:
		return fmt.Sprintf("%.3g Mbit/s", v/1e6)
	}
	return fmt.Sprintf("%.3g kbit/s", v/1e3)
}

// transferExit is the documented code of an error about transfers; exitOK: it is
// about something else.
func transferExit(err error) int {
	var (
		setup       *testbed.SetupError
		blind       *capture.PrivilegeError
		unreachable *peer.UnreachableError
		noResults   *transfer.NoResults
		copies      *failedCopies
	)
	switch {
	case errors.As(err, &noResults):
		return exitUsage
	case errors.As(err, &unreachable):
		return exitOrigin
	case errors.As(err, &blind):
		return exitUnavailable
	case errors.As(err, &setup):
		return exitDirectory
	case errors.As(err, &copies):
		return exitFailed
	}
	if code := transferStreamExit(err); code != exitOK {
		return code
	}
	return transferChoiceExit(err)
}
