package main

import (
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"premix/internal/blast/database"
	"premix/internal/engine/queue"
	"premix/internal/hotstart"
	"premix/internal/hotstart/tools"
	"premix/internal/image"
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
	name := strings.TrimPrefix(cmd.CommandPath(), "premix ")
	if values, ok := argumentValues[name]; ok && cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = completeArguments(values, slices.Contains(dirFirst, name))
	}
	for _, sub := range cmd.Commands() {
		completeValues(sub)
	}
}

// argumentValues are the functions that list the values of the arguments of commands. dir is
// the value of --store or --snapshots, and args are the arguments before. A value that
// cannot be listed is not completed.
var argumentValues = map[string]func(dir string, args []string) []string{
	"snapshot inspect": snapshotIDs, "snapshot verify": snapshotIDs, "snapshot rm": snapshotIDs,
	"image rm": imageNames, "store rm": treeNames,
	"task why": taskNumbers, "task tail": taskNumbers, "task cancel": taskNumbers, "task retry": taskNumbers,
	"blast db rm": databaseNames, "blast db verify": databaseNames, "blast warm": databaseNames, "blast evict": databaseNames,
	"shim": toolNames,
}

// dirFirst are the commands whose first argument is a directory.
var dirFirst = []string{"task why", "task tail", "task cancel", "task retry"}

// completeArguments returns the completion of arguments by values.
func completeArguments(values func(string, []string) []string, dirFirst bool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
		if dirFirst && len(args) == 0 {
			return nil, cobra.ShellCompDirectiveFilterDirs
		}
		dir := ""
		for _, name := range []string{"snapshots", "store"} {
			if f := cmd.Flags().Lookup(name); f != nil && f.Value.String() != "" {
				dir = f.Value.String()
				break
			}
		}
		var fit []string
		for _, v := range values(dir, args) {
			if strings.HasPrefix(v, begin) && !slices.Contains(args, v) && len(fit) < mostCompletions {
				fit = append(fit, v)
			}
		}
		return fit, cobra.ShellCompDirectiveNoFileComp
	}
}

// mostCompletions is the number of values that a shell is given at once.
const mostCompletions = 200

func snapshotIDs(dir string, _ []string) (ids []string) {
	dir, err := openStore(dir)
	if err != nil {
		return nil
	}
	list, err := hotstart.List(dir)
	if err != nil {
		return nil
	}
	for _, s := range list {
		ids = append(ids, s.ID)
	}
	return ids
}

func imageNames(dir string, _ []string) (names []string) {
	s, err := (&storeFlags{dir: dir}).open()
	if err != nil {
		return nil
	}
	list, err := image.List(s)
	if err != nil {
		return nil
	}
	for _, l := range list {
		names = append(names, l.Ref.String())
	}
	return names
}

func treeNames(dir string, _ []string) (names []string) {
	s, err := (&storeFlags{dir: dir}).open()
	if err != nil {
		return nil
	}
	refs, err := s.Tags()
	if err != nil {
		return nil
	}
	for _, r := range refs {
		names = append(names, r.String())
	}
	return names
}

func taskNumbers(_ string, args []string) (numbers []string) {
	q, err := queue.Open(args[0], version, false)
	if err != nil {
		return nil
	}
	defer q.Close()
	total := 0
	for _, n := range q.Counts() {
		total += n
	}
	for n := 1; n <= total; n++ {
		numbers = append(numbers, strconv.Itoa(n))
	}
	return numbers
}

func databaseNames(string, []string) []string {
	home, err := database.Home()
	if err != nil {
		return nil
	}
	names, err := database.List(home)
	if err != nil {
		return nil
	}
	return names
}

func toolNames(string, []string) []string { return tools.Names() }
