package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"premix/internal/engine"
	"premix/internal/engine/queue"
	"premix/internal/kit/units"
	"premix/internal/record"
	"premix/internal/testkit/browser"
)

var noon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

// at returns a record of a try that started some seconds after noon.
func at(task, try int, kind string, started, latency, seconds float64) record.Task {
	begin := noon.Add(time.Duration(started * float64(time.Second)))
	return record.Task{
		Task: task, Sample: fmt.Sprintf("s%d", task), Try: try, Slot: task % 2, Start: kind, Reason: "because " + kind,
		Queued: noon, Started: begin, Finished: begin.Add(time.Duration(seconds * float64(time.Second))),
		Wait: started, Latency: latency, Seconds: seconds, User: seconds, System: 0.5, MaxRSS: int64(task) << 20, ReadBytes: 10, WriteBytes: 1,
	}
}

func fails(r record.Task, cause, text string) record.Task {
	r.Cause, r.Error, r.Exit, r.Hint = cause, text, 1, "do <better>"
	return r
}

// newRun writes a run directory with a number of tasks and these records.
func newRun(t *testing.T, tasks int, stderr string, records ...record.Task) string {
	t.Helper()
	dir := t.TempDir()
	p := &engine.Plan{Header: engine.Header{
		Header: record.Header{Table: "plan", Format: record.Format, Premix: "v1.2.3", Host: "node", Created: noon},
		Recipe: "tool", Threads: 2, Memory: 1 << 30, Tasks: tasks, Frozen: engine.Frozen{Argv: []string{"tool", "<r1>"}},
	}}
	for i := range tasks {
		p.Tasks = append(p.Tasks, engine.Task{Task: i + 1, Sample: fmt.Sprintf("s%d", i+1)})
	}
	run, err := queue.OpenRun(dir, p, 0, false)
	if err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(t.TempDir(), "stderr")
	if err := os.WriteFile(log, []byte(stderr), 0o666); err != nil {
		t.Fatal(err)
	}
	offset, length, err := run.AppendStderr(log)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		if !r.OK() {
			r.StderrOffset, r.StderrLength = offset, length
		}
		if err := run.Settle([]*record.Task{&r}); err != nil {
			t.Fatal(err)
		}
	}
	if err := run.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

