package alert

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/mail"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"premix/internal/kit/access"
	"premix/internal/kit/owner"
	"premix/internal/kit/problem"
	"premix/internal/kit/units"
	"premix/internal/watch"
)

// Rules is the content of a file of rules; docs/watch.md describes it.
type Rules struct {
	Every     time.Duration // between evaluations
	Stale     time.Duration // age from which the newest sample of a series does not count
	Receivers []*Receiver
	Rules     []*Rule
}

// Kind is the kind of a rule's condition.
type Kind string

// The kinds.
const (
	Threshold  Kind = "threshold"  // the newest value is above or below a bound
	Absence    Kind = "absence"    // a series that was there has no new sample
	Prediction Kind = "prediction" // a line through recent values reaches a bound soon
)

// Rule is a condition on the series that it selects.
type Rule struct {
	Name     string
	Line     int // in the file
	Series   pattern
	Match    []label // labels that the series must have
	Nodes    []pattern
	Kind     Kind
	For      time.Duration // for which the condition must hold before the alert fires
	Severity string
	Text     string // for people; "" for a sentence that premix makes
	To       []string

	// Of Threshold: fires above Bound, or below it.
	Above bool
	Bound float64
	Of    string // series with the same labels by which the value is divided; "" for none

	// Of Absence.
	Absent time.Duration // without a sample
	Forget time.Duration // after which a series is not expected any more

	// Of Prediction: fires if a line through the values of the last Over passes Bound
	// within Within.
	Within, Over time.Duration
}

type label struct {
	key   string
	value pattern
}

// Receiver is a webhook, or an account to send mail from and the addresses to send it to.
type Receiver struct {
	Name string

	URL   string // of the webhook; "" for mail
	Token string // sent as Bearer; "" for none

	Server   string // HOST:PORT
	From     string
	To       []string
	User     string // "" to send without authentication
	Password string
	TLS      string // starttls, tls, none
}

// pattern is a text in which * stands for any text.
type pattern string

// matches reports whether the pattern describes the whole text.
func (p pattern) matches(text string) bool {
	first, rest, wild := strings.Cut(string(p), "*")
	if !wild {
		return string(p) == text
	}
	if !strings.HasPrefix(text, first) {
		return false
	}
	text = text[len(first):]
	for {
		next, more, wild := strings.Cut(rest, "*")
		if !wild {
			return strings.HasSuffix(text, next)
		}
		i := strings.Index(text, next)
		if i < 0 {
			return false
		}
		text, rest = text[i+len(next):], more
	}
}

// picks reports whether the rule is about a series.
func (r *Rule) picks(id watch.ID) bool {
	if !r.Series.matches(id.Name) {
		return false
	}
	for _, l := range r.Match {
		if !l.value.matches(id.Label(l.key)) {
			return false
		}
	}
	if len(r.Nodes) == 0 {
		return true
	}
	node := id.Label("node")
	return slices.ContainsFunc(r.Nodes, func(p pattern) bool { return p.matches(node) })
}

// Limits and defaults.
const (
	defaultEvery  = 10 * time.Second
	leastEvery    = time.Second
	defaultStale  = 5 * time.Minute
	defaultOver   = time.Hour
	defaultForget = 7 * 24 * time.Hour
)

// Units are the units of known series, by name. Names of the layer "vendor" are not known
// in advance.
type Units map[string]watch.Unit

// ReadRules reads a file of rules. An error is a [problem.List] of all mistakes in it.
func ReadRules(file string, known Units) (*Rules, error) {
	l := &loader{Collector: problem.Collector{File: file}, known: known, rules: &Rules{Every: defaultEvery, Stale: defaultStale}}
	// The file names addresses that get data of all users, and files of passwords.
	text, err := owner.ReadConfig(file)
	if err != nil {
		l.AddError(0, "cannot read it", err)
		return nil, l.Err()
	}
	if root := l.YAML(text, problem.Document{Name: "file of rules", Form: form}); root != nil {
		l.top(root)
	}
	if err := l.Err(); err != nil {
		return nil, err
	}
	return l.rules, nil
}

