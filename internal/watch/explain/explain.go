package explain

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"premix/internal/kit/quantile"
	"premix/internal/watch"
	"premix/internal/watch/series"
)

// Source provides series and tasks.
type Source interface {
	Names(ctx context.Context) ([]series.Info, error)
	Query(ctx context.Context, q series.Query) ([]series.Result, error)
	Tasks(ctx context.Context, q series.TaskQuery) ([]watch.Task, error)
}

// Window is the time from Start until End, which is exclusive.
type Window struct {
	Start time.Time `json:"start"`
	End   time.Time `json:"end"`
}

func (w Window) length() time.Duration { return w.End.Sub(w.Start) }

// Options change how a window is explained. The zero value has the defaults given here.
type Options struct {
	Before  time.Duration // length of the baseline; 0: four times the window, at least ten minutes
	Days    int           // earlier days to compare with; 0: 7; negative: none
	Without []Window      // times to leave out of the baseline, because they are explained already
	// Except reports which series are not compared, because the caller knows about them;
	// nil: all are compared. The series of tasks have the labels that findings have.
	Except      func(watch.ID) bool
	Limit       int     // highest number of findings; 0: 50
	FalseAlarms float64 // accepted probability that a quiet window has a finding; 0: 0.01
}

// Report is the result of Explain.
type Report struct {
	Window   Window    `json:"window"`
	Baseline Window    `json:"baseline"`
	Series   int       `json:"series"`   // number of compared series
	Young    int       `json:"young"`    // series with too little history to be compared
	Usual    int       `json:"usual"`    // series that did the same on earlier occasions
	Excepted int       `json:"excepted"` // series that the caller excluded
	Omitted  int       `json:"omitted"`  // findings beyond the limit
	Findings []Finding `json:"findings"`
	Notes    []Finding `json:"notes"` // series that left their usual range without trouble, or without a known cost
	Lost     Lost      `json:"lost"`  // the time that tasks lost
}

// Finding is a series that left its usual range. In JSON, Series is its name and labels, as
// in answers to queries.
type Finding struct {
	Series     watch.ID
	Unit       watch.Unit
	Layer      watch.Layer
	Thing      string     // the thing that the series measures, for people: disk sdb
	Quantity   string     // the quantity, for people: writes in flight
	Began      time.Time  // onset
	Until      time.Time  // when it was back in its range, or the end of the window
	LagSeconds float64    // behind the first finding
	Score      float64    // how many usual widths it lay outside, the median
	Usual      [2]float64 // the range that it was within for 98 % of the time
	Seen       float64    // the extreme value
	Sentence   string     // for people, in the time zone of Window.Start
	Tasks      []string   // keys of the affected tasks

	Kind        Kind    // of the cause; "" for a finding without a cost
	By          string  // the program that caused it, with its cgroup; "" if it is not known
	CostSeconds float64 // time that tasks lost to it beyond the usual
	evidence    string
	waits       []string

	step     string // step of the tasks whose series this is, or
	run      string
	spacing  float64 // seconds between points: the true onset may be earlier by as much
	cause    int
	level    float64
	duration time.Duration
}

// MarshalJSON returns the finding as the dashboard reads it.
func (f Finding) MarshalJSON() ([]byte, error) {
	labels := map[string]string{}
	for _, l := range f.Series.Labels {
		labels[l.Key] = l.Value
	}
	return json.Marshal(struct {
		Name     string            `json:"name"`
		Labels   map[string]string `json:"labels"`
		Unit     watch.Unit        `json:"unit"`
		Layer    watch.Layer       `json:"layer"`
		Thing    string            `json:"thing"`
		Quantity string            `json:"quantity"`
		Began    time.Time         `json:"began"`
		Until    time.Time         `json:"until"`
		Lag      float64           `json:"lag_seconds"`
		Score    float64           `json:"score"`
		Usual    [2]float64        `json:"usual"`
		Seen     float64           `json:"seen"`
		Sentence string            `json:"sentence"`
		Tasks    []string          `json:"tasks"`
		Kind     Kind              `json:"kind"`
		By       string            `json:"by"`
		Cost     float64           `json:"cost_seconds"`
	}{f.Series.Name, labels, f.Unit, f.Layer, f.Thing, f.Quantity, f.Began, f.Until, f.LagSeconds, math.Round(f.Score*100) / 100, f.Usual, f.Seen, f.Sentence, append([]string{}, f.Tasks...), f.Kind, f.By, math.Round(f.CostSeconds*1000) / 1000})
}

