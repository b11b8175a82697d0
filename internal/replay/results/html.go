package results

import (
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strings"

	"premix/internal/kit/beneath"
	"premix/internal/kit/htmlpage"
	"premix/internal/replay/simulate"
	"premix/internal/replay/trace"
)

//go:embed page.html
var pageHTML string

//go:embed page.css
var pageCSS string

// page is the data for page.html.
type page struct {
	*Results
	Rows   []measure
	Sizes  comparison
	Users  comparison
	Queues comparison
	Charts []chart
}

// measure is a row of the table of policies: one figure of each. Its best ones are marked.
type measure struct {
	Name  string
	Cells []cell
}

type cell struct {
	Text string
	Best bool
}

// comparison has the mean waits of groups of jobs under each policy.
type comparison struct {
	Title, Of string
	Rows      []measure
	More      int // groups that are left out
}

type chart struct {
	Title, Note string
	SVG         template.HTML
}

// WriteHTML writes one self-contained page, whole or not at all.
func (r *Results) WriteHTML(path string) error {
	t, err := htmlpage.New(pageHTML, pageCSS, template.FuncMap{"g": digits, "colour": colour, "span": span,
		"percent": func(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) }, "list": func(v ...any) []any { return v }})
	if err != nil {
		return err
	}
	p := page{Results: r, Rows: r.measures(),
		Sizes:  r.compare("Mean wait by size", "cores", func(p *Policy) []Group { return p.Sizes }),
		Users:  r.compare("Mean wait by user", "user", func(p *Policy) []Group { return p.Users }),
		Queues: r.compare("Mean wait by partition and QOS", "class", func(p *Policy) []Group { return p.Classes })}
	curves := func(of func(p *Policy) Curve) (list []Curve) {
		for _, p := range r.Policies {
			list = append(list, of(p))
		}
		return list
	}
	p.Charts = append(p.Charts,
		chart{"Utilisation", "part of the cores that jobs ran on", r.lines(curves(func(p *Policy) Curve { return p.Busy }), func(v float64) string { return fmt.Sprintf("%.0f %%", 100*v) }, 1)},
		chart{"Waiting", "jobs that wait", r.lines(curves(func(p *Policy) Curve { return p.Queue }), digits, 0)},
		chart{"Waiting times", "part of the jobs that wait at most so long; the scale is logarithmic", r.waits()})
	begin, end := r.window()
	for i, s := range r.schedules {
		p.Charts = append(p.Charts, r.gantt(i, s, begin, end))
	}
	if err := beneath.Write(path, 0o666, beneath.Volatile, func(w io.Writer) error { return t.Execute(w, p) }); err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	return nil
}

