package local

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"premix/internal/kit/quantile"
)

// Summary is the result of one invocation.
type Summary struct {
	Dir       string    `json:"dir"`
	Recipe    string    `json:"recipe"`
	Tasks     int       `json:"tasks"`  // in the run
	Before    int       `json:"before"` // done before this invocation
	Succeeded int       `json:"succeeded"`
	Failed    int       `json:"failed"`
	Cancelled int       `json:"cancelled"`
	NotRun    int       `json:"not_run"`
	Seconds   float64   `json:"seconds"` // wall clock time of this invocation's tasks
	Starts    []Start   `json:"starts"`  // by kind; successes of this invocation
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

// StartOf sums up successes that started in one way; there is at least one.
func StartOf(kind string, latencies, seconds []float64) Start {
	return Start{Kind: kind, Tasks: len(seconds), Latency: quantile.Median(latencies), Seconds: quantile.Median(seconds)}
}

// Failure is one task that failed, after its last try.
type Failure struct {
	Task   int      `json:"task"`
	Sample string   `json:"sample"`
	Try    int      `json:"try"`
	Error  string   `json:"error"`
	Hint   string   `json:"hint,omitempty"`
	Stderr []string `json:"stderr,omitempty"` // last lines
}

func (s *schedule) summary() *Summary {
	sum := &Summary{
		Dir: s.run.Dir, Recipe: s.run.Plan.Header.Recipe, Tasks: len(s.run.Plan.Tasks),
		Before: s.before, Succeeded: s.succeeded, Failed: s.failed,
		Cancelled: s.cancelled, NotRun: s.total - s.succeeded - s.failed - s.cancelled,
		Failures: s.failures, Verified: s.verified,
		Starts: []Start{},
	}
	if s.total > 0 {
		sum.Seconds = time.Since(s.begun).Seconds()
	}
	for _, kind := range slices.Sorted(maps.Keys(s.kinds)) {
		var latencies, seconds []float64
		for _, t := range s.kinds[kind] {
			latencies, seconds = append(latencies, t.latency), append(seconds, t.seconds)
		}
		if len(seconds) > 0 {
			sum.Starts = append(sum.Starts, StartOf(kind, latencies, seconds))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(s.quarantined)) {
		sum.Quarantined = append(sum.Quarantined, s.quarantined[id])
	}
	return sum
}

// Write writes the summary for people.
func (sum *Summary) Write(w io.Writer) error {
	var b strings.Builder
	if sum.Before == sum.Tasks {
		fmt.Fprintf(&b, "%s: nothing to do, all %d tasks are done\n", sum.Recipe, sum.Tasks)
		_, err := io.WriteString(w, b.String())
		return err
	}
	fmt.Fprintf(&b, "%s: %d of %d tasks succeeded in %s", sum.Recipe, sum.Before+sum.Succeeded, sum.Tasks, secondsText(sum.Seconds))
	if sum.Before > 0 {
		fmt.Fprintf(&b, " (%d were done before)", sum.Before)
	}
	if sum.Failed > 0 {
		fmt.Fprintf(&b, ", %d failed", sum.Failed)
	}
	if sum.Cancelled > 0 {
		fmt.Fprintf(&b, ", %d cancelled", sum.Cancelled)
	}
	if sum.NotRun > 0 {
		fmt.Fprintf(&b, ", %d not run", sum.NotRun)
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
		fmt.Fprintf(&b, "failed: %s: %s\n", f.Sample, f.Error)
		for _, l := range f.Stderr {
			fmt.Fprintf(&b, "    | %s\n", l)
		}
		if f.Hint != "" {
			fmt.Fprintf(&b, "  hint: %s\n", f.Hint)
		}
	}
	if more := sum.Failed - len(sum.Failures); more > 0 {
		fmt.Fprintf(&b, "and %d more; `premix report %s` shows them all\n", more, sum.Dir)
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
