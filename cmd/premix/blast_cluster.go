package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"premix/internal/blast/cluster"
	"premix/internal/kit/access"
	"premix/internal/kit/hostlist"
)

func (a *app) blastCluster() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "cluster",
		Short: "Keep the fragments of databases in the memory of many nodes",
		Long: `Keep the fragments of BLAST databases in the memory of many nodes, each fragment on some of
them, and search each where it is. No node has to hold a whole database.

  premix blast cluster key cluster.key                          # the same file for all machines
  premix blast cluster node --key cluster.key --listen n1:7733 --origin URL   # on each node
  premix blast cluster warm nt --key cluster.key --nodes 'n[1-4]' --replicas 2
  premix blast blastn --key cluster.key --nodes 'n[1-4]' -db nt -query q.fa`,
	})
	cmd.AddCommand(a.blastClusterKey(), a.blastClusterNode(), a.blastClusterWarm(), a.blastClusterLs(), a.blastClusterEvict())
	return cmd
}

// clusterPort is the port of a node, where an address has none.
const clusterPort = "7733"

// mostNodes is the largest number of nodes of a cluster.
const mostNodes = 10_000

// clusterFlags name the nodes of a cluster, and the key that they share.
type clusterFlags struct {
	nodes, key string
}

func (c *clusterFlags) register(f *pflag.FlagSet) {
	f.StringVar(&c.nodes, "nodes", "", "nodes as HOST[:PORT], with commas and ranges as in n[1-4]; or a file with one on each line; or the directory of --announce (default: $PREMIX_BLAST_NODES)")
	f.StringVar(&c.key, "key", "", "file with the key of the cluster (default: $PREMIX_BLAST_KEY)")
}

// given reports whether nodes are named.
func (c *clusterFlags) given() bool { return c.nodes != "" || os.Getenv("PREMIX_BLAST_NODES") != "" }

// head returns the head of the cluster.
func (c *clusterFlags) head(note func(string)) (*cluster.Head, error) {
	nodes, err := c.list()
	if err != nil {
		return nil, err
	}
	token, err := c.token()
	if err != nil {
		return nil, err
	}
	return cluster.NewHead(nodes, token, note)
}

// token reads the key of the cluster.
func (c *clusterFlags) token() (string, error) {
	if c.key == "" {
		c.key = os.Getenv("PREMIX_BLAST_KEY")
	}
	if c.key == "" {
		return "", &usageError{errors.New("the key of the cluster is missing"), "name its file with --key, or in PREMIX_BLAST_KEY; premix blast cluster key FILE makes one"}
	}
	token, err := access.ReadToken(c.key)
	if err != nil {
		return "", fileError(err)
	}
	return token, nil
}

// list returns the addresses of the nodes.
func (c *clusterFlags) list() ([]string, error) {
	if c.nodes == "" {
		c.nodes = os.Getenv("PREMIX_BLAST_NODES")
	}
	if c.nodes == "" {
		return nil, &usageError{errors.New("no node is named"), "name the nodes with --nodes, or in PREMIX_BLAST_NODES"}
	}
	var names []string
	st, err := os.Stat(c.nodes)
	switch {
	case err == nil && st.IsDir():
		files, err := filepath.Glob(filepath.Join(c.nodes, "*"+announced))
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			names = append(names, strings.TrimSpace(string(text)))
		}
		if len(names) == 0 {
			return nil, &usageError{fmt.Errorf("no node has announced itself in %s", c.nodes), "start nodes: premix blast cluster node --announce " + c.nodes}
		}
	case err == nil:
		text, err := os.ReadFile(c.nodes)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(text)) {
			line, _, _ = strings.Cut(line, "#")
			if line = strings.TrimSpace(line); line != "" {
				names = append(names, line)
			}
		}
	default:
		names = []string{c.nodes}
	}
	var list []string
	for _, name := range names {
		expanded, err := hostlist.Expand(name, mostNodes)
		if err != nil {
			return nil, &usageError{err, "write HOST:PORT, n[1-4] or the path of a file"}
		}
		for _, host := range expanded {
			if _, _, err := net.SplitHostPort(host); err != nil {
				host = net.JoinHostPort(host, clusterPort)
			}
			if !slices.Contains(list, host) {
				list = append(list, host)
			}
		}
	}
	if len(list) == 0 {
		return nil, &usageError{fmt.Errorf("%s names no node", c.nodes), "write HOST:PORT, n[1-4] or the path of a file"}
	}
	return list, nil
}

func (a *app) blastClusterKey() *cobra.Command {
	return &cobra.Command{
		Use:   "key FILE",
		Short: "Make the key that the machines of a cluster share",
		Long: `Make a file with a new key. All nodes of a cluster, and the machines that search with them,
have the same file, which only its owner can read. The key protects their connections by
TLS in both directions, and is never sent.`,
		Args: arguments("FILE"),
		RunE: func(_ *cobra.Command, args []string) error {
			if _, err := os.Lstat(args[0]); err == nil {
				return &usageError{fmt.Errorf("%s exists", args[0]), "name a new file, or use this one"}
			}
			if _, err := access.MakeToken(args[0]); err != nil {
				return &usageError{err, "name a file that can be written"}
			}
			return nil
		},
	}
}
