package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// block is a code block of a page.
type block struct {
	line       int // of its first line in the page
	kind, text string
}

// first returns the first line of a block.
func (b block) first() string {
	line, _, _ := strings.Cut(b.text, "\n")
	return line
}

// blocksIn returns the code blocks of a page. A block may be in a list.
func blocksIn(text string) (list []block) {
	within, indent := false, ""
	for i, line := range strings.Split(text, "\n") {
		bare := strings.TrimLeft(line, " ")
		switch {
		case !within && strings.HasPrefix(bare, "```"):
			within, indent = true, line[:len(line)-len(bare)]
			list = append(list, block{line: i + 2, kind: strings.TrimPrefix(bare, "```")})
		case within && strings.HasPrefix(bare, "```"):
			within = false
		case within:
			list[len(list)-1].text += strings.TrimPrefix(line, indent) + "\n"
		}
	}
	return list
}

// documents returns the pages that users read, by their path from the root of the repository.
func documents(t *testing.T) map[string]string {
	t.Helper()
	pages := map[string]string{}
	for _, pattern := range []string{"README.md", "docs/*.md", "docs/tutorials/*.md", "docs/how-to/*.md"} {
		list, err := filepath.Glob(filepath.Join("../..", pattern))
		if err != nil || len(list) == 0 {
			t.Fatalf("%s: %d pages, %v", pattern, len(list), err)
		}
		for _, path := range list {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			name, err := filepath.Rel("../..", path)
			if err != nil {
				t.Fatal(err)
			}
			pages[name] = string(text)
		}
	}
	return pages
}

// notRun gives the reason why TestBlocks skips a block, by the page and the first line of the
// block.
var notRun = map[string]string{
	"README.md: premix demo":                          "docs/tutorials/pipelines.md has the same block",
	"README.md: make demo":                            "builds from source; scripts/chroots.sh does it in empty root directories",
	"docs/install.md: make              # bin/premix": "builds from source, and installs packages; scripts/chroots.sh does it in empty root directories",

	"docs/tutorials/pipelines.md: process align {":                                    "Nextflow's language; the tests of examples run a process in Nextflow",
	"docs/tutorials/pipelines.md: rule align:":                                        "Snakemake's language; the tests of examples run rules in Snakemake",
	"docs/tutorials/cluster.md: seq 100000 | sed 's/.*/true &/' | premix task run --": "needs a cluster of Slurm; the tests of the engine run tasks on a real one",

	"docs/overview.md: $ cat bwa.yaml":                                     "a session with its output; docs/how-to/run-samples.md has the same steps",
	"docs/overview.md: pipe: samtools addreplacerg":                        "a line of a recipe; the tests of examples/yeast-variants run such a recipe",
	"docs/overview.md: export PATH=\"$(premix shim --all):$PATH\"":         "needs a workflow of Nextflow; docs/how-to/keep-a-pipeline.md has the same steps",
	"docs/overview.md: premix run bwa.yaml samples.csv --out out --engine": "needs a cluster of Slurm; the tests of the engine run tasks on a real one",
	"docs/overview.md: with premix.Queue(\"out\") as queue:":               "a part of a program; dist/python/tests run the programs of docs/python.md",
	"docs/overview.md: PATH=\"$(premix slurm-shim --dir shim):$PATH\"":     "needs a workflow of Nextflow; the tests of examples run one through the shim",
	"docs/overview.md: premix store init /srv/store":                       "writes to /srv, and mounts on /mnt; docs/how-to/share-a-directory.md has the same steps",
	"docs/overview.md: premix transfer bench link.yaml":                    "needs a second machine; TestTransferBench makes one",
	"docs/overview.md: premix files scan /project":                         "needs a file system at /project and two disks; docs/how-to/find-large-files.md scans",
	"docs/overview.md: premix replay NASA-iPSC-1993-3.1-cln.swf":           "needs traces from the network; docs/how-to/compare-schedulers.md replays one",
	"docs/overview.md: process align {":                                    "Nextflow's language; the tests of examples run a process in Nextflow",
	"docs/overview.md: rule align:":                                        "Snakemake's language; the tests of examples run rules in Snakemake",
}

