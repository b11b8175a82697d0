package results

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"text/tabwriter"

	"premix/internal/replay/machine"
	"premix/internal/replay/simulate"
	"premix/internal/replay/trace"
)

// bound is the least run time and turnaround in a bounded slowdown.
const bound = 10 * trace.Second

// Results is the output of --json. Times are seconds.
type Results struct {
	Trace    TraceInfo   `json:"trace"`
	Machine  MachineInfo `json:"machine"`
	Options  Options     `json:"options"`
	Policies []*Policy   `json:"policies"`
	WhatIf   []*Scenario `json:"what_if,omitempty"`

	t         *trace.Trace
	m         *machine.Machine
	recorded  *simulate.Schedule // nil: the trace does not record all starts
	schedules []*simulate.Schedule
}

// Options are the recorded options of the replay.
type Options struct {
	Estimates string  `json:"estimates"`
	Pack      float64 `json:"pack,omitempty"` // target of packing, in seconds
	Packed    int     `json:"packed,omitempty"`
}

// TraceInfo describes the replayed trace.
type TraceInfo struct {
	Name   string       `json:"name"`
	Format string       `json:"format"`
	Begin  string       `json:"begin,omitempty"` // RFC 3339
	Days   float64      `json:"days"`            // from the first submission to the last
	Users  int          `json:"users"`
	Load   float64      `json:"load"` // core time of the jobs, divided by the machine's core time
	Read   trace.Report `json:"read"`
}

// MachineInfo describes the machine.
type MachineInfo struct {
	Name    string   `json:"name"`
	Cores   int      `json:"cores"`
	Nodes   int      `json:"nodes"`
	Derived string   `json:"derived,omitempty"`
	Notes   []string `json:"notes,omitempty"`               // properties that its description has and premix does not
	Held    int      `json:"recorded_peak_cores,omitempty"` // most cores that jobs held at a time in the record
}

// Check compares the waits of a policy with the recorded waits of the same jobs.
type Check struct {
	Jobs       int     `json:"jobs"`
	Recorded   float64 `json:"recorded_mean_wait"`
	Replayed   float64 `json:"replayed_mean_wait"`
	Difference float64 `json:"difference"` // of the means, as a part of the recorded one
}

// alike is the largest difference of a replay that is like the record.
const alike = 0.1

// Near reports whether the replay is like the record.
func (c *Check) Near() bool { return math.Abs(c.Difference) <= alike }

// Policy is the result of one policy.
type Policy struct {
	Name        string        `json:"policy"`
	Jobs        int           `json:"jobs"` // completed
	Refused     int           `json:"refused"`
	RefusedWhy  []trace.Count `json:"refused_why,omitempty"`
	Killed      int           `json:"killed"`
	Preemptions int           `json:"preemptions"`
	Failures    int           `json:"failures"`
	Lost        float64       `json:"lost_core_hours"` // by preemptions and failures
	NoEstimate  int           `json:"jobs_without_estimate"`
	Overran     int           `json:"overruns"`

	Wait       Summary `json:"wait"`
	Turnaround Summary `json:"turnaround"`
	Slowdown   Summary `json:"bounded_slowdown"`

	Makespan    float64 `json:"makespan"`
	Utilisation float64 `json:"utilisation"`
	Fairness    float64 `json:"fairness"`
	CoreHours   float64 `json:"core_hours"`
	Charge      float64 `json:"charge"`

	Users   []Group `json:"users"`
	Sizes   []Group `json:"sizes"`
	Classes []Group `json:"classes"`

	Check      *Check      `json:"recorded,omitempty"` // nil if the trace does not record all starts
	Confidence *Confidence `json:"confidence,omitempty"`
	Against    *Confidence `json:"against_first,omitempty"` // differences to the first policy
	ReplaySecs float64     `json:"replay_seconds"`          // duration of the replay
	Busy       Curve       `json:"utilisation_over_time"`
	Queue      Curve       `json:"waiting_over_time"` // jobs
}

