package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"premix/internal/hotstart"
)

// flagValues are the values of flags that have a fixed list of them, for completion. The
// flags check their values themselves.
var flagValues = map[string][]string{
	"start":   {string(hotstart.Auto), string(hotstart.Hot), string(hotstart.Cold)},
	"engine":  {engineLocal, "slurm", "kubernetes"},
	"backend": {"auto", "erofs", "fuse"},
	"pin":     {"core", "numa"},
	"verify":  {"all", "none"},
	"network": {"host", "none"},
}

// directoryFlags are flags whose value is a directory.
var directoryFlags = []string{"out", "store", "snapshots", "dir", "data", "have", "scratch"}

// completeValues makes shells complete the values of flags of cmd and all commands below it.
func completeValues(cmd *cobra.Command) {
	for _, set := range []*pflag.FlagSet{cmd.LocalNonPersistentFlags(), cmd.PersistentFlags()} {
		set.VisitAll(func(f *pflag.Flag) {
			// These fail only for a flag that does not exist.
			if values, ok := flagValues[f.Name]; ok {
				_ = cmd.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
			}
			for _, name := range directoryFlags {
				if f.Name == name {
					_ = set.SetAnnotation(name, cobra.BashCompSubdirsInDir, []string{})
				}
			}
		})
	}
	for _, sub := range cmd.Commands() {
		completeValues(sub)
	}
}
