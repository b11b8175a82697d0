package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"premix/internal/hotstart/dropin"
)

func (a *app) shimCommand() *cobra.Command {
	var opt dropin.ShimOptions
	cmd := &cobra.Command{
		Use:   "shim TOOL...",
		Short: "Make a directory for PATH with which pipelines start tools hot",
		Long: `Make a directory with one link per tool, and print it. With this directory first on PATH,
a pipeline calls tools as before, and they start hot if possible.

  PATH="$(premix shim bwa minimap2):$PATH" nextflow run main.nf

For a tool that starts plainly, the link costs about two milliseconds. With
PREMIX_HOT=off every tool starts plainly.

With --container the directory is for tools in images: it also has premix, a file env.sh
for BASH_ENV, and links for tools that this machine does not have. Bind it into containers
at the same path.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && !opt.All {
				return &usageError{errors.New("TOOL is missing"), "name tools, or make links for all installed tools of the catalogue: premix shim --all"}
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			bin, err := dropin.MakeShims(args, opt)
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
	cmd.Flags().StringVar(&opt.Dir, "dir", "", "directory of the links (default: shims in premix's directory of this user)")
	cmd.Flags().BoolVar(&opt.All, "all", false, "all tools of the catalogue that are on PATH")
	cmd.Flags().BoolVar(&opt.Container, "container", false, "for tools in images: with --all, the whole catalogue")
	return cmd
}
