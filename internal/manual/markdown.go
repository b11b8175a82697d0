package manual

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// Markdown returns the page of a verb: its own text, and all commands below it.
func Markdown(verb *cobra.Command) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "<!-- Made by `make reference` from the command itself: change it there. -->\n\n")
	for _, c := range visible(verb) {
		level := "##"
		if c == verb {
			level = "#"
		}
		fmt.Fprintf(&b, "%s %s\n\n%s.\n\n```\n%s\n```\n\n", level, c.CommandPath(), strings.TrimSuffix(c.Short, "."), c.UseLine())
		if c.Long != "" {
			markdownText(&b, c.Long)
		}
		if list := options(c.NonInheritedFlags()); len(list) > 0 {
			b.WriteString("| flag | meaning |\n| --- | --- |\n")
			for _, o := range list {
				fmt.Fprintf(&b, "| `%s` | %s |\n", o.spelled(), cell(o.described()))
			}
			b.WriteString("\n")
		}
	}
	return append(bytes.TrimRight(b.Bytes(), "\n"), '\n')
}

func markdownText(b *bytes.Buffer, text string) {
	for _, part := range blocks(text) {
		if part.example {
			fmt.Fprintf(b, "```\n%s\n```\n\n", strings.Join(part.lines, "\n"))
			continue
		}
		fmt.Fprintf(b, "%s\n\n", cell(strings.Join(part.lines, "\n")))
	}
}

// cell returns plain text in Markdown, in which signs of Markdown and HTML are themselves.
func cell(s string) string {
	return strings.NewReplacer(`\`, `\\`, "|", `\|`, "*", `\*`, "_", `\_`, "<", "&lt;", ">", "&gt;", "`", "\\`", "[", `\[`, "]", `\]`).Replace(s)
}
