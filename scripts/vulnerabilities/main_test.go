package main

import (
	"bytes"
	"cmp"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

const goMod = "module x\n\ngo 1.26\n\ntoolchain go1.26.11\n\nrequire (\n\texample.org/a v1.4.0\n\texample.org/b/v2 v2.0.1 // indirect\n)\n"

func files(t *testing.T, list string) (mod, path string) {
	t.Helper()
	dir := t.TempDir()
	mod, path = filepath.Join(dir, "go.mod"), filepath.Join(dir, "list")
	for name, text := range map[string]string{mod: goMod, path: list} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return mod, path
}

func TestCheck(t *testing.T) {
	day := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	const good = "# comment\nchecked 2026-11-23\nmodule example.org/a v1.4.0\nmodule example.org/b/v2 v2.0.1\nmodule std v1.26.11\nadvisory GO-1 example.org/a through v1.3.9\n"
	const library = good + "advisory GO-3 std through v1.26.8\nadvisory GO-4 std through v1.26.10\nadvisory GO-5 std through v1.26.9\n"
	for _, c := range []struct {
		name, list string
		after      int // days
		ci         bool
		said, err  string
		toolchain  string // empty: go1.26.11
	}{
		{"new", good, 0, true, "0 days old: 1 advisories, 3 modules", "", ""},
		{"30 days", good, 29, true, "29 days old", "", ""},
		{"old", good, 31, true, "31 days old", "more than 30 days old", ""},
		{"old, but not in CI", good, 31, false, "warning: it is more than 30 days old", "", ""},
		{"of tomorrow", good, -2, false, "", "has not come yet", ""},
		{"an advisory", good + "advisory GO-2 example.org/a through v1.4.0\n", 0, false, "", "example.org/a v1.4.0 has GO-2", ""},
		{"a module that was not looked up", "checked 2026-11-23\nmodule example.org/a v1.3.0\n", 0, true, "not looked up since then: example.org/a v1.4.0, example.org/b/v2 v2.0.1, std v1.26.11", "", ""},
		{"another toolchain", good, 0, true, "not looked up since then: std v1.26.8", "", "go1.26.8"},
		{"a toolchain with experiments", good, 0, true, "not looked up since then: std v1.26.8", "", "go1.26.8 X:nodwarf5"},
		{"a toolchain without a release", library, 0, true, "", "", "devel go1.28-abcdef"},
		{"the standard library", library, 0, false, "warning: Go 1.26.9 has GO-4, GO-5: build with a later Go than 1.26.10", "", "go1.26.9"},
		{"the standard library in CI", library, 0, true, "warning: Go 1.26.9 has GO-4, GO-5", "", "go1.26.9"},
		{"the standard library of now", library, 0, true, "", "", ""},
		{"no date", "module example.org/a v1.4.0\n", 0, false, "", "no line `checked DATE`", ""},
		{"nonsense", "checked 2026-11-23\nadvisory GO-1\n", 0, false, "", ":2: \"advisory GO-1\" is not a line", ""},
	} {
		mod, path := files(t, c.list)
		var out bytes.Buffer
		err := run(&out, mod, path, cmp.Or(c.toolchain, "go1.26.11"), c.ci, false, day.AddDate(0, 0, c.after))
		if !strings.Contains(out.String(), c.said) || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %q, %v", c.name, out.String(), err)
		}
	}
}

func TestUpdate(t *testing.T) {
	mod, path := files(t, "# comment\nchecked 2020-01-01\nmodule example.org/gone v1.0.0\nadvisory GO-1 example.org/a through v1.3.9\n")
	now := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	if err := run(nil, mod, path, "go1.26.8", false, true, now); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	const want = "# comment\nchecked 2026-12-01\nadvisory GO-1 example.org/a through v1.3.9\nmodule example.org/a v1.4.0\nmodule example.org/b/v2 v2.0.1\nmodule std v1.26.11\n"
	if err != nil || string(got) != want {
		t.Errorf("%v\n%s", err, got)
	}
}

// The list of this repository can be read, and no module has a vulnerability in it.
// scripts/lint.sh limits the age of the list, so that no test fails because of the
// calendar.
func TestThisModule(t *testing.T) {
	text, err := os.ReadFile("../vulnerabilities.txt")
	if err != nil {
		t.Fatal(err)
	}
	l, err := parse("vulnerabilities.txt", text)
	if err != nil {
		t.Fatal(err)
	}
	if len(l.advisories) == 0 || len(l.modules) == 0 {
		t.Fatalf("%+v", l)
	}
	for _, mod := range []string{"../../go.mod", "../../dist/containerd/go.mod", "../../internal/image/snapshotter/conformance/go.mod", "../../bench/containers/peers/go.mod", "../../bench/containers/soci/go.mod", "../../bench/store/stargz/go.mod", "../../bench/watch/peer/go.mod", "../../internal/watch/web/testdata/receiver/go.mod"} {
		var out bytes.Buffer
		if err := run(&out, mod, "../vulnerabilities.txt", runtime.Version(), false, false, l.checked); err != nil {
			t.Errorf("%s: %v", mod, err)
		}
	}
}
