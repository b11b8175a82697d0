package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"premix/docs"
)

func (a *app) helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND... | TOPIC]",
		Short: "Show a page of the documentation, or the help of a command",
		Long: `Show a page of the documentation, all of which are part of premix, or the help of a
command that has no page. premix help topics lists the pages; --help after any command
shows its own help.

  premix help recipe
  premix help store publish`,
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			var names []string
			for _, t := range docs.Topics() {
				names = append(names, t.Name+"\t"+t.Title)
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Root().Help()
			}
			if len(args) == 1 && args[0] == "topics" {
				return a.writeTopics()
			}
			if text, ok := docs.Page(args[0]); ok && len(args) == 1 {
				_, err := fmt.Fprint(a.stdout, text)
				return err
			}
			found, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 || found == cmd.Root() {
				return noTopic(cmd, args)
			}
			return found.Help()
		},
	}
}

func (a *app) writeTopics() error {
	list := docs.Topics()
	if a.json {
		return a.printJSON(list)
	}
	var b strings.Builder
	for _, t := range list {
		fmt.Fprintf(&b, "%-16s %s\n", t.Name, t.Title)
	}
	_, err := fmt.Fprint(a.stdout, b.String())
	return err
}

func noTopic(cmd *cobra.Command, args []string) error {
	names := []string{"topics"}
	for _, t := range docs.Topics() {
		names = append(names, t.Name)
	}
	for _, c := range cmd.Root().Commands() {
		if !c.Hidden {
			names = append(names, c.Name())
		}
	}
	hint := "premix help topics lists the pages, and premix --help the commands"
	if k := meant(args[0], names); k != "" {
		hint = fmt.Sprintf("did you mean premix help %s?", k)
	}
	return &usageError{fmt.Errorf("there is no command and no page %q", strings.Join(args, " ")), hint}
}
