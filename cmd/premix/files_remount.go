package main

import (
	"errors"

	"github.com/spf13/cobra"

	"premix/internal/files/packdir"
)

func (a *app) filesRemount() *cobra.Command {
	return &cobra.Command{
		Use:   "remount DIR...",
		Short: "Mount packed directories again, as after a reboot",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return &usageError{errors.New("DIR is missing"), "usage: " + cmd.UseLine()}
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			ctx, done := storeContext()
			defer done()
			for _, dir := range args {
				if err := packdir.Remount(ctx, dir); err != nil {
					return err
				}
			}
			return nil
		},
	}
}
