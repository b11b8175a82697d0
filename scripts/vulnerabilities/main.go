package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"
)

// oldAfter is how long a list is good.
const oldAfter = 30 * 24 * time.Hour

func main() {
	ci := flag.Bool("ci", false, "exit 1 if the list is old")
	update := flag.Bool("update", false, "write the date and the versions into the list")
	flag.Parse()
	if flag.NArg() != 2 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(os.Stdout, flag.Arg(0), flag.Arg(1), runtime.Version(), *ci, *update, time.Now()); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// std is the name of the standard library in a list. Its version is the version of the
// toolchain, which no go.mod decides alone.
const std = "std"

func run(out io.Writer, mod, path, toolchain string, ci, update bool, now time.Time) error {
	text, err := os.ReadFile(mod)
	if err != nil {
		return err
	}
	f, err := modfile.Parse(mod, text, nil)
	if err != nil {
		return err
	}
	versions := map[string]string{}
	var order []string
	for _, r := range f.Require {
		versions[r.Mod.Path] = r.Mod.Version
		order = append(order, r.Mod.Path)
	}
	if v := standard(f, toolchain, update); v != "" {
		versions[std] = v
		order = append(order, std)
	}
	if text, err = os.ReadFile(path); err != nil {
		return err
	}
	if update {
		return os.WriteFile(path, updated(text, order, versions, now), 0o644)
	}
	l, err := parse(path, text)
	if err != nil {
		return err
	}
	return l.check(out, order, versions, ci, now)
}

// standard returns the version of the standard library: of the toolchain that builds, and for
// an update of the toolchain that go.mod names. It is empty for a toolchain without a release.
func standard(f *modfile.File, toolchain string, update bool) string {
	if update && f.Toolchain != nil {
		toolchain = f.Toolchain.Name
	}
	v := "v" + strings.TrimPrefix(strings.Fields(toolchain)[0], "go")
	if !semver.IsValid(v) {
		return ""
	}
	return v
}

// list is a list of what is known.
type list struct {
	checked    time.Time
	modules    map[string]string
	advisories []advisory
}

type advisory struct{ id, module, through string }

func parse(path string, text []byte) (*list, error) {
	l := &list{modules: map[string]string{}}
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		fields := strings.Fields(line)
		bad := fmt.Errorf("%s:%d: %q is not a line of a list", path, n, strings.TrimSpace(line))
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		switch {
		case fields[0] == "checked" && len(fields) == 2 && l.checked.IsZero():
			t, err := time.Parse(time.DateOnly, fields[1])
			if err != nil {
				return nil, bad
			}
			l.checked = t
		case fields[0] == "module" && len(fields) == 3 && semver.IsValid(fields[2]):
			l.modules[fields[1]] = fields[2]
		case fields[0] == "advisory" && len(fields) == 5 && fields[3] == "through" && semver.IsValid(fields[4]):
			l.advisories = append(l.advisories, advisory{fields[1], fields[2], fields[4]})
		default:
			return nil, bad
		}
	}
	if l.checked.IsZero() {
		return nil, fmt.Errorf("%s: there is no line `checked DATE`", path)
	}
	return l, nil
}

// check compares the versions of modules with a list.
func (l *list) check(out io.Writer, order []string, versions map[string]string, ci bool, now time.Time) error {
	var errs []error
	var old []string
	above := ""
	for _, a := range l.advisories {
		v := versions[a.module]
		switch {
		case v == "" || semver.Compare(v, a.through) > 0:
		case a.module == std:
			old = append(old, a.id)
			if semver.Compare(a.through, above) > 0 {
				above = a.through
			}
		default:
			errs = append(errs, fmt.Errorf("%s %s has %s: raise it above %s", a.module, v, a.id, a.through))
		}
	}
	if len(old) > 0 {
		fmt.Fprintf(out, "warning: Go %s has %s: build with a later Go than %s\n", versions[std][1:], strings.Join(old, ", "), above[1:])
	}
	var since []string
	for _, m := range order {
		if l.modules[m] != versions[m] {
			since = append(since, m+" "+versions[m])
		}
	}
	age := now.Sub(l.checked)
	days := int(age / (24 * time.Hour))
	fmt.Fprintf(out, "the list of known vulnerabilities is of %s, %d days old: %d advisories, %d modules\n", l.checked.Format(time.DateOnly), days, len(l.advisories), len(l.modules))
	if len(since) > 0 {
		fmt.Fprintf(out, "not looked up since then: %s\n", strings.Join(since, ", "))
	}
	switch {
	case age < 0:
		errs = append(errs, errors.New("the list is of a day that has not come yet"))
	case age > oldAfter && ci:
		errs = append(errs, fmt.Errorf("the list is more than %d days old: run `make vulnerabilities` where vuln.go.dev can be reached", int(oldAfter/(24*time.Hour))))
	case age > oldAfter:
		fmt.Fprintf(out, "warning: it is more than %d days old: run `make vulnerabilities` where vuln.go.dev can be reached\n", int(oldAfter/(24*time.Hour)))
	}
	return errors.Join(errs...)
}

// updated is a list with the date of today and other versions. Comments and advisories
// stay.
func updated(text []byte, order []string, versions map[string]string, now time.Time) []byte {
	var b bytes.Buffer
	for line := range strings.Lines(string(text)) {
		switch word, _, _ := strings.Cut(line, " "); word {
		case "checked":
			fmt.Fprintf(&b, "checked %s\n", now.UTC().Format(time.DateOnly))
		case "module":
		default:
			b.WriteString(line)
		}
	}
	for _, m := range order {
		fmt.Fprintf(&b, "module %s %s\n", m, versions[m])
	}
	return b.Bytes()
}
