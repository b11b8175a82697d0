package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"premix/internal/record"
)

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  arguments(),
		RunE: func(*cobra.Command, []string) error {
			if a.json {
				return a.printJSON(map[string]any{
					"version": version, "go": runtime.Version(),
					"system": runtime.GOOS, "machine": runtime.GOARCH, "format": record.Format,
				})
			}
			_, err := fmt.Fprintln(a.stdout, "premix", longVersion())
			return err
		},
	}
}

// longVersion returns the version, the toolchain that built premix and the machine.
func longVersion() string {
	return fmt.Sprintf("%s (%s, %s/%s)", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
