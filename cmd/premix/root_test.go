package main

import (
	"io"
	"testing"
)

// A verb has the name by which it is looked for, and is alone where it is meant.
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
