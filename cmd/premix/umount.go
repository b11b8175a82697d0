package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"premix/internal/node"
)

func (a *app) umountCommand() *cobra.Command {
	var all, lazy bool
	cmd := &cobra.Command{
		Use:   "umount DIR | --all",
		Short: "Unmount a tree",
		Long: `Unmount a tree. A mount in use stays, and the processes that use it are listed. With
--lazy it is detached, and these processes can continue to read.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if all {
				return arguments()(cmd, args)
			}
			return arguments("DIR")(cmd, args)
		},
		RunE: func(_ *cobra.Command, args []string) error {
			ctx, done := storeContext()
			defer done()
			dir := ""
			if !all {
				dir = args[0]
				if dir == "" {
					return &usageError{errors.New("DIR is empty"), "premix umount --all unmounts everything"}
				}
			}
			list, err := node.Umount(ctx, dir, lazy)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(list)
			}
			for _, m := range list {
				if all {
					fmt.Fprintf(a.stdout, "unmounted %s\n", m.Dir)
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "unmount all trees")
	cmd.Flags().BoolVar(&lazy, "lazy", false, "detach the mount even if processes use it")
	return cmd
}
