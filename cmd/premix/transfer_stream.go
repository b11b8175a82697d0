package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"premix/internal/kit/access"
	"premix/internal/transfer"
	"premix/internal/transfer/stream"
)

// transferServe returns the command that the near end starts at the peer.
func (a *app) transferServe() *cobra.Command {
	var port int
	var asked, listen, keys string
	server := stream.Server{}
	cmd := &cobra.Command{
		Use:   "serve [DIR --listen ADDRESS --key FILE]",
		Short: "Serve copies: as a standing server, or over standard input and output",
		Long: `With DIR, serve the files below it to premix transfer get, put and stream, until SIGTERM
or SIGINT:

  premix transfer serve /data --listen :8470 --key server.key
  premix transfer get premix://peer:8470/run7 ./run7 --key server.key.client

FILE is made if it is missing, with FILE.client beside it: one line with the key for
clients and the digest of the server's certificate. Give it only to users who may read
all of DIR, and with --write change it.

Without DIR, answer one premix transfer stream at the other end of standard input and
output, usually through ssh. A port is opened for the time of the copy. It accepts only
the peer that received a secret through standard output. If it cannot be reached, the
data goes through standard input and output, too.`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) > 1:
				return &usageError{errors.New("serve needs one directory"), "premix transfer serve DIR --listen ADDRESS --key FILE"}
			case len(args) == 1 && (listen == "" || keys == ""), len(args) == 0 && (listen != "" || keys != "" || server.Write), server.Owners && !server.Write:
				return &usageError{errors.New("a directory, --listen and --key belong together"), "premix transfer serve DIR --listen :8470 --key server.key"}
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			ctx, done := storeContext()
			defer done()
			if len(args) == 1 {
				server.Dir, server.Records = args[0], transferParts()
				return a.transferStand(ctx, &server, listen, keys)
			}
			address := "127.0.0.1" // without ssh the peer is this machine
			// CLIENT-ADDRESS PORT ADDRESS PORT, see ssh(1).
			if f := strings.Fields(os.Getenv("SSH_CONNECTION")); len(f) == 4 {
				address = f[2]
			}
			return stream.Serve(ctx, os.Stdin, os.Stdout, address, port, asked, transferParts())
		},
	}
	f := cmd.Flags()
	f.StringVar(&asked, "asked", "", "request of the other end (default: from standard input)")
	f.IntVar(&port, "port", 0, "port to open, if a firewall passes only some (default: any)")
	f.StringVar(&listen, "listen", "", "address and port of a standing server, as in :8470")
	f.StringVar(&keys, "key", "", "file with the keys of a standing server; made if it is missing")
	f.BoolVar(&server.Write, "write", false, "accept copies into DIR")
	f.BoolVar(&server.Owners, "owners", false, "with --write: accept owners and set-user-ID bits of copies")
	return cmd
}

// transferStand returns the command of a standing server.
func (a *app) transferStand(ctx context.Context, s *stream.Server, address, keys string) (err error) {
	if _, err := os.Stat(keys); errors.Is(err, fs.ErrNotExist) {
		if err := stream.MakeKeys(keys); err != nil {
			return err
		}
	}
	if s.Keys, err = stream.LoadKeys(keys); err != nil {
		return secretError(err)
	}
	l, err := access.Listen(ctx, access.Options{Address: address, Secret: true})
	if err != nil {
		return err
	}
	tcp, ok := l.Listener.(*net.TCPListener)
	if !ok {
		return errors.Join(&usageError{fmt.Errorf("%s is not an address of TCP", address), "--listen ADDRESS:PORT, as in :8470"}, l.Close())
	}
	s.Note = func(text string) { fmt.Fprintln(a.notes(), text) }
	fmt.Fprintf(a.notes(), "serving %s at %s to holders of %s\n", s.Dir, l.Addr(), keys+stream.ClientSuffix)
	return s.Run(ctx, tcp)
}

// transferStream returns the command of premix's own protocol, as link files call it.
func (a *app) transferStream() *cobra.Command {
	j := stream.Copy{}
	var key string
	cmd := &cobra.Command{
		Use:   "stream get|put LOCAL REMOTE [--server HOST:PORT --key FILE] [-- COMMAND...]",
		Short: "Copy by premix's own protocol",
		Long: `Copy a file or a tree by premix's own protocol: chunks, each compared by its BLAKE3
digest, through many TLS connections, and only the chunks that the receiver lacks. COMMAND
starts premix transfer serve at the other end.

  premix transfer stream get /scratch/run7 /data/run7 -- ssh peer premix transfer serve --asked @asked@

The request replaces @asked@ in the command, since ssh passes on standard input a round
trip later. The other end can also be a standing server (premix transfer serve --help):
then REMOTE is a path below its directory.

Files are written in place, so that the same command continues an interrupted copy.
premix transfer get and put choose, compare, and rename in the end.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if j.Server != "" {
				if len(args) != 3 || args[0] != "get" && args[0] != "put" || key == "" {
					return &usageError{errors.New("stream needs get or put, two paths, and the key of the server"), "as in premix transfer stream get LOCAL REMOTE --server peer:8470 --key server.key.client"}
				}
				return nil
			}
			if at := cmd.ArgsLenAtDash(); at != 3 || len(args) < 4 || args[0] != "get" && args[0] != "put" {
				return &usageError{errors.New("stream needs get or put, two paths, -- and a command"), "as in premix transfer stream get LOCAL REMOTE -- ssh peer premix transfer serve"}
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			var err error
			if j.Whole && args[0] != string(transfer.Put) {
				return &usageError{errors.New("--whole is for put"), "leave out --whole: premix transfer get makes its copy in a private directory"}
			}
			j.Send, j.Command = args[0] == string(transfer.Put), args[3:]
			if j.Server != "" {
				if j.Key, err = stream.LoadKey(key); err != nil {
					return secretError(err)
				}
			}
			if j.Local, err = filepath.Abs(args[1]); err != nil {
				return err
			}
			j.Remote = args[2]
			if j.Congestion == "system" {
				j.Congestion = ""
			}
			// A script passes an empty list as one word.
			j.Have = slices.DeleteFunc(j.Have, func(p string) bool { return p == "" })
			ctx, done := storeContext()
			defer done()
			d, err := j.Run(ctx)
			if err != nil {
				return err
			}
			if a.json {
				err = a.printJSON(d)
			} else {
				_, err = fmt.Fprintln(a.stdout, d)
			}
			return errors.Join(err, a.lost(d.Lost, d.More))
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&j.Have, "have", nil, "file, directory or store at the receiver with parts of the data; may be repeated")
	f.StringVar(&j.Server, "server", "", "a standing server, HOST:PORT")
	f.StringVar(&key, "key", "", "key file from the server's owner")
	keepFlags(f, &j.Keep)
	f.BoolVar(&j.Whole, "whole", false, "with put: make the copy in a private directory beside REMOTE, which must not exist, and rename it when it is complete")
	f.StringVar(&j.Host, "host", "", "address of the other end (default: the address that it sends)")
	f.IntVar(&j.Streams, "streams", 0, "number of TCP connections (default: as many as are useful)")
	f.StringVar(&j.Congestion, "congestion", "bbr", "congestion control to request; system: do not request one")
	return cmd
}
