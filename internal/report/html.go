package report

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"premix/internal/engine"
	"premix/internal/kit/beneath"
	"premix/internal/kit/owner"
	"premix/internal/kit/units"
	"premix/internal/record"
)

//go:embed page.html
var pageHTML string

//go:embed page.css
var pageCSS string

//go:embed page.js
var pageJS string

// maxGroups is the number of groups of failures that the page shows; the table of tasks
// has all of them.
const maxGroups = 50

// page is the data of page.html.
type page struct {
	*Report
	CSS      template.CSS
	JS       template.JS
	Data     data
	Failures []failures
	More     int // groups of failures left out
	Told     string
}

// failures are tasks that failed in the same way.
type failures struct {
	Error   string
	Hint    string
	Samples []string // the first few
	Tasks   int
	Stderr  []string // of the first
}

// maxSamples is how many samples a group of failures names.
const maxSamples = 8

// data is the data that page.js draws: one entry a try in each column. A table by column
// is a third of the size of a list of objects.
type data struct {
	Span    float64   `json:"span"`   // seconds on the time line, pauses cut
	Pauses  []pause   `json:"pauses"` // pauses cut out of the timeline
	Origin  string    `json:"origin"` // of the time line, RFC 3339
	Kinds   []string  `json:"kinds"`
	Reasons []string  `json:"reasons"`
	Last    []bool    `json:"last"` // the last try of its task
	Sample  []string  `json:"sample"`
	Try     []int     `json:"try"`
	Slot    []int     `json:"slot"`
	Kind    []int     `json:"kind"`   // index of kinds, -1 if it never started
	Reason  []int     `json:"reason"` // index of reasons
	Begin   []float64 `json:"begin"`  // seconds on the time line
	Wait    []float64 `json:"wait"`
	Latency []float64 `json:"latency"`
	Seconds []float64 `json:"seconds"`
	CPU     []float64 `json:"cpu"`
	RSS     []int64   `json:"rss"`
	Read    []int64   `json:"read"`
	Written []int64   `json:"written"`
	Error   []string  `json:"error"` // empty on success
}

// pause is a stretch of time in which nothing ran and which the time line cuts.
type pause struct {
	At      float64 `json:"at"`      // seconds on the time line
	Seconds float64 `json:"seconds"` // that were cut
}

// WriteHTML writes the page to a file, whole or not at all, and returns its path.
// An empty path is report.html in the run directory.
func (r *Report) WriteHTML(path string) (string, error) {
	t, err := template.New("page").Funcs(template.FuncMap{
		"seconds": units.Seconds, "bytes": units.Size, "join": strings.Join,
		"percent": func(part, whole int) string { return fmt.Sprintf("%.3g", 100*float64(part)/float64(max(whole, 1))) },
	}).Parse(pageHTML)
	if err != nil {
		return "", err
	}
	p := page{
		Report: r,
		CSS:    template.CSS(pageCSS), JS: template.JS(pageJS), // this package's own text
		Data: r.data(), Told: time.Now().Format(time.RFC1123),
	}
	p.Failures, p.More = r.failures()
	var b bytes.Buffer
	if err := t.Execute(&b, p); err != nil {
		return "", err
	}
	return writePage(r.Run.Dir, path, b.Bytes())
}

// writePage writes a page of a directory, whole or not at all, and returns its path.
func writePage(dir, path string, text []byte) (string, error) {
	// Another premix may be writing it too: run does so at its end. Among the
	// outputs nothing is ever half.
	var err error
	if path == "" {
		// In a directory of another user the page would be written where a link of that
		// user leads.
		err = errors.Join(owner.Named(dir), owner.Directory(filepath.Join(dir, engine.StateDir)))
		if err != nil {
			return "", err
		}
		path = filepath.Join(dir, engine.ReportFile)
		err = writeOutput(dir, engine.ReportFile, text)
	} else if err = owner.Planted(path); err == nil {
		err = beneath.Replace(path, 0o666, beneath.Volatile, text)
	}
	if err != nil {
		return "", fmt.Errorf("write the page: %w", err)
	}
	return path, nil
}

// writeOutput writes a file among the outputs of a run. Until it is whole it is in the
// state directory.
func writeOutput(dir, name string, text []byte) error {
	out, err := beneath.Open(dir)
	if err != nil {
		return err
	}
	defer out.Close()
	state, err := out.OpenDir(engine.StateDir)
	if err != nil {
		return err
	}
	defer state.Close()
	f, err := state.Create(0o666)
	if err != nil {
		return err
	}
	if _, err := f.Write(text); err != nil {
		return errors.Join(err, f.Discard())
	}
	return f.ReplaceIn(out, name, beneath.Volatile)
}

