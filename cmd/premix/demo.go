package main

import (
	"github.com/spf13/cobra"

	"premix/internal/demo"
)

func (a *app) demoCommand() *cobra.Command {
	o := demo.Options{}
	tool := string(demo.BuiltIn)
	cmd := &cobra.Command{
		Use:   "demo [--out DIR]",
		Short: "Show a hot start on this machine, in less than a minute",
		Long: `Make a reference of 400 Mb and 12 samples, run an aligner over them cold and hot with
premix run, compare the outputs byte for byte, and show the times. It needs no root, no
network and no other program: the aligner is a part of premix.

  premix demo
  premix demo --tool minimap2

The directory has everything to do it again by hand: a recipe, a sample sheet and the
commands.`,
		Args: arguments(),
		RunE: func(*cobra.Command, []string) error {
			ctx, _ := interruptible()
			o.Tool = demo.Tool(tool)
			if !a.json {
				o.Messages = a.notes()
			}
			result, err := demo.Run(ctx, o)
			if result == nil {
				return err
			}
			if a.json {
				if perr := a.printJSON(result); err == nil {
					err = perr
				}
				return err
			}
			if perr := result.Write(a.stdout); err == nil {
				err = perr
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Out, "out", "premix-demo", "directory for the reference, the samples and the outputs")
	f.StringVar(&tool, "tool", tool, "aligner: built-in, or minimap2 if it is on PATH (1 GB of disk)")
	return cmd
}
