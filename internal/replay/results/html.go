package results

import (
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
	Charts []chart
}

type chart struct {
	Title, Note string
	SVG         template.HTML
}

// WriteHTML writes one self-contained page, whole or not at all.
func (r *Results) WriteHTML(path string) error {
	t, err := htmlpage.New(pageHTML, pageCSS, template.FuncMap{"span": span, "signed": signed, "percent": func(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) },
		"g": func(v float64) string { return fmt.Sprintf("%.4g", v) }, "colour": colour})
	if err != nil {
		return err
	}
	p := page{Results: r}
	curves := func(of func(p *Policy) Curve) (list []Curve) {
		for _, p := range r.Policies {
			list = append(list, of(p))
		}
		return list
	}
	p.Charts = append(p.Charts,
		chart{"Utilisation", "part of the cores that jobs ran on", r.lines(curves(func(p *Policy) Curve { return p.Busy }), func(v float64) string { return fmt.Sprintf("%.0f %%", 100*v) }, 1)},
		chart{"Waiting", "jobs that wait", r.lines(curves(func(p *Policy) Curve { return p.Queue }), func(v float64) string { return fmt.Sprintf("%.4g", v) }, 0)},
		chart{"Waiting times", "part of the jobs that wait at most so long; the scale is logarithmic", r.waits()})
	for i, s := range r.schedules {
		p.Charts = append(p.Charts, r.gantt(i, s))
	}
	if err := beneath.Write(path, 0o666, beneath.Volatile, func(w io.Writer) error { return t.Execute(w, p) }); err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	return nil
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

// gantt draws the jobs around the moment at which most jobs waited under any policy. A job
// is a bar as high as its cores; its position is chosen here: the lowest free cores, which
// for counted pools is as good as any other.
func (r *Results) gantt(k int, schedule *simulate.Schedule) chart {
	p := r.Policies[k]
	c := chart{Title: "Gantt chart: " + p.Name, Note: "each bar is a job, as high as its cores; colours are users; outlined jobs waited"}
	if len(p.Queue.Values) == 0 {
		return c
	}
	busiest, most := 0, -1.0
	for _, q := range r.Policies {
		for i, v := range q.Queue.Values {
			if v > most {
				busiest, most = i, v
			}
		}
	}
	var jobs []int
	first := trace.Never
	each(schedule, func(job int) {
		jobs = append(jobs, job)
		first = min(first, schedule.Eligible[job])
	})
	slices.SortStableFunc(jobs, func(a, b int) int { return int(max(min(schedule.Start[a]-schedule.Start[b], 1), -1)) })
	at := first + trace.Time(float64(busiest)*p.Queue.Step*1000)
	middle, _ := slices.BinarySearchFunc(jobs, at, func(job int, at trace.Time) int { return int(max(min(schedule.Start[job]-at, 1), -1)) })
	from, to := max(middle-shownJobs/2, 0), min(middle+shownJobs/2, len(jobs))
	begin, end := schedule.Start[jobs[max(min(from, len(jobs)-1), 0)]], trace.Time(0)
	for _, job := range jobs[from:to] {
		end = max(end, schedule.Start[job])
	}
	for _, job := range jobs[from:to] {
		if to == len(jobs) {
			end = max(end, schedule.End[job])
		}
	}
	end = max(end, begin+1)
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
	free := []interval{{0, total}}
	type lane struct {
		end   trace.Time
		parts []interval
	}
	var running []lane
	n := 0
	for i, job := range jobs {
		if i >= to || schedule.End[job] <= begin {
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
		var parts []interval
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

// interval is the cores from from until to, which is exclusive.
type interval struct{ from, to int }

func takeLowest(free []interval, n int) (taken, rest []interval) {
	for _, f := range free {
		if n == 0 {
			rest = append(rest, f)
			continue
		}
		k := min(n, f.to-f.from)
		taken = append(taken, interval{f.from, f.from + k})
		if n -= k; f.from+k < f.to {
			rest = append(rest, interval{f.from + k, f.to})
		}
	}
	return taken, rest
}

func giveBack(free, parts []interval) []interval {
	free = append(free, parts...)
	slices.SortFunc(free, func(a, b interval) int { return a.from - b.from })
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
