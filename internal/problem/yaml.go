package problem

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"

	"premix/internal/regex"
)

// Document is a kind of YAML file, as messages about one name it.
type Document struct {
	Name string // "recipe", as in: this is no recipe
	Form string // what such a file has at least: the hint where it is something else
	Void bool   // whether it may be empty
	// Syntax gives the hint for what is no YAML, and the line, which the library counts
	// from the line before in some cases. Without it there is a hint that always holds.
	Syntax func(line int) (at int, hint string)
}

// YAML reads a file of one document that is a mapping. Nil says that there is none. Where
// there are more documents, which is a problem, the first is read.
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
		c.Add(root.Line, d.Form, "this is no %s", d.Name)
		return nil
	}
	if err := dec.Decode(&second); err == nil {
		c.Add(max(1, second.Line), "give each "+d.Name+" a file of its own", "a second document begins")
	} else if !errors.Is(err, io.EOF) {
		c.syntax(err, text, d)
	}
	return root
}

// syntaxPlace finds the line in yaml.v3's message, which holds it nowhere else.
var syntaxPlace = regex.Lazy(`^(?:yaml: )?(?:line ([0-9]+): )?(.*)$`)

func (c *Collector) syntax(err error, text []byte, d Document) {
	first, _, _ := strings.Cut(err.Error(), "\n")
	m := syntaxPlace().FindStringSubmatch(first)
	line, _ := strconv.Atoi(m[1]) // 0 where there is none
	hint := "quote a text that begins with a special character, and indent with spaces"
	if d.Syntax != nil {
		line, hint = d.Syntax(line)
	}
	if hint == "" || bytes.IndexByte(text, 0) >= 0 { // which may be no text at all
		hint = d.Form
	}
	c.Add(line, hint, "this is no YAML: %s", m[2])
}

var (
	unknownField = regex.Lazy(`field (\S+) not found in type .+`)
	wrongKind    = regex.Lazy("cannot unmarshal \\S+ (?:(`.*`) )?into .+")
)

// Words is what yaml.v3 says where it fills in Go's types by itself, in the words of who
// writes the file: a line a mistake, each with the line it is in. The library tells them as
// texts, and nothing else.
func Words(err error) string {
	list := []string{strings.TrimPrefix(err.Error(), "yaml: ")}
	var types *yaml.TypeError
	if errors.As(err, &types) {
		list = slices.Clone(types.Errors)
	}
	for i, s := range list {
		s = unknownField().ReplaceAllString(s, "unknown key $1")
		list[i] = strings.ReplaceAll(wrongKind().ReplaceAllString(s, "$1 does not do for this key"), ":  does", ": this does")
	}
	return strings.Join(list, "\n  ")
}

// Follow is the node that an alias stands for.
func Follow(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode && n.Alias != nil {
		n = n.Alias
	}
	return n
}

// Mapping gives each key of a mapping, with what follows it; what names the mapping in
// messages. Keys are of those that are known, or any where known is nil.
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
			c.Add(k.Line, "keep one of them", "%s stands twice in %s, first in line %d", k.Value, what, seen[k.Value])
		default:
			seen[k.Value] = k.Line
			each(k.Value, v)
		}
	}
}

// Text reads a scalar as it is written: 1.10 need not be quoted.
func (c *Collector) Text(n *yaml.Node, key string) (string, bool) {
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" || n.Value == "" || strings.ContainsRune(n.Value, 0) {
		c.Add(n.Line, "", "%s must be a text", key)
		return "", false
	}
	return n.Value, true
}
