package manual

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// program returns a small command tree with everything that the pages must escape.
func program() *cobra.Command {
	root := &cobra.Command{Use: "tool", Short: "Do things"}
	root.PersistentFlags().Bool("json", false, "print JSON")
	verb := &cobra.Command{Use: "copy SRC|- [DST]", Short: "Copy a file", Long: `Copy SRC to DST,
'quoted' and with a \ in it.
.hidden files too, and a_b_c.

  tool copy a *b*

  tool copy - <in

The end.`, Run: func(*cobra.Command, []string) {}}
	verb.Flags().StringP("output", "o", "", "`file` to write | or not")
	verb.Flags().Int("tries", 3, "number of tries")
	verb.Flags().Bool("secret", false, "for tool alone")
	verb.Flags().Lookup("secret").Hidden = true
	sub := &cobra.Command{Use: "all", Short: "Copy all", Run: func(*cobra.Command, []string) {}}
	hidden := &cobra.Command{Use: "inner", Short: "Copy inside", Hidden: true, Run: func(*cobra.Command, []string) {}}
	verb.AddCommand(sub, hidden)
	root.AddCommand(verb)
	return root
}

func TestMarkdown(t *testing.T) {
	root := program()
	const want = "<!-- Made by `make reference` from the command itself: change it there. -->\n\n" +
		"# tool copy\n\nCopy a file.\n\n```\ntool copy SRC|- [DST] [flags]\n```\n\n" +
		"Copy SRC to DST,\n'quoted' and with a \\\\ in it.\n.hidden files too, and a\\_b\\_c.\n\n" +
		"```\ntool copy a *b*\n\ntool copy - <in\n```\n\nThe end.\n\n" +
		"| flag | meaning |\n| --- | --- |\n| `-o, --output file` | file to write \\| or not |\n| `--tries int` | number of tries (default: 3) |\n\n" +
		"## tool copy all\n\nCopy all.\n\n```\ntool copy all\n```\n"
	if got := string(Markdown(root.Commands()[0])); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// man(1) shows the words of a page unchanged, and groff reports no warnings.
func TestMan(t *testing.T) {
	groff, err := exec.LookPath("groff")
	if err != nil {
		t.Skip("groff is missing: apt-get install groff-base")
	}
	cmd := exec.Command(groff, "-man", "-Tutf8", "-ww", "-P-cbou")
	cmd.Stdin = strings.NewReader(string(Man(program().Commands()[0])))
	var complaints strings.Builder
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil || complaints.Len() > 0 {
		t.Fatalf("groff: %v\n%s", err, &complaints)
	}
	for _, want := range []string{"tool-copy - Copy a file", "'quoted' and with a \\ in it", ".hidden files", "tool copy a *b*", "tool copy - <in", "-o, --output file", "tool-copy-all(1)", "(default: 3)", "--json"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the page has no %q:\n%s", want, out)
		}
	}
	for _, no := range []string{"secret", "inner"} {
		if strings.Contains(string(out), no) {
			t.Errorf("the page shows %s", no)
		}
	}
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	if err := Write(program(), dir); err != nil {
		t.Fatal(err)
	}
	var got []string
	if err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			name, _ := filepath.Rel(dir, path)
			got = append(got, name)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	const want = "cli/tool-copy.md completions/bash/tool completions/fish/tool.fish completions/zsh/_tool man/man1/tool-copy-all.1 man/man1/tool-copy.1 man/man1/tool.1"
	if strings.Join(got, " ") != want {
		t.Errorf("got %s\nwant %s", strings.Join(got, " "), want)
	}
}