// WindowError is returned for a window that cannot be explained.
type WindowError struct{ Reason string }

func (e *WindowError) Error() string { return "this window cannot be explained: " + e.Reason }

// Hint describes a valid window.
func (e *WindowError) Hint() string {
	return "ask for a window of at least two seconds, begin before end"
}

// shortest is the length of the shortest window.
const shortest = 2 * time.Second

// points is the highest number of steps of a window.
const points = 200

// mostTasks bounds the tasks that are read.
const mostTasks = 50000

// Explain finds the series that left their usual range first.
func Explain(ctx context.Context, src Source, w Window, o Options) (Report, error) {
	if w.length() < shortest {
		return Report{}, &WindowError{fmt.Sprintf("its length is %s", w.length())}
	}
	before := o.Before
	if before <= 0 {
		before = max(4*w.length(), 10*time.Minute)
	}
	days := o.Days
	if days == 0 {
		days = 7
	}
	limit := o.Limit
	if limit <= 0 {
		limit = 50
	}
	chance := o.FalseAlarms
	if chance <= 0 {
		chance = 0.01
	}
	// An excursion that begins a little before the window is found, too, and must not be
	// learned as usual.
	guard := min(w.length()/4, time.Minute)
	s := &search{
		Report: Report{Window: w, Baseline: Window{w.Start.Add(-guard - before), w.Start.Add(-guard)}, Findings: []Finding{}, Notes: []Finding{}},
		src:    src, without: o.Without, except: o.Except, days: days,
		step: stepOf(w),
	}
	infos, err := src.Names(ctx)
	if err != nil {
		return Report{}, fmt.Errorf("names of series: %w", err)
	}
	count := map[string]int{}
	for _, i := range infos {
		if forCosts(i.ID.Name) {
			continue
		}
		if i.First.Before(w.Start) && !i.Last.Before(s.Baseline.Start) {
			count[i.ID.Name]++
		}
	}
	total := 0
	for _, n := range count {
		total += n
	}
	steps := float64(w.length()+guard) / float64(s.step)
	s.certainty = math.Log(float64(max(total, 1)) * steps / chance)

	if s.tasks, err = src.Tasks(ctx, series.TaskQuery{Start: s.Baseline.Start, End: w.End, Limit: mostTasks}); err != nil {
		return Report{}, fmt.Errorf("tasks: %w", err)
	}
	s.pressure = count["node.pressure"] > 0
	names := make([]string, 0, len(count))
	for name := range count {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		results, err := src.Query(ctx, series.Query{Name: name, Start: s.Baseline.Start, End: w.End, Step: s.step})
		if err != nil {
			return Report{}, fmt.Errorf("series %s: %w", name, err)
		}
		for _, l := range s.lines(results) {
			s.compare(l)
		}
	}
	for _, l := range s.ofTasks() {
		s.compare(l)
	}
	if err := s.confirm(ctx); err != nil {
		return Report{}, err
	}
	s.rank()
	s.note()
	s.lag()
	if len(s.Findings) > limit {
		s.Omitted = len(s.Findings) - limit
		s.Findings = s.Findings[:limit]
	}
	s.Notes = s.Notes[:min(len(s.Notes), limit)]
	s.tell()
	if err := s.charge(ctx); err != nil {
		return Report{}, err
	}
	return s.Report, nil
}

// stepOf returns the time between points: whole seconds, or tenths for a short window.
func stepOf(w Window) time.Duration {
	if step := w.length() / points; step >= time.Second {
		return step.Round(time.Second)
	} else if step > 100*time.Millisecond {
		return step.Round(100 * time.Millisecond)
	}
	return 100 * time.Millisecond
}

// search holds the state of one call of Explain.
type search struct {
	Report
	src       Source
	without   []Window
	except    func(watch.ID) bool
	days      int
	step      time.Duration
	certainty float64 // ln(n/a)
	pressure  bool    // the kernel reports pressure
	tasks     []watch.Task
}

// line is a compared curve: one series, or several combined.
type line struct {
	id    watch.ID
	unit  watch.Unit
	track track
	step  string // of tasks, or
	run   string
}