func example(t *testing.T) *Report {
	t.Helper()
	dir := newRun(t, 8, "<b>one</b>\ntwo\n",
		at(1, 1, "cold", 0, 4, 10),
		at(2, 1, "cold", 0, 6, 12),
		fails(at(3, 1, "fork", 10, 0.01, 5), record.CauseExit, "the tool ended with status 1"),
		at(4, 1, "fork", 12, 0.02, 6),
		at(3, 2, "fork", 15, 0.03, 6),
		fails(at(5, 1, "hot", 18, 0.1, 1), record.CauseMemory, "killed </script> at its limit"),
		fails(at(6, 1, "fork", 20, 0.1, 1), record.CauseInterrupted, "interrupted"),
		at(7, 1, "fork", 100, 0.01, 4), // from a second invocation
	)
	r, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRead(t *testing.T) {
	r := example(t)
	run := r.Run
	if run.Tasks != 8 || run.Succeeded != 5 || run.Failed != 1 || run.NotRun != 2 || run.Tries != 8 || run.Slots != 2 {
		t.Errorf("run %+v", run)
	}
	// 0 to 21 and 100 to 104.
	if got := units.Seconds(run.Active); got != "25.0 s" {
		t.Errorf("active %s", got)
	}
	if run.CPU != 10+12+5+6+6+1+1+4+8*0.5 || run.MaxRSS != 7<<20 || run.Read != 80 || run.Written != 8 {
		t.Errorf("totals %+v", run)
	}
	if len(r.Tasks) != 7 || r.Tasks[2].Try != 2 || r.Tasks[2].Tries != 2 || !slices.Equal(r.Tasks[4].Stderr, []string{"<b>one</b>", "two"}) {
		t.Errorf("tasks %+v", r.Tasks)
	}
	if len(run.Starts) != 2 {
		t.Fatalf("starts %+v", run.Starts)
	}
	fork, cold := run.Starts[0], run.Starts[1]
	if fork.Kind != "fork" || fork.Tasks != 3 || fork.Latency != 0.02 || fork.Seconds != 6 || !slices.Equal(fork.Reasons, []Reason{{"because fork", 3}}) {
		t.Errorf("fork %+v", fork)
	}
	if cold.Kind != "cold" || cold.Tasks != 2 || cold.Seconds != 11 || cold.Latency != 5 || units.Seconds(cold.SecondsP95) != "11.9 s" {
		t.Errorf("cold %+v", cold)
	}
	if run.Saved == nil || *run.Saved != 3*(11-6) {
		t.Errorf("saved %v", run.Saved)
	}
}

func TestNothingSavedWithoutCold(t *testing.T) {
	for _, kinds := range [][]string{{"fork", "fork"}, {"cold", "cold"}} {
		dir := newRun(t, 2, "", at(1, 1, kinds[0], 0, 0, 1), at(2, 1, kinds[1], 0, 0, 2))
		r, err := Read(dir)
		if err != nil {
			t.Fatal(err)
		}
		if r.Run.Saved != nil {
			t.Errorf("%v: saved %v", kinds, *r.Run.Saved)
		}
	}
}

func TestReadNothing(t *testing.T) {
	_, err := Read(t.TempDir())
	var e *engine.DirError
	if !errors.As(err, &e) || e.Hint() == "" {
		t.Errorf("error %v", err)
	}
	// A run that has begun and has no records yet.
	dir := newRun(t, 2, "")
	r, err := Read(dir)
	if err != nil || r.Run.NotRun != 2 {
		t.Fatalf("%+v, %v", r, err)
	}
	if _, text := page1(t, r); strings.Contains(text, "largest process") || strings.Contains(text, ">active<") {
		t.Error("the page tells what nothing took")
	}
	var b strings.Builder
	if err := r.WriteText(&b); err != nil || b.String() != "tool: 0 of 2 tasks succeeded, 2 not run\n" {
		t.Errorf("text %q, error %v", b.String(), err)
	}
}

func TestText(t *testing.T) {
	var b strings.Builder
	if err := example(t).WriteText(&b); err != nil {
		t.Fatal(err)
	}
	const want = `tool: 5 of 8 tasks succeeded, 1 failed, 2 not run
active 25.0 s, CPU 49.0 s, largest process 7 MiB, 8 tries

  start  tasks  latency     p95    time     p95     CPU
   fork      3    20 ms   29 ms  6.00 s  6.00 s  6.50 s
   cold      2   5.00 s  5.90 s  11.0 s  11.9 s  11.5 s
(medians; latency: until the tool opened its own input)
fork (3): because fork
cold (2): because cold
saved: 15.0 s, against all tasks started cold (estimate)

failed: s5 (try 1): killed </script> at its limit
    | <b>one</b>
    | two
  hint: do <better>
`
	if got := b.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestJSON(t *testing.T) {
	var b bytes.Buffer
	if err := example(t).WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Run struct {
			Succeeded int
			Saved     float64
			Starts    []struct {
				Kind string
				P95  float64 `json:"seconds_p95"`
			}
		}
		Tasks []struct {
			Sample, Start, Reason string
			Seconds, Latency      float64
			MaxRSS                int64 `json:"max_rss"`
			Tries                 int
		}
	}
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.Run.Succeeded != 5 || got.Run.Saved != 15 || got.Run.Starts[0].Kind != "fork" || got.Run.Starts[0].P95 != 6 {
		t.Errorf("run %+v", got.Run)
	}
	if len(got.Tasks) != 7 || got.Tasks[2].Tries != 2 || got.Tasks[2].Reason != "because fork" || got.Tasks[2].Seconds != 6 || got.Tasks[2].MaxRSS != 3<<20 {
		t.Errorf("tasks %+v", got.Tasks)
	}
}

func page1(t *testing.T, r *Report) (path, text string) {
	t.Helper()
	path, err := r.WriteHTML("")
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return path, string(b)
}

func TestPage(t *testing.T) {
	r := example(t)
	path, text := page1(t, r)
	if path != filepath.Join(r.Run.Dir, "report.html") {
		t.Errorf("path %s", path)
	}
	for _, want := range []string{
		"<title>tool: 5 of 8 tasks</title>", "tool &lt;r1&gt;", "killed &lt;/script&gt; at its limit", "&lt;b&gt;one&lt;/b&gt;", "do &lt;better&gt;", "15.0 s",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if n := strings.Count(text, "</script>"); n != 2 {
		t.Errorf("%d scripts end in the page", n)
	}
	for _, outside := range []string{"src=", "href=", "url(", "@import", "ZgotmplZ"} {
		if strings.Contains(text, outside) {
			t.Errorf("the page has %q", outside)
		}
	}
	_, rest, _ := strings.Cut(text, `<script type="application/json" id="data">`)
	raw, _, ok := strings.Cut(rest, "</script>")
	if !ok {
		t.Fatal("the page has no data")
	}
	var d data
	if err := json.Unmarshal([]byte(raw), &d); err != nil {
		t.Fatal(err)
	}
	if len(d.Sample) != 8 || len(d.Pauses) != 1 || d.Pauses[0].Seconds != 79 {
		t.Errorf("data %+v", d)
	}
	// Seven last tries, then the earlier one.
	if !slices.Equal(d.Last, []bool{true, true, true, true, true, true, true, false}) || d.Try[7] != 1 || d.Sample[7] != "s3" {
		t.Errorf("tries %v %v", d.Last, d.Sample)
	}
	// The pause of 79 s between 21 s and 100 s takes 1.5 % of the active 25 s.
	if got := d.Begin[6]; got != 21.375 {
		t.Errorf("the second invocation begins at %v", got)
	}
}

func TestTimeline(t *testing.T) {
	second := func(n float64) time.Time { return noon.Add(time.Duration(n * float64(time.Second))) }
	l := newTimeline([]span{{second(10), second(20)}, {second(0), second(5)}, {second(4), second(6)}, {second(20.5), second(100)}, {second(1000), second(1100)}})
	for moment, want := range map[float64]float64{0: 0, 5: 5, 10: 10, 20.5: 20.5, 100: 100, 1000: 102.9325, 1100: 202.9325} {
		if got := l.at(second(moment)); got != want {
			t.Errorf("%v s is at %v, want %v", moment, got, want)
		}
	}
	if len(l.pauses) != 1 || l.pauses[0].Seconds != 900 {
		t.Errorf("pauses %+v", l.pauses)
	}
	if l := newTimeline(nil); l.span != 0 || l.at(noon) != 0 {
		t.Errorf("empty line %+v", l)
	}
}

// In a browser the table of the page has rows, there is a legend, and the script has no errors.
func TestPageInABrowser(t *testing.T) {
	b := browser.New(t)
	var records []record.Task
	const tasks = 5000
	for i := range tasks {
		records = append(records, at(i+1, 1, kinds[i%4], float64(i), 0.1, 1.5))
	}
	r := &Report{Run: Run{Dir: newRun(t, 1, ""), Recipe: "tool", Tasks: tasks}}
	for _, rec := range records {
		r.Tasks = append(r.Tasks, Task{Task: rec, Tries: 1})
		r.count(&rec)
	}
	r.starts()
	var err error
	if r.usage, err = usage(r.Run.Dir, each(records), common{step: "tool", cores: 2}); err != nil {
		t.Fatal(err)
	}
	r.usage.run = r
	path, _ := page1(t, r)
	b.View(1280, 900, false)
	b.Go("file://" + path)
	const rows = `document.querySelectorAll("tr[aria-rowindex]").length`
	b.Until(rows + ` >= 10 && ` + rows + ` <= 200`)
	dom := b.Eval(`document.documentElement.outerHTML`)
	for _, want := range []string{"5000 tasks", ">s1</td>", "dot fork\"></i>fork</span>", "aria-label=\"Latency: until the tool opened its own input: fork median 100 ms"} {
		if !strings.Contains(dom, want) {
			t.Errorf("the document lacks %q", want)
		}
	}
	for _, s := range b.Wrong {
		t.Errorf("the browser complains: %s", s)
	}
}