// Summary summarizes all jobs, or a group.
type Summary struct {
	Mean   float64 `json:"mean"`
	Median float64 `json:"median"`
	P95    float64 `json:"p95"`
	Max    float64 `json:"max"`
}

// Group is the summary of the jobs of one user, size or class.
type Group struct {
	Name      string  `json:"name"`
	Jobs      int     `json:"jobs"`
	CoreHours float64 `json:"core_hours"`
	Charge    float64 `json:"charge"`
	Wait      Summary `json:"wait"`
	Slowdown  Summary `json:"bounded_slowdown"`
}

// Curve is a mean for each of equal intervals of time.
type Curve struct {
	Step   float64   `json:"step"` // seconds
	Values []float64 `json:"values"`
}

// Confidence holds intervals of means; see doc.go.
type Confidence struct {
	Unit       string     `json:"unit"` // week or day
	Units      int        `json:"units"`
	Wait       [2]float64 `json:"wait"`
	Turnaround [2]float64 `json:"turnaround"`
	Slowdown   [2]float64 `json:"bounded_slowdown"`
}

// New returns empty results.
func New(t *trace.Trace, m *machine.Machine, o Options) *Results {
	r := &Results{t: t, m: m, Options: o}
	r.Machine = MachineInfo{Name: m.Name, Cores: m.Cores(), Nodes: m.Nodes(), Derived: m.Derived, Notes: m.Notes}
	if s, err := simulate.Recorded(t); err == nil {
		r.recorded, r.Machine.Held = s, machine.PeakCores(t)
	}
	r.Trace = TraceInfo{Name: t.Name, Format: t.Format, Users: len(t.Users.Names), Read: t.Read}
	if t.Begin > 0 {
		r.Trace.Begin = t.Moment(0).Format("2006-01-02T15:04:05Z07:00")
	}
	if n := t.Len(); n > 0 {
		span := t.Submit[n-1] - t.Submit[0]
		r.Trace.Days = span.Seconds() / trace.Day.Seconds()
		work := 0.0
		for i := range t.Run {
			work += t.Run[i].Seconds() * float64(t.Cores[i])
		}
		if span > 0 && r.Machine.Cores > 0 {
			r.Trace.Load = work / span.Seconds() / float64(r.Machine.Cores)
		}
	}
	return r
}

// each calls f with the jobs that ended.
func each(s *simulate.Schedule, f func(job int)) {
	for job := range s.Start {
		if s.Start[job] != trace.Unknown && !s.Cancelled[int32(job)] && !s.Given[int32(job)] {
			f(job)
		}
	}
}

func slowdown(s *simulate.Schedule, job int) float64 {
	run := max(s.Ran(job), bound)
	return max(1, (s.Wait(job)+s.Ran(job)).Seconds()/run.Seconds())
}

// Charger returns the cost of a core hour of a job.
type Charger func(job int32) float64

