package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"premix/transfer"
	"premix/transfer/stream"
)

// transferServe is what the near end starts at the peer.
func (a *app) transferServe() *cobra.Command {
	var port int
	var asked string
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Be the other end of premix transfer stream, at standard input and output",
		Long: `Answer a premix transfer stream at the other end of standard input and output, as a
rule through ssh. A port is opened for the time of the copy, and lets in only who was
told a secret through standard output; where it can't be reached, the data goes through
standard input and output too.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			ctx, done := storeContext()
			defer done()
			address := "127.0.0.1" // not through ssh: on this machine
			// CLIENT-ADDRESS PORT ADDRESS PORT, see ssh(1).
			if f := strings.Fields(os.Getenv("SSH_CONNECTION")); len(f) == 4 {
				address = f[2]
			}
			return stream.Serve(ctx, os.Stdin, os.Stdout, address, port, asked)
		},
	}
	cmd.Flags().StringVar(&asked, "asked", "", "what the other end wants (default: it says so at standard input)")
	cmd.Flags().IntVar(&port, "port", 0, "port to open, where a firewall lets only some pass (default: any)")
	return cmd
}

// transferStream is premix's own protocol, as link files call it.
func (a *app) transferStream() *cobra.Command {
	j := stream.Job{}
	cmd := &cobra.Command{
		Use:   "stream get|put LOCAL REMOTE -- COMMAND...",
		Short: "Copy by premix's own protocol",
		Long: `Copy a file or a tree by premix's own protocol: chunks, each compared by its BLAKE3
digest, through many TLS connections, and only those that the receiver has not. COMMAND
starts premix transfer serve at the other end.

  premix transfer stream get /scratch/run7 /data/run7 -- ssh peer premix transfer serve --asked @asked@

What is wanted is put in the place of @asked@, where the command has it: ssh passes on
its standard input only a round trip later.

What is written is written in place, so that the same command goes on where another one
ended. premix transfer get and put choose, compare, and rename in the end.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if at := cmd.ArgsLenAtDash(); at != 3 || len(args) < 4 || args[0] != "get" && args[0] != "put" {
				return &usageError{errors.New("stream wants get or put, two paths, -- and a command"), "as in premix transfer stream get LOCAL REMOTE -- ssh peer premix transfer serve"}
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			var err error
			j.Send, j.Command = args[0] == string(transfer.Put), args[3:]
			if j.Local, err = filepath.Abs(args[1]); err != nil {
				return err
			}
			j.Remote = args[2]
			if j.Congestion == "system" {
				j.Congestion = ""
			}
			// A script has one word for a list of none.
			j.Have = slices.DeleteFunc(j.Have, func(p string) bool { return p == "" })
			ctx, done := storeContext()
			defer done()
			d, err := j.Run(ctx)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(d)
			}
			_, err = fmt.Fprintln(a.stdout, d)
			return err
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&j.Have, "have", nil, "file, directory or store at the receiver that has much of it already; more than once")
	f.StringVar(&j.Host, "host", "", "address of the other end (default: the one that it says)")
	f.IntVar(&j.Streams, "streams", 0, "TCP connections (default: as many as are useful)")
	f.StringVar(&j.Congestion, "congestion", "bbr", "congestion control to ask for; system: none")
	return cmd
}

// transferStreamExit is the code of an error of premix's own protocol; exitOK: of
// another.
func transferStreamExit(err error) int {
	var (
		source *stream.SourceError
		target *stream.TargetError
		gone   *stream.PeerError
	)
	switch {
	case errors.As(err, &source):
		return exitUsage
	case errors.As(err, &target):
		return exitDirectory
	case errors.As(err, &gone):
		return exitOrigin
	}
	return exitOK
}
