package report

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"premix/internal/engine"
	"premix/internal/engine/queue"
	"premix/internal/kit/lines"
	"premix/internal/kit/units"
	"premix/internal/record"
)

// Usage is the resources that tasks took of the cores that they held: of a run with a recipe,
// or of the tasks of a task directory. Times are seconds.
type Usage struct {
	Dir      string      `json:"dir"`
	Steps    []StepUsage `json:"steps"`     // by group; of a run with a recipe there is one, named as the recipe
	Sizes    []SizeUsage `json:"sizes"`     // by cores held
	RunTimes []TimeUsage `json:"run_times"` // by run time
	Tries    int         `json:"tries"`
	CoreUsage
	Active      float64   `json:"active"`      // in which at least one try ran
	Peak        int       `json:"peak"`        // cores that were held at a time, at most
	Utilisation float64   `json:"utilisation"` // core time held, of active time times peak
	Started     time.Time `json:"begun,omitzero"`
	Finished    time.Time `json:"ended,omitzero"`
	Failures    []Failure `json:"failures,omitempty"` // the most frequent

	name                   string
	run                    *Report // nil without a recipe
	count                  [4]int  // tasks by queue.State, of a task directory
	held                   []holding
	other                  int   // failures of other kinds
	shown                  []try // of the page
	more                   int   // tries that are not shown
	read, written, largest int64
	wait                   Box
}

// try is a try as the page shows it.
type try struct {
	record.Task
	last   bool     // of its task
	stderr []string // last lines, of a task that failed
}

// Failure are tries of a step that failed in the same way.
type Failure struct {
	Step  string `json:"step"`
	Error string `json:"error"`
	Tries int    `json:"tries"`
	Task  int    `json:"task"` // the first
}

// holding is a try's hold on cores. There may be millions.
type holding struct {
	begin, end int64 // ns since 1970
	cores      int32
}

// StepUsage sums up the tries of one step.
type StepUsage struct {
	Step  string `json:"step"`
	Tries int    `json:"tries"`
	OK    int    `json:"succeeded"`
	// Largest resident set of a process, in bytes; 0: not known.
	MaxRSS int64 `json:"max_rss,omitempty"`
	CoreUsage
	Cores      int      `json:"cores"`            // of a try, at most
	CoresUsed  float64  `json:"cores_used"`       // CPU time divided by run time, of a try, at most
	Memory     int64    `json:"memory,omitempty"` // of a try, at most, in bytes; 0: not counted
	Read       int64    `json:"read_bytes"`
	Written    int64    `json:"write_bytes"`
	Advice     []string `json:"advice,omitempty"`
	Wait       Box      `json:"wait_of_a_try"`
	CPUTimes   Box      `json:"cpu_of_a_try"`
	Seconds    Box      `json:"seconds_of_a_try"`
	Efficiency Box      `json:"efficiency_of_a_try"`
}

// CoreUsage compares CPU time with the core time held.
type CoreUsage struct {
	CPU        float64 `json:"cpu"`        // user and system
	Core       float64 `json:"core"`       // run time times cores held
	Efficiency float64 `json:"efficiency"` // CPU time divided by core time held
}

func (u *CoreUsage) add(cpu, core float64) {
	u.CPU += cpu
	u.Core += core
	if u.Core > 0 {
		u.Efficiency = u.CPU / u.Core
	}
}

// Box is the figures that a box plot draws.
type Box struct {
	Min    float64 `json:"min"`
	Q1     float64 `json:"q1"`
	Median float64 `json:"median"`
	Q3     float64 `json:"q3"`
	Max    float64 `json:"max"`
}

// SizeUsage sums up tries that held the same number of cores.
type SizeUsage struct {
	Cores int `json:"cores"`
	Tries int `json:"tries"`
	CoreUsage
}

// TimeUsage sums up tries whose run time is at least From and less than To.
type TimeUsage struct {
	From  float64 `json:"from"`
	To    float64 `json:"to"` // 0: no end
	Tries int     `json:"tries"`
	CoreUsage
}

// runTimes are the borders of the table of run times.
var runTimes = []float64{0, 0.1, 1, 10, 60, 600, 3600, 6 * 3600, 24 * 3600}

// values are the values from which boxes are drawn. Half the precision is more than enough,
// and there may be millions.
type values struct{ cpu, seconds, efficiency, wait []float32 }

