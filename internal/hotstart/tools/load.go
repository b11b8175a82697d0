package tools

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"premix/internal/kit/owner"
	"premix/internal/kit/problem"
)

//go:embed *.yaml behind/*.yaml
var embedded embed.FS

// Tool describes a program.
type Tool struct {
	Name string
	File string // path of the description
	description
	// Behind are the names of the programs that a script of this name executes. They have its
	// options, or a description of their own in the directory behind of the catalogue.
	Behind   []string
	Commands map[string]*description // by their names; nil if the program has none
}

// description describes the words after the name of a program or subcommand.
type description struct {
	Style     style
	Options   map[string]role
	Arguments []role
	Rates     []string          // regular expressions of parts of output files with times and rates
	Unfit     map[string]string // "-d" or "-d VALUE", or "" for all of the command -> reason
}

type style string

const (
	styleGetopt style = "getopt"
	styleWords  style = "words"
)

// role is a role as a file writes it. A flag has no role.
type role struct {
	Name          Role
	List, Several bool
}

// role returns the role of an option's value.
func (d *description) role(option string) (role, bool) {
	r, ok := d.Options[option]
	return r, ok
}

// known reports whether a word is an option, or looks like one.
func (d *description) known(word string) bool {
	if _, ok := d.Options[word]; ok {
		return true
	}
	if d.Style == styleWords && strings.HasPrefix(word, "-") && !strings.HasPrefix(word, "--") && d.onlyLong() {
		return false // as in --readFilesCommand gzip -dc
	}
	return len(word) > 1 && word[0] == '-' && (word[1] < '0' || word[1] > '9') && word[1] != '.'
}

// onlyLong reports whether all options begin with "--".
func (d *description) onlyLong() bool {
	for name := range d.Options {
		if !strings.HasPrefix(name, "--") {
			return false
		}
	}
	return true
}

// Dir returns the user's directory of descriptions.
func Dir() (string, error) {
	if dir := os.Getenv("PREMIX_TOOLS"); dir != "" {
		return dir, nil
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("no directory for descriptions of tools: %w", err)
	}
	return filepath.Join(dir, "premix", "tools"), nil
}

// Find returns the description of a program from the user's directory or the embedded
// catalogue, or nil if neither has it. The description of a script is also the description
// of the programs behind it, whose names begin with the name of the script. The error for
// mistakes in the user's file is a problem.List.
func Find(program string) (*Tool, error) {
	name := filepath.Base(program)
	for script := name; ; {
		t, err := named(script)
		if err != nil || t != nil && (script == name || slices.Contains(t.Behind, name)) {
			return t, err
		}
		i := strings.LastIndexByte(script, '-')
		if i < 0 {
			return nil, nil
		}
		script = script[:i]
	}
}

// named returns the description of a name.
func named(name string) (*Tool, error) {
	if dir, err := Dir(); err == nil {
		file := filepath.Join(dir, name+".yaml")
		text, err := owner.ReadConfig(file)
		if err == nil {
			return parse(file, name, text)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	for _, dir := range []string{"", "behind/"} {
		file := dir + name + ".yaml"
		if text, err := embedded.ReadFile(file); err == nil {
			return parse("tools/"+file, name, text)
		}
	}
	return nil, nil
}

// Names returns the programs of the embedded catalogue that users call.
func Names() []string {
	// Reading an embedded directory cannot fail.
	entries, _ := embedded.ReadDir(".")
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			continue // their scripts are the programs that users call
		}
		names = append(names, strings.TrimSuffix(e.Name(), ".yaml"))
	}
	return names
}

var (
	descriptionKeys = []string{"style", "flags", "values", "options", "arguments", "rates", "unfit"}
	toolKeys        = append([]string{"commands", "behind"}, descriptionKeys...)
)

