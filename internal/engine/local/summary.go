package local

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"premix/internal/engine"
	"premix/internal/engine/queue"
	"premix/internal/kit/quantile"
	"premix/internal/record"
)

// Summary is the result of one invocation.
type Summary struct {
	Dir       string    `json:"dir"`
	Recipe    string    `json:"recipe,omitempty"` // of a run
	Tasks     int       `json:"tasks"`            // in the directory
	Before    int       `json:"before"`           // that had succeeded before this invocation
	Succeeded int       `json:"succeeded"`
	Failed    int       `json:"failed"`
	Cancelled int       `json:"cancelled"`
	NotRun    int       `json:"not_run"`
	Seconds   float64   `json:"seconds"`         // wall clock time of this invocation's tasks
	User      float64   `json:"user"`            // CPU seconds of the tasks
	System    float64   `json:"system"`          // CPU seconds
	Starts    []Start   `json:"starts,omitzero"` // of a run, by kind; successes of this invocation
	Failures  []Failure `json:"failures,omitempty"`

	Verified    int           `json:"verified"` // tasks of this invocation that started hot and were run cold too
	Quarantined []*Quarantine `json:"quarantined,omitempty"`
}

// Start sums up the tasks that started in one way.
type Start struct {
	Kind    string  `json:"kind"`
	Tasks   int     `json:"tasks"`
	Latency float64 `json:"latency"` // median, seconds
	Seconds float64 `json:"seconds"` // median
}

// Starts are the successes of an invocation, by number of the task.
type Starts map[int]start

// start is the figures of one success.
type start struct {
	kind             string
	latency, seconds float64
}

// Add adds a success.
func (s Starts) Add(rec *record.Task) { s[rec.Task] = start{rec.Start, rec.Latency, rec.Seconds} }

// Drop removes a task, and reports whether it was there.
func (s Starts) Drop(task int) bool {
	_, ok := s[task]
	delete(s, task)
	return ok
}

// List sums up by kind of start.
func (s Starts) List() []Start {
	latency, seconds := make(map[string][]float64), make(map[string][]float64)
	for _, t := range s {
		latency[t.kind], seconds[t.kind] = append(latency[t.kind], t.latency), append(seconds[t.kind], t.seconds)
	}
	list := []Start{}
	for _, kind := range slices.Sorted(maps.Keys(seconds)) {
		list = append(list, Start{Kind: kind, Tasks: len(seconds[kind]), Latency: quantile.Median(latency[kind]), Seconds: quantile.Median(seconds[kind])})
	}
	return list
}

// Failure is one task that failed, after its last try.
type Failure struct {
	Task   int      `json:"task"`
	Sample string   `json:"sample,omitempty"` // of a run
	Name   string   `json:"name,omitempty"`   // of a task without a recipe
	Try    int      `json:"try"`
	Error  string   `json:"error"`
	Hint   string   `json:"hint,omitempty"`
	Stderr []string `json:"stderr,omitempty"` // last lines, of a run
}

// maxFailures is the number of failures that a summary shows in full.
const maxFailures = 10

// NewSummary returns the summary of an invocation that found before and left count tasks in
// each state.
func NewSummary(q *queue.Queue, before, count [4]int) *Summary {
	sum := &Summary{Dir: q.Dir, Recipe: q.Recipe(), Before: before[queue.Succeeded], Succeeded: count[queue.Succeeded] - before[queue.Succeeded],
		Failed: count[queue.Failed], Cancelled: count[queue.Cancelled], NotRun: count[queue.Waiting]}
	for _, n := range count {
		sum.Tasks += n
	}
	return sum
}

// AddFailure adds the failure of a task, if the summary has few yet.
func (sum *Summary) AddFailure(rec *record.Task) {
	if len(sum.Failures) == maxFailures {
		return
	}
	f := Failure{Task: rec.Task, Name: rec.Sample, Try: rec.Try, Error: rec.Error, Hint: rec.Hint}
	if sum.Recipe != "" {
		f.Sample, f.Name = rec.Sample, ""
		f.Stderr, _ = engine.Stderr(sum.Dir, rec, engine.StderrLines) // report the failure also without its standard error
	}
	sum.Failures = append(sum.Failures, f)
}

