package report

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"premix/internal/engine"
	"premix/internal/engine/queue"
	"premix/internal/kit/beneath"
	"premix/internal/kit/htmlpage"
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
	*Usage
	Run                  *Report // nil for tasks without a recipe
	Name                 string
	Tasks, Succeeded     int
	Failed, Cancelled    int
	NotRun, Shown        int
	ReadBytes, Written   int64
	Largest              int64
	Wait                 Box
	Kinds                []failures
	MoreKinds, MoreTries int
	Plots                []plot
	MoreSteps, PlotRows  int
	Told                 string
	JS                   template.JS
	Data                 data
}

// TickEnd returns where the lines of a plot end, and TickText the place of their labels.
func (page) TickEnd(rows int) int  { return rows * plotRow }
func (page) TickText(rows int) int { return rows*plotRow + plotFoot - 6 }

// failures are tasks that failed in the same way.
type failures struct {
	Error   string
	Hint    string
	Samples []string // the first few
	Count   int      // of tasks; of tries without a recipe
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
	More    int       `json:"more"`   // tries that are left out
	Kinds   []string  `json:"kinds"`
	Groups  []string  `json:"groups"`
	Reasons []string  `json:"reasons"`
	Last    []bool    `json:"last"` // the last try of its task
	Sample  []string  `json:"sample"`
	Try     []int     `json:"try"`
	Lane    []int     `json:"lane"`   // of the time line
	Group   []int     `json:"group"`  // index of groups
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
	Cores   []int     `json:"cores"`  // held
	Memory  []int64   `json:"memory"` // held; 0: not counted
	Error   []string  `json:"error"`  // empty on success
	Stderr  []string  `json:"stderr"` // last lines, of a task that failed
}

// pause is a stretch of time in which nothing ran and which the time line cuts.
type pause struct {
	At      float64 `json:"at"`      // seconds on the time line
	Seconds float64 `json:"seconds"` // that were cut
}

// WriteHTML writes the page to a file, whole or not at all, and returns its path.
// An empty path is report.html in the run directory.
func (r *Report) WriteHTML(path string) (string, error) { return r.usage.WriteHTML(path) }

// WriteHTML writes the page to a file, whole or not at all, and returns its path.
// An empty path is report.html in the directory.
func (u *Usage) WriteHTML(path string) (string, error) {
	t, err := htmlpage.New(pageHTML, pageCSS, template.FuncMap{
		"seconds": units.Seconds, "bytes": units.Size, "join": strings.Join, "share": percent, "hours": hours,
		"percent": func(part, whole int) string { return fmt.Sprintf("%.3g", 100*float64(part)/float64(max(whole, 1))) },
		"part":    func(part, whole int) string { return percent(float64(part) / float64(max(whole, 1))) },
		"ratio": func(part, whole float64) string {
			if whole == 0 {
				return "-"
			}
			return percent(part / whole)
		},
	})
	if err != nil {
		return "", err
	}
	p := page{
		Usage: u, Run: u.run, Name: cmp.Or(u.name, filepath.Base(u.Dir)), JS: template.JS(pageJS), // this package's own text
		Succeeded: u.count[queue.Succeeded], Failed: u.count[queue.Failed], Cancelled: u.count[queue.Cancelled], NotRun: u.count[queue.Waiting],
		ReadBytes: u.read, Written: u.written, Largest: u.largest, Wait: u.wait, Shown: len(u.shown),
		Data: u.data(), Told: "premix, " + time.Now().Format(time.RFC1123),
	}
	if r := u.run; r != nil {
		p.Succeeded, p.Failed, p.NotRun = r.Run.Succeeded, r.Run.Failed, r.Run.NotRun
		p.Kinds, p.MoreKinds = r.failures()
	} else {
		p.Kinds, p.MoreTries = u.failures(), u.other
	}
	p.Tasks = p.Succeeded + p.Failed + p.Cancelled + p.NotRun
	p.Plots, p.MoreSteps = u.plots()
	p.PlotRows = min(len(u.Steps), maxPlotted)
	var b bytes.Buffer
	if err := t.Execute(&b, p); err != nil {
		return "", err
	}
	return writePage(u.Dir, path, b.Bytes())
}

// writePage writes a page of a directory, whole or not at all, and returns its path.
func writePage(dir, path string, text []byte) (string, error) {
	// Another premix may be writing it too: run does so at its end. Among the
	// outputs nothing is ever half.
	var err error
	if path == "" {
		// In a directory of another user the page would be written where a link of that
		// user leads.
		err = errors.Join(owner.CheckNamed(dir), owner.Directory(filepath.Join(dir, engine.StateDir)))
		if err != nil {
			return "", err
		}
		path = filepath.Join(dir, engine.ReportFile)
		err = writeOutput(dir, engine.ReportFile, text)
	} else if err = owner.CheckPlanted(path); err == nil {
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
		g.Count++
		if len(g.Samples) < maxSamples {
			g.Samples = append(g.Samples, t.Sample)
		}
	}
	slices.SortStableFunc(groups, func(a, b failures) int { return b.Count - a.Count })
	if len(groups) > maxGroups {
		groups, more = groups[:maxGroups], len(groups)-maxGroups
	}
	return groups, more
}