// preludes holds shell commands that make the files that the blocks of a page expect.
var preludes = map[string]string{
	"docs/install.md": `fpath=(. completions); mkdir -p completions ~/.config/fish/completions`,
	"docs/overview.md": `awk 'BEGIN { srand(1); for (n = 1; n <= 50; n++) { print ">seq" n; s = ""; for (j = 0; j < 600; j++) s = s substr("ACGT", int(rand() * 4) + 1, 1); print s } }' >nt.fa
head -n 2 nt.fa >q.fa`,
	"docs/tutorials/blast-server.md": `awk 'BEGIN { srand(1); for (n = 1; n <= 50; n++) { print ">seq" n; s = ""; for (j = 0; j < 600; j++) s = s substr("ACGT", int(rand() * 4) + 1, 1); print s } }' >nt.fa
premix blast db add nt.fa --name nt --type nucl
premix blast warm nt`,
}

// servers maps commands that run until they are stopped to an address that answers as soon as they
// serve. They run in the background.
var servers = map[string]string{
	"premix blast serve": "http://127.0.0.1:8080/",
	"premix watch":       "http://127.0.0.1:8090/",
}

// needsOfPages lists requirements in the form of the comments of how-tos.
var needsOfPages = map[string]string{
	"docs/overview.md":               "root blastn makeblastdb curl",
	"docs/tutorials/blast-server.md": "root blastn makeblastdb curl biopython",
}

// TestBlocks runs the blocks of the pages that users read first. All blocks of a page run in one
// shell, in an empty directory. A table gives the reason for each block that cannot run here.
func TestBlocks(t *testing.T) {
	done := map[string]bool{}
	for name, text := range documents(t) {
		if !strings.HasPrefix(name, "docs/tutorials/") && !slices.Contains([]string{"README.md", "docs/install.md", "docs/overview.md"}, name) {
			continue
		}
		var script strings.Builder
		for _, b := range blocksIn(text) {
			if at := reasonFor(name, b); at != "" {
				done[at] = true
				continue
			}
			if b.kind != "" && b.kind != "sh" && b.kind != "python" {
				t.Errorf("%s:%d: a block of %s: give the reason for which it is not run", name, b.line, b.kind)
				continue
			}
			fmt.Fprintf(&script, "echo '== line %d'\n", b.line)
			if b.kind == "python" {
				fmt.Fprintf(&script, "python3 - <<'END'\ntext = open('nt.fa').readline() + open('nt.fa').readlines()[1]\n%sEND\n", b.text)
				continue
			}
			script.WriteString(inBackground(b.text))
		}
		if script.Len() == 0 {
			continue
		}
		t.Run(strings.ReplaceAll(strings.TrimSuffix(name, ".md"), "/", "-"), func(t *testing.T) {
			t.Parallel()
			for _, need := range strings.Fields(needsOfPages[name]) {
				if lack := lacking(need); lack != "" {
					t.Skip(lack)
				}
			}
			var in []string
			if needsOfPages[name] != "" {
				in = []string{"unshare", "--net"} // other programs may use its ports here
			}
			setUp := "export PYTHONPATH=" + biopython() + "\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n" + preludes[name] + "\n"
			if in != nil {
				setUp = "ip link set lo up\n" + setUp
			}
			doHowTo(t, setUp+script.String(), in...)
		})
	}
	for at := range notRun {
		if !done[at] {
			t.Errorf("there is no block %q", at)
		}
	}
}

// reasonFor returns the key in notRun for a block, or "".
func reasonFor(page string, b block) string {
	for at := range notRun {
		if first, ok := strings.CutPrefix(at, page+": "); ok && strings.HasPrefix(b.first(), first) {
			return at
		}
	}
	return ""
}

// inBackground starts the servers of a block in the background and waits until they answer.
func inBackground(text string) string {
	var script strings.Builder
	for line := range strings.Lines(text) {
		for server, url := range servers {
			if strings.HasPrefix(line, server) {
				line, _, _ = strings.Cut(strings.TrimSuffix(line, "\n"), "  #")
				line += fmt.Sprintf(" &\nfor i in $(seq 300); do ! curl -fsS -o /dev/null %s 2>/dev/null || break; sleep 0.1; done\ncurl -fsS -o /dev/null %[1]s\n", url)
			}
		}
		script.WriteString(line)
	}
	return script.String()
}

