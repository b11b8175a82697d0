package report

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"premix/internal/engine"
	"premix/internal/engine/queue"
	"premix/internal/kit/quantile"
	"premix/internal/kit/units"
	"premix/internal/record"
)

// maxFailures is the number of failures that the text shows. The page has all of them.
const maxFailures = 20

// Report is the summary of a run.
type Report struct {
	Run   Run    `json:"run"`
	Tasks []Task `json:"tasks"` // those with a record, in the order of the plan

	usage *Usage
	spans []span // of all tries
}

// Run sums up all tasks. Times are seconds, sizes bytes.
type Run struct {
	Dir       string    `json:"dir"`
	Recipe    string    `json:"recipe"`
	Command   []string  `json:"command"`
	Premix    string    `json:"premix"`
	Host      string    `json:"host"`
	Created   time.Time `json:"created"`
	Threads   int       `json:"threads"` // of one task
	Memory    int64     `json:"memory"`  // of one task; 0: no limit
	Slots     int       `json:"slots"`   // tasks that ran at a time, at most
	Tasks     int       `json:"tasks"`
	Succeeded int       `json:"succeeded"`
	Failed    int       `json:"failed"`
	NotRun    int       `json:"not_run"`
	Tries     int       `json:"tries"`
	Active    float64   `json:"active"` // time in which at least one task ran
	CPU       float64   `json:"cpu"`    // user and system, of all tries
	MaxRSS    int64     `json:"max_rss"`
	Read      int64     `json:"read_bytes"`
	Written   int64     `json:"write_bytes"`
	Starts    []Start   `json:"starts"`
	Saved     *float64  `json:"saved"` // null where it cannot be estimated
}

// Start sums up the tasks that started in one way and succeeded.
type Start struct {
	Kind       string   `json:"kind"`
	Tasks      int      `json:"tasks"`
	Latency    float64  `json:"latency"` // median
	LatencyP95 float64  `json:"latency_p95"`
	Seconds    float64  `json:"seconds"` // median
	SecondsP95 float64  `json:"seconds_p95"`
	CPU        float64  `json:"cpu"` // median
	Reasons    []Reason `json:"reasons"`
}

// Reason is why tasks started as they did.
type Reason struct {
	Reason string `json:"reason"`
	Tasks  int    `json:"tasks"`
}

// Task is the last record of a task.
type Task struct {
	record.Task
	Tries  int      `json:"tries"`
	Stderr []string `json:"stderr,omitempty"` // last lines, of a failed task
}

// kinds is the order in which kinds of start are shown. Runs of earlier versions of
// premix have fork and copy.
var kinds = []string{"fork", "hot", "copy", "cold"}