const form = "premix help watch shows one"

type loader struct {
	problem.Collector
	known Units
	rules *Rules
}

func (l *loader) top(n *yaml.Node) {
	var receivers, rules *yaml.Node
	l.Mapping(n, "the file", []string{"every", "stale", "receivers", "rules"}, func(key string, v *yaml.Node) {
		switch key {
		case "every":
			l.span(v, key, leastEvery, &l.rules.Every)
		case "stale":
			l.span(v, key, time.Second, &l.rules.Stale)
		case "receivers":
			receivers = v
		case "rules":
			rules = v
		}
	})
	if receivers != nil {
		l.list(receivers, "receivers", l.receiver)
	}
	if rules == nil {
		l.Add(n.Line, form, "the file has no rules:")
		return
	}
	l.list(rules, "rules", l.rule)
	if len(l.rules.Rules) == 0 && l.Err() == nil {
		l.Add(rules.Line, form, "rules: is empty")
	}
}

func (l *loader) list(n *yaml.Node, key string, each func(v *yaml.Node)) {
	if n.Kind != yaml.SequenceNode {
		l.Add(n.Line, "begin each with a -", "%s must be a list", key)
		return
	}
	for _, v := range n.Content {
		each(problem.Follow(v))
	}
}

// texts reads a text, or a list of texts.
func (l *loader) texts(n *yaml.Node, key string) []string {
	if n.Kind == yaml.ScalarNode {
		if s, ok := l.Text(n, key); ok {
			return []string{s}
		}
		return nil
	}
	var list []string
	l.list(n, key, func(v *yaml.Node) {
		if s, ok := l.Text(v, key); ok {
			list = append(list, s)
		}
	})
	return list
}

func (l *loader) span(n *yaml.Node, key string, least time.Duration, to *time.Duration) {
	d, err := units.ParseDelay(n.Value)
	if err != nil || n.Kind != yaml.ScalarNode {
		l.Add(n.Line, units.TimeHint, "%s: %q is not a time", key, n.Value)
		return
	}
	if d < least {
		l.Add(n.Line, "", "%s must be at least %v", key, least)
		return
	}
	*to = d
}

func (l *loader) secret(n *yaml.Node, key string, read func(file string) (string, error)) string {
	file, ok := l.Text(n, key)
	if !ok {
		return ""
	}
	if !filepath.IsAbs(file) {
		file = filepath.Join(filepath.Dir(l.File), file)
	}
	s, err := read(file)
	if err != nil {
		l.AddError(n.Line, key, err)
	}
	return s
}

func readPassword(file string) (string, error) {
	text, err := owner.ReadSecret(file)
	if err != nil {
		return "", err
	}
	password := strings.TrimRight(string(text), "\r\n")
	if password == "" || strings.ContainsAny(password, "\r\n\x00") {
		return "", fmt.Errorf("%s must have one line, the password", file)
	}
	return password, nil
}

