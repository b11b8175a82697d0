package results

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"

	"premix/internal/replay/machine"
	"premix/internal/replay/simulate"
	"premix/internal/replay/trace"
)

// read parses jobs: submit, run, cores and user. Times are in seconds.
func read(t *testing.T, jobs ...[4]int) *trace.Trace {
	t.Helper()
	var b strings.Builder
	for i, j := range jobs {
		fmt.Fprintf(&b, "%d %d 0 %d %d -1 -1 -1 %d -1 1 %d 1 -1 1 1 -1 -1\n", i+1, j[0], j[1], j[2], j[1], j[3])
	}
	tr, err := trace.Read(strings.NewReader(b.String()), "test", int64(b.Len()), trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// schedule returns a schedule with the given starts in seconds; a job with start -1 is
// refused.
func schedule(tr *trace.Trace, starts ...int) *simulate.Schedule {
	s := &simulate.Schedule{Policy: "by hand", Eligible: tr.Submit}
	for i, at := range starts {
		start, end := trace.Time(trace.Unknown), trace.Time(trace.Unknown)
		if at >= 0 {
			start = trace.Time(at) * trace.Second
			end = start + tr.Run[i]
		} else {
			s.Refused = append(s.Refused, trace.Count{Why: "too large", Count: 1})
		}
		s.Start, s.End = append(s.Start, start), append(s.End, end)
	}
	return s
}

func twoCores(t *testing.T) *machine.Machine {
	t.Helper()
	m, err := machine.Parse([]byte("name: two\npools: [{nodes: [{cores: 2}], place: any}]\npartitions: [{name: p, charge: 1.5}]"))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// worked returns an example whose figures can be computed by hand.
func worked(t *testing.T) (*Results, *machine.Machine, *trace.Trace) {
	t.Helper()
	tr := read(t,
		[4]int{0, 20, 2, 1},   // 0 to 20
		[4]int{0, 40, 1, 1},   // 20 to 60: waits 20
		[4]int{10, 5, 1, 2},   // 20 to 25: waits 10; ran shorter than the bound of 10 s
		[4]int{30, 30, 1, 2},  // 30 to 60
		[4]int{40, 10, 99, 2}, // refused
	)
	m := twoCores(t)
	r := New(tr, m, Options{Estimates: simulate.Exact})
	r.Add(schedule(tr, 0, 20, 20, 30, -1), m.Charger(tr), 0.5)
	r.Finish(1)
	return r, m, tr
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*max(1, math.Abs(b)) }

func TestFiguresByHand(t *testing.T) {
	r, _, _ := worked(t)
	p := r.Policies[0]
	// Core seconds: 40 + 40 + 5 + 30 = 115, in 60 s on 2 cores.
	for _, f := range []struct {
		name      string
		got, want float64
	}{
		{"jobs", float64(p.Jobs), 4},
		{"refused", float64(p.Refused), 1},
		{"mean wait", p.Wait.Mean, 7.5},
		{"median wait", p.Wait.Median, 5},
		{"p95 of wait", p.Wait.P95, 18.5},
		{"longest wait", p.Wait.Max, 20},
		{"mean turnaround", p.Turnaround.Mean, (20 + 60 + 15 + 30) / 4.0},
		{"mean slowdown", p.Slowdown.Mean, (1 + 1.5 + 1.5 + 1) / 4},
		{"makespan", p.Makespan, 60},
		{"utilisation", p.Utilisation, 115.0 / 120},
		{"core hours", p.CoreHours, 115.0 / 3600},
		{"charge", p.Charge, 1.5 * 115 / 3600},
		{"fairness", p.Fairness, 1}, // both users have a mean slowdown of 1.25
		{"load", r.Trace.Load, (115.0 + 990) / 40 / 2},
	} {
		if !near(f.got, f.want) {
			t.Errorf("%s is %g, want %g", f.name, f.got, f.want)
		}
	}
	if p.Confidence != nil {
		t.Error("there is a confidence interval of less than a minute")
	}
	if len(p.Users) != 2 || p.Users[0].Name != "1" || p.Users[0].Jobs != 2 || !near(p.Users[0].CoreHours, 80.0/3600) {
		t.Errorf("users are %+v", p.Users)
	}
	if len(p.Sizes) != 2 || p.Sizes[0].Name != "1" || p.Sizes[0].Jobs != 3 || p.Sizes[1].Name != "2-4" {
		t.Errorf("sizes are %+v", p.Sizes)
	}
}

// A curve contains means: the integral over it is the total work, or the total wait.
func TestCurvesKeepTheirSums(t *testing.T) {
	r, _, _ := worked(t)
	p := r.Policies[0]
	sum := func(c Curve) (s float64) {
		for _, v := range c.Values {
			s += v * c.Step
		}
		return s
	}
	if got := sum(p.Busy); math.Abs(got-115.0/2) > 0.01 {
		t.Errorf("busy adds up to %g s of the machine, want 57.5", got)
	}
	if got := sum(p.Queue); math.Abs(got-30) > 0.3 {
		t.Errorf("waiting adds up to %g s, want 30", got)
	}
}

// One of two policies over weeks makes every job wait an hour longer. The interval of the
// difference is this hour, also in each draw.
func TestConfidence(t *testing.T) {
	var jobs [][4]int
	const day = 24 * 3600
	for i := range 12 * 7 {
		jobs = append(jobs, [4]int{i * day / 2, 600, 1, 1})
	}
	tr := read(t, jobs...)
	m := twoCores(t)
	var quick, slow []int
	for i, j := range jobs {
		quick = append(quick, j[0]+i%3*60)
		slow = append(slow, j[0]+i%3*60+3600)
	}
	r := New(tr, m, Options{})
	r.Add(schedule(tr, quick...), m.Charger(tr), 0)
	r.Add(schedule(tr, slow...), m.Charger(tr), 0)
	r.Finish(1)
	a, b := r.Policies[0], r.Policies[1]
	if a.Against != nil || b.Against == nil || b.Against.Unit != "week" || b.Against.Units != 6 {
		t.Fatalf("against the first: %+v, %+v", a.Against, b.Against)
	}
	if w := b.Against.Wait; !near(w[0], 3600) || !near(w[1], 3600) {
		t.Errorf("the difference is from %g to %g s, want 3600", w[0], w[1])
	}
	if w := a.Confidence.Wait; w[0] > a.Wait.Mean || w[1] < a.Wait.Mean {
		t.Errorf("the mean %g is not in %v", a.Wait.Mean, w)
	}
}

func TestWritten(t *testing.T) {
	r, m, tr := worked(t)
	dir := t.TempDir()
	if err := r.WriteParquet(dir, m.Charger(tr)); err != nil {
		t.Fatal(err)
	}
	rows, err := parquet.ReadFile[Job](filepath.Join(dir, "jobs.parquet"))
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) != 5 || rows[1].Start != 20 || rows[1].Wait != 20 || rows[4].Start != -1 || rows[2].User != "2" {
		t.Errorf("rows are %+v", rows)
	}
	sums, err := parquet.ReadFile[Sum](filepath.Join(dir, "policies.parquet"))
	if err != nil {
		t.Fatal(err)
	}
	if len(sums) != 1 || sums[0].WaitMean != 7.5 || sums[0].Refused != 1 {
		t.Errorf("sums are %+v", sums)
	}
	points, err := parquet.ReadFile[Point](filepath.Join(dir, "curves.parquet"))
	if err != nil {
		t.Fatal(err)
	}
	if len(points) != bins {
		t.Errorf("%d points", len(points))
	}
	var out bytes.Buffer
	if err := r.WriteJSON(&out); err != nil {
		t.Fatal(err)
	}
	var again Results
	if err := json.Unmarshal(out.Bytes(), &again); err != nil || again.Policies[0].Wait.Mean != 7.5 {
		t.Errorf("JSON: %v, %s", err, &out)
	}
	out.Reset()
	if err := r.WriteText(&out); err != nil || !strings.Contains(out.String(), "jobs refused: 1: too large") {
		t.Errorf("text: %v\n%s", err, &out)
	}
	page := filepath.Join(dir, "page.html")
	if err := r.WriteHTML(page); err != nil {
		t.Fatal(err)
	}
	html, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(html, []byte("by hand")) || bytes.Contains(html, []byte("http://")) {
		t.Error("the page lacks the policy, or fetches something")
	}
}
