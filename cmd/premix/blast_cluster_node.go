package main

import (
	"context"
	"fmt"
	stdlog "log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"premix/internal/blast/cluster"
	"premix/internal/blast/database"
	"premix/internal/kit/access"
	"premix/internal/kit/beneath"
	"premix/internal/store/object"
	"premix/internal/store/origin"
)

// announced is the ending of the files of --announce.
const announced = ".node"

func (a *app) blastClusterNode() *cobra.Command {
	var (
		c                     clusterFlags
		reach                 reachFlags
		origins               []string
		listen, at, directory string
		memory                memoryFlag
		cores                 countFlag
		drop                  bool
	)
	cmd := &cobra.Command{
		Use:   "node --key FILE --origin URL...",
		Short: "Hold fragments of databases in this machine's memory and search them",
		Long: `Hold the fragments that premix blast cluster warm gives to this node in memory, on a tmpfs
(PREMIX_BLAST_RAM, or a directory of yours in /dev/shm), and search them for machines that
have the key of the cluster. Fragments come from the origins, verified, and from nowhere
else. After a restart the node finds the fragments that are still in memory, and loads the
others again.

The node needs no privilege. Its programs are BLAST+ and DIAMOND, with options that select
results. With --announce it writes its address into a directory that the other machines
see, so that a batch system may choose the nodes:

  srun premix blast cluster node --key KEY --origin URL --listen :0 --announce /shared/nodes --drop`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			token, err := c.token()
			if err != nil {
				return err
			}
			home, err := database.Home()
			if err != nil {
				return err
			}
			// Machines may share the home of a user.
			host, err := os.Hostname()
			if err != nil {
				return err
			}
			options, err := reach.options()
			if err != nil {
				return err
			}
			if len(origins) == 0 {
				return &usageError{fmt.Errorf("there is no origin"), "name the store of the databases with --origin"}
			}
			group, err := origin.OpenAll(origins, options)
			if err != nil {
				return err
			}
			log := stdlog.New(a.stderr, "", stdlog.LstdFlags)
			// A batch system may send the signal more than once. Further ones do not
			// interrupt the end.
			ctx, done := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
			defer done()
			var failed error
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			err = cluster.Run(ctx, cluster.Options{
				Address: listen, Token: token, State: filepath.Join(filepath.Dir(home), "blast-node", host), RAM: database.RAM(home) + "-node",
				Memory: int64(memory), Cores: int(cores), Version: version, Drop: drop, Programs: parts(),
				Object: func(ctx context.Context, d object.Digest, size int64) ([]byte, error) {
					return group.Verified(ctx, d, size)
				},
				Log: func(text string) { log.Print(text) },
				Ready: func(address string) {
					if at == "" {
						at = reachable(address)
					}
					fmt.Fprintf(a.notes(), "node %s is ready\n", at)
					if directory == "" {
						return
					}
					if failed = beneath.Replace(announcement(directory, at), 0o644, beneath.Volatile, []byte(at+"\n")); failed != nil {
						cancel()
					}
				},
			})
			if directory != "" && failed == nil {
				_ = os.Remove(announcement(directory, at)) // heads leave out a node that does not answer
			}
			if failed != nil {
				return &usageError{failed, "name a directory with --announce that exists and can be written"}
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.key, "key", "", "file with the key of the cluster (default: $PREMIX_BLAST_KEY)")
	f.StringVar(&listen, "listen", ":"+clusterPort, "address, HOST:PORT or :PORT; port 0 is a free one")
	f.StringVar(&at, "advertise", "", "address under which other machines reach this node (default: from --listen and the host's name)")
	f.StringVar(&directory, "announce", "", "directory for a file with the address, which --nodes reads")
	f.Var(&memory, "memory", "memory for fragments, as in 64G (default: the available memory, less a tenth of all)")
	f.Var(&cores, "cores", "cores for searches (default: all)")
	f.BoolVar(&drop, "drop", false, "remove the fragments from memory at the end")
	f.StringArrayVar(&origins, "origin", nil, "origin of the databases: http(s)://, oci://HOST/REPOSITORY or a directory; several are tried in order")
	reach.register(cmd)
	return cmd
}

// reachable returns the address for other machines: one that listens on all addresses is
// reached by the name of its host.
func reachable(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil || strings.HasPrefix(address, access.UnixPrefix) {
		return address
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		if name, err := os.Hostname(); err == nil {
			return net.JoinHostPort(name, port)
		}
	}
	return address
}

func announcement(dir, address string) string {
	return filepath.Join(dir, strings.NewReplacer(":", "_", "/", "_", "[", "", "]", "").Replace(address)+announced)
}