func (l *loader) receiver(n *yaml.Node) {
	r := &Receiver{TLS: "starttls"}
	lines := make(map[string]int)
	l.Mapping(n, "a receiver", []string{"name", "webhook", "token_file", "smtp", "from", "to", "user", "password_file", "tls"}, func(key string, v *yaml.Node) {
		lines[key] = v.Line
		switch key {
		case "name":
			r.Name, _ = l.Text(v, key)
		case "webhook":
			r.URL, _ = l.Text(v, key)
			if u, err := url.Parse(r.URL); r.URL != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "") {
				l.Add(v.Line, "write it like https://hooks.example.org/premix", "webhook: %q is not an address", r.URL)
			}
		case "token_file":
			r.Token = l.secret(v, key, access.ReadToken)
		case "smtp":
			r.Server, _ = l.Text(v, key)
			if host, port, err := net.SplitHostPort(r.Server); r.Server != "" && (err != nil || host == "" || port == "") {
				l.Add(v.Line, "write it like mail.example.org:587", "smtp: %q is not a host and a port", r.Server)
			}
		case "from":
			r.From = l.address(v, key)
		case "to":
			for _, s := range l.texts(v, key) {
				r.To = append(r.To, l.addressOf(v.Line, key, s))
			}
		case "user":
			r.User, _ = l.Text(v, key)
		case "password_file":
			r.Password = l.secret(v, key, readPassword)
		case "tls":
			if r.TLS = v.Value; !slices.Contains([]string{"starttls", "tls", "none"}, r.TLS) {
				l.Add(v.Line, "it is starttls, tls, or none", "unknown tls: %s", v.Value)
			}
		}
	})
	if n.Kind != yaml.MappingNode {
		return
	}
	has := func(key string) bool { return lines[key] > 0 }
	if !has("name") {
		l.Add(n.Line, "as in name: operators", "a receiver has no name:")
	}
	if slices.ContainsFunc(l.rules.Receivers, func(o *Receiver) bool { return o.Name == r.Name }) {
		l.Add(n.Line, "give each a name of its own", "there is another receiver %s", r.Name)
	}
	switch {
	case has("webhook") == has("smtp"):
		l.Add(n.Line, "", "receiver %s must have webhook: or smtp:, and not both", r.Name)
	case has("webhook"):
		for _, key := range []string{"from", "to", "user", "password_file", "tls"} {
			if has(key) {
				l.Add(lines[key], "", "%s is for a receiver with smtp:", key)
			}
		}
	default:
		if has("token_file") {
			l.Add(lines["token_file"], "use user: and password_file:", "token_file is for a receiver with webhook:")
		}
		for _, key := range []string{"from", "to"} {
			if !has(key) {
				l.Add(n.Line, "as in "+key+": premix@example.org", "receiver %s has no %s:", r.Name, key)
			}
		}
		if has("user") != has("password_file") {
			l.Add(n.Line, "", "receiver %s must have both user: and password_file:, or neither", r.Name)
		}
		if has("user") && r.TLS == "none" {
			l.Add(n.Line, "leave out tls: none", "receiver %s would send its password in clear text", r.Name)
		}
	}
	l.rules.Receivers = append(l.rules.Receivers, r)
}

func (l *loader) address(n *yaml.Node, key string) string {
	s, ok := l.Text(n, key)
	if !ok {
		return ""
	}
	return l.addressOf(n.Line, key, s)
}

func (l *loader) addressOf(line int, key, s string) string {
	a, err := mail.ParseAddress(s)
	if err != nil {
		l.Add(line, "write it like premix@example.org", "%s: %q is not a mail address", key, s)
		return ""
	}
	return a.Address
}

var ruleKeys = []string{"name", "series", "match", "nodes", "above", "below", "of", "absent", "forget", "reaches", "within", "over", "for", "severity", "text", "to"}

