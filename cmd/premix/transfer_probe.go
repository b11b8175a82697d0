package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"premix/internal/transfer"
	"premix/internal/transfer/link"
	"premix/internal/transfer/testbed"
)

// probeTime is the time after which a probe starts no further copy.
const probeTime = 45 * time.Second

func (a *app) transferProbe() *cobra.Command {
	var peerDir, premix string
	cmd := &cobra.Command{
		Use:   "probe PEER",
		Short: "Measure a link for less than a minute",
		Long: `Copy a few small files and a tree of small ones from and to a peer, by the installed
protocols, for less than a minute. This is a first estimate: premix transfer bench gives
better ones. If packets cannot be captured, only times are measured.

  premix transfer probe me@peer`,
		Args: arguments("PEER"),
		RunE: func(_ *cobra.Command, args []string) error {
			home, err := transferHome()
			if err != nil {
				return err
			}
			l, known, err := home.Find(args[0])
			if err != nil {
				return nameError(err)
			}
			peerPremix(l, premix)
			if l.Directory == "" {
				l.Directory = os.TempDir()
			}
			if l.PeerDirectory == "" {
				l.PeerDirectory = peerDir
			}
			l.Data = []link.Data{{Files: 1, Size: 1 << 20}, {Files: 1, Size: 16 << 20}, {Files: 100, Size: 100 * 4096}}
			l.Ways = []transfer.Direction{transfer.Get, transfer.Put}
			l.Repeat, l.Timeout, l.Quiet.For = 1, 10*time.Second, 50*time.Millisecond
			out := home.Probes(known.Name)
			o := testbed.Options{Out: out, Version: version, Report: a.copyRow, Capture: testbed.CaptureNone}
			if o.Premix, err = os.Executable(); err != nil {
				return err
			}
			ctx, done := storeContext()
			defer done()
			errTime := errors.New("the time of the probe is over")
			limited, cancel := context.WithTimeoutCause(ctx, probeTime, errTime)
			defer cancel()
			b, err := testbed.New(limited, l, o)
			if err != nil {
				return err
			}
			_, err = b.Run(limited)
			if errors.Is(err, errTime) {
				err = nil
			}
			if err = errors.Join(err, b.Close()); err != nil {
				return err
			}
			if err := home.Remember(l, out); err != nil {
				return err
			}
			if !a.json {
				fmt.Fprintf(a.stdout, "premix transfer why %s shows the present choice\n", args[0])
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&premix, "peer-premix", "", "path of premix at the peer, if it is not on its PATH")
	cmd.Flags().StringVar(&peerDir, "peer-directory", "/tmp", "directory at the peer for the copies, if no link file names it")
	return cmd
}
