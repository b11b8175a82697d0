package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"premix/internal/kit/exit"
	"premix/internal/kit/units"
	"premix/internal/node"
)

func (a *app) cacheCommand() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "cache",
		Short: "Show and manage the cached trees of this node",
	})
	cmd.AddCommand(a.cacheStatus(), a.cacheDrop(), a.cachePin(), a.cacheUnpin(), a.cacheCheck())
	return cmd
}

// startedNode returns a client of this user's node: the cache needs a running node.
func startedNode(ctx context.Context) (*node.Client, error) {
	c, err := node.ReadConfig()
	if err != nil {
		return nil, err
	}
	client, _, err := node.Start(ctx, c)
	return client, err
}

func (a *app) cacheStatus() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "List the trees in the cache, and their sizes",
		Args:  arguments(),
		RunE: func(*cobra.Command, []string) error {
			ctx, done := storeContext()
			defer done()
			client, err := startedNode(ctx)
			if err != nil {
				return err
			}
			s, err := client.Cache(ctx)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(s)
			}
			quota := "no quota"
			if s.Quota > 0 {
				quota = "a quota of " + units.Size(s.Quota)
			}
			fmt.Fprintf(a.stdout, "%s: %s used, %s, %s free on its partition\n", s.Dir, units.Size(s.Used), quota, units.Size(s.Free))
			if s.RAMDir != "" {
				fmt.Fprintf(a.stdout, "%s: %s used in memory\n", s.RAMDir, units.Size(s.RAMUsed))
			}
			if s.Objects.Count > 0 {
				fmt.Fprintf(a.stdout, "%d objects of CVMFS repositories: %s\n", s.Objects.Count, units.Size(s.Objects.Used))
			}
			if len(s.Trees) == 0 {
				return nil
			}
			w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "TREE\tHERE\tOF\tON DISK\tPINNED\tMOUNTED AS")
			for _, t := range s.Trees {
				pinned, refs := t.Pinned, strings.Join(s.Refs[t.Digest.String()], ", ")
				if pinned == "" {
					pinned = "-"
				}
				if refs == "" {
					refs = "-"
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", t.Digest.Short(), units.Size(t.PresentBytes), units.Size(t.Size), units.Size(t.Used+t.RAMUsed), pinned, refs)
			}
			return w.Flush()
		},
	}
}

// cacheChange returns the command of a verb that changes trees of the cache.
func (a *app) cacheChange(verb, short, long, past string, do func(*node.Client, context.Context, node.TreeRequest) (*node.CacheChange, error)) (*cobra.Command, *node.TreeRequest) {
	var r node.TreeRequest
	cmd := &cobra.Command{
		Use:   verb + " TREE | --all",
		Short: short,
		Long:  long,
		Args: func(cmd *cobra.Command, args []string) error {
			if r.All {
				return arguments()(cmd, args)
			}
			return arguments("TREE")(cmd, args)
		},
		RunE: func(_ *cobra.Command, args []string) error {
			ctx, done := storeContext()
			defer done()
			if !r.All {
				r.Tree = args[0]
				if r.Tree == "" {
					return &usageError{errors.New("TREE is empty"), "premix cache status lists trees"}
				}
			}
			client, err := startedNode(ctx)
			if err != nil {
				return err
			}
			c, err := do(client, ctx, r)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(c)
			}
			for _, t := range c.Trees {
				fmt.Fprintf(a.stdout, "%s %s\n", past, t.Short())
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&r.All, "all", false, "all trees in the cache")
	return cmd, &r
}

func (a *app) cacheDrop() *cobra.Command {
	cmd, _ := a.cacheChange("drop", "Remove a tree from the cache", `Remove a tree from the cache. A mounted tree continues to work: reads fetch its content
again. With --all, the cached objects of CVMFS repositories are removed too, but those in
use.`, "dropped", (*node.Client).Drop)
	return cmd
}

func (a *app) cachePin() *cobra.Command {
	cmd, r := a.cacheChange("pin", "Keep a tree in the cache", `Protect a tree from eviction: its parts that are in the cache, and those that arrive later.
With --ram the whole tree is fetched into memory, and stays there.`, "pinned", (*node.Client).Pin)
	cmd.Flags().BoolVar(&r.RAM, "ram", false, "fetch the whole tree, and keep it in memory")
	return cmd
}

func (a *app) cacheUnpin() *cobra.Command {
	cmd, _ := a.cacheChange("unpin", "Allow the eviction of a tree again", "", "unpinned", (*node.Client).Unpin)
	return cmd
}

func (a *app) cacheCheck() *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "Verify the cache, and remove wrong parts",
		Long: `Hash the whole content of the cache, and remove wrong parts: they are fetched again when
they are read. Exits with 1 if a part was wrong.`,
		Args: arguments(),
		RunE: func(*cobra.Command, []string) error {
			ctx, done := storeContext()
			defer done()
			client, err := startedNode(ctx)
			if err != nil {
				return err
			}
			r, err := client.Check(ctx)
			if err != nil {
				return err
			}
			if a.json {
				err = a.printJSON(r)
			} else {
				for _, w := range r.Wrong {
					fmt.Fprintf(a.stdout, "%s: %s was wrong\n", w.Tree.Short(), w.What)
				}
				_, err = fmt.Fprintf(a.stdout, "%d trees, %s in %d chunks: %d wrong\n", r.Trees, units.Size(r.Bytes), r.Chunks, len(r.Wrong))
			}
			if err == nil && len(r.Wrong) > 0 {
				err = exit.Errorf(exit.Failed, "they were removed, and are fetched again when they are read; check the disk", "%d parts of the cache were damaged", len(r.Wrong))
			}
			return err
		},
	}
}
