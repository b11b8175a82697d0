package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Each test that SECURITY.md names exists where its link leads.
func TestSecurityPage(t *testing.T) {
	text, err := os.ReadFile("../../SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	link := regexp.MustCompile(`\[((?:Test|Fuzz)\w+)(/\w+)?\]\(([^)]*)\)`)
	found := link.FindAllStringSubmatch(string(text), -1)
	if len(found) < 50 {
		t.Errorf("%d tests are named", len(found))
	}
	for _, m := range found {
		name, part, file := m[1], strings.TrimPrefix(m[2], "/"), filepath.Join("../..", m[3])
		source, err := os.ReadFile(file)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !strings.HasSuffix(file, "_test.go") || !strings.Contains(string(source), "\nfunc "+name+"(") {
			t.Errorf("%s has no %s", m[3], name)
		}
		if part != "" {
			if _, err := os.Stat(filepath.Join(filepath.Dir(file), "testdata/script", part+".txtar")); err != nil {
				t.Errorf("%s/%s: %v", name, part, err)
			}
		}
	}
	// Every table row has a link, except in the section on trust.
	rows := 0
	for _, part := range strings.Split(string(text), "\n## ")[1:] {
		if strings.HasPrefix(part, "Trust") {
			continue
		}
		for line := range strings.Lines(part) {
			if strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| ---") && !strings.Contains(line, " | tests |") {
				rows++
				if !link.MatchString(line) {
					t.Errorf("no test is named in the row %.60s", line)
				}
			}
		}
	}
	if rows < 30 {
		t.Errorf("there are %d rows", rows)
	}
}

// Only internal/kit/access and the sockets that SECURITY.md names listen.
func TestListenersAreKnown(t *testing.T) {
	text, err := os.ReadFile("../../SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	direct := []string{"internal/kit/access/listen.go", "internal/node/supervisor.go", "internal/engine/shim/worker.go", "internal/engine/shim/holder.go", "internal/transfer/stream/socket.go"}
	var seen []string
	err = filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, "../../")
		if d.IsDir() {
			switch {
			// Tests and benchmarks use these, on loopback or in their own networks.
			case d.Name() == "testdata", name == "bench", name == "internal/testkit/workbench", name == "internal/testkit/netrelay", name == "internal/testkit/ports":
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			what, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !strings.HasPrefix(what.Sel.Name, "Listen") {
				return true
			}
			of := fmt.Sprint(what.X)
			if x, ok := what.X.(*ast.Ident); ok {
				of = x.Name
			}
			byNet := of == "net" || strings.Contains(of, "ListenConfig") || isListenConfig(what.X) || of == "http"
			if of != "access" && !byNet {
				return true
			}
			seen = append(seen, name)
			if byNet && !slices.Contains(direct, name) {
				t.Errorf("%s listens by itself: use internal/kit/access", name)
			}
			if name != "cmd/premix/access.go" && !strings.Contains(string(text), name) {
				t.Errorf("%s listens, and SECURITY.md does not name it", name)
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range direct {
		if !slices.Contains(seen, name) {
			t.Errorf("%s does not listen any more", name)
		}
	}
}

// isListenConfig reports whether an expression makes a net.ListenConfig.
func isListenConfig(x ast.Expr) bool {
	found := false
	ast.Inspect(x, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok && s.Sel.Name == "ListenConfig" {
			found = true
		}
		return true
	})
	return found
}
