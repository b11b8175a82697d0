package main

import (
	"errors"
	"fmt"
	stdlog "log"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"premix/internal/kit/access"
	"premix/internal/kit/exit"
	"premix/internal/kit/owner"
	"premix/internal/store"
	"premix/internal/store/server"
)

func (a *app) storeServe(s *storeFlags) *cobra.Command {
	var (
		o           server.ServerOptions
		reach       accessFlags
		log         string
		connections countFlag
		perAddress  countFlag
	)
	cmd := &cobra.Command{
		Use:   "serve --listen HOST:PORT",
		Short: "Serve a store over HTTP",
		Long: `Serve the store over HTTP, or over HTTPS with --tls-cert and --tls-key, until SIGTERM
or SIGINT; started answers are finished. Any other web server can serve a store as well.

  premix store serve --store /srv/store --listen 127.0.0.1:8400`,
		Args: arguments(),
		RunE: func(*cobra.Command, []string) (err error) {
			dir, err := s.directory()
			if err != nil {
				return err
			}
			// Serve only a directory that is a store.
			if _, err := store.Open(dir, store.Options{}); err != nil {
				return err
			}
			if (o.CertFile == "") != (o.KeyFile == "") {
				return &usageError{errors.New("--tls-cert and --tls-key belong together"), "give both, or none"}
			}
			var h server.Options
			if h.Tokens, err = reach.read(); err != nil {
				return err
			}
			switch log {
			case "":
			case "-":
				h.Access = a.stdout
			default:
				err := owner.CheckPlanted(log)
				var f *os.File
				if err == nil {
					f, err = os.OpenFile(log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640)
				}
				if err != nil {
					return &usageError{err, "name a file that can be written"}
				}
				defer func() { err = errors.Join(err, f.Close()) }()
				h.Access = f
			}
			handler, err := server.NewHandler(dir, h)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, handler.Close()) }()
			o.Listen, o.Open, o.Hosts = reach.listen, reach.open, reach.hosts
			o.Connections, o.PerAddress, o.Errors = int(connections), int(perAddress), stdlog.New(a.stderr, "", stdlog.LstdFlags)
			server, err := server.Listen(handler, o)
			if err != nil {
				if exit.Of(err) != exit.Internal {
					return err
				}
				return &usageError{err, "check the files of the certificate and the key"}
			}
			address := server.Addr()
			if !strings.HasPrefix(address, access.UnixPrefix) {
				address = "http://" + address
				if o.CertFile != "" {
					address = "https://" + server.Addr()
				}
			}
			fmt.Fprintf(a.notes(), "serving %s at %s, up to %d connections\n", dir, address, server.Limit())
			if at := server.MetricsAddr(); strings.HasPrefix(at, access.UnixPrefix) {
				fmt.Fprintf(a.notes(), "metrics at %s\n", at)
			} else if at != "" {
				fmt.Fprintf(a.notes(), "metrics at http://%s/metrics\n", at)
			}
			ctx, done := storeContext()
			defer done()
			return server.Serve(ctx)
		},
	}
	f := cmd.Flags()
	reach.register(f, "127.0.0.1:8400", "file of tokens, one on each line: requests must have one")
	f.StringVar(&o.CertFile, "tls-cert", "", "certificate, with its chain (PEM)")
	f.StringVar(&o.KeyFile, "tls-key", "", "private key of --tls-cert (PEM)")
	f.StringVar(&log, "access-log", "", "append a JSON line for each request to this file, - for standard output")
	f.StringVar(&o.Metrics, "metrics", "", "address for Prometheus' /metrics, or same: the address of the store")
	f.Var(&connections, "connections", "most connections (default: as many as the limit of open files allows)")
	f.Var(&perAddress, "connections-per-address", "most connections of one client address (default: half of them)")
	return cmd
}