// Add adds the summary of a schedule. seconds is the duration of the replay.
func (r *Results) Add(s *simulate.Schedule, charge Charger, seconds float64) *Policy {
	p := &Policy{Name: s.Policy, RefusedWhy: s.Refused, Killed: s.Killed, Preemptions: s.Preemptions, Failures: s.Failures, NoEstimate: s.NoEstimate, Overran: s.Overran, ReplaySecs: seconds}
	for _, c := range s.Refused {
		p.Refused += c.Count
	}
	for job, lost := range s.Lost {
		p.Lost += lost.Seconds() * float64(r.t.Cores[job]) / 3600
	}
	n := 0
	each(s, func(int) { n++ })
	p.Jobs = n
	values := make([]float64, 0, n)
	all := func(f func(job int) float64) Summary {
		values = values[:0]
		each(s, func(job int) { values = append(values, f(job)) })
		return summarise(values)
	}
	p.Wait = all(func(job int) float64 { return s.Wait(job).Seconds() })
	p.Turnaround = all(func(job int) float64 { return (s.End[job] - s.Eligible[job]).Seconds() })
	p.Slowdown = all(func(job int) float64 { return slowdown(s, job) })

	first, last, work := trace.Never, trace.Time(0), 0.0
	each(s, func(job int) {
		first, last = min(first, s.Eligible[job]), max(last, s.End[job])
		hours := s.Ran(job).Seconds() * float64(r.t.Cores[job]) / 3600
		work += hours
		p.Charge += hours * charge(int32(job))
	})
	p.CoreHours = work
	if n > 0 && last > first {
		p.Makespan = (last - first).Seconds()
		p.Utilisation = work * 3600 / p.Makespan / float64(max(r.Machine.Cores, 1))
	}
	t := r.t
	p.Users = r.groups(s, charge, len(t.Users.Names), func(job int) int32 { return t.User[job] }, func(g int) string { return t.Users.Names[g] })
	p.Sizes = r.groups(s, charge, len(sizes), func(job int) int32 { return sizeOf(t.Cores[job]) }, func(g int) string { return sizes[g].name })
	qos := max(len(t.QOSs.Names), 1)
	p.Classes = r.groups(s, charge, len(t.Partitions.Names)*qos, func(job int) int32 { return t.Partition[job]*int32(qos) + t.QOSOf(job) }, func(g int) string {
		name := t.Partitions.Names[g/qos]
		if len(t.QOSs.Names) > 0 && t.QOSs.Names[g%qos] != "" {
			name = strings.TrimPrefix(name+"/"+t.QOSs.Names[g%qos], "/")
		}
		return name
	})
	slices.SortStableFunc(p.Users, func(a, b Group) int { return cmp.Compare(b.CoreHours, a.CoreHours) })
	slices.SortStableFunc(p.Classes, func(a, b Group) int { return cmp.Compare(b.Jobs, a.Jobs) })
	p.Fairness = jain(p.Users)
	if n > 0 {
		p.Busy, p.Queue = r.curves(s, first, last)
	}
	p.Check = r.check(s)
	r.schedules = append(r.schedules, s)
	r.Policies = append(r.Policies, p)
	return p
}

// check compares a schedule with the record.
func (r *Results) check(s *simulate.Schedule) *Check {
	if r.recorded == nil || s.Policy == r.recorded.Policy {
		return nil
	}
	c := &Check{}
	each(s, func(job int) {
		c.Jobs++
		c.Recorded += r.recorded.Wait(job).Seconds()
		c.Replayed += s.Wait(job).Seconds()
	})
	if c.Jobs == 0 {
		return nil
	}
	c.Recorded /= float64(c.Jobs)
	c.Replayed /= float64(c.Jobs)
	if c.Recorded != c.Replayed {
		// Waits of less than a second are not recorded.
		c.Difference = (c.Replayed - c.Recorded) / max(c.Recorded, 1)
	}
	return c
}

func summarise(v []float64) Summary {
	if len(v) == 0 {
		return Summary{}
	}
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	slices.Sort(v)
	at := func(q float64) float64 {
		x := q * float64(len(v)-1)
		i := int(x)
		if i+1 == len(v) {
			return v[i]
		}
		return v[i] + (x-float64(i))*(v[i+1]-v[i])
	}
	return Summary{Mean: sum / float64(len(v)), Median: at(0.5), P95: at(0.95), Max: v[len(v)-1]}
}

// sizes are the classes of jobs by cores.
var sizes = []struct {
	upTo int32
	name string
}{{1, "1"}, {4, "2-4"}, {16, "5-16"}, {64, "17-64"}, {256, "65-256"}, {1024, "257-1024"}, {math.MaxInt32, "more"}}

