package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"premix/internal/kit/problem"
)

// group makes cmd a command that needs a subcommand.
func group(cmd *cobra.Command) *cobra.Command {
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return &usageError{fmt.Errorf("%s needs a command", cmd.CommandPath()), "it is one of " + choices(cmd)}
		}
		return noCommand(cmd, args[0])
	}
	cmd.RunE = cmd.Args // never reached; without it cobra prints the help
	return cmd
}

// choices lists the subcommands of cmd.
func choices(cmd *cobra.Command) string {
	var names []string
	for _, c := range cmd.Commands() {
		if !c.Hidden {
			names = append(names, c.Name())
		}
	}
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}

// noCommand returns the error for an unknown subcommand word of cmd.
func noCommand(cmd *cobra.Command, word string) error {
	hint := cmd.CommandPath() + " --help lists them"
	if k := nearCommand(cmd, word); k != "" {
		hint = fmt.Sprintf("did you mean %s %s?", cmd.CommandPath(), k)
	}
	_, path, _ := strings.Cut(cmd.CommandPath()+" "+word, " ")
	return &usageError{fmt.Errorf("there is no command %q", path), hint}
}

// nearCommand returns the subcommand of cmd that the user most likely meant by word, or "".
func nearCommand(cmd *cobra.Command, word string) string {
	var known []string
	for _, c := range cmd.Commands() {
		if !c.Hidden {
			known = append(known, c.Name())
		}
	}
	return meant(word, known)
}

// renamed maps flags of earlier versions to their present names.
var renamed = map[string]string{
	"premix task run --max-retries":    "retries",
	"premix task submit --max-retries": "retries",
	"premix task submit --memory":      "task-memory",
	"premix task submit --cores":       "task-cores",
	"premix slurm-shim --jobs":         "cores",
	"premix slurm-shim --j":            "cores",
}

// wrongFlag adds a hint to an error about the flags of cmd.
func wrongFlag(cmd *cobra.Command, err error) error {
	// If the name of a command is misspelt, all its own flags are unknown.
	if words := cmd.Flags().Args(); cmd.HasSubCommands() && len(words) > 0 {
		if err := cmd.ValidateArgs(words); err != nil {
			return err
		}
	}
	hint := cmd.CommandPath() + " --help lists the flags"
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		word := unknown.GetSpecifiedName()
		if short := unknown.GetSpecifiedShortnames(); short != "" {
			word = short // -out is read as -o, -u and -t
		}
		var known []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				known = append(known, f.Name)
			}
		})
		if k := renamed[cmd.CommandPath()+" --"+word]; k != "" {
			hint = fmt.Sprintf("it is --%s now", k)
		} else if k := meant(word, known); k != "" && len(word) > 1 {
			hint = fmt.Sprintf("did you mean --%s?", k)
		}
	}
	return &usageError{err, hint}
}

// meant returns the word of known that the user most likely meant by word, or "": a word
// of similar spelling, or else a shorter or longer form, as in ls for list and --out for
// --output.
func meant(word string, known []string) string {
	if k := problem.Near(word, known); k != "" {
		return k
	}
	best, least := "", 0
	for _, k := range known {
		short, long := word, k
		if len(short) > len(long) {
			short, long = long, short
		}
		if len(short) > 1 && short[0] == long[0] && within(short, long) && (best == "" || len(long)-len(short) < least) {
			best, least = k, len(long)-len(short)
		}
	}
	return best
}

// within reports whether long contains the bytes of short in their order.
func within(short, long string) bool {
	for _, c := range []byte(short) {
		i := strings.IndexByte(long, c)
		if i < 0 {
			return false
		}
		long = long[i+1:]
	}
	return true
}
