package collect

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"premix/internal/kit/problem"
)

func written(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "watch.yaml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReadConfig(t *testing.T) {
	c, err := ReadConfig(written(t, `node: n7
interval: 2s
collectors:
  disk: {interval: 500ms}
  nfs: {on: false}
runs: [/data/run1]
tasks:
  - {manager: pbs, path: '/pbs_jobs\.service/jobid/(?P<task>[^/]+)$'}
scripts:
  - name: temperature
    command: [ipmitool, sdr]
    interval: 1m
    timeout: 5s
    pattern: '(?P<sensor>\w+) (?P<value>\d+)'
    labels: {rack: r1}
  - {name: two, command: 'a | b', format: lines, unit: B/s, counter: true, series: other}
`))
	if err != nil {
		t.Fatal(err)
	}
	s := c.Scripts
	if c.Node != "n7" || c.Interval != 2*time.Second || c.Collectors["disk"].Interval != 500*time.Millisecond || *c.Collectors["nfs"].On || c.Runs[0] != "/data/run1" ||
		c.patterns[0].manager != "pbs" || s[0].Timeout != 5*time.Second || s[0].Series != "temperature" || s[0].Labels["rack"] != "r1" || s[0].Command[1] != "sdr" ||
		strings.Join(s[1].Command, " ") != "/bin/sh -c a | b" || s[1].Unit != "B/s" || !s[1].Counter || s[1].Series != "other" || s[1].Timeout != 10*time.Second {
		t.Errorf("%+v", c)
	}
	if c, err := ReadConfig(written(t, "")); err != nil || c == nil {
		t.Errorf("an empty file: %v", err)
	}
}

func TestConfigProblems(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"- a\n", ":1: this is not a configuration"},
		{"nodes: a\n", ":1: unknown key nodes in the configuration"},
		{"node: a\nnode: b\n", ":2: node occurs twice"},
		{"node: [a]\n", ":1: node must be a word"},
		{"interval: soon\n", `:1: interval: "soon" is not a time`},
		{"interval: 1ms\n", ":1: interval must be from 100ms to 24h0m0s"},
		{"collectors: {dsk: {}}\n", ":1: unknown key dsk in collectors"},
		{"collectors: {disk: {on: maybe}}\n", ":1: on must be true or false"},
		{"runs: /a\n", ":1: runs must be a list"},
		{"runs: [a]\n", `:1: the directory "a" is not absolute`},
		{"tasks: [{path: '(?P<task>x)'}]\n", ":1: a kind of tasks has no manager:"},
		{"tasks: [{manager: a, path: 'x'}]\n", ":1: path has no group task"},
		{"tasks: [{manager: a, path: '(?P<task>x)(?P<who>x)'}]\n", ":1: path: unknown group who"},
		{"tasks: [{manager: a, path: '('}]\n", ":1: path: error parsing regexp"},
		{"scripts: [{command: a, format: lines}]\n", ":1: a script has no name:"},
		{"scripts: [{name: a, format: lines}]\n", ":1: script a has no command:"},
		{"scripts: [{name: a, command: a}]\n", ":1: script a must have a pattern: or a format:"},
		{"scripts: [{name: a, command: a, format: lines, pattern: '(?P<value>x)'}]\n", ":1: script a must have a pattern: or a format:"},
		{"scripts: [{name: a, command: a, pattern: 'x'}]\n", ":1: pattern has no group value"},
		{"scripts: [{name: a, command: a, format: xml}]\n", ":1: format: must be lines"},
		{"scripts: [{name: a, command: a, format: lines, unit: kg}]\n", `:1: unknown unit "kg"`},
		{"scripts: [{name: a, command: a, format: lines, series: 'A b'}]\n", `:1: series: "A b" must have only`},
		{"scripts: [{name: a, command: a, format: lines, interval: 1s, timeout: 2s}]\n", ":1: script a: its timeout is longer than its interval"},
		{"scripts: [{name: disk, command: a, format: lines}]\n", ":1: there is another collector disk"},
		{"scripts:\n  - {name: a, command: a, format: lines}\n  - {name: a, command: a, format: lines}\n", ":3: there is another collector a"},
		{"a: b: c\n", ": this is not YAML: mapping values are not allowed"},
		{"node: a\n---\nnode: b\n", ":2: a second document begins"},
	} {
		path := written(t, c.text)
		_, err := ReadConfig(path)
		var ps problem.List
		if !errors.As(err, &ps) || !strings.Contains(err.Error(), path+c.want) {
			t.Errorf("%q: %v, want %s", c.text, err, c.want)
		}
	}
	_, err := ReadConfig(written(t, "interval: x\nnode: [a]\nfoo: 1\n"))
	var ps problem.List
	if !errors.As(err, &ps) || fmt.Sprint(ps[0].Line, ps[1].Line, ps[2].Line) != "1 2 3" {
		t.Errorf("three mistakes: %v", err)
	}
	if _, err := ReadConfig("/no/such/file"); !errors.As(err, &ps) {
		t.Errorf("no file: %v", err)
	}
}
