package main

import (
	"github.com/spf13/cobra"
)

func (a *app) blastClusterEvict() *cobra.Command {
	var c clusterFlags
	cmd := &cobra.Command{
		Use:   "evict NAME... --nodes NODES",
		Short: "Take databases out of the memory of the nodes",
		Long: `Take databases out of the memory of the nodes, after the searches that use them there have
ended. A node that does not answer keeps its fragments: run the command again when it is
back.`,
		Args: someArguments("NAME"),
		RunE: func(_ *cobra.Command, args []string) error {
			h, err := c.head(a.noted)
			if err != nil {
				return err
			}
			defer h.Close()
			ctx, done := storeContext()
			defer done()
			for _, name := range args {
				if err := h.Remove(ctx, name); err != nil {
					return err
				}
			}
			return nil
		},
	}
	c.register(cmd.Flags())
	return cmd
}
