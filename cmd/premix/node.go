package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"premix/internal/blast/database"
	"premix/internal/kit/access"
	"premix/internal/kit/units"
	"premix/internal/node"
)

func (a *app) nodeCommand() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "node",
		Short: "Run the daemon that holds mounts and their cache",
	})
	cmd.AddCommand(a.nodeStart(), a.nodeStop(), a.nodeRestart(), a.nodeStatus(), a.nodeMetrics())
	return cmd
}

func (a *app) nodeStart() *cobra.Command {
	var foreground bool
	var metrics node.Config
	var rate string
	cmd := &cobra.Command{
		Use:   "start",
		Short: "Start the node, and restore the mounts of a dead one",
		Long: `Start the node, and restore the mounts of a node that was killed. This is optional:
premix mount does it if no node is running.`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, done := storeContext()
			defer done()
			c, err := node.ReadConfig()
			if err != nil {
				return err
			}
			given := cmd.Flags().Changed
			if given("metrics-listen") {
				c.MetricsListen = metrics.MetricsListen
				if path, ok := strings.CutPrefix(c.MetricsListen, access.UnixPrefix); ok {
					if path, err = filepath.Abs(path); err != nil {
						return err
					}
					c.MetricsListen = access.UnixPrefix + path
				}
			}
			if given("metrics-token-file") {
				if c.MetricsTokens, err = filepath.Abs(metrics.MetricsTokens); err != nil {
					return err
				}
			}
			if given("metrics-open") {
				c.MetricsOpen = metrics.MetricsOpen
			}
			if given("metrics-host") {
				c.MetricsHosts = metrics.MetricsHosts
			}
			if given("neighbours") {
				c.Neighbours = metrics.Neighbours
			}
			if given("neighbours-listen") {
				c.NeighboursListen = metrics.NeighboursListen
			}
			if given("neighbours-token-file") {
				if c.NeighboursToken, err = filepath.Abs(metrics.NeighboursToken); err != nil {
					return err
				}
			}
			if given("neighbours-rate") {
				if c.NeighboursRate, err = units.ParseSize(rate); err != nil {
					return &usageError{fmt.Errorf("--neighbours-rate: %w", err), units.SizeHint}
				}
			}
			if foreground {
				if c.BlastWarm {
					go a.warmAgain(ctx)
				}
				return node.Foreground(c, a.stderr)
			}
			client, started, err := node.Start(ctx, c)
			if err != nil {
				return err
			}
			if started && c.BlastWarm {
				a.warmAgain(ctx)
			}
			s, err := client.Status(ctx)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(s)
			}
			word := "is running already"
			if started {
				word = "runs"
			}
			_, err = fmt.Fprintf(a.stdout, "the node %s: process %d, %d mounts\n", word, s.Supervisor, len(s.Mounts))
			return err
		},
	}
	cmd.Flags().BoolVar(&foreground, "foreground", false, "stay in the foreground and log to standard error")
	f := cmd.Flags()
	f.StringVar(&metrics.MetricsListen, "metrics-listen", "", "serve metrics for Prometheus at HOST:PORT or unix:PATH")
	f.StringVar(&metrics.MetricsTokens, "metrics-token-file", "", "file of tokens, one on each line: Prometheus must send one")
	f.BoolVar(&metrics.MetricsOpen, "metrics-open", false, "give metrics to all clients that can reach the address")
	f.StringVar(&metrics.Neighbours, "neighbours", "", "ask these nodes for objects before the origins: HOST:PORT,HOST:PORT or dns:NAME:PORT")
	f.StringVar(&metrics.NeighboursListen, "neighbours-listen", "", "give objects to neighbours at HOST:PORT")
	f.StringVar(&metrics.NeighboursToken, "neighbours-token-file", "", "file with the token of the site, the same on all nodes")
	f.StringVar(&rate, "neighbours-rate", "", "most bytes for neighbours in a second, as in 500M (default: no limit)")
	f.StringArrayVar(&metrics.MetricsHosts, "metrics-host", nil, "further host name of the address, besides localhost; may be repeated")
	return cmd
}

// warmAgain loads the BLAST databases that were in memory before a reboot. The node works
// without them too, so it only prints an error.
func (a *app) warmAgain(ctx context.Context) {
	home, err := database.Home()
	var list []database.WarmResult
	if err == nil {
		list, err = database.WarmAll(ctx, home, 0)
	}
	if err != nil {
		a.tell(err)
	}
	for _, w := range list {
		if w.Err != nil {
			a.tell(w.Err)
		} else if !a.json {
			fmt.Fprintf(a.notes(), "BLAST database %s: %s in memory\n", w.Name, units.Size(w.Resident.InMemory))
		}
	}
}