func (l *loader) rule(n *yaml.Node) {
	r := &Rule{Line: n.Line, Severity: "warning", Over: defaultOver, Forget: defaultForget}
	at := make(map[string]*yaml.Node)
	l.Mapping(n, "a rule", ruleKeys, func(key string, v *yaml.Node) {
		at[key] = v
		switch key {
		case "name":
			r.Name, _ = l.Text(v, key)
		case "series":
			s, _ := l.Text(v, key)
			r.Series = pattern(s)
			l.checkSeries(v.Line, s)
		case "match":
			l.Mapping(v, "match", nil, func(key string, v *yaml.Node) {
				if s, ok := l.Text(v, key); ok {
					r.Match = append(r.Match, label{key, pattern(s)})
				}
			})
		case "nodes":
			for _, s := range l.texts(v, key) {
				r.Nodes = append(r.Nodes, pattern(s))
			}
		case "of":
			r.Of, _ = l.Text(v, key)
			l.checkSeries(v.Line, r.Of)
		case "absent":
			l.span(v, key, leastEvery, &r.Absent)
		case "forget":
			l.span(v, key, time.Minute, &r.Forget)
		case "within":
			l.span(v, key, time.Second, &r.Within)
		case "over":
			l.span(v, key, 10*time.Second, &r.Over)
		case "for":
			l.span(v, key, 0, &r.For)
		case "severity":
			r.Severity, _ = l.Text(v, key)
		case "text":
			r.Text, _ = l.Text(v, key)
		case "to":
			r.To = l.texts(v, key)
		}
	})
	if n.Kind != yaml.MappingNode {
		return
	}
	for _, key := range []string{"name", "series"} {
		if at[key] == nil {
			l.Add(n.Line, "", "a rule has no %s:", key)
		}
	}
	if slices.ContainsFunc(l.rules.Rules, func(o *Rule) bool { return o.Name == r.Name }) {
		l.Add(n.Line, "give each a name of its own", "there is another rule %s", r.Name)
	}
	l.condition(n, r, at)
	var names []string
	for _, o := range l.rules.Receivers {
		names = append(names, o.Name)
	}
	for _, to := range r.To {
		if !slices.Contains(names, to) {
			l.Add(at["to"].Line, problem.Meant(to, names, "%s"), "there is no receiver %s", to)
		}
	}
	if at["to"] == nil {
		r.To = names
	}
	l.rules.Rules = append(l.rules.Rules, r)
}

// condition reads the part of a rule that depends on its kind.
func (l *loader) condition(n *yaml.Node, r *Rule, at map[string]*yaml.Node) {
	var found []string
	for _, key := range []string{"above", "below", "absent", "reaches"} {
		if at[key] != nil {
			found = append(found, key)
		}
	}
	if len(found) != 1 {
		l.Add(n.Line, "a rule has one of above:, below:, absent: and reaches:", "rule %s has %d conditions", r.Name, len(found))
		return
	}
	only := func(kind string, keys ...string) {
		for _, key := range keys {
			if at[key] != nil {
				l.Add(at[key].Line, "", "%s: is for rules with %s", key, kind)
			}
		}
	}
	unit := l.unit(string(r.Series))
	if r.Of != "" {
		unit = watch.Ratio
	}
	switch found[0] {
	case "above", "below":
		r.Kind, r.Above = Threshold, found[0] == "above"
		r.Bound = l.value(at[found[0]], found[0], unit)
		only("absent:", "forget")
		only("reaches:", "within", "over")
	case "absent":
		r.Kind = Absence
		only("above: or below:", "of")
		only("reaches:", "within", "over")
		if r.Absent > r.Forget {
			l.Add(n.Line, "", "rule %s: forget: is shorter than absent:", r.Name)
		}
	case "reaches":
		r.Kind = Prediction
		r.Bound = l.value(at["reaches"], "reaches", unit)
		only("above: or below:", "of")
		only("absent:", "forget")
		if at["within"] == nil {
			l.Add(n.Line, "as in within: 4h", "rule %s has reaches: without within:", r.Name)
		}
	}
}

// checkSeries reports a name that no collector has.
func (l *loader) checkSeries(line int, name string) {
	if name == "" {
		return
	}
	layer, rest, ok := strings.Cut(name, ".")
	if !ok && !strings.Contains(name, "*") || ok && rest == "" {
		l.Add(line, "a name is LAYER.QUANTITY, as in mount.available", "%s is not the name of a series", name)
		return
	}
	if l.known == nil || layer == string(watch.LayerVendor) || strings.Contains(layer, "*") {
		return
	}
	var names []string
	for k := range l.known {
		if pattern(name).matches(k) {
			return
		}
		names = append(names, k)
	}
	slices.Sort(names)
	hint := "premix help watch lists them; series of scripts begin with vendor."
	if k := problem.Near(name, names); k != "" {
		hint = "did you mean " + k + "?"
	}
	l.Add(line, hint, "there is no series %s", name)
}