// failures groups failed tasks by their error, the largest group first.
func (r *Report) failures() (groups []failures, more int) {
	index := make(map[string]int)
	for i := range r.Tasks {
		t := &r.Tasks[i]
		if t.OK() || t.Cause == record.CauseInterrupted {
			continue
		}
		n, ok := index[t.Error]
		if !ok {
			n = len(groups)
			index[t.Error] = n
			groups = append(groups, failures{Error: t.Error, Hint: t.Hint, Stderr: t.Stderr})
		}
		g := &groups[n]
		g.Tasks++
		if len(g.Samples) < maxSamples {
			g.Samples = append(g.Samples, t.Sample)
		}
	}
	slices.SortStableFunc(groups, func(a, b failures) int { return b.Tasks - a.Tasks })
	if len(groups) > maxGroups {
		groups, more = groups[:maxGroups], len(groups)-maxGroups
	}
	return groups, more
}

// data lays out all tries for page.js.
func (r *Report) data() data {
	d := data{Kinds: kinds, Reasons: []string{}, Pauses: []pause{}}
	line := newTimeline(r.spans)
	d.Span, d.Pauses = line.span, append(d.Pauses, line.pauses...)
	if len(line.spans) > 0 {
		d.Origin = line.spans[0].begin.Format(time.RFC3339)
	}
	reasons := make(map[string]int)
	add := func(t *record.Task, last bool) {
		n, ok := reasons[t.Reason]
		if !ok {
			n = len(d.Reasons)
			reasons[t.Reason] = n
			d.Reasons = append(d.Reasons, t.Reason)
		}
		d.Last = append(d.Last, last)
		d.Sample = append(d.Sample, t.Sample)
		d.Try = append(d.Try, t.Try)
		d.Slot = append(d.Slot, t.Slot)
		d.Kind = append(d.Kind, slices.Index(kinds, t.Start))
		d.Reason = append(d.Reason, n)
		d.Begin = append(d.Begin, line.at(t.Started))
		d.Wait = append(d.Wait, t.Wait)
		d.Latency = append(d.Latency, t.Latency)
		d.Seconds = append(d.Seconds, t.Seconds)
		d.CPU = append(d.CPU, t.User+t.System)
		d.RSS = append(d.RSS, t.MaxRSS)
		d.Read = append(d.Read, t.ReadBytes)
		d.Written = append(d.Written, t.WriteBytes)
		d.Error = append(d.Error, t.Error)
	}
	for i := range r.Tasks {
		add(&r.Tasks[i].Task, true)
	}
	for i := range r.earlier {
		add(&r.earlier[i], false)
	}
	return d
}

// A pause longer than this part of the active time, and than a second, is cut.
const cutPart = 0.05

// shownPart is how much of the active time a cut pause still takes.
const shownPart = 0.015

// timeline turns moments into seconds from the first start, with long pauses cut.
type timeline struct {
	spans  []span    // stretches of activity
	begins []float64 // where each begins on the line
	pauses []pause
	span   float64
}

func newTimeline(spans []span) *timeline {
	l := &timeline{spans: union(spans)}
	active := 0.0
	for _, s := range l.spans {
		active += s.end.Sub(s.begin).Seconds()
	}
	for i, s := range l.spans {
		if i > 0 {
			gap := s.begin.Sub(l.spans[i-1].end).Seconds()
			if gap > max(1, cutPart*active) {
				l.pauses = append(l.pauses, pause{At: l.span + shownPart*active/2, Seconds: gap})
				gap = shownPart * active
			}
			l.span += gap
		}
		l.begins = append(l.begins, l.span)
		l.span += s.end.Sub(s.begin).Seconds()
	}
	return l
}

// at returns the position on the line of a moment within a stretch of activity.
func (l *timeline) at(t time.Time) float64 {
	i, _ := slices.BinarySearchFunc(l.spans, t, func(s span, t time.Time) int { return s.begin.Compare(t) })
	if i == len(l.spans) || l.spans[i].begin.After(t) {
		i--
	}
	if i < 0 {
		return 0
	}
	return l.begins[i] + t.Sub(l.spans[i].begin).Seconds()
}

// MarshalJSON rounds times to a microsecond: more only makes the page larger.
func (d data) MarshalJSON() ([]byte, error) {
	for _, v := range [][]float64{d.Begin, d.Wait, d.Latency, d.Seconds, d.CPU} {
		for i := range v {
			v[i] = float64(int64(v[i]*1e6+0.5)) / 1e6
		}
	}
	type plain data
	return json.Marshal(plain(d))
}
