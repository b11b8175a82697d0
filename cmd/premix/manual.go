package main

import (
	"github.com/spf13/cobra"

	"premix/internal/manual"
)

// manualCommand is for packages of premix, and for its documentation.
func (a *app) manualCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "manual DIR",
		Short:  "Write manual pages, pages of the reference and completions",
		Hidden: true,
		Args:   arguments("DIR"),
		RunE: func(_ *cobra.Command, args []string) error {
			return manual.Write(a.root(nil), args[0])
		},
	}
}