func sizeOf(cores int32) int32 {
	for i, s := range sizes {
		if cores <= s.upTo {
			return int32(i)
		}
	}
	return int32(len(sizes) - 1)
}

// groups returns summaries by group. It sorts jobs by counting, so that millions of jobs
// need no map of slices.
func (r *Results) groups(s *simulate.Schedule, charge Charger, n int, of func(job int) int32, name func(group int) string) []Group {
	from := make([]int32, n+1)
	each(s, func(job int) { from[of(job)+1]++ })
	for g := range n {
		from[g+1] += from[g]
	}
	jobs := make([]int32, from[n])
	fill := slices.Clone(from[:n])
	each(s, func(job int) {
		g := of(job)
		jobs[fill[g]] = int32(job)
		fill[g]++
	})
	list := []Group{}
	var values []float64
	for g := range n {
		mine := jobs[from[g]:from[g+1]]
		if len(mine) == 0 {
			continue
		}
		group := Group{Name: name(g), Jobs: len(mine)}
		values = values[:0]
		for _, job := range mine {
			hours := s.Ran(int(job)).Seconds() * float64(r.t.Cores[job]) / 3600
			group.CoreHours += hours
			group.Charge += hours * charge(job)
			values = append(values, s.Wait(int(job)).Seconds())
		}
		group.Wait = summarise(values)
		values = values[:0]
		for _, job := range mine {
			values = append(values, slowdown(s, int(job)))
		}
		group.Slowdown = summarise(values)
		list = append(list, group)
	}
	return list
}

func jain(users []Group) float64 {
	sum, squares := 0.0, 0.0
	for _, u := range users {
		sum += u.Slowdown.Mean
		squares += u.Slowdown.Mean * u.Slowdown.Mean
	}
	if squares == 0 {
		return 1
	}
	return sum * sum / squares / float64(len(users))
}

// bins is the number of intervals of a curve.
const bins = 480

// curves returns the fraction of cores that run jobs, and the number of waiting jobs, over
// time.
func (r *Results) curves(s *simulate.Schedule, first, last trace.Time) (busy, queue Curve) {
	step := max((last-first+bins-1)/bins, 1)
	cores, waiting := make([]float64, bins), make([]float64, bins)
	spread := func(to []float64, from, until trace.Time, weight float64) {
		for at := from; at < until; {
			bin := int((at - first) / step)
			if bin >= bins {
				return
			}
			// The intervals strictly between the first and the last are many for a long
			// job, and none for most jobs.
			end := min(first+trace.Time(bin+1)*step, until)
			to[bin] += weight * float64(end-at)
			at = end
		}
	}
	each(s, func(job int) {
		start := s.End[job] - s.Ran(job)
		if s.Earlier[int32(job)] == 0 {
			start = s.Start[job]
		}
		spread(cores, start, s.End[job], float64(r.t.Cores[job]))
		spread(waiting, s.Eligible[job], start, 1)
	})
	for i := range bins {
		cores[i] = round(cores[i]/float64(step)/float64(max(r.Machine.Cores, 1)), 5)
		waiting[i] = round(waiting[i]/float64(step), 3)
	}
	return Curve{step.Seconds(), cores}, Curve{step.Seconds(), waiting}
}

func round(v float64, digits int) float64 {
	p := math.Pow(10, float64(digits))
	return math.Round(v*p) / p
}

// unit returns the unit of the draws, its name, and the number of units in the trace.
func (r *Results) unit() (unit trace.Time, name string, units int) {
	unit, name = trace.Week, "week"
	span := r.t.Submit[r.t.Len()-1] - r.t.Submit[0]
	if span < 4*trace.Week {
		unit, name = trace.Day, "day"
	}
	return unit, name, int(span/unit) + 1
}

const (
	draws      = 2000
	leastUnits = 4 // with fewer there is no interval
	measures   = 3 // wait, turnaround, slowdown
)

// unitSums has the sums of the measures over the jobs of a unit, and their number.
type unitSums [measures + 1]float64

