package wording

import (
	"bytes"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// habit is a way of writing that CONTRIBUTING.md forbids.
type habit struct {
	name    string
	pattern string
	rate    float64 // how often it may occur in 1,000 lines
}

// habits have twice the highest rate of eight well-kept projects: age, restic,
// go-containerregistry, go-fuse, containerd, tailscale, caddy and perkeep.
var habits = []habit{
	{"what as a noun", `\bwhat (is|was|were|has|had|it|they|a|the|one|came|comes|lies|stands|belongs|others)\b`, 2.8},
	{"that of, one that", `\b(that of|those (of|that|which)|one that|such (a|an)?\b)`, 10.8},
	{"tells", `\b(tells|told|tell)\b`, 5.6},
	{"nobody, somebody", `\b(nobody|somebody)\b`, 0.4},
	{"anew, goes on, all the same", `\b(anew|afresh|for ever|goes on|gone on|all the same|meanwhile|stands for|hence|likewise)\b`, 2.2},
	{"is no", `\b(is|are|was) (no|none)\b`, 10.8},
	{"who as a noun", `\b(by|of|for|to|than|from) who\b|(^|[^a-z] )\bWho [a-z]+s\b|\bwhoever\b`, 0.2},
	{"way out", `\bway out\b`, 0.2},
}

// existential matches the plain form of an error about a missing thing. It is removed from
// messages before habits are counted. Comments and documents are counted as they are, as in
// the other projects.
var existential = regexp.MustCompile(`\b[Tt]here (is|are|was) no`)

// unreadPages are documents that are not checked: CONTRIBUTING.md quotes the habits.
var unreadPages = []string{"CONTRIBUTING.md"}

// line is a line of text and the file that contains it.
type line struct{ file, text string }

// TestWording counts habits in comments of the code, its tests and their scripts, in messages, and
// in documents.
func TestWording(t *testing.T) {
	root := os.DirFS("../../..")
	var comments, messages, pages, tests, scripts []line
	seen := map[string]bool{}
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if slices.Contains(unreadPages, name) {
			seen[name] = true
			return nil
		}
		if d.IsDir() {
			if base := d.Name(); base != "." && (base[0] == '.' || base == "testdata" || base == "bin" || base == "bench-work") {
				return fs.SkipDir
			}
			return nil
		}
		switch {
		case path.Ext(name) == ".go":
			text, err := fs.ReadFile(root, name)
			if err != nil {
				return err
			}
			c, m, err := read(name, text)
			if strings.HasSuffix(name, "_test.go") {
				tests = append(tests, c...)
				return err
			}
			comments, messages = append(comments, c...), append(messages, m...)
			return err
		case path.Ext(name) == ".md":
			text, err := fs.ReadFile(root, name)
			pages = append(pages, lines(name, string(text))...)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	names, err := fs.Glob(root, "cmd/premix/testdata/script/*.txtar")
	if err != nil || len(names) == 0 {
		t.Fatalf("%d scripts, %v", len(names), err)
	}
	for _, name := range names {
		text, err := fs.ReadFile(root, name)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range lines(name, string(text)) {
			if strings.HasPrefix(l.text, "# ") {
				scripts = append(scripts, l)
			}
		}
	}
	for _, name := range unreadPages {
		if !seen[name] {
			t.Errorf("%s is not there: remove it from the list", name)
		}
	}
	for _, kind := range []struct {
		name  string
		lines []line
	}{{"comments", comments}, {"messages", messages}, {"documents", pages}, {"comments of tests", tests}, {"comments of scripts", scripts}} {
		for _, h := range habits {
			check(t, kind.name, kind.lines, h)
		}
	}
}

// check counts a habit, and lists its places if there are too many.
func check(t *testing.T, kind string, all []line, h habit) {
	t.Helper()
	pattern := regexp.MustCompile(h.pattern)
	n := 0
	var found []string
	for _, l := range all {
		text := l.text
		if kind == "messages" {
			text = existential.ReplaceAllString(text, "")
		}
		if k := len(pattern.FindAllString(text, -1)); k > 0 {
			n += k
			found = append(found, l.file+": "+strings.TrimSpace(l.text))
		}
	}
	t.Logf("%s, %s: %d in %d lines", kind, h.name, n, len(all))
	const always = 3 // this number is allowed even in a text of a few lines
	if n > always+int(h.rate*float64(len(all))/1000) {
		t.Errorf("%s, %s: %d in %d lines, where %d and %.1f per 1,000 lines are allowed (CONTRIBUTING.md, How it reads):\n%s",
			kind, h.name, n, len(all), always, h.rate, strings.Join(found, "\n"))
	}
}

// read returns the lines of the comments in a Go file, and the lines of its strings that
// consist of words.
func read(name string, text []byte) (comments, messages []line, err error) {
	if bytes.Contains(text[:min(600, len(text))], []byte("DO NOT EDIT")) {
		return nil, nil, nil
	}
	f, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments)
	if err != nil {
		return nil, nil, errors.New(name + ": " + err.Error())
	}
	for _, g := range f.Comments {
		comments = append(comments, lines(name, g.Text())...)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if s, err := strconv.Unquote(lit.Value); err == nil && strings.Count(s, " ") > 1 {
				messages = append(messages, lines(name, s)...)
			}
		}
		return true
	})
	return comments, messages, nil
}

// lines cuts a text into its lines that are not empty.
func lines(file, text string) (all []line) {
	for l := range strings.Lines(text) {
		if strings.TrimSpace(l) != "" {
			all = append(all, line{file, l})
		}
	}
	return all
}

// TestRead parses a file with each kind of text.
func TestRead(t *testing.T) {
	comments, messages, err := read("x.go", []byte("// Package x does a thing.\npackage x\n\n//go:noinline\nfunc f() { g(`two lines\nof a text`, \"word\") } // behind\n"))
	if err != nil || len(comments) != 2 || len(messages) != 2 {
		t.Errorf("%q, %q, %v", comments, messages, err)
	}
}