// failures returns the kinds of failure of tasks without a recipe, with the names, the hint
// and the standard error of tasks that are shown.
func (u *Usage) failures() []failures {
	groups := make([]failures, len(u.Failures))
	index := make(map[kind]int)
	for i, f := range u.Failures {
		groups[i] = failures{Error: f.Error, Count: f.Tries}
		if f.Step != "" {
			groups[i].Error = f.Step + ": " + f.Error
		}
		index[kind{f.Step, f.Error}] = i
	}
	for i := range u.shown {
		t := &u.shown[i]
		n, ok := index[kind{t.Group, t.Error}]
		if !ok || t.OK() {
			continue
		}
		g := &groups[n]
		if name := t.name(); len(g.Samples) < maxSamples && !slices.Contains(g.Samples, name) {
			g.Samples = append(g.Samples, name)
		}
		g.Hint = cmp.Or(g.Hint, t.Hint)
		if g.Stderr == nil {
			g.Stderr = t.stderr
		}
	}
	return groups
}

// name returns the name of the task, or its number.
func (t *try) name() string { return cmp.Or(t.Sample, strconv.Itoa(t.Task.Task)) }

// words numbers texts in the order in which they are first used.
type words struct {
	list  []string
	index map[string]int
}

func (w *words) number(text string) int {
	n, ok := w.index[text]
	if !ok {
		n = len(w.list)
		w.index[text] = n
		w.list = append(w.list, text)
	}
	return n
}

// data lays out the shown tries for page.js.
func (u *Usage) data() data {
	d := data{Kinds: kinds, Pauses: []pause{}, More: u.more}
	spans := make([]span, len(u.shown))
	for i := range u.shown {
		spans[i] = span{u.shown[i].Started, u.shown[i].Finished}
	}
	line := newTimeline(spans)
	d.Span, d.Pauses = line.span, append(d.Pauses, line.pauses...)
	if len(line.spans) > 0 {
		d.Origin = line.spans[0].begin.Format(time.RFC3339)
	}
	reasons, groups := words{[]string{}, make(map[string]int)}, words{[]string{}, make(map[string]int)}
	for i := range u.shown {
		t := &u.shown[i]
		d.Last = append(d.Last, t.last)
		d.Sample = append(d.Sample, t.name())
		d.Try = append(d.Try, t.Try)
		d.Group = append(d.Group, groups.number(t.Group))
		d.Kind = append(d.Kind, slices.Index(kinds, t.Start))
		d.Reason = append(d.Reason, reasons.number(t.Reason))
		d.Begin = append(d.Begin, line.at(t.Started))
		d.Wait = append(d.Wait, t.Wait)
		d.Latency = append(d.Latency, t.Latency)
		d.Seconds = append(d.Seconds, t.Seconds)
		d.CPU = append(d.CPU, t.User+t.System)
		d.RSS = append(d.RSS, t.MaxRSS)
		d.Read = append(d.Read, t.ReadBytes)
		d.Written = append(d.Written, t.WriteBytes)
		d.Cores = append(d.Cores, t.Cores)
		d.Memory = append(d.Memory, t.Memory)
		d.Error = append(d.Error, t.Error)
		d.Stderr = append(d.Stderr, strings.Join(t.stderr, "\n"))
	}
	d.Reasons, d.Groups, d.Lane = reasons.list, groups.list, lanes(u.shown)
	return d
}

// lanes returns a lane of the time line for each try: its slot, or where tries of several
// workers have one slot at the same time, a lane that is free at its start.
func lanes(tries []try) []int {
	lane := make([]int, len(tries))
	order := make([]int, len(tries))
	for i := range tries {
		order[i], lane[i] = i, tries[i].Slot
	}
	slices.SortStableFunc(order, func(a, b int) int { return tries[a].Started.Compare(tries[b].Started) })
	free := make(map[int]time.Time)
	if !slices.ContainsFunc(order, func(i int) bool {
		over := tries[i].Started.Before(free[tries[i].Slot])
		free[tries[i].Slot] = tries[i].Finished
		return over
	}) {
		return lane
	}
	var ends []time.Time // by lane
	for _, i := range order {
		n := slices.IndexFunc(ends, func(end time.Time) bool { return !tries[i].Started.Before(end) })
		if n < 0 {
			n = len(ends)
			ends = append(ends, time.Time{})
		}
		lane[i], ends[n] = n, tries[i].Finished
	}
	return lane
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
