package collect

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"premix/internal/kit/problem"
	"premix/internal/kit/units"
	"premix/internal/watch"
)

// Config is the content of a configuration file; docs/watch.md describes it.
type Config struct {
	Node       string             // name of the machine; "" for its host name
	Interval   time.Duration      // of collectors that have none of their own; 0: not set
	Collectors map[string]Setting // by name
	Runs       []string           // directories to follow without an announcement
	Scripts    []Script
	patterns   []taskPattern
}

// Name returns the name of the machine.
func (c *Config) Name() (string, error) {
	if c.Node != "" {
		return c.Node, nil
	}
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("the machine has no name (set node: in the configuration): %w", err)
	}
	return name, nil
}

// Setting is the configuration of one collector.
type Setting struct {
	On       *bool         // nil: on if the machine has data for it
	Interval time.Duration // 0: the default
	DCGM     string        // of the collector gpu: address of an exporter of DCGM
}

// Script is a program of the site that prints values.
type Script struct {
	Name     string
	Command  []string // program and arguments
	Interval time.Duration
	Timeout  time.Duration
	Series   string            // name of the series, without "vendor."
	Unit     watch.Unit        // of all its values
	Counter  bool              // the values only grow: report their rates
	Labels   map[string]string // of all its series

	pattern *regexp.Regexp // nil: lines `name{label="value"} number`
}

// Limits of intervals.
const (
	MinInterval = 100 * time.Millisecond
	MaxInterval = 24 * time.Hour
)

// collectorNames are the collectors that can be configured.
var collectorNames = []string{"node", "disk", "network", "mount", "nfs", "lustre", "jobstats", "gpfs", "beegfs", "zfs", "infiniband", "gpu", "energy", "ipmi", "cgroup", "lost", "program", "task", "process", "store", "start", "slurm", "watch"}

// ReadConfig reads a configuration file. An error is a [problem.List] of all mistakes in
// it.
func ReadConfig(file string) (*Config, error) {
	l := &loader{Collector: problem.Collector{File: file}, config: &Config{Collectors: make(map[string]Setting)}}
	text, err := os.ReadFile(file)
	if err != nil {
		l.Add(0, "premix help watch shows a configuration", "%v", err)
		return nil, l.Err()
	}
	if root := l.YAML(text, problem.Document{Name: "configuration", Form: "premix help watch shows one", Void: true}); root != nil {
		l.top(root)
	}
	if err := l.Err(); err != nil {
		return nil, err
	}
	return l.config, nil
}

// loader reads one file.
type loader struct {
	problem.Collector
	config *Config
}

func (l *loader) add(n *yaml.Node, hint, format string, args ...any) {
	l.Add(n.Line, hint, format, args...)
}

// keys calls the function of each key in a mapping.
func (l *loader) keys(n *yaml.Node, what string, known map[string]func(v *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		l.add(n, "", "%s must be keys with values", what)
		return
	}
	seen := make(map[string]bool)
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		f := known[k.Value]
		switch {
		case f == nil:
			l.add(k, "its keys are "+strings.Join(sortedKeys(known), ", "), "unknown key %s in %s", k.Value, what)
		case seen[k.Value]:
			l.add(k, "", "%s occurs twice", k.Value)
		default:
			f(v)
		}
		seen[k.Value] = true
	}
}

func sortedKeys[T any](m map[string]T) []string {
	var list []string
	for k := range m {
		list = append(list, k)
	}
	slices.Sort(list)
	return list
}

func (l *loader) text(n *yaml.Node, key string, to *string) {
	if n.Kind != yaml.ScalarNode || n.Value == "" {
		l.add(n, "", "%s must be a word", key)
		return
	}
	*to = n.Value
}

func (l *loader) flag(n *yaml.Node, key string) bool {
	var v bool
	if n.Decode(&v) != nil {
		l.add(n, "", "%s must be true or false", key)
	}
	return v
}

func (l *loader) span(n *yaml.Node, key string, least time.Duration, to *time.Duration) {
	d, err := units.ParseDuration(n.Value)
	if err != nil || n.Kind != yaml.ScalarNode {
		l.add(n, "as in 10s or 500ms", "%s: %q is not a time", key, n.Value)
		return
	}
	if d < least || d > MaxInterval {
		l.add(n, "", "%s must be from %v to %v", key, least, MaxInterval)
		return
	}
	*to = d
}

func (l *loader) list(n *yaml.Node, key string, each func(v *yaml.Node)) {
	if n.Kind != yaml.SequenceNode {
		l.add(n, "", "%s must be a list", key)
		return
	}
	for _, v := range n.Content {
		each(v)
	}
}

func (l *loader) top(n *yaml.Node) {
	c := l.config
	l.keys(n, "the configuration", map[string]func(*yaml.Node){
		"node":     func(v *yaml.Node) { l.text(v, "node", &c.Node) },
		"interval": func(v *yaml.Node) { l.span(v, "interval", MinInterval, &c.Interval) },
		"collectors": func(v *yaml.Node) {
			known := make(map[string]func(*yaml.Node))
			for _, name := range collectorNames {
				known[name] = func(v *yaml.Node) { l.collector(name, v) }
			}
			l.keys(v, "collectors", known)
		},
		"runs": func(v *yaml.Node) {
			l.list(v, "runs", func(v *yaml.Node) {
				var dir string
				if l.text(v, "a run", &dir); dir != "" && !strings.HasPrefix(dir, "/") {
					l.add(v, "write it from / on", "the directory %q is not absolute", dir)
				}
				c.Runs = append(c.Runs, dir)
			})
		},
		"tasks":   func(v *yaml.Node) { l.list(v, "tasks", l.tasks) },
		"scripts": func(v *yaml.Node) { l.list(v, "scripts", l.script) },
	})
}