// TestDocumentedCommands parses each premix command in the code of the pages. Its verb and flags
// must exist, and the values of the flags must have the right types.
func TestDocumentedCommands(t *testing.T) {
	checked := 0
	for name, text := range documents(t) {
		check := func(line int, code string) {
			for _, words := range premixCommands(code) {
				checked++
				if err := parses(words); err != nil {
					t.Errorf("%s:%d: premix %s: %v", name, line, strings.Join(words, " "), err)
				}
			}
		}
		for _, b := range blocksIn(text) {
			for i, line := range strings.Split(strings.ReplaceAll(b.text, "\\\n", " "), "\n") {
				check(b.line+i, line)
			}
		}
		for i, line := range strings.Split(text, "\n") {
			for _, m := range inlineCode.FindAllStringSubmatch(line, -1) {
				check(i+1, m[1])
			}
		}
	}
	if checked < 400 {
		t.Errorf("only %d commands were checked", checked)
	}
}

var (
	inlineCode   = regexp.MustCompile("`([^`]+)`")
	substitution = regexp.MustCompile(`\$\(([^()]*)\)`)
	optionalPart = regexp.MustCompile(`\[([^\[\]]*)\]`)
	assignment   = regexp.MustCompile(`^(\w+=.*|sudo|exec|\$)$`)
	placeholder  = regexp.MustCompile(`^[A-Z][A-Z0-9_/]*$`)
)

// premixCommands returns the arguments of the premix commands in a line of shell.
func premixCommands(line string) (list [][]string) {
	for _, m := range substitution.FindAllStringSubmatch(line, -1) {
		list = append(list, premixCommands(m[1])...)
	}
	line = substitution.ReplaceAllString(line, "X")
	line = optionalPart.ReplaceAllString(line, " $1 ")
	for _, words := range commandsIn(line) {
		for len(words) > 0 && assignment.MatchString(words[0]) {
			words = words[1:]
		}
		if len(words) > 1 && words[0] == "premix" {
			list = append(list, words[1:])
		}
	}
	return list
}

// commandsIn splits a line of shell into commands, and each command into words. It drops
// redirections and comments.
func commandsIn(line string) (list [][]string) {
	var words []string
	var word strings.Builder
	has, redirected := false, false
	endWord := func() {
		if has && !redirected {
			words = append(words, word.String())
		}
		if has {
			redirected = false
		}
		word.Reset()
		has = false
	}
	end := func() {
		endWord()
		if len(words) > 0 {
			list = append(list, words)
		}
		words = nil
	}
	quote := rune(0)
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '\'' || r == '"'):
			quote, has = r, true
		case quote != 0:
			word.WriteRune(r)
		case r == '#' && !has:
			end()
			return list
		case strings.ContainsRune("|;&()", r):
			end()
		case r == '>' || r == '<':
			word.Reset() // the number of a descriptor
			has = false
			redirected = true
		case r == ' ' || r == '\t':
			endWord()
		default:
			word.WriteRune(r)
			has = true
		}
	}
	end()
	return list
}

// parses returns an error if premix does not have this verb or flag.
func parses(words []string) error {
	root := (&app{stdout: io.Discard, stderr: io.Discard}).root(nil)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd(words...)
	cmd, rest, err := root.Find(words)
	if err != nil {
		return err
	}
	if cmd.DisableFlagParsing {
		return nil
	}
	cmd.InitDefaultHelpFlag()
	root.InitDefaultVersionFlag()
	err = cmd.ParseFlags(rest)
	var value *pflag.InvalidValueError
	var required *pflag.ValueRequiredError
	// Prose may name a flag without its value.
	if errors.As(err, &required) || errors.As(err, &value) && placeholder.MatchString(value.GetValue()) {
		return nil
	}
	if err == nil && cmd == root && cmd.Flags().NArg() > 0 {
		return fmt.Errorf("there is no command %s", cmd.Flags().Arg(0))
	}
	return err
}
