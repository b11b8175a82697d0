package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"premix/internal/blast/database"
	"premix/internal/blast/part"
	"premix/internal/blast/search"
	"premix/internal/blast/service"
	"premix/internal/kit/access"
	"premix/internal/kit/bounded"
)

// blastConnections is the largest number of connections of a server. A quarter of them may
// come from one address.
const blastConnections = 4096

func (a *app) blastServe() *cobra.Command {
	var (
		reach          accessFlags
		dir, cert, key string
		trusted        []string
		delay, keep    = durationFlag(100 * time.Millisecond), durationFlag(24 * time.Hour)
		timeout        = durationFlag(time.Hour)
		scans          = countFlag(2)
		threads        countFlag
		limits         = service.DefaultLimits()
		c              clusterFlags
		room, share    = memoryFlag(limits.Bytes), memoryFlag(limits.UserBytes)
	)
	cmd := &cobra.Command{
		Use:   "serve --listen HOST:PORT",
		Short: "Answer searches of many users over HTTP",
		Long: `Answer searches of many users. Searches of the same database, with the same program and
options, share one scan; each user gets the output of BLAST+ for this search alone.
Accepted searches are answered, also after a kill and a new start.

There is a page at /, a REST interface (described in /openapi.json), NCBI's BLAST URL
API at /Blast.cgi, and metrics for Prometheus at /metrics.

With --nodes the fragments are searched on the nodes of premix blast cluster that hold
them.

  premix blast serve --listen 127.0.0.1:8080
  NCBIWWW.qblast("blastn", "nt", text, url_base="http://127.0.0.1:8080/Blast.cgi")`,
		Args: arguments(),
		RunE: func(*cobra.Command, []string) error {
			home, err := database.Home()
			if err != nil {
				return err
			}
			if (cert == "") != (key == "") {
				return &usageError{errors.New("--tls-cert and --tls-key belong together"), "give both"}
			}
			proxies, err := access.ParseProxies(trusted)
			if err != nil {
				return &usageError{fmt.Errorf("--trusted-proxy: %w", err), "give the address from which the proxy connects"}
			}
			if dir == "" {
				dir = filepath.Join(filepath.Dir(home), "blast-service")
			}
			limits.Bytes, limits.UserBytes = int64(room), int64(share)
			logger := slog.New(slog.NewTextHandler(a.stderr, nil))
			programs := &service.Programs{Threads: int(threads)}
			if c.given() {
				h, err := c.head(func(text string) { logger.Warn(text) })
				if err != nil {
					return err
				}
				defer h.Close()
				programs.Remote = func(db *database.Database, dir string) part.Remote {
					return h.Remote(search.Parts{}, db, dir)
				}
			}
			o := service.Options{
				Dir: dir, Home: home, Version: version, Searcher: programs, Delay: time.Duration(delay), Keep: time.Duration(keep),
				Scans: int(scans), Timeout: time.Duration(timeout), Limits: limits, Proxies: proxies, Log: logger,
			}
			if o.Tokens, err = reach.read(); err != nil {
				return err
			}
			if o.Tokens != nil {
				if err := o.Tokens.Named(reach.tokens); err != nil {
					return secretError(err)
				}
			}
			ctx, done := storeContext()
			defer done()
			l, err := access.Listen(ctx, reach.options(o.Tokens))
			if err != nil {
				return err
			}
			defer l.Close()
			// Each search that waits has files.
			few := bounded.New(l, bounded.Options{Total: min(blastConnections, bounded.Descriptors()), Stall: time.Minute})
			s, err := service.New(o)
			if err != nil {
				return err
			}
			fmt.Fprintf(a.stdout, "listening on %s\n", l.Name())
			server := &http.Server{Handler: l.Protect(s.Handler()), ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10, ConnState: bounded.TrackState(nil)}
			served := make(chan error, 1)
			go func() {
				if cert != "" {
					served <- server.ServeTLS(few, cert, key)
				} else {
					served <- server.Serve(few)
				}
			}()
			ran := make(chan error, 1)
			go func() { ran <- s.Run(ctx) }()
			select {
			case <-ctx.Done():
				err = nil
			case err = <-served:
				done() // no client can connect any more
			}
			// A client that waits for a result will ask again.
			return errors.Join(err, server.Close(), <-ran)
		},
	}
	f := cmd.Flags()
	reach.register(f, "127.0.0.1:8080", "file with a user and a token on each line: only these users may search")
	f.StringVar(&reach.tokens, "tokens", "", "the same as --token-file") // its earlier name
	if err := f.MarkHidden("tokens"); err != nil {
		panic(err) // the flag of the line above exists
	}
	c.register(f)
	f.StringArrayVar(&trusted, "trusted-proxy", nil, "address or network of a proxy whose X-Forwarded-For names the client, or unix; may be repeated")
	f.StringVar(&dir, "dir", "", "directory of the jobs (default: blast-service beside the databases)")
	f.StringVar(&cert, "tls-cert", "", "file of the certificate for HTTPS")
	f.StringVar(&key, "tls-key", "", "file of its key")
	f.Var(&delay, "delay", "time that a search waits for others; up to 1s more while others arrive (default 0.1s)")
	f.Var(&keep, "keep", "how long results are kept (default 1d)")
	f.Var(&timeout, "timeout", "longest time of a scan (default 1h)")
	f.Var(&scans, "scans", "simultaneous scans; the last one is for small searches (default 2)")
	f.Var(&threads, "threads", "threads of a scan (default: as many as cores)")
	f.Int64Var(&limits.Letters, "max-letters", limits.Letters, "most letters of queries in a search")
	f.Int64Var(&limits.Queries, "max-queries", limits.Queries, "most queries in a search")
	f.IntVar(&limits.Waiting, "max-waiting", limits.Waiting, "most searches that wait")
	f.IntVar(&limits.UserWaiting, "max-user-waiting", limits.UserWaiting, "most searches of one user that wait")
	f.IntVar(&limits.Kept, "max-kept", limits.Kept, "most searches whose results are kept: the oldest are removed first")
	f.Var(&room, "max-bytes", "most bytes of results on disk: the oldest are removed first, results that were read before others (default 10 GiB)")
	f.Var(&share, "max-user-bytes", "most bytes of results of one user, and of one result (default 2 GiB)")
	return cmd
}
