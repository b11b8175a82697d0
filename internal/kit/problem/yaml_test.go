package problem

import (
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

func TestYAML(t *testing.T) {
	sheet := Document{Name: "sheet", Form: "a sheet has rows:"}
	for _, c := range []struct{ text, want string }{
		{"rows: [1]\n", ""},
		{"a: &x {rows: 1}\n", "f:1: unknown key a in the sheet\n  hint: there are: rows, columns"},
		{"", "f: the sheet is empty\n  hint: a sheet has rows:"},
		{"# nothing\n", "f: the sheet is empty\n  hint: a sheet has rows:"},
		{"~\n", "f: the sheet is empty\n  hint: a sheet has rows:"},
		{"- rows\n", "f:1: this is not a sheet\n  hint: a sheet has rows:"},
		{"rows: 1\n---\nrows: 2\n", "f:2: a second document begins\n  hint: give each sheet a file of its own"},
		{"rows: 1\n---\nrows: [\n", "f:3: this is not YAML: did not find expected node content\n  hint: quote a text that begins with a special character, and indent with spaces"},
		{"rows: [\n", "f:1: this is not YAML: did not find expected node content\n  hint: quote a text that begins with a special character, and indent with spaces"},
		{"\x1f\x8b\x08\x00rows", "f: this is not YAML: control characters are not allowed\n  hint: a sheet has rows:"},
		{"rows: 1\ncolumns: 2\nrows: 3\n", "f:3: rows occurs twice in the sheet, first in line 1\n  hint: keep one of them"},
		{"? [a]\n: 1\n", "f:1: unknown key  in the sheet\n  hint: there are: rows, columns"},
	} {
		p := Collector{File: "f"}
		if root := p.YAML([]byte(c.text), sheet); root != nil {
			p.Mapping(root, "the sheet", []string{"rows", "columns"}, func(string, *yaml.Node) {})
		}
		got := ""
		if err := p.Err(); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%q gives\n%s\nwant\n%s", c.text, got, c.want)
		}
	}
	sheet.Void = true
	var p Collector
	if root := p.YAML([]byte("# nothing\n"), sheet); root != nil || p.Err() != nil {
		t.Errorf("an empty file that may be: %v, %v", root, p.Err())
	}
	sheet.Syntax = func(line int) (int, string) { return line + 1, "look there" }
	p.File = "f"
	p.YAML([]byte("rows: [\n"), sheet)
	if err := p.Err(); err == nil || !strings.HasPrefix(err.Error(), "f:2: this is not YAML") || !strings.HasSuffix(err.Error(), "hint: look there") {
		t.Errorf("with a look at the line: %v", err)
	}
}

// Words removes the Go types from the errors of yaml.v3.
func TestWords(t *testing.T) {
	var into struct {
		Cores int
		Nodes []struct{ Count int }
	}
	dec := yaml.NewDecoder(strings.NewReader("cores: many\ncors: 1\nnodes: 3\n"))
	dec.KnownFields(true)
	if got, want := Words(dec.Decode(&into)), "line 1: `many` is not a value of this key\n  line 2: unknown key cors\n  line 3: `3` is not a value of this key"; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	if got, want := Words(yaml.Unmarshal([]byte("cores: 1\nnodes: [{}\n"), &into)), "line 1: did not find expected ',' or ']'"; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

// Any keys are allowed, values may be aliases, and a text is a scalar that is not empty.
func TestMapping(t *testing.T) {
	p := Collector{File: "f"}
	root := p.YAML([]byte("a: &x word\nb: *x\nc: [1]\nd:\ne: 1.10\n"), Document{Name: "sheet"})
	got := map[string]string{}
	p.Mapping(root, "the sheet", nil, func(key string, v *yaml.Node) {
		if s, ok := p.Text(v, key); ok {
			got[key] = s
		}
	})
	if len(got) != 3 || got["a"] != "word" || got["b"] != "word" || got["e"] != "1.10" {
		t.Errorf("read %v", got)
	}
	p.Mapping(root.Content[1], "a", nil, nil)
	want := "f:1: a must be lines of KEY: VALUE\nf:3: c must be a text\nf:4: d must be a text"
	if err := p.Err(); err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}
