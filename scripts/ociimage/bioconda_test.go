package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

// condaRecipe has the sections and keys of a meta.yaml of conda-build that the recipe uses,
// as https://docs.conda.io/projects/conda-build/en/stable/resources/define-metadata.html
// defines them.
type condaRecipe struct {
	Package struct{ Name, Version string }
	Source  []struct{ URL, SHA256 string }
	Build   struct {
		Number     *int
		Skip       bool
		Relocation *bool `yaml:"binary_relocation"`
		Script     []string
		Exports    []string `yaml:"run_exports"`
	}
	Test  struct{ Commands []string }
	About struct {
		Home, License, Summary string
		LicenseFile            string `yaml:"license_file"`
	}
	Extra struct {
		Platforms []string `yaml:"additional-platforms"`
	}
}

var (
	selector = regexp.MustCompile(`^(.*?)\s+# \[(not )?(\w+)\]$`)
	setting  = regexp.MustCompile(`^\{% set (\w+) = "([^"]*)" %\}$`)
	jinja    = regexp.MustCompile(`\{\{ (\w+)(\([^)]*\))? \}\}`)
)

// render reads a recipe as conda-build does on a platform: it removes the lines with
// another selector, and replaces variables by their values.
func render(t *testing.T, text []byte, platform string) (r condaRecipe) {
	t.Helper()
	values := map[string]string{}
	var kept strings.Builder
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		if m := setting.FindStringSubmatch(line); m != nil {
			values[m[1]] = m[2]
			continue
		}
		if m := selector.FindStringSubmatch(line); m != nil {
			if on := m[3] == platform || m[3] == "linux"; on == (m[2] != "") {
				continue
			}
			line = m[1]
		}
		line = jinja.ReplaceAllStringFunc(line, func(s string) string {
			m := jinja.FindStringSubmatch(s)
			if m[2] != "" {
				return m[1] // the call of a function
			}
			if values[m[1]] == "" {
				t.Errorf("the variable %s is not set", m[1])
			}
			return values[m[1]]
		})
		kept.WriteString(line + "\n")
	}
	d := yaml.NewDecoder(strings.NewReader(kept.String()))
	d.KnownFields(true)
	if err := d.Decode(&r); err != nil {
		t.Fatalf("%s: %v\n%s", platform, err, &kept)
	}
	return r
}

// TestBiocondaRecipe applies the rules of Bioconda's linter that concern this kind of
// recipe (https://bioconda.github.io/contributor/linting.html). The linter itself is
// available only through conda.
func TestBiocondaRecipe(t *testing.T) {
	text, err := os.ReadFile("../../dist/bioconda/meta.yaml")
	if err != nil {
		t.Fatal(err)
	}
	digests := map[string]string{"linux64": strings.Repeat("a1", 32), "aarch64": strings.Repeat("b2", 32)}
	text = []byte(strings.NewReplacer("@VERSION@", "1.2.3", "@AMD64@", digests["linux64"], "@ARM64@", digests["aarch64"]).Replace(string(text)))
	// A parser without support for selectors can read the file too.
	var all map[string]any
	if err := yaml.Unmarshal(jinja.ReplaceAll(regexp.MustCompile(`(?m)^\{%.*$`).ReplaceAll(text, nil), []byte("x")), &all); err != nil {
		t.Error(err)
	}
	for platform, arch := range map[string]string{"linux64": "amd64", "aarch64": "arm64"} {
		r := render(t, text, platform)
		if r.Package.Name != "premix" || r.Package.Version != "1.2.3" {
			t.Errorf("%s: %+v", platform, r.Package)
		}
		if len(r.Source) != 1 || !strings.HasSuffix(r.Source[0].URL, "/premix-1.2.3-linux-"+arch+".tar.gz") || r.Source[0].SHA256 != digests[platform] {
			t.Errorf("%s: %+v", platform, r.Source)
		}
		if r.Build.Number == nil || r.Build.Skip || len(r.Build.Exports) == 0 || len(r.Build.Script) == 0 {
			t.Errorf("%s: %+v", platform, r.Build)
		}
		if len(r.Test.Commands) == 0 || r.About.Home == "" || r.About.License != "Apache-2.0" || r.About.LicenseFile == "" || r.About.Summary == "" || strings.HasSuffix(r.About.Summary, ".") {
			t.Errorf("%s: %+v %+v", platform, r.Test, r.About)
		}
		if len(r.Extra.Platforms) != 1 || r.Extra.Platforms[0] != "linux-aarch64" {
			t.Errorf("%s: %+v", platform, r.Extra)
		}
	}
}

// installsByRecipe performs the build and the test of a release's recipe with its tarball.
func installsByRecipe(t *testing.T, release string) {
	text, err := os.ReadFile(filepath.Join(release, "bioconda/meta.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	r := render(t, text, map[string]string{"amd64": "linux64", "arm64": "aarch64"}[runtime.GOARCH])
	source, prefix := t.TempDir(), t.TempDir()
	tarball := filepath.Join(release, filepath.Base(r.Source[0].URL))
	if out, err := exec.Command("sha256sum", tarball).Output(); err != nil || !bytes.HasPrefix(out, []byte(r.Source[0].SHA256)) {
		t.Errorf("the digest of the tarball is %s (%v), and in the recipe %s", out, err, r.Source[0].SHA256)
	}
	if out, err := exec.Command("tar", "-xzf", tarball, "-C", source, "--strip-components", "1").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if _, err := os.Stat(filepath.Join(source, r.About.LicenseFile)); err != nil {
		t.Error(err)
	}
	for _, commands := range [][]string{r.Build.Script, r.Test.Commands} {
		cmd := exec.Command("bash", "-euo", "pipefail", "-c", strings.Join(commands, "\n"))
		cmd.Dir = source
		cmd.Env = append(os.Environ(), "PREFIX="+prefix, "PREMIX_HOME="+t.TempDir(), "PATH="+filepath.Join(prefix, "bin")+":"+os.Getenv("PATH"))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	}
}
