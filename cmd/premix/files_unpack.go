package main

import (
	"github.com/spf13/cobra"

	"premix/internal/files/packdir"
)

func (a *app) filesUnpack() *cobra.Command {
	return &cobra.Command{
		Use:   "unpack DIR",
		Short: "Unpack a packed directory",
		Long: `Copy the tree that is mounted at DIR beside it, compare, and put the copy in its place.
The tree stays in the store. The command may be interrupted at any moment; the same
command continues.`,
		Args: arguments("DIR"),
		RunE: func(_ *cobra.Command, args []string) error {
			ctx, done := storeContext()
			defer done()
			return packdir.Unpack(ctx, args[0])
		},
	}
}
