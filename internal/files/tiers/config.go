package tiers

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"premix/internal/kit/problem"
	"premix/internal/kit/regex"
	"premix/internal/kit/units"
)

// Config is the content of a file of tiers.
type Config struct {
	Tiers    []Tier // the fastest first
	Rules    []Rule
	Interval time.Duration // between two passes that move files
}

// Tier is one directory on a fast or slow disk.
type Tier struct {
	Name string
	Dir  string // absolute
	// Capacity bounds the bytes of its files; 0: the size of the file system.
	Capacity int64
	// High and Low are watermarks in percent of the capacity. The last tier has none.
	High, Low int
}

// Rule moves files from one tier to another, whatever the fill level of the tiers. A file
// must fulfil all its conditions.
type Rule struct {
	From, To string        // names of tiers
	Older    time.Duration // since the last change of the content
	Idle     time.Duration // since the last read or change, as far as the file system records it
	Larger   int64         // bytes; 0: any
	Smaller  int64         // bytes; 0: any
}

const (
	defaultHigh     = 80
	defaultLow      = 70
	defaultInterval = time.Minute
	maxConfig       = 1 << 20 // bytes; a larger file cannot be a configuration
)

// Load reads and checks a file of tiers:
//
//	tiers:
//	  - {name: flash, dir: /flash/project, high: 80, low: 70}
//	  - {name: disk, dir: /disk/project, capacity: 200 TB}
//	rules:
//	  - {from: flash, to: disk, older: 30d, larger: 1 GB}
//	interval: 1m
//
// The list may also have the key pools, so that rules for scans can use the same file.
// Relative directories are relative to the directory of the file. The error is a
// [problem.List].
func Load(file string) (*Config, error) {
	l := &loader{Collector: problem.Collector{File: file}, c: &Config{Interval: defaultInterval}}
	abs, err := filepath.Abs(file)
	if err != nil {
		return nil, err
	}
	l.base = filepath.Dir(abs)
	text, err := os.ReadFile(file)
	switch {
	case err != nil:
		l.Add(0, "name a file of tiers: premix help files-tiers shows one", "%v", err)
	case len(text) > maxConfig:
		l.Add(0, "premix help files-tiers shows an example", "this is not a file of tiers: it has over %d bytes", maxConfig)
	default:
		l.document(text)
	}
	if err := l.Err(); err != nil {
		return nil, err
	}
	return l.c, nil
}

type loader struct {
	problem.Collector
	base string
	c    *Config
}

const form = "write tiers: with a list of {name: ..., dir: ...} below it"

func (l *loader) document(text []byte) {
	root := l.YAML(text, problem.Document{Name: "file of tiers", Form: form})
	if root == nil {
		return
	}
	lines := map[string]int{}
	l.Mapping(root, "the file", []string{"tiers", "pools", "rules", "interval"}, func(key string, v *yaml.Node) {
		lines[key] = v.Line
		switch key {
		case "tiers", "pools":
			if lines["tiers"] > 0 && lines["pools"] > 0 {
				l.Add(v.Line, "keep one of them", "tiers and pools mean the same")
			}
			for _, n := range l.list(v, form) {
				l.tier(n)
			}
		case "interval":
			l.c.Interval = l.duration(v)
		}
	})
	if len(l.c.Tiers) < 2 && len(l.List) == 0 {
		l.Add(max(lines["tiers"], lines["pools"], root.Line), form, "at least two tiers are needed")
	}
	// Rules refer to tiers, which may come later in the file.
	for i := 0; i+1 < len(root.Content); i += 2 {
		if root.Content[i].Value == "rules" {
			for _, n := range l.list(root.Content[i+1], "write rules: with a list of {from: ..., to: ...} below it") {
				l.rule(n)
			}
		}
	}
}

func (l *loader) list(n *yaml.Node, form string) []*yaml.Node {
	if n.Kind != yaml.SequenceNode {
		l.AddAt(n.Line, n.Column, form, "this is not a list")
		return nil
	}
	return n.Content
}