func (s *unitSums) add(o *unitSums) {
	for i, v := range o {
		s[i] += v
	}
}

// sumUnits returns the sums for the units of a trace.
func sumUnits(t *trace.Trace, s *simulate.Schedule, unit trace.Time, units int) []unitSums {
	sums := make([]unitSums, units)
	each(s, func(job int) {
		sums[(t.Submit[job]-t.Submit[0])/unit].add(&unitSums{s.Wait(job).Seconds(), (s.End[job] - s.Eligible[job]).Seconds(), slowdown(s, job), 1})
	})
	return sums
}

// interval returns an interval that holds 95 % of some values.
func interval(v []float64) [2]float64 {
	if len(v) == 0 {
		return [2]float64{}
	}
	slices.Sort(v)
	return [2]float64{v[len(v)*25/1000], v[len(v)*975/1000]}
}

// Finish compares the policies, and the scenarios with them. seed determines the draws.
func (r *Results) Finish(seed uint64) {
	if len(r.schedules) == 0 || r.t.Len() == 0 {
		return
	}
	unit, name, units := r.unit()
	sums := make([][]unitSums, len(r.schedules))
	for k, s := range r.schedules {
		sums[k] = sumUnits(r.t, s, unit, units)
	}
	for _, s := range r.WhatIf {
		s.finish(sums, units, seed)
	}
	if units < leastUnits {
		return
	}
	rng := rand.New(rand.NewPCG(seed, 0x7265706c6179))
	means := make([][measures][]float64, len(sums))
	differences := make([][measures][]float64, len(sums))
	drawn := make([]int, units)
	for range draws {
		for i := range drawn {
			drawn[i] = rng.IntN(units)
		}
		var base [measures]float64
		for k := range sums {
			var total unitSums
			for _, u := range drawn {
				total.add(&sums[k][u])
			}
			if total[measures] == 0 {
				break // only weeks without a job
			}
			for i := range measures {
				mean := total[i] / total[measures]
				if k == 0 {
					base[i] = mean
				}
				means[k][i] = append(means[k][i], mean)
				differences[k][i] = append(differences[k][i], mean-base[i])
			}
		}
	}
	for k, p := range r.Policies {
		make3 := func(v *[measures][]float64) *Confidence {
			return &Confidence{Unit: name, Units: units, Wait: interval(v[0]), Turnaround: interval(v[1]), Slowdown: interval(v[2])}
		}
		p.Confidence = make3(&means[k])
		if k > 0 {
			p.Against = make3(&differences[k])
		}
	}
}

