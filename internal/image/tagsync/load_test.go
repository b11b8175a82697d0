package tagsync

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"gopkg.in/yaml.v3"
)

// written writes a watch list.
func written(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "images.yaml")
	if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestLoad(t *testing.T) {
	file := written(t, `name: nightly
interval: 1h
together: 2
timeout: 1d
platform: linux/arm64
gone: 1w2d
gc: {keep_for: 7d}
images:
  - debian:12
`)
	if _, err := Load(file); err == nil || !strings.Contains(err.Error(), file+`:6: gone: "1w2d" is not a time`) {
		t.Errorf("an unknown unit: %v", err)
	}
	file = written(t, `name: nightly
interval: 1h30m
together: 2
timeout: 1d
platform: linux/arm64
gone: 2d
gc: {keep_for: 7d}
images:
  - debian:12
  - quay.io/biocontainers/samtools:1.2*
  - image: 127.0.0.1:5000/team/*
    tags: [1.10, "v*", latest]
    exclude: ["*-rc*"]
    exclude_names: [team/scratch]
    newest: 3
    as: team/${base}
    platform: linux/amd64
    gone: keep
  - {image: docker.io/biodepot/star, gone: remove}
`)
	l, err := Load(file)
	if err != nil {
		t.Fatal(err)
	}
	day := 24 * time.Hour
	want := &List{
		Name: "nightly", Path: file, Interval: 90 * time.Minute, Together: 2, Timeout: day, GC: &GC{1, 7 * day},
		Entries: []Entry{
			{Line: 9, Registry: "index.docker.io", Name: "library/debian", Tags: []string{"12"}, As: "${base}", Platform: "linux/arm64", Gone: GonePolicy{After: 2 * day}},
			{Line: 10, Registry: "quay.io", Name: "biocontainers/samtools", Tags: []string{"1.2*"}, As: "quay.io/${name}", Platform: "linux/arm64", Gone: GonePolicy{After: 2 * day}},
			{Line: 11, Registry: "127.0.0.1:5000", Name: "team/*", Tags: []string{"1.10", "v*", "latest"}, Exclude: []string{"*-rc*"}, ExcludeNames: []string{"team/scratch"},
				Newest: 3, As: "team/${base}", Platform: "linux/amd64", Gone: GonePolicy{Keep: true}},
			{Line: 19, Registry: "index.docker.io", Name: "biodepot/star", Tags: []string{"latest"}, As: "${name}", Platform: "linux/arm64"},
		},
	}
	if !reflect.DeepEqual(l, want) {
		t.Errorf("got  %+v\nwant %+v", l, want)
	}
	if err := againstSchema(t, file); err != nil {
		t.Errorf("it does not pass the schema: %v", err)
	}
	l, err = Load(written(t, "images: []\n"))
	if err != nil || l.Name != "images" || l.Interval != 15*time.Minute || l.GC != nil || len(l.Entries) != 0 {
		t.Errorf("an empty list: %+v, %v", l, err)
	}
}