func box(v []float32) Box {
	if len(v) == 0 {
		return Box{}
	}
	slices.Sort(v)
	at := func(q float64) float64 {
		x := q * float64(len(v)-1)
		i := int(x)
		if i+1 == len(v) {
			return float64(v[i])
		}
		return float64(v[i]) + (x-float64(i))*float64(v[i+1]-v[i])
	}
	return Box{at(0), at(0.25), at(0.5), at(0.75), at(1)}
}

// ReadUsage reads the resources that the tasks in dir took. It returns an
// *engine.DirError if dir has no tasks.
func ReadUsage(dir string) (*Usage, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if !queue.IsDir(dir) {
		r, err := Read(dir)
		if err != nil {
			return nil, err
		}
		return r.usage, nil
	}
	u, err := usage(abs, queue.Records(abs), common{})
	if err != nil {
		return nil, err
	}
	q, err := queue.Open(abs, "", false)
	if err != nil {
		return nil, err
	}
	defer q.Close()
	u.count = q.Counts()
	u.stderr(func(t *record.Task) []string {
		var b bytes.Buffer
		_ = q.Output(t.Task, true, stderrBytes, &b) // the failure is shown also without it
		return lines.Last(b.Bytes(), engine.StderrLines)
	})
	return u, nil
}

// usage sums records up. of completes them.
func usage(dir string, records iter.Seq2[*record.Task, error], of common) (*Usage, error) {
	u := &Usage{Dir: dir, Steps: []StepUsage{}, Sizes: []SizeUsage{}, RunTimes: []TimeUsage{}}
	steps, sizes := make(map[string]int), make(map[int]int)
	var all []values
	var waits []float32
	failures := make(map[kind]int)
	picks := newPicks()
	for i, from := range runTimes {
		t := TimeUsage{From: from}
		if i+1 < len(runTimes) {
			t.To = runTimes[i+1]
		}
		u.RunTimes = append(u.RunTimes, t)
	}
	for rec, err := range records {
		if err != nil {
			return nil, err
		}
		of.fill(rec)
		picks.add(rec)
		held := rec.Cores
		cpu, core := rec.User+rec.System, rec.Seconds*float64(held)
		at, ok := steps[rec.Group]
		if !ok {
			at = len(u.Steps)
			steps[rec.Group] = at
			u.Steps, all = append(u.Steps, StepUsage{Step: rec.Group}), append(all, values{})
		}
		s, v := &u.Steps[at], &all[at]
		s.Tries++
		if rec.OK() {
			s.OK++
		}
		s.add(cpu, core)
		s.MaxRSS, s.Cores, s.Memory = max(s.MaxRSS, rec.MaxRSS), max(s.Cores, held), max(s.Memory, rec.Memory)
		if rec.Seconds >= measurable {
			s.CoresUsed = max(s.CoresUsed, cpu/rec.Seconds)
		}
		s.Read, s.Written = s.Read+rec.ReadBytes, s.Written+rec.WriteBytes
		u.Tries++
		u.add(cpu, core)
		u.held = append(u.held, holding{rec.Started.UnixNano(), rec.Finished.UnixNano(), int32(held)})
		if !rec.OK() {
			k := kind{rec.Group, rec.Error}
			at, ok := failures[k]
			switch {
			case !ok && len(u.Failures) == maxKinds:
				u.other++
			case !ok:
				failures[k] = len(u.Failures)
				u.Failures = append(u.Failures, Failure{Step: rec.Group, Error: rec.Error, Tries: 1, Task: rec.Task})
			default:
				u.Failures[at].Tries++
			}
		}
		v.cpu, v.seconds = append(v.cpu, float32(cpu)), append(v.seconds, float32(rec.Seconds))
		v.wait, waits = append(v.wait, float32(rec.Wait)), append(waits, float32(rec.Wait))
		if core > 0 {
			v.efficiency = append(v.efficiency, float32(cpu/core))
		}
		if at, ok = sizes[held]; !ok {
			at = len(u.Sizes)
			sizes[held] = at
			u.Sizes = append(u.Sizes, SizeUsage{Cores: held})
		}
		u.Sizes[at].Tries++
		u.Sizes[at].add(cpu, core)
		for i := len(runTimes) - 1; i >= 0; i-- {
			if rec.Seconds >= runTimes[i] {
				u.RunTimes[i].Tries++
				u.RunTimes[i].add(cpu, core)
				break
			}
		}
	}
	for i := range u.Steps {
		s := &u.Steps[i]
		s.CPUTimes, s.Seconds, s.Efficiency, s.Wait = box(all[i].cpu), box(all[i].seconds), box(all[i].efficiency), box(all[i].wait)
		s.Advice = s.advice()
		u.read, u.written, u.largest = u.read+s.Read, u.written+s.Written, max(u.largest, s.MaxRSS)
	}
	u.wait = box(waits)
	slices.SortFunc(u.Sizes, func(a, b SizeUsage) int { return a.Cores - b.Cores })
	slices.SortStableFunc(u.Failures, func(a, b Failure) int { return b.Tries - a.Tries })
	u.utilise()
	var err error
	u.shown, u.more, err = picks.read(records, of)
	return u, err
}

