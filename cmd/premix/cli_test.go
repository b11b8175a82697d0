package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Flags with the same name have the same meaning in all commands.
func TestFlagsMeanOneThing(t *testing.T) {
	meanings := map[string]struct {
		kind  string         // type of the value
		usage *regexp.Regexp // of the description
	}{
		"out":       {"string", regexp.MustCompile(`directory|destination`)},
		"output":    {"file", regexp.MustCompile(`file|table|trace`)},
		"store":     {"string", regexp.MustCompile(`store|directory of snapshots`)},
		"snapshots": {"string", regexp.MustCompile(`directory of snapshots`)},
		"json":      {"bool", regexp.MustCompile(`JSON`)},
		"quiet":     {"bool", regexp.MustCompile(`print no notes`)},
		"verbose":   {"bool", regexp.MustCompile(`settings of the command`)},
		"force":     {"bool", regexp.MustCompile(`.`)},
	}
	seen := map[string]int{}
	commands((&app{}).root(nil), func(name string, cmd *cobra.Command) {
		for _, global := range []string{"json", "quiet", "verbose"} {
			if f := cmd.InheritedFlags().Lookup(global); f == nil && !cmd.DisableFlagParsing {
				t.Errorf("%s has no --%s, or one of its own", name, global)
			}
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Shorthand == "o" && f.Name != "output" {
				t.Errorf("%s -o is --%s, want --output", name, f.Name)
			}
			if f.Name == "origin" && !strings.Contains(f.Usage, "origin") && !strings.Contains(f.Usage, "store") {
				t.Errorf("%s --origin %q is not an origin", name, f.Usage)
			}
			m, ok := meanings[f.Name]
			// The flag --output of task prune selects the output of tasks; it does not write a
			// file.
			if !ok || f.Hidden || name == "task prune" && f.Name == "output" {
				return
			}
			seen[f.Name]++
			if strings.TrimSuffix(f.Value.Type(), "Array") != m.kind || !m.usage.MatchString(f.Usage) {
				t.Errorf("%s --%s is a %s, %q; want a %s that matches %q", name, f.Name, f.Value.Type(), f.Usage, m.kind, m.usage)
			}
		})
	})
	for _, name := range []string{"out", "output", "store", "snapshots"} {
		if seen[name] < 2 {
			t.Errorf("only %d commands have --%s", seen[name], name)
		}
	}
}