// measures returns the table of policies.
func (r *Results) measures() []measure {
	const (
		lower  = -1 // is better
		higher = 1
	)
	var rows []measure
	add := func(name string, better int, value func(p *Policy) float64, text func(v float64) string) {
		m := measure{Name: name}
		var texts []string
		best := math.Inf(-better)
		for _, p := range r.Policies {
			v := value(p)
			texts = append(texts, text(v))
			if better == lower {
				best = min(best, v)
			} else {
				best = max(best, v)
			}
		}
		for i, p := range r.Policies {
			// With one policy, or equal ones, none is better than others.
			is := better != 0 && value(p) == best && slices.ContainsFunc(texts, func(t string) bool { return t != texts[i] })
			m.Cells = append(m.Cells, cell{texts[i], is})
		}
		rows = append(rows, m)
	}
	words := func(name string, text func(p *Policy) string) {
		m := measure{Name: name}
		some := false
		for _, p := range r.Policies {
			t := text(p)
			some = some || t != ""
			m.Cells = append(m.Cells, cell{Text: t})
		}
		if some {
			rows = append(rows, m)
		}
	}
	whole := func(v float64) string { return fmt.Sprintf("%.0f", v) }
	percent := func(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) }
	add("mean wait", lower, func(p *Policy) float64 { return p.Wait.Mean }, span)
	words("95 % of draws", func(p *Policy) string {
		if p.Confidence == nil {
			return ""
		}
		return span(p.Confidence.Wait[0]) + " to " + span(p.Confidence.Wait[1])
	})
	if len(r.Policies) > 1 {
		words("against "+r.Policies[0].Name, func(p *Policy) string {
			if p.Against == nil {
				return ""
			}
			return signed(p.Against.Wait[0]) + " to " + signed(p.Against.Wait[1])
		})
	}
	words("against the record", func(p *Policy) string {
		if p.Check == nil {
			return ""
		}
		return fmt.Sprintf("%+.0f %%", 100*p.Check.Difference)
	})
	add("median wait", lower, func(p *Policy) float64 { return p.Wait.Median }, span)
	add("wait, 95th percentile", lower, func(p *Policy) float64 { return p.Wait.P95 }, span)
	add("longest wait", lower, func(p *Policy) float64 { return p.Wait.Max }, span)
	add("mean turnaround", lower, func(p *Policy) float64 { return p.Turnaround.Mean }, span)
	add("mean slowdown", lower, func(p *Policy) float64 { return p.Slowdown.Mean }, digits)
	add("slowdown, 95th percentile", lower, func(p *Policy) float64 { return p.Slowdown.P95 }, digits)
	add("utilisation", higher, func(p *Policy) float64 { return p.Utilisation }, percent)
	add("fairness", higher, func(p *Policy) float64 { return p.Fairness }, digits)
	add("core hours", 0, func(p *Policy) float64 { return p.CoreHours }, whole)
	add("charge", 0, func(p *Policy) float64 { return p.Charge }, whole)
	add("jobs", 0, func(p *Policy) float64 { return float64(p.Jobs) }, whole)
	add("jobs refused", 0, func(p *Policy) float64 { return float64(p.Refused) }, whole)
	return rows
}

// digits returns a number of four digits, or all digits before the point of a larger one.
func digits(v float64) string {
	if math.Abs(v) >= 1000 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.4g", v)
}

// mostGroups is the number of groups that a comparison shows.
const mostGroups = 12

// compare returns the mean waits of groups, in the order that they have under the first
// policy.
func (r *Results) compare(title, of string, groups func(p *Policy) []Group) comparison {
	c := comparison{Title: title, Of: of}
	if len(r.Policies) == 0 {
		return c
	}
	for i, g := range groups(r.Policies[0]) {
		if i == mostGroups {
			c.More = len(groups(r.Policies[0])) - mostGroups
			break
		}
		m := measure{Name: g.Name, Cells: []cell{{Text: fmt.Sprint(g.Jobs)}, {Text: digits(g.CoreHours)}}}
		for _, p := range r.Policies {
			text := ""
			if at := slices.IndexFunc(groups(p), func(o Group) bool { return o.Name == g.Name }); at >= 0 {
				text = span(groups(p)[at].Wait.Mean)
			}
			m.Cells = append(m.Cells, cell{Text: text})
		}
		c.Rows = append(c.Rows, m)
	}
	return c
}

// colours can be distinguished by most people, on light and on dark ground.
var colours = []string{"#2a6fb0", "#c94f00", "#00835f", "#a9437f", "#8a6d00", "#5b5bd6", "#7d8694", "#c4162a"}

func colour(i int) string { return colours[i%len(colours)] }

// The size of a chart, and of the space for its labels.
const (
	width, height = 960, 240
	left, bottom  = 60, 24
)

type svg struct{ strings.Builder }

func newSVG(height int, label string) *svg {
	s := &svg{}
	fmt.Fprintf(s, `<svg viewBox="0 0 %d %d" role="img" aria-label="%s">`, width, height, template.HTMLEscapeString(label))
	return s
}

func (s *svg) text(x, y float64, anchor, text string) {
	fmt.Fprintf(s, `<text x="%.1f" y="%.1f" text-anchor="%s">%s</text>`, x, y, anchor, template.HTMLEscapeString(text))
}

