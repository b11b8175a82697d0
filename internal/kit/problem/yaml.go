package problem

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"

	"premix/internal/kit/regex"
)

// Document describes a kind of YAML file for messages.
type Document struct {
	Name string // "recipe", as in: this is not a recipe
	Form string // the hint for a file of another kind: what a file of this kind must have
	Void bool   // whether it may be empty
	// Syntax returns a hint for a syntax error in a line, and the true line, since the
	// library reports the line before in some cases. If it is nil there is a general hint.
	Syntax func(line int) (at int, hint string)
}

// YAML reads a file of one document that is a mapping. It returns nil if there is none.
// More than one document is a problem; YAML returns the first one.
func (c *Collector) YAML(text []byte, d Document) *yaml.Node {
	var doc, second yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(text))
	err := dec.Decode(&doc)
	if errors.Is(err, io.EOF) || err == nil && (len(doc.Content) == 0 || doc.Content[0].Tag == "!!null") {
		if !d.Void {
			c.Add(0, d.Form, "the %s is empty", d.Name)
		}
		return nil
	}
	if err != nil {
		c.syntax(err, text, d)
		return nil
	}
	root := Follow(doc.Content[0])
	if root.Kind != yaml.MappingNode {
		c.Add(root.Line, d.Form, "this is not a %s", d.Name)
		return nil
	}
	if err := dec.Decode(&second); err == nil {
		c.Add(max(1, second.Line), "give each "+d.Name+" a file of its own", "a second document begins")
	} else if !errors.Is(err, io.EOF) {
		c.syntax(err, text, d)
	}
	return root
}

// syntaxPlace finds the line in yaml.v3's message: its errors have no field for it.
var syntaxPlace = regex.Lazy(`^(?:yaml: )?(?:line ([0-9]+): )?(.*)$`)

func (c *Collector) syntax(err error, text []byte, d Document) {
	first, _, _ := strings.Cut(err.Error(), "\n")
	m := syntaxPlace().FindStringSubmatch(first)
	line, _ := strconv.Atoi(m[1]) // 0 without a line
	hint := "quote a text that begins with a special character, and indent with spaces"
	if d.Syntax != nil {
		line, hint = d.Syntax(line)
	}
	if hint == "" || bytes.IndexByte(text, 0) >= 0 { // a binary file
		hint = d.Form
	}
	c.Add(line, hint, "this is not YAML: %s", m[2])
}

var (
	unknownField = regex.Lazy(`field (\S+) not found in type .+`)
	wrongKind    = regex.Lazy("cannot unmarshal \\S+ (?:(`.*`) )?into .+")
)

// Words returns the mistakes in an error of yaml.v3's Decode, one a line, each with its line
// in the file. It replaces the names of Go types, which mean nothing to the writer of the
// file. The library reports the mistakes as texts only.
func Words(err error) string {
	list := []string{strings.TrimPrefix(err.Error(), "yaml: ")}
	var types *yaml.TypeError
	if errors.As(err, &types) {
		list = slices.Clone(types.Errors)
	}
	for i, s := range list {
		s = unknownField().ReplaceAllString(s, "unknown key $1")
		list[i] = strings.ReplaceAll(wrongKind().ReplaceAllString(s, "$1 is not a value of this key"), ":  is", ": this is")
	}
	return strings.Join(list, "\n  ")
}

// Follow returns the node to which an alias refers, and any other node itself.
func Follow(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode && n.Alias != nil {
		n = n.Alias
	}
	return n
}

// Mapping calls each for every key of a mapping, with its value; what is the name of the
// mapping in messages. Keys must be in known, unless known is nil.
func (c *Collector) Mapping(n *yaml.Node, what string, known []string, each func(key string, v *yaml.Node)) {
	var there string
	if known != nil {
		there = "there are: " + strings.Join(known, ", ")
	}
	if n.Kind != yaml.MappingNode {
		c.Add(n.Line, there, "%s must be lines of KEY: VALUE", what)
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], Follow(n.Content[i+1])
		switch {
		case k.Kind != yaml.ScalarNode || known != nil && !slices.Contains(known, k.Value):
			c.Add(k.Line, there, "unknown key %s in %s", k.Value, what)
		case seen[k.Value] > 0:
			c.Add(k.Line, "keep one of them", "%s occurs twice in %s, first in line %d", k.Value, what, seen[k.Value])
		default:
			seen[k.Value] = k.Line
			each(k.Value, v)
		}
	}
}

// Text returns the text of a scalar as it is written: 1.10 need not be quoted.
func (c *Collector) Text(n *yaml.Node, key string) (string, bool) {
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" || n.Value == "" || strings.ContainsRune(n.Value, 0) {
		c.Add(n.Line, "", "%s must be a text", key)
		return "", false
	}
	return n.Value, true
}