func (s *search) seconds(t time.Time) float64 { return t.Sub(s.Baseline.Start).Seconds() }

func (s *search) moment(at float64) time.Time {
	return s.Baseline.Start.Add(time.Duration(at * float64(time.Second))).Round(time.Millisecond)
}

// lines returns the series of one name, with the series of tasks combined by step.
func (s *search) lines(results []series.Result) []line {
	if len(results) == 0 {
		return nil
	}
	if results[0].ID.Layer() == watch.LayerTask {
		return s.bySteps(results)
	}
	var list []line
	for _, r := range results {
		t := track{make([]float64, 0, len(r.Points)), make([]float64, 0, len(r.Points))}
		for _, p := range r.Points {
			if p.Count == 0 || math.IsNaN(p.Mean) {
				continue
			}
			t.at = append(t.at, s.seconds(p.Time))
			t.value = append(t.value, p.Mean)
		}
		list = append(list, line{id: r.ID, unit: r.Unit, track: t})
	}
	return list
}

// compare searches a line for an excursion and adds it as a finding.
func (s *search) compare(l line) {
	if s.except != nil && s.except(l.id) {
		s.Excepted++
		return
	}
	border := s.seconds(s.Baseline.End)
	base := l.track.between(0, border)
	if len(s.without) > 0 {
		base = s.leaveOut(base)
	}
	seen := l.track.between(border, s.seconds(s.Window.End))
	if len(base.at) < enough || len(seen.at) < fewest {
		s.Young++
		return
	}
	s.Series++
	m := learn(base, l.unit)
	begin, _ := slices.BinarySearch(seen.at, s.seconds(s.Window.Start))
	e, ok := m.search(seen, begin, s.certainty)
	if !ok {
		return
	}
	f := Finding{
		Series: l.id, Unit: l.unit, Layer: l.id.Layer(), Began: s.moment(seen.at[e.first]), Until: s.moment(seen.at[e.last] + seen.spacing()),
		Score: e.z, Usual: [2]float64{m.low, m.high}, step: l.step, run: l.run, spacing: seen.spacing(), cause: causeOf(l.id),
	}
	inside := slices.Clone(seen.value[e.first : e.last+1])
	f.Seen = slices.Max(inside)
	if !e.up {
		f.Seen = slices.Min(inside)
	}
	slices.Sort(inside)
	f.level = quantile.Sorted(inside, 0.5)
	f.duration = max(f.Until.Sub(f.Began), s.step)
	f.Thing, f.Quantity = words(l.id)
	s.Findings = append(s.Findings, f)
}

func (s *search) leaveOut(t track) track {
	var kept track
	for i, at := range t.at {
		moment := s.moment(at)
		if !slices.ContainsFunc(s.without, func(w Window) bool { return !moment.Before(w.Start) && moment.Before(w.End) }) {
			kept.at = append(kept.at, at)
			kept.value = append(kept.value, t.value[i])
		}
	}
	return kept
}

// like reports whether an earlier level resembles the finding: most of the way from the
// usual range to it.
func (f *Finding) like(level float64) bool {
	if f.level > f.Usual[1] {
		return level >= f.Usual[1]+0.7*(f.level-f.Usual[1])
	}
	if f.level < f.Usual[0] {
		return level <= f.Usual[0]-0.7*(f.Usual[0]-f.level)
	}
	return true
}

// confirm removes findings that also happened before: at the same hour of at least half of
// the earlier days, or on three occasions on the day before. For the others it determines
// the onset more exactly.
func (s *search) confirm(ctx context.Context) error {
	kept := s.Findings[:0]
	for _, f := range s.Findings {
		if f.Layer == watch.LayerTask {
			kept = append(kept, f)
			continue
		}
		usual, err := s.known(ctx, &f)
		if err != nil {
			return err
		}
		if usual {
			s.Usual++
			continue
		}
		if s.step > time.Second {
			if err := s.refine(ctx, &f); err != nil {
				return err
			}
		}
		kept = append(kept, f)
	}
	s.Findings = kept
	return nil
}