// nameForm is the permitted form of the name of a tier.
var nameForm = regex.Lazy(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

func (l *loader) tier(n *yaml.Node) {
	t := Tier{High: defaultHigh, Low: defaultLow}
	told := false // a mistake was reported that would cause others
	l.Mapping(n, "a tier", []string{"name", "dir", "capacity", "high", "low"}, func(key string, v *yaml.Node) {
		switch key {
		case "name":
			t.Name = v.Value
			if !nameForm().MatchString(t.Name) {
				l.AddAt(v.Line, v.Column, "use letters, digits, dots, - and _", "%q is not a valid name for a tier", t.Name)
			}
		case "dir":
			t.Dir = l.dir(v)
			told = told || t.Dir == ""
		case "capacity":
			t.Capacity = l.size(v)
		case "high":
			t.High = l.percent(v)
			told = told || t.High == 0
		case "low":
			t.Low = l.percent(v)
			told = told || t.Low == 0
		}
	})
	if n.Kind != yaml.MappingNode {
		return
	}
	if t.Name == "" || t.Dir == "" && !told {
		l.AddAt(n.Line, n.Column, "write {name: flash, dir: /flash/project}", "a tier needs a name and a dir")
	}
	if t.Low > t.High && !told {
		l.AddAt(n.Line, n.Column, "files are moved when the tier is above high, until it is at low", "low (%d) is above high (%d)", t.Low, t.High)
	}
	for _, other := range l.c.Tiers {
		if other.Name == t.Name && t.Name != "" {
			l.AddAt(n.Line, n.Column, "give each tier a name of its own", "two tiers have the name %s", t.Name)
		}
		if t.Dir != "" && other.Dir != "" && (within(t.Dir, other.Dir) || within(other.Dir, t.Dir)) {
			l.AddAt(n.Line, n.Column, "tiers must not contain each other", "one of %s and %s contains the other", t.Dir, other.Dir)
		}
	}
	l.c.Tiers = append(l.c.Tiers, t)
}

// within reports whether path is dir, or lies below it.
func within(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

func (l *loader) dir(v *yaml.Node) string {
	if v.Kind != yaml.ScalarNode || v.Value == "" {
		l.AddAt(v.Line, v.Column, "as in dir: /flash/project", "dir must be the path of a directory")
		return ""
	}
	dir := v.Value
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(l.base, dir)
	}
	real, err := filepath.EvalSymlinks(dir)
	if err == nil {
		var st os.FileInfo
		if st, err = os.Stat(real); err == nil && !st.IsDir() {
			err = fmt.Errorf("%s is not a directory", dir)
		}
	}
	if err != nil {
		l.AddAt(v.Line, v.Column, "make the directory first", "%v", err)
		return ""
	}
	return real
}

func (l *loader) percent(v *yaml.Node) int {
	p, err := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(v.Value, "%")))
	if err != nil || p < 1 || p > 100 {
		l.AddAt(v.Line, v.Column, "write a number from 1 to 100", "%q is not a percentage", v.Value)
		return 0
	}
	return p
}

func (l *loader) size(v *yaml.Node) int64 {
	n, err := units.ParseSize(v.Value)
	if err == nil && n > 0 {
		return n
	}
	l.AddAt(v.Line, v.Column, units.SizeHint, "%q is not a number of bytes", v.Value)
	return 0
}

func (l *loader) duration(v *yaml.Node) time.Duration {
	d, err := units.ParseDuration(v.Value)
	if err != nil {
		l.AddAt(v.Line, v.Column, "write it as in 30d, 12h or 10m", "%q is not a length of time", v.Value)
		return time.Minute
	}
	return d
}

func (l *loader) rule(n *yaml.Node) {
	var r Rule
	tier := func(v *yaml.Node) string {
		if !slices.ContainsFunc(l.c.Tiers, func(t Tier) bool { return t.Name == v.Value }) {
			l.AddAt(v.Line, v.Column, "use the name of a tier in the list", "unknown tier %q", v.Value)
		}
		return v.Value
	}
	l.Mapping(n, "a rule", []string{"from", "to", "older", "idle", "larger", "smaller"}, func(key string, v *yaml.Node) {
		switch key {
		case "from":
			r.From = tier(v)
		case "to":
			r.To = tier(v)
		case "older":
			r.Older = l.duration(v)
		case "idle":
			r.Idle = l.duration(v)
		case "larger":
			r.Larger = l.size(v)
		case "smaller":
			r.Smaller = l.size(v)
		}
	})
	switch {
	case n.Kind != yaml.MappingNode:
	case r.From == "" || r.To == "":
		l.AddAt(n.Line, n.Column, "write {from: flash, to: disk, older: 30d}", "a rule needs from and to")
	case r.From == r.To:
		l.AddAt(n.Line, n.Column, "", "from and to are the same tier")
	case r.Older == 0 && r.Idle == 0 && r.Larger == 0 && r.Smaller == 0:
		l.AddAt(n.Line, n.Column, "add older, idle, larger or smaller", "the rule has no condition, and would move every file")
	default:
		for i, other := range l.c.Rules {
			if other.From == r.To && other.To == r.From {
				l.AddAt(n.Line, n.Column, "", "rule %d moves in the opposite direction: files could go back and forth", i+1)
			}
		}
	}
	l.c.Rules = append(l.c.Rules, r)
}
