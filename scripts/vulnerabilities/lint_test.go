package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// lint.sh reports if govulncheck has not checked, and fails in CI if the list is also old.
// The other tools are replaced by programs that find nothing.
func TestLint(t *testing.T) {
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, checked, govulncheck string
		ci, fails                  bool
		said                       string
	}{
		{"no database", "2999-01-01", "echo 'no such host' >&2; exit 1", false, true, "lint: vulnerabilities were not checked: no such host"},
		{"an old list", "2020-01-01", "echo 'no such host' >&2; exit 1", false, false, "warning: it is more than 30 days old"},
		{"an old list in CI", "2020-01-01", "echo 'no such host' >&2; exit 1", true, true, "lint: vulnerabilities were not checked: no such host"},
		{"a database", "2020-01-01", "exit 0", true, false, "lint: clean"},
		{"a vulnerability", "2020-01-01", "echo GO-1; exit 3", false, true, "GO-1"},
	} {
		dir := t.TempDir()
		for _, d := range []string{"scripts/vulnerabilities", "bin/tools"} {
			if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		copied := map[string]string{"lint.sh": "scripts/lint.sh", "vulnerabilities/main.go": "scripts/vulnerabilities/main.go", "vulnerabilities/doc.go": "scripts/vulnerabilities/doc.go", "../go.mod": "go.mod", "../go.sum": "go.sum"}
		for from, to := range copied {
			text, err := os.ReadFile(filepath.Join("..", from))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, to), text, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		version, err := exec.Command(goTool, "env", "GOVERSION").Output()
		if err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{
			"scripts/vulnerabilities.txt": "checked " + c.checked + "\n",
			"bin/tools/govulncheck":       "#!/bin/sh\n" + c.govulncheck + "\n",
			"bin/tools/staticcheck":       "#!/bin/sh\nexit 0\n",
			"bin/tools/govulncheck-v1-" + strings.TrimSpace(string(version)): "",
			"bin/tools/staticcheck-v1-" + strings.TrimSpace(string(version)): "",
		} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command(filepath.Join(dir, "scripts/lint.sh"))
		cmd.Env = append(os.Environ(), "GO="+goTool, "STATICCHECK=s@v1", "GOVULNCHECK=g@v1", "CI=")
		if c.ci {
			cmd.Env = append(cmd.Env, "CI=true")
		}
		out, err := cmd.CombinedOutput()
		if (err != nil) != c.fails || !strings.Contains(string(out), c.said) {
			t.Errorf("%s: %v\n%s", c.name, err, out)
		}
	}
}