// past queries the series of a finding.
func (s *search) past(ctx context.Context, f *Finding, from, to time.Time, step time.Duration) ([]series.Point, error) {
	results, err := s.src.Query(ctx, series.Query{Name: f.Series.Name, Match: f.Series.Labels, Start: from, End: to, Step: step})
	if err != nil {
		return nil, fmt.Errorf("series %s: %w", f.Series, err)
	}
	for _, r := range results {
		if r.ID.String() == f.Series.String() {
			return r.Points, nil
		}
	}
	return nil, nil
}

func (s *search) explained(t time.Time) bool {
	return slices.ContainsFunc(s.without, func(w Window) bool { return !t.Before(w.Start) && t.Before(w.End) })
}

// around is the tolerance with which the same may happen earlier or later on another day.
const around = 30 * time.Minute

// mostPast bounds the points of the day before.
const mostPast = 8000

// known reports whether the series does the same as in the finding from time to time.
func (s *search) known(ctx context.Context, f *Finding) (bool, error) {
	if s.days < 0 {
		return false, nil
	}
	step := max((f.duration / 2).Round(time.Second), time.Second)
	with, alike := 0, 0
	for d := 1; d <= s.days; d++ {
		shift := -time.Duration(d) * 24 * time.Hour
		points, err := s.past(ctx, f, f.Began.Add(shift-around), f.Began.Add(shift+around+f.duration), step)
		if err != nil {
			return false, err
		}
		if len(points) == 0 {
			continue
		}
		with++
		if slices.ContainsFunc(points, func(p series.Point) bool { return !s.explained(p.Time) && f.like(p.Mean) }) {
			alike++
		}
	}
	if with > 0 && 2*alike >= with {
		return true, nil
	}
	points, err := s.past(ctx, f, s.Baseline.End.Add(-min(24*time.Hour, mostPast*step)), s.Baseline.End, step)
	if err != nil {
		return false, err
	}
	occasions := 0
	var last time.Time
	for _, p := range points {
		if s.explained(p.Time) || !f.like(p.Mean) {
			continue
		}
		if p.Time.Sub(last) > 2*step {
			occasions++
		}
		last = p.Time
	}
	return occasions >= 3, nil
}

// refine determines the onset of a finding at the highest resolution.
func (s *search) refine(ctx context.Context, f *Finding) error {
	points, err := s.past(ctx, f, f.Began.Add(-2*s.step), f.Began.Add(3*s.step), time.Second)
	if err != nil {
		return err
	}
	out := func(p series.Point) bool {
		reach := 0.5 * math.Abs(f.level-f.Usual[0])
		if f.level > f.Usual[1] {
			reach = 0.5 * (f.level - f.Usual[1])
			return p.Mean > f.Usual[1]+min(reach, 2*floor(f.Unit))
		}
		return p.Mean < f.Usual[0]-min(reach, 2*floor(f.Unit))
	}
	for i, p := range points {
		if i+2 < len(points) && out(p) && (out(points[i+1]) || out(points[i+2])) {
			f.Began = p.Time
			f.spacing = points[i+1].Time.Sub(p.Time).Seconds()
			return nil
		}
	}
	return nil
}

// together is the distance of onsets that cannot be distinguished.
const together = 3 * time.Second

// rank orders the findings as the package documentation says.
func (s *search) rank() {
	rest := s.Findings
	slices.SortStableFunc(rest, func(a, b Finding) int { return a.Began.Compare(b.Began) })
	for len(rest) > 0 {
		border := rest[0].Began.Add(together)
		n := 0
		for i := range rest {
			// A series that is sampled rarely may have begun one interval earlier.
			if rest[i].Began.Add(-time.Duration(max(rest[i].spacing-1, 0) * float64(time.Second))).After(border) {
				continue
			}
			f := rest[i]
			copy(rest[n+1:i+1], rest[n:i])
			rest[n] = f
			n++
		}
		slices.SortStableFunc(rest[:n], func(a, b Finding) int {
			return cmp.Or(cmp.Compare(a.cause, b.cause), cmp.Compare(b.Score, a.Score), cmp.Compare(a.Series.String(), b.Series.String()))
		})
		rest = rest[n:]
	}
}

// lag sets the time from the first finding to the others, and from the first note to the
// other notes.
func (s *search) lag() {
	for _, list := range [][]Finding{s.Findings, s.Notes} {
		for i := range list {
			list[i].LagSeconds = max(0, list[i].Began.Sub(list[0].Began).Seconds())
		}
	}
}