func (s *svg) line(x1, y1, x2, y2 float64) {
	fmt.Fprintf(s, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`, x1, y1, x2, y2)
}

func (s *svg) done() template.HTML {
	s.WriteString("</svg>")
	return template.HTML(s.String()) // all of it comes from this package, with texts escaped
}

// lines draws curves over time.
func (r *Results) lines(curves []Curve, label func(float64) string, top float64) template.HTML {
	s := newSVG(height, "curves over time")
	span := 0.0
	for _, c := range curves {
		span = max(span, c.Step*float64(len(c.Values)))
		for _, v := range c.Values {
			top = max(top, v)
		}
	}
	if span == 0 || top == 0 {
		top, span = max(top, 1), max(span, 1)
	}
	y := func(v float64) float64 { return (height - bottom) * (1 - v/top*0.95) }
	for i := range 5 {
		v := top * float64(i) / 4
		s.line(left, y(v), width, y(v))
		s.text(left-6, y(v)+4, "end", label(v))
	}
	for i := range 6 {
		at := span * float64(i) / 5
		s.text(left+(width-left)*float64(i)/5, height-6, []string{"start", "middle", "middle", "middle", "middle", "end"}[i], spanOf(at, span))
	}
	for k, c := range curves {
		fmt.Fprintf(s, `<polyline fill="none" stroke="%s" stroke-width="1.5" points="`, colour(k))
		for i, v := range c.Values {
			fmt.Fprintf(s, "%.1f,%.1f ", left+(width-left)*(float64(i)+0.5)*c.Step/span, y(v))
		}
		s.WriteString(`"/>`)
	}
	return s.done()
}

// spanOf formats a moment in a unit that suits the whole range.
func spanOf(at, whole float64) string {
	if whole > 4*86400 {
		return fmt.Sprintf("day %.0f", at/86400)
	}
	return span(at)
}

// waits draws the distribution of waiting times.
func (r *Results) waits() template.HTML {
	s := newSVG(height, "distribution of waiting times")
	top := 60.0
	for _, p := range r.Policies {
		top = max(top, p.Wait.Max)
	}
	x := func(v float64) float64 { return left + (width-left)*math.Log1p(v)/math.Log1p(top) }
	y := func(v float64) float64 { return (height - bottom) * (1 - v*0.95) }
	for i := range 5 {
		s.line(left, y(float64(i)/4), width, y(float64(i)/4))
		s.text(left-6, y(float64(i)/4)+4, "end", fmt.Sprintf("%d %%", 25*i))
	}
	for _, v := range []float64{0, 10, 60, 600, 3600, 6 * 3600, 86400, 7 * 86400, 30 * 86400} {
		if v <= top {
			s.text(x(v), height-6, "middle", span(v))
		}
	}
	for k, schedule := range r.schedules {
		var waits []float64
		each(schedule, func(job int) { waits = append(waits, schedule.Wait(job).Seconds()) })
		slices.Sort(waits)
		fmt.Fprintf(s, `<polyline fill="none" stroke="%s" stroke-width="1.5" points="`, colour(k))
		for i := range 201 {
			if len(waits) > 0 {
				fmt.Fprintf(s, "%.1f,%.1f ", x(waits[i*(len(waits)-1)/200]), y(float64(i)/200))
			}
		}
		s.WriteString(`"/>`)
	}
	return s.done()
}

// shownJobs is the highest number of jobs in a Gantt chart.
const shownJobs = 1500

// window returns the time that all Gantt charts show: around the moment at which most jobs
// waited under any policy, as long as no chart has more than shownJobs starts.
func (r *Results) window() (begin, end trace.Time) {
	moment, most := trace.Time(0), -1.0
	for i, p := range r.Policies {
		first := trace.Never
		each(r.schedules[i], func(job int) { first = min(first, r.schedules[i].Eligible[job]) })
		for k, v := range p.Queue.Values {
			if v > most {
				moment, most = first+trace.Time((float64(k)+0.5)*p.Queue.Step*1000), v
			}
		}
	}
	begin, end = 0, trace.Never
	last := trace.Time(0)
	for _, s := range r.schedules {
		var starts []trace.Time
		each(s, func(job int) {
			starts = append(starts, s.Start[job])
			last = max(last, s.End[job])
		})
		slices.Sort(starts)
		middle, _ := slices.BinarySearch(starts, moment)
		if from := middle - shownJobs/2; from > 0 {
			begin = max(begin, starts[from])
		}
		if to := middle + shownJobs/2; to < len(starts) {
			end = min(end, starts[to])
		}
	}
	begin = min(begin, moment)
	return begin, max(min(end, last), begin+trace.Minute)
}

