package main

import (
	"bytes"
	"io"
	"premix/internal/kit/exit"
	"strings"
	"testing"
)

// A verb is found by its name, and make builds only this verb.
func TestVerbs(t *testing.T) {
	a := &app{stdout: io.Discard, stderr: io.Discard}
	all := a.verbs()
	for _, v := range all {
		if name := v.make().Name(); name != v.name {
			t.Errorf("%s is found as %s", name, v.name)
		}
		if list := a.root([]string{v.name, "--help"}).Commands(); len(list) != 1 || list[0].Name() != v.name {
			t.Errorf("for %s there are %d commands", v.name, len(list))
		}
	}
	for _, args := range [][]string{nil, {"--help"}, {"--json", "version"}, {"help", "version"}, {"__complete", "t"}, {"nothing"}} {
		if n := len(a.root(args).Commands()); n != len(all) {
			t.Errorf("for %q there are %d commands of %d", args, n, len(all))
		}
	}
}

// An error about a misspelt verb or flag suggests the likely one.
func TestMisspelt(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{"strore", `error: there is no command "strore"` + "\nhint: did you mean premix store?\n"},
		{"strore publish --no-sync a b", `error: there is no command "strore"` + "\nhint: did you mean premix store?\n"},
		{"--json=false taks run", `error: there is no command "taks"` + "\nhint: did you mean premix task?\n"},
		{"store publsh", `error: there is no command "store publsh"` + "\nhint: did you mean premix store publish?\n"},
		{"store publsh a b --no-sync", `error: there is no command "store publsh"` + "\nhint: did you mean premix store publish?\n"},
		{"store --store s publsh a b", `error: there is no command "store publsh"` + "\nhint: did you mean premix store publish?\n"},
		{"store list", `error: there is no command "store list"` + "\nhint: did you mean premix store ls?\n"},
		{"store fetch", `error: there is no command "store fetch"` + "\nhint: premix store --help lists them\n"},
		{"task wrok", `error: there is no command "task wrok"` + "\nhint: premix task --help lists them\n"}, // the verb work is internal
		{"blast db veryfi nt", `error: there is no command "blast db veryfi"` + "\nhint: did you mean premix blast db verify?\n"},
		{"replay genrate t.swf --jobs 3", `error: there is no command "replay genrate"` + "\nhint: did you mean premix replay generate?\n"},
		{"replay t.swf easy", `error: "easy" is one argument too many` + "\nhint: usage: premix replay TRACE [flags]\n"},
		{"task prune d --ouput", "error: unknown flag: --ouput\nhint: did you mean --output?\n"},
		{"task run f --ouput d", "error: unknown flag: --ouput\nhint: did you mean --out?\n"},
		{"task run f --output=d", "error: unknown flag: --output\nhint: did you mean --out?\n"},
		{"task run f -out d", "error: unknown shorthand flag: 'o' in -out\nhint: did you mean --out?\n"},
		{"task run f --jsno", "error: unknown flag: --jsno\nhint: did you mean --json?\n"},
		{"task run f -z", "error: unknown shorthand flag: 'z' in -z\nhint: premix task run --help lists the flags\n"},
		{"task run f --quickly", "error: unknown flag: --quickly\nhint: premix task run --help lists the flags\n"},
		{"task run f --max-retries 2", "error: unknown flag: --max-retries\nhint: it is --retries now\n"},
		{"task submit f --memory 2G", "error: unknown flag: --memory\nhint: it is --task-memory now\n"},
		{"slurm-shim -j 2", "error: unknown shorthand flag: 'j' in -j\nhint: it is --cores now\n"},
		{"task run f --jobs", "error: flag needs an argument: --jobs\nhint: premix task run --help lists the flags\n"},
	} {
		var stderr bytes.Buffer
		if code := run(strings.Fields(c.line), io.Discard, &stderr); code != int(exit.Usage) || stderr.String() != c.want {
			t.Errorf("%s ends with %d and tells\n%s\nwant\n%s", c.line, code, &stderr, c.want)
		}
	}
}