func (l *loader) collector(name string, n *yaml.Node) {
	var s Setting
	known := map[string]func(*yaml.Node){
		"on": func(v *yaml.Node) {
			on := l.flag(v, "on")
			s.On = &on
		},
		"interval": func(v *yaml.Node) { l.span(v, "interval", MinInterval, &s.Interval) },
	}
	if name == "gpu" {
		known["dcgm"] = func(v *yaml.Node) {
			if l.text(v, "dcgm", &s.DCGM); s.DCGM != "" && !strings.HasPrefix(s.DCGM, "http://") && !strings.HasPrefix(s.DCGM, "https://") {
				l.add(v, "write it like http://localhost:9400/metrics", "dcgm: %q is not an address", s.DCGM)
			}
		}
	}
	l.keys(n, name, known)
	l.config.Collectors[name] = s
}

func (l *loader) tasks(n *yaml.Node) {
	var manager string
	var path *regexp.Regexp
	l.keys(n, "a kind of tasks", map[string]func(*yaml.Node){
		"manager": func(v *yaml.Node) { l.text(v, "manager", &manager) },
		"path":    func(v *yaml.Node) { path = l.pattern(v, "path", "task", []string{"task", "pid", "key"}) },
	})
	if n.Kind == yaml.MappingNode && manager == "" {
		l.add(n, "as in manager: pbs", "a kind of tasks has no manager:")
	}
	if path != nil {
		l.config.patterns = append(l.config.patterns, taskPattern{manager, path})
	}
}

// pattern reads a regular expression that must have a group. If allowed is not nil, it must
// not have other groups than those.
func (l *loader) pattern(n *yaml.Node, key, group string, allowed []string) *regexp.Regexp {
	re, err := regexp.Compile(n.Value)
	if err != nil {
		l.add(n, "see https://pkg.go.dev/regexp/syntax", "%s: %v", key, err)
		return nil
	}
	if !slices.Contains(re.SubexpNames(), group) {
		l.add(n, "name it as in (?P<"+group+">...)", "%s has no group %s", key, group)
		return nil
	}
	for _, g := range re.SubexpNames() {
		if g != "" && allowed != nil && !slices.Contains(allowed, g) {
			l.add(n, "its groups are "+strings.Join(allowed, ", "), "%s: unknown group %s", key, g)
		}
	}
	return re
}

// scriptUnits are the units that values of scripts may have.
var scriptUnits = []watch.Unit{watch.Bytes, watch.BytesPerSecond, watch.PerSecond, watch.Seconds, watch.Cores, watch.Ratio, watch.Watts, watch.Celsius, watch.Count}

func (l *loader) script(n *yaml.Node) {
	s := Script{Interval: 30 * time.Second, Unit: watch.Count}
	format := ""
	l.keys(n, "a script", map[string]func(*yaml.Node){
		"name": func(v *yaml.Node) { l.text(v, "name", &s.Name) },
		"command": func(v *yaml.Node) {
			if v.Kind == yaml.ScalarNode {
				if v.Value != "" {
					s.Command = []string{"/bin/sh", "-c", v.Value}
				}
				return
			}
			l.list(v, "command", func(v *yaml.Node) { s.Command = append(s.Command, v.Value) })
		},
		"interval": func(v *yaml.Node) { l.span(v, "interval", MinInterval, &s.Interval) },
		"timeout":  func(v *yaml.Node) { l.span(v, "timeout", time.Millisecond, &s.Timeout) },
		"pattern":  func(v *yaml.Node) { s.pattern = l.pattern(v, "pattern", "value", nil) },
		"format": func(v *yaml.Node) {
			if format = v.Value; format != "lines" {
				l.add(v, "", "format: must be lines; a script with another format needs a pattern:")
			}
		},
		"series": func(v *yaml.Node) {
			if l.text(v, "series", &s.Series); s.Series != "" && plainName(s.Series) != s.Series {
				l.add(v, "write "+plainName(s.Series), "series: %q must have only lower-case letters, digits and _", s.Series)
			}
		},
		"unit": func(v *yaml.Node) {
			if s.Unit = watch.Unit(v.Value); !slices.Contains(scriptUnits, s.Unit) {
				l.add(v, fmt.Sprintf("units are %v", scriptUnits), "unknown unit %q", v.Value)
			}
		},
		"counter": func(v *yaml.Node) { s.Counter = l.flag(v, "counter") },
		"labels": func(v *yaml.Node) {
			if v.Decode(&s.Labels) != nil {
				l.add(v, "", "labels must be keys with words")
			}
		},
	})
	if n.Kind != yaml.MappingNode {
		return
	}
	if s.Name == "" {
		l.add(n, "", "a script has no name:")
	}
	if slices.ContainsFunc(l.config.Scripts, func(o Script) bool { return o.Name == s.Name }) || slices.Contains(collectorNames, s.Name) {
		l.add(n, "", "there is another collector %s", s.Name)
	}
	if len(s.Command) == 0 {
		l.add(n, "", "script %s has no command:", s.Name)
	}
	hasPattern := slices.ContainsFunc(n.Content, func(k *yaml.Node) bool { return k.Value == "pattern" })
	if hasPattern == (format != "") {
		l.add(n, "use pattern: to find values by a regular expression, or format: lines to read lines name{label=\"value\"} number", "script %s must have a pattern: or a format:", s.Name)
	}
	if s.Timeout == 0 {
		s.Timeout = min(s.Interval, 10*time.Second)
	}
	if s.Timeout > s.Interval {
		l.add(n, "", "script %s: its timeout is longer than its interval", s.Name)
	}
	if s.Series == "" {
		s.Series = plainName(s.Name)
	}
	l.config.Scripts = append(l.config.Scripts, s)
}
