package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"premix/store"
	"premix/store/serve"
)

func (a *app) storeServe(s *storeFlags) *cobra.Command {
	var (
		o              serve.ServerOptions
		tokens, access string
		connections    countFlag
	)
	cmd := &cobra.Command{
		Use:   "serve --listen HOST:PORT",
		Short: "Serve a store over HTTP",
		Long: `Serve the store over HTTP, or over HTTPS with --tls-cert and --tls-key, until SIGTERM
or SIGINT; answers that have begun are finished. Any other web server will do as well.

  premix store serve --store /srv/store --listen 127.0.0.1:8400`,
		Args: arguments(),
		RunE: func(*cobra.Command, []string) (err error) {
			dir, err := s.directory()
			if err != nil {
				return err
			}
			// It is a store, and will have no other place.
			if _, err := store.Open(dir, store.Options{}); err != nil {
				return err
			}
			if (o.CertFile == "") != (o.KeyFile == "") {
				return &usageError{errors.New("--tls-cert and --tls-key go together"), "give both, or none"}
			}
			var h serve.Options
			if tokens != "" {
				if h.Tokens, err = readTokens(tokens); err != nil {
					return err
				}
			}
			switch access {
			case "":
			case "-":
				h.Access = a.stdout
			default:
				f, err := os.OpenFile(access, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640)
				if err != nil {
					return &usageError{err, "name a file that can be written"}
				}
				defer func() { err = errors.Join(err, f.Close()) }()
				h.Access = f
			}
			handler, err := serve.NewHandler(dir, h)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, handler.Close()) }()
			o.Connections, o.Errors = int(connections), log.New(a.stderr, "", log.LstdFlags)
			server, err := serve.Listen(handler, o)
			if err != nil {
				return &usageError{err, "see that the address is free and of this machine, and the certificate's files are right"}
			}
			scheme := "http"
			if o.CertFile != "" {
				scheme = "https"
			}
			fmt.Fprintf(a.stderr, "serving %s at %s://%s, up to %d connections\n", dir, scheme, server.Addr(), server.Limit())
			if at := server.MetricsAddr(); at != nil {
				fmt.Fprintf(a.stderr, "metrics at http://%s/metrics\n", at)
			}
			ctx, done := storeContext()
			defer done()
			return server.Serve(ctx)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Listen, "listen", "127.0.0.1:8400", "address to listen at")
	f.StringVar(&o.CertFile, "tls-cert", "", "certificate, with its chain (PEM)")
	f.StringVar(&o.KeyFile, "tls-key", "", "private key of --tls-cert (PEM)")
	f.StringVar(&tokens, "token-file", "", "file of tokens, one a line: only who bears one is served")
	f.StringVar(&access, "access-log", "", "append a JSON line for each request to this file, - for standard output")
	f.StringVar(&o.Metrics, "metrics", "", "address for Prometheus' /metrics, or same: where the store is")
	f.Var(&connections, "connections", "connections at once (default: what the limit of open files allows)")
	return cmd
}

// readTokens reads a file of tokens, which nobody but its owner may read.
func readTokens(path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fileError(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if st.Mode().Perm()&0o077 != 0 {
		return nil, &usageError{fmt.Errorf("%s: others may read it (mode %04o)", path, st.Mode().Perm()), "chmod 600 " + path}
	}
	var b bytes.Buffer
	if _, err := io.Copy(&b, io.LimitReader(f, 1<<20)); err != nil {
		return nil, err
	}
	tokens := strings.Fields(b.String())
	if len(tokens) == 0 {
		return nil, &usageError{fmt.Errorf("%s: there is no token in it", path), "write one a line, as from head -c 24 /dev/urandom | base64"}
	}
	return tokens, nil
}
