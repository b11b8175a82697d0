package main

import (
	"github.com/spf13/cobra"

	"premix/internal/kit/outputs"
)

// outputValue is a flag that names a file which the command writes.
type outputValue struct{ path *string }

func (v outputValue) Set(s string) error { *v.path = s; return nil }
func (v outputValue) String() string     { return *v.path }
func (v outputValue) Type() string       { return "file" }

// outputFlag adds a flag for a file that the command writes. It replaces a file of another
// kind only with --force.
func outputFlag(cmd *cobra.Command, path *string, name, short string, kind outputs.Kind, usage string) {
	cmd.Flags().VarP(outputValue{path}, name, short, usage)
	outputNames(cmd, func([]string) []string { return []string{*path} }, kind)
}

// outputNames makes the command check, before it starts, whether it may replace the files
// that it will write. Every command that writes files named by the user calls it.
func outputNames(cmd *cobra.Command, names func(args []string) []string, kind outputs.Kind) {
	if cmd.Flags().Lookup("force") == nil {
		cmd.Flags().Bool("force", false, "replace files that premix did not write, too")
	}
	before := cmd.PreRunE
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		if before != nil {
			if err := before(cmd, args); err != nil {
				return err
			}
		}
		if force, err := cmd.Flags().GetBool("force"); err != nil || force {
			return err
		}
		for _, path := range names(args) {
			if err := outputs.Check(path, kind); err != nil {
				return &usageError{err, outputHint(err)}
			}
		}
		return nil
	}
}

func outputHint(err error) string {
	if taken, ok := err.(*outputs.TakenError); ok {
		return taken.Hint()
	}
	return "give a file that you may write"
}
