package manual

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Write writes the reference of root and all its visible commands below dir.
func Write(root *cobra.Command, dir string) error {
	for _, c := range visible(root) {
		if err := put(filepath.Join(dir, "man", "man1", strings.ReplaceAll(c.CommandPath(), " ", "-")+".1"), func(w io.Writer) error {
			_, err := w.Write(Man(c))
			return err
		}); err != nil {
			return err
		}
	}
	for _, verb := range root.Commands() {
		if !shown(verb) {
			continue
		}
		if err := put(filepath.Join(dir, "cli", root.Name()+"-"+verb.Name()+".md"), func(w io.Writer) error {
			_, err := w.Write(Markdown(verb))
			return err
		}); err != nil {
			return err
		}
	}
	name := root.Name()
	return errors.Join(
		put(filepath.Join(dir, "completions", "bash", name), func(w io.Writer) error { return root.GenBashCompletionV2(w, true) }),
		put(filepath.Join(dir, "completions", "zsh", "_"+name), root.GenZshCompletion),
		put(filepath.Join(dir, "completions", "fish", name+".fish"), func(w io.Writer) error { return root.GenFishCompletion(w, true) }),
	)
}

// put writes one file, and makes the directories above it.
func put(path string, write func(io.Writer) error) error {
	var content bytes.Buffer
	if err := write(&content); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	return os.WriteFile(path, content.Bytes(), 0o666)
}

// shown reports whether users see c in the help.
func shown(c *cobra.Command) bool {
	return !c.Hidden && c.Deprecated == "" && c.Name() != "help" && c.Name() != "completion"
}

// visible returns c and all commands below it that users see, each before its own.
func visible(c *cobra.Command) []*cobra.Command {
	list := []*cobra.Command{c}
	for _, sub := range c.Commands() {
		if shown(sub) {
			list = append(list, visible(sub)...)
		}
	}
	return list
}

// block is a paragraph, or an example if it is indented.
type block struct {
	lines   []string
	example bool
}

// blocks divides the text of a command.
func blocks(text string) []block {
	var list []block
	var now block
	end := func() {
		for len(now.lines) > 0 && now.lines[len(now.lines)-1] == "" {
			now.lines = now.lines[:len(now.lines)-1]
		}
		if len(now.lines) > 0 {
			list = append(list, now)
		}
		now = block{}
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \n")
		example := strings.HasPrefix(line, " ") || strings.HasPrefix(line, "\t")
		switch {
		case line == "" && now.example:
			now.lines = append(now.lines, "") // an example may have empty lines
			continue
		case line == "":
			end()
			continue
		case len(now.lines) > 0 && example != now.example:
			end()
		}
		now.example = example
		now.lines = append(now.lines, line)
	}
	end()
	for i, b := range list {
		if b.example {
			list[i].lines = withoutIndent(b.lines)
		}
	}
	return list
}

// withoutIndent removes the indent that all lines have.
func withoutIndent(lines []string) []string {
	least := -1
	for _, line := range lines {
		if n := len(line) - len(strings.TrimLeft(line, " \t")); line != "" && (least < 0 || n < least) {
			least = n
		}
	}
	out := make([]string, len(lines))
	for i, line := range lines {
		if line != "" {
			out[i] = line[least:]
		}
	}
	return out
}

// text returns the description of a command.
func text(c *cobra.Command) string {
	if c.Long != "" {
		return c.Long
	}
	return c.Short + "."
}

// option is a flag as the reference shows it.
type option struct {
	short, name, value, usage, standard string
}

// options returns the visible flags of a set, in the order of their names.
func options(set *pflag.FlagSet) []option {
	var list []option
	set.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Deprecated != "" || f.Name == "help" {
			return
		}
		value, usage := pflag.UnquoteUsage(f)
		o := option{name: "--" + f.Name, value: value, usage: usage}
		if f.Shorthand != "" {
			o.short = "-" + f.Shorthand
		}
		switch f.DefValue {
		case "", "false", "0", "[]", "0s":
		default:
			if !strings.Contains(usage, "(default") {
				o.standard = f.DefValue
			}
		}
		list = append(list, o)
	})
	return list
}

// spelled returns the option as it is typed.
func (o option) spelled() string {
	s := o.name
	if o.short != "" {
		s = o.short + ", " + s
	}
	if o.value != "" {
		s += " " + o.value
	}
	return s
}

// described returns the usage with the default.
func (o option) described() string {
	if o.standard == "" {
		return o.usage
	}
	return fmt.Sprintf("%s (default: %s)", o.usage, o.standard)
}