// kind is a kind of failure.
type kind struct{ step, error string }

// maxKinds is the number of kinds of failure that are shown.
const maxKinds = 50

// utilise compares the core time held with the core time available.
func (u *Usage) utilise() {
	if len(u.held) == 0 {
		return
	}
	type event struct {
		at    int64
		cores int32
	}
	events := make([]event, 0, 2*len(u.held))
	for _, h := range u.held {
		events = append(events, event{h.begin, h.cores}, event{max(h.end, h.begin), -h.cores})
	}
	slices.SortFunc(events, func(a, b event) int {
		// A task that ends and one that begins at the same moment do not overlap.
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.cores, b.cores))
	})
	now, peak, active := int32(0), int32(0), int64(0)
	for i, e := range events {
		if now > 0 {
			active += e.at - events[i-1].at
		}
		now += e.cores
		peak = max(peak, now)
	}
	u.held = nil
	u.Started, u.Finished = time.Unix(0, events[0].at), time.Unix(0, events[len(events)-1].at)
	u.Active, u.Peak = float64(active)/1e9, int(peak)
	if u.Active > 0 && u.Peak > 0 {
		u.Utilisation = min(1, u.Core/(u.Active*float64(u.Peak)))
	}
}

// hours returns a time in hours, with a useful number of digits.
func hours(s float64) string {
	switch h := s / 3600; {
	case h >= 100:
		return fmt.Sprintf("%.0f", h)
	case h >= 1:
		return fmt.Sprintf("%.1f", h)
	case h >= 0.0001:
		return fmt.Sprintf("%.2g", h)
	case h > 0:
		return "<0.0001"
	}
	return "0"
}

// WriteJSON writes it as one object.
func (u *Usage) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(u)
}

// WriteText writes the usage as text for people.
func (u *Usage) WriteText(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	// Each table aligns its own columns.
	end := func() error {
		if err := t.Flush(); err != nil {
			return err
		}
		_, err := fmt.Fprintln(w)
		return err
	}
	if u.Tries > 0 {
		fmt.Fprintf(w, "%d tries: CPU %s of %s core time held, efficiency %s; utilisation %s of %d cores over %s\n\n", u.Tries, units.Seconds(u.CPU), units.Seconds(u.Core), percent(u.Efficiency), percent(u.Utilisation), u.Peak, units.Seconds(u.Active))
	}
	fmt.Fprintln(t, "step\ttries\tsucceeded\tCPU hours\tcore hours held\tefficiency\trun time: median\tq1\tq3\tlongest\t")
	for _, s := range u.Steps {
		fmt.Fprintf(t, "%s\t%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", s.Step, s.Tries, s.OK, hours(s.CPU), hours(s.Core), percent(s.CoreUsage.Efficiency),
			units.Seconds(s.Seconds.Median), units.Seconds(s.Seconds.Q1), units.Seconds(s.Seconds.Q3), units.Seconds(s.Seconds.Max))
	}
	if err := end(); err != nil {
		return err
	}
	fmt.Fprintln(t, "cores\ttries\tCPU hours\tcore hours held\tefficiency\t")
	for _, s := range u.Sizes {
		fmt.Fprintf(t, "%d\t%d\t%s\t%s\t%s\t\n", s.Cores, s.Tries, hours(s.CPU), hours(s.Core), percent(s.Efficiency))
	}
	if err := end(); err != nil {
		return err
	}
	fmt.Fprintln(t, "run time from\tto\ttries\tcore hours held\tefficiency\t")
	for _, s := range u.RunTimes {
		if s.Tries == 0 {
			continue
		}
		to := "-"
		if s.To > 0 {
			to = units.Seconds(s.To)
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\t\n", units.Seconds(s.From), to, s.Tries, hours(s.Core), percent(s.Efficiency))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	var b strings.Builder
	for _, s := range u.Steps {
		for _, a := range s.Advice {
			fmt.Fprintf(&b, "%s: %s\n", cmp.Or(s.Step, "tasks"), a)
		}
	}
	if b.Len() == 0 {
		return nil
	}
	_, err := io.WriteString(w, "\n"+b.String())
	return err
}
