package main

import (
	"bytes"
	"os"
	"path/filepath"
	"premix/internal/kit/exit"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// outputVerbs maps each flag that names an output file to a command line. DIR and FILE are replaced
// by a directory and an existing file.
var outputVerbs = map[string]string{
	"files report --html":      "files report any.parquet --html FILE",
	"files scan --output":      "files scan DIR -o FILE",
	"mount --record":           "mount t@1 DIR --record FILE",
	"replay --html":            "replay any.swf --html FILE",
	"replay generate --output": "replay generate --like any.swf -o FILE",
	"report --html":            "report DIR --html FILE",
	"report --trace":           "report DIR --trace FILE",
	"run --record-image":       "run r.yaml s.csv --out DIR/out --record-image FILE",
	"snapshot pull --record":   "snapshot pull t@1 --record FILE",
}

// writesFile matches the description of a flag that names an output file.
var writesFile = regexp.MustCompile(`(?i)^write |to this file|file to write|file of the (page|table)|file for a page|where .* is written`)

// notOutput lists flags that writesFile matches although they name no file of the user.
var notOutput = map[string]string{
	"store serve --access-log": "lines are appended, and nothing is replaced",
	"snapshotter --record":     "a directory, in which files are made with new names",
}

func commands(cmd *cobra.Command, do func(name string, cmd *cobra.Command)) {
	for _, c := range cmd.Commands() {
		do(strings.TrimPrefix(c.CommandPath(), "premix "), c)
		commands(c, do)
	}
}

// No flag for an output file lets premix replace a file of another kind.
func TestOutputsReplaceNothingElse(t *testing.T) {
	seen := map[string]bool{}
	commands((&app{}).root(nil), func(name string, cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			at := name + " --" + f.Name
			looks := f.Value.Type() != "bool" && (writesFile.MatchString(f.Usage) || f.Name == "html" || f.Name == "output")
			switch {
			case isOutput(f):
				seen[at] = true
				if outputVerbs[at] == "" {
					t.Errorf("%s is not in the table of this test", at)
				}
				if cmd.Flags().Lookup("force") == nil {
					t.Errorf("%s has no --force", name)
				}
			case looks && notOutput[at] == "":
				t.Errorf("%s %q writes a file and is not made by outputFlag", at, f.Usage)
			}
		})
	})
	for at := range outputVerbs {
		if !seen[at] {
			t.Errorf("%s is not a flag for a file to write", at)
		}
	}
	for at, line := range outputVerbs {
		t.Run(at, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "samples.csv")
			const precious = "sample,reads\na,a.fastq\n"
			if err := os.WriteFile(file, []byte(precious), 0o644); err != nil {
				t.Fatal(err)
			}
			args := strings.Fields(line)
			for i := range args {
				args[i] = strings.Replace(strings.Replace(args[i], "FILE", file, 1), "DIR", dir, 1)
			}
			var out, errs bytes.Buffer
			if code := run(args, &out, &errs); code != int(exit.Usage) || !strings.Contains(errs.String(), "--force") {
				t.Errorf("exit %d: %s", code, errs.String())
			}
			if text, err := os.ReadFile(file); err != nil || string(text) != precious {
				t.Errorf("the sheet is %q, %v now", text, err)
			}
		})
	}
}

// Commands that write fixed names into a directory do not replace foreign files of these names.
func TestOutputsOfFixedNames(t *testing.T) {
	for line, name := range map[string]string{
		"report DIR":                   "report.html",
		"transfer report DIR":          "transfers.csv",
		"replay any.swf --parquet DIR": "jobs.parquet",
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, name), []byte("precious"), 0o644); err != nil {
			t.Fatal(err)
		}
		var out, errs bytes.Buffer
		if code := run(strings.Fields(strings.Replace(line, "DIR", dir, 1)), &out, &errs); code != int(exit.Usage) || !strings.Contains(errs.String(), "--force") {
			t.Errorf("%s: exit %d: %s", line, code, errs.String())
		}
	}
}

// The hint about a file that is not a table of a scan does not name this file as the output.
func TestHintKeepsTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "samples.csv")
	if err := os.WriteFile(file, []byte("sample\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	if code := run([]string{"files", "report", file}, &out, &errs); code == int(exit.OK) || !strings.Contains(errs.String(), "hint:") || strings.Contains(errs.String(), "-o "+file) {
		t.Errorf("exit %d: %s", code, errs.String())
	}
}

// isOutput reports whether premix checks the file that a flag names before replacing it.
func isOutput(f *pflag.Flag) bool {
	_, ok := f.Value.(outputValue)
	return ok
}
