package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"premix/internal/hotstart/dropin"
)

func (a *app) hotCommand() *cobra.Command {
	var why, noted bool
	var exe, script string
	var waited time.Duration
	cmd := &cobra.Command{
		Use:   "hot [flags] -- COMMAND...",
		Short: "Run a command in place, with a hot start if possible",
		Long: `Run a command unchanged: in this directory, with these streams, arguments and
environment. It starts hot if a snapshot fits it, and plainly otherwise. Its output, its
files and its exit status are the same.

  premix hot -- bwa mem -t 4 ref/genome.fa a_1.fq a_2.fq

The first call of a command is recorded, and a snapshot is prepared beside a later one.
With --why nothing is run: premix prints the roles of all words and the kind of start.

premix shim makes a directory for PATH, with which pipelines call tools in this way.`,
		DisableFlagsInUseLine: true,
		Args:                  commandAfterDashes,
		RunE: func(_ *cobra.Command, args []string) error {
			c, err := dropin.NewCall(exe, args)
			if err != nil {
				return err
			}
			if !why {
				return dropin.Run(c, noted, waited, script)
			}
			x, err := dropin.Why(c)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(x)
			}
			return writeExplanation(a.stdout, x)
		},
	}
	cmd.Flags().BoolVar(&why, "why", false, "print the kind of start and the roles of the words, and run nothing")
	cmd.Flags().StringVar(&exe, "exe", "", "program of the command")
	cmd.Flags().BoolVar(&noted, "noted", false, "the call has been noted")
	cmd.Flags().StringVar(&script, "script", "", "key of the form of the script that makes the call")
	cmd.Flags().DurationVar(&waited, "waited", 0, "time for which the shim has waited")
	hide(cmd, "exe", "noted", "script", "waited")
	cmd.AddCommand(a.hotStatusCommand(), a.hotWarmCommand())
	return cmd
}

// hide hides flags that only premix uses from the help.
func hide(cmd *cobra.Command, names ...string) {
	for _, name := range names {
		cmd.Flags().Lookup(name).Hidden = true
	}
}

// commandAfterDashes requires a command after --.
func commandAfterDashes(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0 || args[0] == "":
		return &usageError{errors.New("COMMAND is missing"), "usage: " + cmd.UseLine()}
	case cmd.ArgsLenAtDash() == 0:
		return nil
	case cmd.ArgsLenAtDash() < 0 && nearCommand(cmd, args[0]) != "":
		return noCommand(cmd, args[0])
	}
	return &usageError{fmt.Errorf("%q is not after --", args[0]), "put -- before the command: " + cmd.CommandPath() + " -- " + strings.Join(args, " ")}
}

func writeExplanation(w io.Writer, x *dropin.Explanation) error {
	described := "described by " + x.Described
	if x.Described == "" {
		described = "not in the catalogue"
	}
	fmt.Fprintf(w, "%s is %s, %s\n\n", x.Tool, x.Exe, described)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, word := range x.Words {
		fmt.Fprintf(t, "%s\t%s\n", word.Text, word.Role)
	}
	for _, name := range x.LateEnv {
		fmt.Fprintf(t, "$%s\tlate variable\n", name)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if x.Snapshot != "" {
		_, err := fmt.Fprintf(w, "\nhot, from snapshot %s: it saves about %.2f s\n", x.Snapshot, x.Saves)
		return err
	}
	_, err := fmt.Fprintf(w, "\ncold: %s\n", x.Reason)
	return err
}