// gantt draws the jobs from begin to end. A job is a bar as high as its cores; its position
// is chosen here: the lowest free cores, which for counted pools is as good as any other.
func (r *Results) gantt(k int, schedule *simulate.Schedule, begin, end trace.Time) chart {
	p := r.Policies[k]
	c := chart{Title: "Gantt chart: " + p.Name, Note: "each bar is a job, as high as its cores; colours are users; outlined jobs waited; all charts show the same time"}
	if len(p.Queue.Values) == 0 {
		return c
	}
	var jobs []int
	first := trace.Never
	each(schedule, func(job int) {
		jobs = append(jobs, job)
		first = min(first, schedule.Eligible[job])
	})
	slices.SortStableFunc(jobs, func(a, b int) int { return cmp.Compare(schedule.Start[a], schedule.Start[b]) })
	total := max(r.Machine.Cores, 1)
	s := newSVG(height*3/2, c.Title)
	h := float64(height*3/2 - bottom)
	x := func(t trace.Time) float64 {
		return left + (width-left)*float64(min(max(t, begin), end)-begin)/float64(end-begin)
	}
	s.text(left-6, 12, "end", fmt.Sprint(total))
	s.text(left-6, h, "end", "0")
	s.text(left, h+18, "start", spanOf((begin-first).Seconds(), p.Makespan))
	s.text(width, h+18, "end", spanOf((end-first).Seconds(), p.Makespan))
	free := []cores{{0, total}}
	type lane struct {
		end   trace.Time
		parts []cores
	}
	var running []lane
	n := 0
	for _, job := range jobs {
		if schedule.Start[job] >= end || schedule.End[job] <= begin {
			continue
		}
		now := schedule.Start[job]
		running = slices.DeleteFunc(running, func(l lane) bool {
			if l.end > now {
				return false
			}
			free = giveBack(free, l.parts)
			return true
		})
		var parts []cores
		parts, free = takeLowest(free, int(r.t.Cores[job]))
		running = append(running, lane{schedule.End[job], parts})
		if n++; n > 2*shownJobs {
			break
		}
		waited := ""
		if schedule.Wait(job) > 0 {
			waited = ` class="waited"`
		}
		for _, part := range parts {
			fmt.Fprintf(s, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.2f" fill="%s"%s><title>job %d, %d cores, waited %s</title></rect>`, x(now), h*(1-float64(part.to)/float64(total)),
				max(x(schedule.End[job])-x(now), 0.5), h*float64(part.to-part.from)/float64(total), colour(int(r.t.User[job])), waited, r.t.Number[job], r.t.Cores[job], span(schedule.Wait(job).Seconds()))
		}
	}
	c.SVG = s.done()
	return c
}

// cores are the cores from from until to, which is exclusive.
type cores struct{ from, to int }

func takeLowest(free []cores, n int) (taken, rest []cores) {
	for _, f := range free {
		if n == 0 {
			rest = append(rest, f)
			continue
		}
		k := min(n, f.to-f.from)
		taken = append(taken, cores{f.from, f.from + k})
		if n -= k; f.from+k < f.to {
			rest = append(rest, cores{f.from + k, f.to})
		}
	}
	return taken, rest
}

func giveBack(free, parts []cores) []cores {
	free = append(free, parts...)
	slices.SortFunc(free, func(a, b cores) int { return a.from - b.from })
	merged := free[:0]
	for _, f := range free {
		if n := len(merged); n > 0 && merged[n-1].to == f.from {
			merged[n-1].to = f.to
			continue
		}
		merged = append(merged, f)
	}
	return merged
}