func (a *app) nodeStop() *cobra.Command {
	var lazy bool
	cmd := &cobra.Command{
		Use:   "stop",
		Short: "Unmount everything and end the node",
		Args:  arguments(),
		RunE: func(*cobra.Command, []string) error {
			ctx, done := storeContext()
			defer done()
			was, err := node.Stop(ctx, lazy)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(map[string]bool{"stopped": was})
			}
			if !was {
				_, err = fmt.Fprintln(a.stdout, "no node is running")
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&lazy, "lazy", false, "detach mounts that are in use, too: their processes get errors from then on")
	return cmd
}

func (a *app) nodeRestart() *cobra.Command {
	return &cobra.Command{
		Use:   "restart",
		Short: "Replace the process of the node, and keep the mounts",
		Long: `Replace the process that serves the mounts by one of this binary, as after an
upgrade. Mounts stay, and readers wait for some milliseconds.`,
		Args: arguments(),
		RunE: func(*cobra.Command, []string) error {
			ctx, done := storeContext()
			defer done()
			exe, err := os.Executable()
			if err != nil {
				return err
			}
			s, err := node.NewClient(node.Dir()).Restart(ctx, node.RestartRequest{Exe: exe})
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(s)
			}
			_, err = fmt.Fprintf(a.stdout, "premix %s continues with %d mounts\n", s.Premix, len(s.Mounts))
			return err
		},
	}
}

func (a *app) nodeStatus() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the state of the node, its mounts and their origins",
		Args:  arguments(),
		RunE: func(*cobra.Command, []string) error {
			ctx, done := storeContext()
			defer done()
			s, err := node.NewClient(node.Dir()).Status(ctx)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(s)
			}
			_, err = a.stdout.Write([]byte(statusText(s)))
			return err
		},
	}
}

func (a *app) nodeMetrics() *cobra.Command {
	return &cobra.Command{
		Use:   "metrics",
		Short: "Print the metrics in Prometheus' text format",
		Args:  arguments(),
		RunE: func(*cobra.Command, []string) error {
			ctx, done := storeContext()
			defer done()
			text, err := node.NewClient(node.Dir()).Metrics(ctx)
			if err != nil {
				return err
			}
			_, err = a.stdout.Write(text)
			return err
		},
	}
}

// statusText is a status for people: a line for the node, a block for each mount.
func statusText(s *node.Status) string {
	var b strings.Builder
	fmt.Fprintf(&b, "node: premix %s, processes %d and %d, since %s\n", s.Premix, s.Supervisor, s.Worker, s.Since.Local().Format(time.DateTime))
	fmt.Fprintf(&b, "cache: %s\n", s.Cache)
	if s.Deaths > 0 {
		fmt.Fprintf(&b, "its worker died %d times recently, see %s/log\n", s.Deaths, s.Dir)
	}
	for _, m := range s.Mounts {
		fmt.Fprintf(&b, "\n%s on %s\n", m.Ref, m.Dir)
		w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		line := func(name, format string, args ...any) {
			fmt.Fprintf(w, "  %s\t%s\n", name, fmt.Sprintf(format, args...))
		}
		switch {
		case !m.Repository:
			line("tree", "%s", m.Tree)
		case m.Tree.IsZero():
			line("revision", "%d", m.Revision)
		default:
			line("revision", "%d, does not follow", m.Revision)
		}
		if m.Error != "" {
			line("state", "%s: %s", m.State, m.Error)
		} else {
			line("state", "%s", m.State)
		}
		if m.Reason != "" {
			line("backend", "%s, since %s", m.Backend, m.Reason)
		} else {
			line("backend", "%s", m.Backend)
		}
		if !m.Repository {
			line("here", "%s of %s, %s fetched", units.Size(m.Present), units.Size(m.Total), units.Size(m.Fetched))
			line("reads", "%d, %.1f %% without waiting, %d errors", m.Hits+m.Misses, 100*m.HitRatio, m.Errors)
		}
		line("profile", "%s", m.Profile)
		if m.Record != "" {
			line("records", "%s", m.Record)
		}
		if m.Corrupt > 0 {
			line("damage", "%d chunks were wrong on disk", m.Corrupt)
		}
		if m.NotKept > 0 {
			line("no room", "for %d chunks in the cache", m.NotKept)
		}
		for i, f := range m.Slowest {
			if i == 3 {
				break
			}
			line("slow", "chunk %d took %.3f s at %s", f.Chunk, f.Seconds, f.At.Local().Format(time.TimeOnly))
		}
		if m.LastError != "" {
			line("last error", "%s", m.LastError)
		}
		for _, o := range m.Origins {
			line("origin", "%s: %s, %d requests, %s, %d errors", o.URL, o.State, o.Requests, units.Size(o.Bytes), o.Errors)
		}
		w.Flush()
	}
	return b.String()
}
