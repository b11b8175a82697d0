package manual

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// Man returns the manual page of one command.
func Man(c *cobra.Command) []byte {
	var b bytes.Buffer
	name := strings.ReplaceAll(c.CommandPath(), " ", "-")
	fmt.Fprintf(&b, ".\\\" Made by make dist from the command itself.\n.TH %s 1 \"\" premix \"premix manual\"\n", strings.ToUpper(roff(name)))
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(name), roff(c.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n", roff(c.UseLine()))
	b.WriteString(".SH DESCRIPTION\n")
	for _, part := range blocks(text(c)) {
		if part.example {
			b.WriteString(".PP\n.EX\n")
			for _, line := range part.lines {
				fmt.Fprintf(&b, "%s\n", roff("  "+line))
			}
			b.WriteString(".EE\n")
			continue
		}
		b.WriteString(".PP\n")
		for _, line := range part.lines {
			fmt.Fprintf(&b, "%s\n", roff(line))
		}
	}
	var commands []*cobra.Command
	for _, sub := range c.Commands() {
		if shown(sub) {
			commands = append(commands, sub)
		}
	}
	if len(commands) > 0 {
		b.WriteString(".SH COMMANDS\n")
		for _, sub := range commands {
			fmt.Fprintf(&b, ".TP\n.BR %s (1)\n%s\n", roff(strings.ReplaceAll(sub.CommandPath(), " ", "-")), roff(sub.Short))
		}
	}
	if list := append(options(c.NonInheritedFlags()), options(c.InheritedFlags())...); len(list) > 0 {
		b.WriteString(".SH OPTIONS\n")
		for _, o := range list {
			fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roff(o.spelled()), roff(o.described()))
		}
	}
	b.WriteString(".SH EXIT STATUS\n0 is success. ")
	b.WriteString(roff("premix help exit-codes lists all others."))
	b.WriteString("\n.SH SEE ALSO\n")
	if c.HasParent() {
		fmt.Fprintf(&b, ".BR %s (1),\n", roff(strings.ReplaceAll(c.Parent().CommandPath(), " ", "-")))
	}
	b.WriteString(roff("premix help topics") + "\n")
	return b.Bytes()
}

// roff returns one line of plain text as groff(7) reads it.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`, "`", `\(ga`, "'", `\(aq`, "~", `\(ti`, "^", `\(ha`).Replace(s)
	if strings.HasPrefix(s, ".") {
		s = `\&` + s
	}
	return s
}