func (s *scheduler) summary() *Summary {
	sum := NewSummary(s.q, s.before, s.counts())
	sum.User, sum.System = s.user, s.system
	if !s.finished.IsZero() {
		sum.Seconds = s.finished.Sub(s.started).Seconds()
	}
	for _, rec := range s.failures {
		if state := s.q.State(rec.Task); state == queue.Failed || state == queue.Waiting && s.broken != nil { // not where its retry was ordered
			sum.AddFailure(rec)
		}
	}
	s.l.sumUp(sum)
	return sum
}

// Write writes the summary for people.
func (sum *Summary) Write(w io.Writer) error {
	var b strings.Builder
	if sum.Recipe != "" {
		b.WriteString(sum.Recipe + ": ")
	}
	if sum.Before == sum.Tasks {
		fmt.Fprintf(&b, "nothing to do, all %d tasks are done\n", sum.Tasks)
		_, err := io.WriteString(w, b.String())
		return err
	}
	fmt.Fprintf(&b, "%d of %d tasks succeeded in %s", sum.Before+sum.Succeeded, sum.Tasks, secondsText(sum.Seconds))
	if sum.Before > 0 {
		fmt.Fprintf(&b, " (%d were done before)", sum.Before)
	}
	for _, c := range []struct {
		n    int
		text string
	}{{sum.Failed, "failed"}, {sum.Cancelled, "cancelled"}, {sum.NotRun, "not run"}} {
		if c.n > 0 {
			fmt.Fprintf(&b, ", %d %s", c.n, c.text)
		}
	}
	if n := sum.Succeeded + sum.Failed; sum.Recipe == "" && sum.Seconds > 0 && n > 0 {
		fmt.Fprintf(&b, "; %s", rateText(float64(n)/sum.Seconds))
	}
	b.WriteByte('\n')
	if len(sum.Starts) > 0 {
		t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(t, "start\ttasks\tlatency\ttime\t")
		for _, k := range sum.Starts {
			fmt.Fprintf(t, "%s\t%d\t%s\t%s\t\n", k.Kind, k.Tasks, secondsText(k.Latency), secondsText(k.Seconds))
		}
		if err := t.Flush(); err != nil {
			return err
		}
		b.WriteString("(medians; latency: until the tool opened its own input)\n")
	}
	if sum.Verified > 0 {
		fmt.Fprintf(&b, "tasks that started hot and were equal to a cold start of the same sample: %d\n", sum.Verified)
	}
	for _, q := range sum.Quarantined {
		b.WriteString(q.Text())
	}
	for _, f := range sum.Failures {
		name := f.Sample
		switch {
		case f.Name != "":
			name = fmt.Sprintf("task %d (%s)", f.Task, f.Name)
		case name == "":
			name = fmt.Sprintf("task %d", f.Task)
		}
		fmt.Fprintf(&b, "failed: %s: %s\n", name, f.Error)
		for _, l := range f.Stderr {
			fmt.Fprintf(&b, "    | %s\n", l)
		}
		if f.Hint != "" {
			fmt.Fprintf(&b, "  hint: %s\n", f.Hint)
		}
	}
	if more := sum.Failed - len(sum.Failures); more > 0 {
		fmt.Fprintf(&b, "and %d more: `premix task ls %s --failed` lists them all\n", more, sum.Dir)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// secondsText returns a time with the unit that reads best.
func secondsText(s float64) string {
	switch {
	case s < 0.9995:
		return fmt.Sprintf("%.0f ms", s*1000)
	case s < 99.95:
		return fmt.Sprintf("%.1f s", s)
	}
	return durationText(time.Duration(s * float64(time.Second)))
}
