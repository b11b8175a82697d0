package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"premix/hotstart/dropin"
)

func (a *app) shimCommand() *cobra.Command {
	var dir string
	var all bool
	cmd := &cobra.Command{
		Use:   "shim TOOL...",
		Short: "Make a directory for PATH with which pipelines start tools hot",
		Long: `Make a directory with one link a tool, and print it. With this directory first on PATH,
a pipeline calls tools as before, and they start hot where that is possible.

  PATH="$(premix shim bwa minimap2):$PATH" nextflow run main.nf

Where a tool starts plainly, its link costs about two milliseconds. With PREMIX_HOT=off
every tool starts plainly.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && !all {
				return &usageError{errors.New("TOOL is missing"), "name tools, or take those of the catalogue that are installed: premix shim --all"}
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			bin, err := dropin.MakeShims(dir, args, all)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(map[string]string{"dir": bin})
			}
			_, err = fmt.Fprintln(a.stdout, bin)
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "directory of the links (default: shims in premix's directory of this user)")
	cmd.Flags().BoolVar(&all, "all", false, "all tools of the catalogue that are on PATH")
	return cmd
}