func schemaOf(t *testing.T) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("images.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("images.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// againstSchema checks a list against the schema, as editors do.
func againstSchema(t *testing.T, file string) error {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var v any
	if err := yaml.Unmarshal(text, &v); err != nil {
		return err
	}
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	if err != nil {
		return err
	}
	return schemaOf(t).Validate(doc)
}

// TestProblems checks that all mistakes in a list are reported at once, each with its line,
// and that the schema finds mistakes of form.
func TestProblems(t *testing.T) {
	for _, c := range []struct {
		text, want string
		form       bool // whether the schema refuses the list too
	}{
		{"", ": the watch list is empty", false},
		{"- debian:12\n", ":1: this is not a watch list", true},
		{"name: x\n", ":1: images is missing", true},
		{"images: debian\n", ":1: images must be a list", true},
		{"images:\n  - image: debian\n    tag: x\n", ":3: unknown key tag in an image", true},
		{"imagse: []\nimages: []\n", ":1: unknown key imagse in the watch list", true},
		{"images: []\nimages: []\n", ":2: images occurs twice", false},
		{"images:\n  - {tags: [x]}\n", ":2: the key image is missing", true},
		{"images:\n  - {image: debian, tags: x}\n", ":2: tags must be a list", true},
		{"images:\n  - {image: debian, tags: []}\n", ":2: tags must be a list", true},
		{"images:\n  - {image: 'debian:12', tags: [x]}\n", ":2: debian:12 has a tag, and there are tags: besides", false},
		{"images:\n  - debian@sha256:" + strings.Repeat("a", 64) + "\n", ":2: debian@sha256", false},
		{"images:\n  - {image: debian, newest: 0}\n", ":2: newest must be a whole number", true},
		{"images:\n  - {image: debian, gone: later}\n", `:2: gone: "later" is not a time`, true},
		{"images:\n  - {image: debian, platform: arm}\n", ":2: platform: ", true},
		{"images:\n  - {image: debian, tags: ['[']}\n", `:2: tags: the pattern "["`, false},
		{"images:\n  - {image: 'quay.io/b/*', as: x}\n", ":2: as: several names would become one", false},
		{"images:\n  - 127.0.0.1:5000/a/b\n", ":2: the name 127.0.0.1:5000/a/b is not valid in a store", false},
		{"images:\n  - quay.io/Upper/x\n", ":2: quay.io/Upper/x: ", false},
		{"interval: 0s\nimages: []\n", `:1: interval: "0s" is not a time`, false},
		{"together: 100\nimages: []\n", ":1: together must be", true},
		{"gc: 3\nimages: []\n", ":1: gc must be true, false or a mapping", true},
		{"name: A b\nimages: []\n", ": the list has no name", true},
		{"images:\n\t- x\n", ":2: this is not YAML", false},
		{"images: []\n---\nimages: []\n", ":2: a second document begins", false},
	} {
		file := written(t, c.text)
		_, err := Load(file)
		var ps Problems
		if !errors.As(err, &ps) || !strings.Contains(err.Error(), file+c.want) {
			t.Errorf("%q: %v, want %s", c.text, err, c.want)
		}
		if c.form {
			if err := againstSchema(t, file); err == nil {
				t.Errorf("%q passes the schema", c.text)
			}
		}
	}
	_, err := Load(written(t, "together: 0\nimages:\n  - {image: debian, newest: x}\n  - {image: q, nope: 1}\n"))
	var ps Problems
	if !errors.As(err, &ps) || len(ps) != 3 || ps[0].Line != 1 || ps[1].Line != 3 || ps[2].Line != 4 {
		t.Errorf("three mistakes: %v", err)
	}
	if _, err := Load(filepath.Join(t.TempDir(), "none.yaml")); !errors.As(err, &ps) {
		t.Errorf("no file: %v", err)
	}
}

// TestSchemaKeys checks that the schema has the same keys as the parser.
func TestSchemaKeys(t *testing.T) {
	var s struct {
		Properties map[string]json.RawMessage
		Defs       struct {
			Entry struct{ Properties map[string]json.RawMessage }
		} `json:"$defs"`
	}
	if err := json.Unmarshal(Schema(), &s); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		have map[string]json.RawMessage
		want []string
	}{{s.Properties, listKeys}, {s.Defs.Entry.Properties, entryKeys}} {
		var have []string
		for k := range c.have {
			have = append(have, k)
		}
		slices.Sort(have)
		want := slices.Sorted(slices.Values(c.want))
		if !slices.Equal(have, want) {
			t.Errorf("the schema has %v, the parser %v", have, want)
		}
	}
}

func TestChoose(t *testing.T) {
	e := Entry{Tags: []string{"v*", "[0-9]*"}, Exclude: []string{"*-rc?"}, Newest: 4}
	got := e.choose([]string{"latest", "1.10", "1.9", "1.9", "v2-rc1", "1.10.1", "v10", "v9", "0.1", "1.09"})
	if want := []string{"1.10", "1.10.1", "v9", "v10"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	// compareVersions is antisymmetric and transitive.
	tags := []string{"", "0", "00", "1", "01", "1.2", "1.02", "1.10", "1.10-a", "a", "a1", "a01", "b"}
	for _, x := range tags {
		for _, y := range tags {
			if c, d := compareVersions(x, y), compareVersions(y, x); c != -d || (c == 0) != (x == y) {
				t.Errorf("%q %q: %d, %d", x, y, c, d)
			}
			for _, z := range tags {
				if compareVersions(x, y) < 0 && compareVersions(y, z) < 0 && compareVersions(x, z) >= 0 {
					t.Error(fmt.Sprint(x, " < ", y, " < ", z, ", and not ", x, " < ", z))
				}
			}
		}
	}
}

// TestDocumentedList checks that the list in docs/image.md is valid.
func TestDocumentedList(t *testing.T) {
	page, err := os.ReadFile("../../../docs/image.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```yaml\n")
	text, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("docs/image.md shows no list")
	}
	file := written(t, text)
	l, err := Load(file)
	if err != nil || len(l.Entries) != 3 {
		t.Errorf("%+v, %v", l, err)
	}
	if err := againstSchema(t, file); err != nil {
		t.Error(err)
	}
}