// WriteJSON writes all results.
func (r *Results) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// WriteText writes the most important results as text.
func (r *Results) WriteText(w io.Writer) error {
	t := &r.Trace
	fmt.Fprintf(w, "%s: %s, %d jobs of %d users in %.1f days\n", t.Name, t.Format, t.Read.Jobs, t.Users, t.Days)
	fmt.Fprintf(w, "machine: %d cores", r.Machine.Cores)
	if r.Machine.Derived != "" {
		fmt.Fprintf(w, " (%s)", r.Machine.Derived)
	}
	fmt.Fprintf(w, ", load %.3g\n", t.Load)
	r.writeRead(w)
	if r.Options.Pack > 0 {
		fmt.Fprintf(w, "packed: %d jobs in all\n", r.Options.Packed)
	}
	fmt.Fprintln(w)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "policy\twait\tmedian\tp95\tturnaround\tslowdown\tp95\tutilisation\tfairness\tcharge\ttook\t")
	for _, p := range r.Policies {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%.4g\t%.4g\t%.1f %%\t%.3f\t%.0f\t%.2f s\t\n", p.Name, span(p.Wait.Mean), span(p.Wait.Median), span(p.Wait.P95), span(p.Turnaround.Mean),
			p.Slowdown.Mean, p.Slowdown.P95, 100*p.Utilisation, p.Fairness, p.Charge, p.ReplaySecs)
	}
	if err := errors.Join(tw.Flush(), r.writeScenarios(w)); err != nil {
		return err
	}
	for _, p := range r.Policies[min(1, len(r.Policies)):] {
		if c := p.Against; c != nil {
			fmt.Fprintf(w, "\n%s against %s: mean wait %s to %s, mean slowdown %+.3g to %+.3g (95 %% of draws of %d %ss)", p.Name, r.Policies[0].Name,
				signed(c.Wait[0]), signed(c.Wait[1]), c.Slowdown[0], c.Slowdown[1], c.Units, c.Unit)
		}
	}
	r.writeChecks(w)
	for _, p := range r.Policies {
		for _, c := range p.RefusedWhy {
			fmt.Fprintf(w, "\n%s: jobs refused: %d: %s", p.Name, c.Count, c.Why)
		}
		if p.Preemptions+p.Failures+p.Killed > 0 {
			fmt.Fprintf(w, "\n%s: %d preemptions, %d ended by failures, %d killed at their limit, %.1f core hours lost", p.Name, p.Preemptions, p.Failures, p.Killed, p.Lost)
		}
	}
	if p := r.Policies; len(p) > 0 && p[0].NoEstimate > 0 {
		fmt.Fprintf(w, "\n%d jobs do not ask for a time: their run time was used", p[0].NoEstimate)
	}
	_, err := fmt.Fprintln(w)
	return err
}

func (r *Results) writeChecks(w io.Writer) {
	for _, p := range r.Policies {
		if p.Check != nil {
			fmt.Fprintf(w, "\n%s", r.Checked(p))
		}
	}
	if over := r.Over(); over != "" {
		fmt.Fprintf(w, "\n%s", over)
	}
}

// Checked returns a sentence about the check of a policy.
func (r *Results) Checked(p *Policy) string {
	c := p.Check
	text := fmt.Sprintf("%s against the record: %d jobs waited %s in reality and %s in the replay (%+.0f %%)", p.Name, c.Jobs, span(c.Recorded), span(c.Replayed), 100*c.Difference)
	if !c.Near() {
		text += ": the machine or the policy differs from the recorded one"
	}
	return text
}

// Over returns a sentence if the recorded jobs held more cores than the machine has, or "".
func (r *Results) Over() string {
	if r.Machine.Held <= r.Machine.Cores {
		return ""
	}
	return fmt.Sprintf("the recorded jobs held up to %d cores at a time: more than the machine has", r.Machine.Held)
}

func (r *Results) writeRead(w io.Writer) {
	read := &r.Trace.Read
	if read.Bad > 0 {
		fmt.Fprintf(w, "bad lines: %d\n", read.Bad)
		for _, c := range read.Reasons {
			fmt.Fprintf(w, "  %d: %s\n", c.Count, c.Why)
		}
		for _, l := range read.First {
			fmt.Fprintf(w, "  line %d: %s\n", l.Line, l.Why)
		}
	}
	for _, c := range read.OutWhy {
		fmt.Fprintf(w, "left out: %d: %s\n", c.Count, c.Why)
	}
	for _, n := range append(slices.Clone(read.Notes), r.Machine.Notes...) {
		fmt.Fprintf(w, "note: %s\n", n)
	}
}

// span formats seconds for people.
func span(s float64) string {
	switch {
	case s < 0.0005:
		return "0s"
	case s < 120:
		return fmt.Sprintf("%.3gs", s)
	case s < 2*3600:
		return fmt.Sprintf("%.1fmin", s/60)
	case s < 48*3600:
		return fmt.Sprintf("%.1fh", s/3600)
	}
	return fmt.Sprintf("%.1fd", s/86400)
}

func signed(s float64) string {
	if s < 0 {
		return "-" + span(-s)
	}
	return "+" + span(s)
}
