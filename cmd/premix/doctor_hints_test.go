package main

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"premix/docs"
	"premix/internal/doctor"
	"premix/internal/hotstart"
)

// handsOut matches advice that gives a user rights over others. premix executes any command that it
// is given, so a user who may run premix as root is root.
var handsOut = regexp.MustCompile(`(?i)NOPASSWD|sudoers|visudo|\bsetcap\b|chmod +(a\+|[ugo]*\+)?s\b|chmod +[ug]?\+?[2467][0-7]{3}\b|chmod +(a\+w|o\+w|777)|usermod|polkit|doas\.conf|--privileged|(?:group|-aG) docker`)

// TestHintsHandOutNothing checks all strings of the program, which include every hint whatever this
// machine lacks, and the manual.
func TestHintsHandOutNothing(t *testing.T) {
	for text, want := range map[string]bool{
		"`%premix ALL=(root) NOPASSWD: /usr/bin/premix` in sudoers(5)": true,
		"chmod u+s /usr/bin/premix":                                    true,
		"chmod 4755 premix":                                            true,
		"chmod 600 FILE":                                               false,
		"setcap cap_sys_admin+ep premix":                               true,
		"run premix as root":                                           false,
	} {
		if handsOut.MatchString(text) != want {
			t.Errorf("%q: hands out rights: %v", text, !want)
		}
	}
	var sources []string
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() && d.Name() == "testdata" {
			return fs.SkipDir
		}
		if strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
			sources = append(sources, path)
		}
		return err
	})
	if err != nil || !slices.Contains(sources, "../../internal/hotstart/doctor.go") {
		t.Fatalf("%d sources: %v", len(sources), err)
	}
	for _, file := range sources {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
				text, err := strconv.Unquote(l.Value)
				if err != nil {
					t.Fatal(err)
				}
				if handsOut.MatchString(text) {
					t.Errorf("%s: %q", file, text)
				}
			}
			return true
		})
	}
	pages, err := filepath.Glob("../../docs/*.md")
	if err == nil {
		var more []string
		more, err = filepath.Glob("../../docs/*/*.md")
		pages = append(pages, more...)
	}
	if err != nil || len(pages) == 0 {
		t.Fatalf("no manual: %v", err)
	}
	for _, file := range append(pages, "../../README.md") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if handsOut.MatchString(line) {
				t.Errorf("%s: %s", file, line)
			}
		}
	}
}

// TestDoctorHandsOutNothing checks the doctor's output for an ordinary user with an empty PATH, who
// lacks most requirements.
func TestDoctorHandsOutNothing(t *testing.T) {
	cmd := exec.Command(binary, "doctor", "--json")
	cmd.Env = []string{"PATH=/nonexistent", "HOME=/nonexistent"}
	cmd.Dir = "/"
	if os.Geteuid() == 0 {
		// The binary is in a directory that only root can read: the test passes its descriptor.
		f, err := os.Open(binary)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		cmd.Path, cmd.ExtraFiles = "/proc/self/fd/3", []*os.File{f}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var result struct {
		Checks   []hotstart.Check
		Features []doctor.Feature
	}
	if err := json.Unmarshal(out, &result); err != nil || len(result.Features) == 0 {
		t.Fatalf("%v\n%s", err, out)
	}
	hints := 0
	for _, c := range result.Checks {
		if c.Hint != "" {
			hints++
		}
		if handsOut.MatchString(c.Hint + " " + c.Detail) {
			t.Errorf("%s: %s (%s)", c.Name, c.Hint, c.Detail)
		}
	}
	if hints == 0 {
		t.Errorf("an ordinary user gets no hint:\n%s", out)
	}
}

// manualPage matches a file of the repository that users do not have. helpTopic matches the page
// that they do have.
var (
	manualPage = regexp.MustCompile(`\bdocs/[a-z-]+\.md|README|CONTRIBUTING|\b(scripts|examples|dist)/[a-z]`)
	helpTopic  = regexp.MustCompile(`premix help ([a-z-]+)`)
	// colour matches a terminal sequence that sets a colour. Messages without these need no
	// support for NO_COLOR.
	colour = regexp.MustCompile(`\\(x1b|033|u001b|e)\[[0-9;]*m`)
)

// Messages name pages that premix can show instead of files of its repository, and contain no
// colours.
func TestHintsNameTopics(t *testing.T) {
	seen := 0
	for _, dir := range []string{".", "../../internal"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "/lint/") || strings.Contains(path, "/testkit/") {
				return err
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(parsed, func(n ast.Node) bool {
				l, ok := n.(*ast.BasicLit)
				if !ok || l.Kind != token.STRING {
					return true
				}
				if file := manualPage.FindString(l.Value); file != "" {
					t.Errorf("%s names the file %s, which users do not have: premix help TOPIC", path, file)
				}
				if colour.MatchString(l.Value) {
					t.Errorf("%s: %s has a colour, and does not ask for NO_COLOR", path, l.Value)
				}
				for _, m := range helpTopic.FindAllStringSubmatch(l.Value, -1) {
					if _, ok := docs.Page(m[1]); ok {
						seen++
					} else if (&app{}).root([]string{m[1]}).Commands()[0].Name() != m[1] && m[1] != "topics" {
						t.Errorf("%s: there is no page %s", path, m[1])
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if seen < 10 {
		t.Errorf("only %d hints name a page", seen)
	}
}