// Read reads the run with a recipe in dir. It returns an *engine.DirError if dir has no run.
func Read(dir string) (*Report, error) {
	plan, err := readPlan(dir)
	if err != nil {
		return nil, err
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	r := &Report{
		Run: Run{
			Dir: abs, Recipe: plan.Header.Recipe, Command: plan.Header.Frozen.Argv,
			Premix: plan.Header.Premix, Host: plan.Header.Host, Created: plan.Header.Created,
			Threads: plan.Header.Threads, Memory: plan.Header.Memory, Tasks: len(plan.Tasks),
			Starts: []Start{},
		},
		Tasks: []Task{},
	}
	last := make([]Task, len(plan.Tasks))
	for rec, err := range queue.Records(dir) {
		if err != nil {
			return nil, err
		}
		if rec.Task < 1 || rec.Task > len(last) {
			continue
		}
		t := &last[rec.Task-1]
		*t = Task{Task: *rec, Tries: t.Tries + 1}
		r.count(rec)
		r.spans = append(r.spans, span{rec.Started, rec.Finished})
	}
	for _, t := range last {
		switch {
		case t.Tries == 0 || t.Cause == record.CauseInterrupted:
			r.Run.NotRun++
		case t.OK():
			r.Run.Succeeded++
		default:
			r.Run.Failed++
			// Report the failure also without its log.
			t.Stderr, _ = engine.Stderr(dir, &t.Task, engine.StderrLines)
		}
		if t.Tries > 0 {
			r.Tasks = append(r.Tasks, t)
		}
	}
	for _, s := range union(r.spans) {
		r.Run.Active += s.end.Sub(s.begin).Seconds()
	}
	r.starts()
	r.usage, err = usage(abs, queue.Records(dir), common{plan.Header.Recipe, plan.Header.Threads, plan.Header.Memory})
	if err != nil {
		return nil, err
	}
	r.usage.name, r.usage.run = plan.Header.Recipe, r
	r.usage.stderr(func(t *record.Task) []string {
		lines, _ := engine.Stderr(dir, t, engine.StderrLines) // the failure is shown also without it
		return lines
	})
	return r, nil
}

// readPlan reads the plan of the run in dir. It returns an *engine.DirError if there is none.
func readPlan(dir string) (*engine.Plan, error) {
	plan, err := engine.ReadPlan(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil, &engine.DirError{Dir: dir, Reason: "holds no run", HintText: "give the directory that was --out of premix run or premix task run"}
	}
	return plan, err
}

// common are the values for records without their own.
type common struct {
	step   string
	cores  int
	memory int64
}

// fill completes a record.
func (c *common) fill(rec *record.Task) {
	if rec.Group == "" {
		rec.Group = c.step
	}
	if rec.Cores == 0 {
		rec.Cores = max(c.cores, 1)
	}
	if rec.Memory == 0 {
		rec.Memory = c.memory
	}
}

// count adds a try to the totals.
func (r *Report) count(rec *record.Task) {
	r.Run.Tries++
	r.Run.CPU += rec.User + rec.System
	r.Run.MaxRSS = max(r.Run.MaxRSS, rec.MaxRSS)
	r.Run.Read += rec.ReadBytes
	r.Run.Written += rec.WriteBytes
	r.Run.Slots = max(r.Run.Slots, rec.Slot+1)
}

// starts sums up by kind of start.
func (r *Report) starts() {
	type tally struct {
		latency, seconds, cpu []float64
		reasons               map[string]int
	}
	by := make(map[string]*tally)
	for i := range r.Tasks {
		t := &r.Tasks[i]
		if !t.OK() {
			continue
		}
		k := by[t.Start]
		if k == nil {
			k = &tally{reasons: make(map[string]int)}
			by[t.Start] = k
		}
		k.latency = append(k.latency, t.Latency)
		k.seconds = append(k.seconds, t.Seconds)
		k.cpu = append(k.cpu, t.User+t.System)
		k.reasons[t.Reason]++
	}
	for kind, k := range by {
		slices.Sort(k.latency)
		slices.Sort(k.seconds)
		slices.Sort(k.cpu)
		s := Start{
			Kind: kind, Tasks: len(k.seconds),
			Latency: quantile.Sorted(k.latency, 0.5), LatencyP95: quantile.Sorted(k.latency, 0.95),
			Seconds: quantile.Sorted(k.seconds, 0.5), SecondsP95: quantile.Sorted(k.seconds, 0.95),
			CPU: quantile.Sorted(k.cpu, 0.5),
		}
		for reason, n := range k.reasons {
			s.Reasons = append(s.Reasons, Reason{reason, n})
		}
		slices.SortFunc(s.Reasons, func(a, b Reason) int {
			return cmp.Or(cmp.Compare(b.Tasks, a.Tasks), cmp.Compare(a.Reason, b.Reason))
		})
		r.Run.Starts = append(r.Run.Starts, s)
	}
	slices.SortFunc(r.Run.Starts, func(a, b Start) int {
		return cmp.Compare(slices.Index(kinds, a.Kind), slices.Index(kinds, b.Kind))
	})
	cold := slices.IndexFunc(r.Run.Starts, func(s Start) bool { return s.Kind == "cold" })
	if cold < 0 || len(r.Run.Starts) < 2 {
		return
	}
	saved := 0.0
	for _, s := range r.Run.Starts {
		saved += (r.Run.Starts[cold].Seconds - s.Seconds) * float64(s.Tasks)
	}
	r.Run.Saved = &saved
}

// span is a stretch of time.
type span struct{ begin, end time.Time }

// union sorts spans and joins overlapping ones.
func union(spans []span) []span {
	slices.SortFunc(spans, func(a, b span) int { return a.begin.Compare(b.begin) })
	var all []span
	for _, s := range spans {
		if n := len(all); n > 0 && !s.begin.After(all[n-1].end) {
			if s.end.After(all[n-1].end) {
				all[n-1].end = s.end
			}
			continue
		}
		all = append(all, s)
	}
	return all
}

// WriteJSON writes the report as one JSON value.
func (r *Report) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// WriteText writes the report for people.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	run := &r.Run
	fmt.Fprintf(&b, "%s: %d of %d tasks succeeded", run.Recipe, run.Succeeded, run.Tasks)
	if run.Failed > 0 {
		fmt.Fprintf(&b, ", %d failed", run.Failed)
	}
	if run.NotRun > 0 {
		fmt.Fprintf(&b, ", %d not run", run.NotRun)
	}
	b.WriteByte('\n')
	if run.Tries > 0 {
		fmt.Fprintf(&b, "active %s, CPU %s, largest process %s", units.Seconds(run.Active), units.Seconds(run.CPU), units.Size(run.MaxRSS))
		if run.Tries > len(r.Tasks) {
			fmt.Fprintf(&b, ", %d tries", run.Tries)
		}
		b.WriteByte('\n')
	}
	if len(run.Starts) > 0 {
		b.WriteByte('\n')
		t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(t, "start\ttasks\tlatency\tp95\ttime\tp95\tCPU\t")
		for _, s := range run.Starts {
			fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t\n", s.Kind, s.Tasks, units.Seconds(s.Latency), units.Seconds(s.LatencyP95),
				units.Seconds(s.Seconds), units.Seconds(s.SecondsP95), units.Seconds(s.CPU))
		}
		if err := t.Flush(); err != nil {
			return err
		}
		b.WriteString("(medians; latency: until the tool opened its own input)\n")
		for _, s := range run.Starts {
			for _, why := range s.Reasons {
				fmt.Fprintf(&b, "%s (%d): %s\n", s.Kind, why.Tasks, why.Reason)
			}
		}
	}
	if run.Saved != nil {
		fmt.Fprintf(&b, "saved: %s, against all tasks started cold (estimate)\n", units.Seconds(*run.Saved))
	}
	told := 0
	for i := range r.Tasks {
		t := &r.Tasks[i]
		if t.OK() || t.Cause == record.CauseInterrupted {
			continue
		}
		if told++; told > maxFailures {
			fmt.Fprintf(&b, "\nand %d more failed; the page and --json have them all\n", run.Failed-maxFailures)
			break
		}
		fmt.Fprintf(&b, "\nfailed: %s (try %d): %s\n", t.Sample, t.Try, t.Error)
		for _, l := range t.Stderr {
			fmt.Fprintf(&b, "    | %s\n", l)
		}
		if t.Hint != "" {
			fmt.Fprintf(&b, "  hint: %s\n", t.Hint)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