// unit returns the unit of all series that a name selects, "" if they have different ones
// or if it is not known.
func (l *loader) unit(name string) watch.Unit {
	var unit watch.Unit
	for k, u := range l.known {
		if !pattern(name).matches(k) {
			continue
		}
		if unit != "" && unit != u {
			return ""
		}
		unit = u
	}
	return unit
}

// value reads a bound: a number, or a number with a unit that belongs to the series.
func (l *loader) value(n *yaml.Node, key string, unit watch.Unit) float64 {
	v, err := parseValue(n.Value, unit)
	if n.Kind != yaml.ScalarNode || err != nil {
		hint := "write a number, or one with a unit: 10 GiB, 90 %, 5m"
		switch unit {
		case watch.Bytes, watch.BytesPerSecond:
			hint = units.SizeHint
		case watch.Ratio:
			hint = "write it as 0.9 or as 90 %"
		case watch.Seconds:
			hint = units.TimeHint
		case watch.Count, watch.Cores, watch.PerSecond:
			hint = "write a number"
		}
		if err == nil {
			err = errors.New("this is not a number")
		}
		l.Add(n.Line, hint, "%s: %v", key, err)
	}
	return v
}

func parseValue(text string, unit watch.Unit) (float64, error) {
	if v, err := strconv.ParseFloat(text, 64); err == nil {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return 0, fmt.Errorf("%q is not a number", text)
		}
		return v, nil
	}
	is := func(of ...watch.Unit) bool { return unit == "" || slices.Contains(of, unit) }
	if percent, ok := strings.CutSuffix(text, "%"); ok && is(watch.Ratio) {
		if v, err := strconv.ParseFloat(strings.TrimSpace(percent), 64); err == nil {
			return v / 100, nil
		}
	}
	if is(watch.Seconds) {
		if d, err := units.ParseDelay(text); err == nil {
			return d.Seconds(), nil
		}
	}
	if is(watch.Bytes, watch.BytesPerSecond) {
		if n, err := units.ParseSize(strings.TrimSuffix(text, "/s")); err == nil {
			return float64(n), nil
		}
	}
	if unit == "" {
		return 0, fmt.Errorf("%q is not a value", text)
	}
	return 0, fmt.Errorf("%q is not a value in %s", text, unit)
}

// String describes the condition in one line.
func (r *Rule) String() string {
	var b strings.Builder
	b.WriteString(string(r.Series))
	for i, m := range r.Match {
		fmt.Fprintf(&b, "%s%s=%q", map[bool]string{true: "{", false: ","}[i == 0], m.key, string(m.value))
	}
	if len(r.Match) > 0 {
		b.WriteByte('}')
	}
	switch r.Kind {
	case Threshold:
		if r.Of != "" {
			fmt.Fprintf(&b, " / %s", r.Of)
		}
		fmt.Fprintf(&b, " %s %s", map[bool]string{true: "above", false: "below"}[r.Above], number(r.Bound))
	case Absence:
		fmt.Fprintf(&b, " absent for %s", spanText(r.Absent))
	case Prediction:
		fmt.Fprintf(&b, " reaches %s within %s, by the last %s", number(r.Bound), spanText(r.Within), spanText(r.Over))
	}
	if r.For > 0 {
		fmt.Fprintf(&b, ", for %s", spanText(r.For))
	}
	if len(r.Nodes) > 0 {
		var nodes []string
		for _, p := range r.Nodes {
			nodes = append(nodes, string(p))
		}
		fmt.Fprintf(&b, ", on %s", strings.Join(nodes, " "))
	}
	return b.String()
}

func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

// spanText prints a time without zero parts at its end: 5m, and not 5m0s.
func spanText(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
