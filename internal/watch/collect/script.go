package collect

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"premix/internal/kit/regex"
	"premix/internal/watch"
)

// maxSeries bounds the series that a script may report in a turn. More indicate a mistake
// in its pattern, for example a time in a label.
const maxSeries = 10_000

// script runs a program of the site and extracts values from its output, by the pattern in
// the configuration. A program that does not end in time is killed with all its
// descendants. It never runs twice at once.
type script struct {
	*machine
	s    Script
	b    batch
	seen kept[scriptSeries]
}

type scriptSeries struct {
	counter
}

func newScript(m *machine, s Script) *script { return &script{machine: m, s: s} }

// Name returns the name from the configuration.
func (c *script) Name() string { return c.s.Name }

// value is one value that a script printed.
type value struct {
	name   string // "" for the name from the configuration
	labels []string
	v      float64
}

// Collect runs the program once.
func (c *script) Collect(ctx context.Context, now time.Time, to watch.Sink) error {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(c.s.Timeout))
	defer cancel()
	out, err := runProgram(ctx, "", c.s.Command[0], c.s.Command[1:]...)
	if err != nil {
		return err
	}
	var list []value
	if c.s.pattern != nil {
		list, err = matches(c.s.pattern, out)
	} else {
		list, err = lines(out)
	}
	c.b.begin(now, c.now())
	if len(list) > maxSeries {
		list, err = list[:maxSeries], fmt.Errorf("it printed more than %d values", maxSeries)
	}
	reported := make(map[string]bool)
	for _, v := range list {
		id := c.id(v)
		key := id.String()
		if reported[key] {
			continue // printed twice: the first counts
		}
		reported[key] = true
		s := c.seen.get(key, func() *scriptSeries {
			return &scriptSeries{counter{gauge: gauge{id, watch.Unit(c.s.Unit)}}}
		})
		if c.s.Counter {
			c.b.rate(&s.counter, v.v, 1)
		} else {
			c.b.level(&s.gauge, v.v)
		}
	}
	c.seen.sweep(nil)
	to.Samples(c.b.samples)
	if err == nil && len(list) == 0 {
		err = errors.New("the pattern matches nothing in its output")
	}
	return err
}

// id returns the series of a value: vendor.NAME, with the labels of the machine, of the
// configuration and of the value. Of labels with the same key the last counts.
func (c *script) id(v value) watch.ID {
	name := v.name
	if name == "" {
		name = c.s.Series
	}
	labels := map[string]string{"node": c.node}
	for k, t := range c.s.Labels {
		labels[k] = t
	}
	for i := 0; i+1 < len(v.labels); i += 2 {
		labels[v.labels[i]] = v.labels[i+1]
	}
	var list []string
	for k, t := range labels {
		if t != "" {
			list = append(list, k, t)
		}
	}
	return watch.NewID(string(watch.LayerVendor)+"."+plainName(name), list...)
}

var notPlain = regex.Lazy(`[^a-z0-9_]+`)

// plainName makes the name of a series from any text.
func plainName(text string) string {
	return strings.Trim(notPlain().ReplaceAllString(strings.ToLower(text), "_"), "_")
}

// matches finds all matches of a pattern. The group value is the value, the group name the
// name if it exists, and all others are labels.
func matches(pattern *regexp.Regexp, out string) ([]value, error) {
	var list []value
	var bad error
	for _, m := range pattern.FindAllStringSubmatch(out, maxSeries+1) {
		var v value
		text := ""
		for i, group := range pattern.SubexpNames() {
			switch group {
			case "":
			case "value":
				text = m[i]
			case "name":
				v.name = m[i]
			default:
				v.labels = append(v.labels, group, strings.TrimSpace(m[i]))
			}
		}
		n, err := parseValue(text)
		if err != nil {
			bad = err
			continue
		}
		v.v = n
		list = append(list, v)
	}
	return list, bad
}

func parseValue(text string) (float64, error) {
	v, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil {
		return 0, fmt.Errorf("%q is not a number", text)
	}
	return v, nil
}

// lineForm is a line `name{label="value",...} number`, as in Prometheus' text format
// without times. A line that begins with # is a comment.
var (
	lineForm  = regex.Lazy(`^([A-Za-z_:][\w:.]*)(?:\{(.*)\})?\s+(\S+)\s*$`)
	labelForm = regex.Lazy(`^\s*([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"\s*(?:,|$)`)
	quotes    = strings.NewReplacer(`\\`, `\`, `\"`, `"`, `\n`, "\n")
)

// lines returns the values in the output of a script, and an error if a line has another form.
func lines(out string) ([]value, error) {
	var list []value
	var bad error
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		v, err := parseLine(line)
		if err != nil {
			bad = err
			continue
		}
		if list = append(list, v); len(list) > maxSeries {
			break
		}
	}
	return list, bad
}

func parseLine(line string) (v value, err error) {
	m := lineForm().FindStringSubmatch(line)
	if m == nil {
		return v, fmt.Errorf("%q is not a line `name{label=\"value\"} number`", firstLine(line))
	}
	v.name = m[1]
	for rest := m[2]; strings.TrimSpace(rest) != ""; {
		l := labelForm().FindStringSubmatch(rest)
		if l == nil {
			return v, fmt.Errorf("%q: the labels are not of the form label=\"value\"", firstLine(line))
		}
		v.labels = append(v.labels, l[1], quotes.Replace(l[2]))
		rest = rest[len(l[0]):]
	}
	v.v, err = parseValue(m[3])
	return v, err
}