// parse reads a file of the catalogue.
func parse(file, name string, text []byte) (*Tool, error) {
	c := &problem.Collector{File: file}
	t := &Tool{Name: name, File: file}
	form := "a description has at least `style: getopt` and `arguments: [input]`"
	root := c.YAML(text, problem.Document{Name: "description of a tool", Form: form})
	if root == nil {
		return nil, c.Err()
	}
	t.description = empty(styleGetopt)
	var commands *yaml.Node
	c.Mapping(root, "a description", toolKeys, func(key string, v *yaml.Node) {
		switch key {
		case "commands":
			commands = v // read last, since the style may follow them
			return
		case "behind":
			text, _ := c.Text(v, key)
			t.Behind = strings.Fields(text)
			return
		}
		t.key(c, key, v)
	})
	if commands != nil {
		t.Commands = map[string]*description{}
		c.Mapping(commands, "commands", nil, func(command string, v *yaml.Node) {
			d := empty(t.Style)
			t.Commands[command] = &d
			c.Mapping(v, command, descriptionKeys, func(key string, v *yaml.Node) { d.key(c, key, v) })
		})
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	return t, nil
}

func empty(s style) description {
	return description{Style: s, Options: map[string]role{}, Unfit: map[string]string{}}
}

// key reads one key of a description.
func (d *description) key(c *problem.Collector, key string, v *yaml.Node) {
	switch key {
	case "style":
		if text, ok := c.Text(v, key); ok {
			d.Style = style(text)
			if d.Style != styleGetopt && d.Style != styleWords {
				c.Add(v.Line, "use getopt or words", "unknown style %s", text)
			}
		}
	case "flags", "values":
		text, ok := c.Text(v, key)
		if !ok {
			return
		}
		r := role{}
		if key == "values" {
			r.Name = Value
		}
		for _, option := range strings.Fields(text) {
			d.option(c, v.Line, option, r)
		}
	case "options":
		c.Mapping(v, key, nil, func(option string, v *yaml.Node) {
			if r, ok := readRole(c, v, option); ok {
				d.option(c, v.Line, option, r)
			}
		})
	case "arguments":
		if v.Kind != yaml.SequenceNode {
			c.Add(v.Line, "write it as [data, input...]", "arguments must be a list")
			return
		}
		for i, n := range v.Content {
			r, ok := readRole(c, problem.Follow(n), "an argument")
			if ok && r.Several && i+1 < len(v.Content) {
				c.Add(n.Line, "leave out the dots", "only the last argument may be several words")
			}
			d.Arguments = append(d.Arguments, r)
		}
	case "rates":
		if v.Kind != yaml.SequenceNode {
			c.Add(v.Line, "write it as ['Speed: .*']", "rates must be a list")
			return
		}
		for _, n := range v.Content {
			text, _ := c.Text(problem.Follow(n), "a rate")
			if _, err := regexp.Compile(text); err != nil {
				c.Add(n.Line, "write it as in Go: https://pkg.go.dev/regexp/syntax", "%q is not a regular expression: %v", text, err)
			}
			d.Rates = append(d.Rates, text)
		}
	case "unfit":
		if v.Kind == yaml.ScalarNode {
			d.Unfit[""], _ = c.Text(v, key)
			return
		}
		c.Mapping(v, key, nil, func(what string, v *yaml.Node) {
			reason, _ := c.Text(v, what)
			d.Unfit[what] = reason
		})
	}
}

func (d *description) option(c *problem.Collector, line int, option string, r role) {
	if len(option) < 2 || option[0] != '-' || strings.Contains(option, "=") {
		c.Add(line, "write it with its dash: -t", "%s is not an option", option)
	}
	if _, twice := d.Options[option]; twice {
		c.Add(line, "keep one of them", "the option %s occurs twice", option)
	}
	d.Options[option] = r
}

var roles = []string{string(Value), string(Data), string(Input), string(Output), string(Label), string(readGroup)}

// readRole reads a role with its comma or dots.
func readRole(c *problem.Collector, n *yaml.Node, of string) (role, bool) {
	text, ok := c.Text(n, "the role of "+of)
	if !ok {
		return role{}, false
	}
	var r role
	text, r.Several = strings.CutSuffix(text, "...")
	text, r.List = strings.CutSuffix(text, ",")
	r.Name = Role(text)
	if !slices.Contains(roles, text) {
		c.Add(n.Line, problem.Meant(text, roles, "%s"), "unknown role %s", text)
		return role{}, false
	}
	return r, true
}
