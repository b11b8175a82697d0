package report

import (
	"bytes"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"premix/internal/record"
	"premix/internal/testkit/browser"
)

// each returns an iterator over records, as for a directory.
func each(records []record.Task) iter.Seq2[*record.Task, error] {
	return func(yield func(*record.Task, error) bool) {
		for _, rec := range records {
			if !yield(&rec, nil) {
				return
			}
		}
	}
}

func TestUsage(t *testing.T) {
	records := []record.Task{
		{Task: 1, Group: "map", Seconds: 10, User: 30, System: 8, Cores: 4},
		{Task: 2, Group: "map", Seconds: 20, User: 40, Cores: 4, Cause: record.CauseExit},
		{Task: 3, Seconds: 0.5, User: 0.5},
	}
	u, err := usage("/dir", each(records), common{step: "recipe", cores: 2})
	if err != nil {
		t.Fatal(err)
	}
	if len(u.Steps) != 2 || u.Steps[0].Step != "map" || u.Steps[1].Step != "recipe" {
		t.Fatalf("%+v", u.Steps)
	}
	m := u.Steps[0]
	if m.Tries != 2 || m.OK != 1 || m.CPU != 78 || m.Core != 120 || m.CoreUsage.Efficiency != 0.65 || m.Seconds.Median != 15 || m.Seconds.Max != 20 {
		t.Errorf("%+v", m)
	}
	if r := u.Steps[1]; r.Core != 1 || r.CoreUsage.Efficiency != 0.5 {
		t.Errorf("%+v", r)
	}
	if len(u.Sizes) != 2 || u.Sizes[0].Cores != 2 || u.Sizes[1].Tries != 2 {
		t.Errorf("%+v", u.Sizes)
	}
	if u.RunTimes[1].Tries != 1 || u.RunTimes[3].Tries != 2 || u.RunTimes[3].To != 60 {
		t.Errorf("%+v", u.RunTimes)
	}
	var text, js bytes.Buffer
	if err := u.WriteText(&text); err != nil || !strings.Contains(text.String(), "65%") {
		t.Errorf("%v\n%s", err, &text)
	}
	if err := u.WriteJSON(&js); err != nil || !strings.Contains(js.String(), `"efficiency": 0.65`) {
		t.Errorf("%v\n%s", err, &js)
	}
}

// The page has the plots, the tables and the failures, and escapes markup in names.
func TestUsagePage(t *testing.T) {
	started := time.Unix(1e9, 0)
	var records []record.Task
	for i := range 40 {
		rec := record.Task{Task: i + 1, Group: fmt.Sprintf("step %d<b>", i), Cores: 1 + i%2, Seconds: float64(i), User: float64(i) / 2, Started: started, Finished: started.Add(time.Duration(i) * time.Second)}
		if i == 3 {
			rec.Cause, rec.Error = record.CauseExit, "ended <badly>"
		}
		records = append(records, rec)
	}
	u, err := usage("/dir/name", each(records), common{})
	if err != nil {
		t.Fatal(err)
	}
	if u.Tries != 40 || u.Peak != 59 || u.Active != 39 || len(u.Failures) != 1 || u.Utilisation <= 0 || u.Utilisation > 1 {
		t.Errorf("%d tries, peak %d, active %v, %v, utilisation %v", u.Tries, u.Peak, u.Active, u.Failures, u.Utilisation)
	}
	path, err := u.WriteHTML(filepath.Join(t.TempDir(), "page.html"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	if n := strings.Count(page, "<rect "); n != 3*maxPlotted {
		t.Errorf("%d boxes", n)
	}
	for _, want := range []string{"CPU efficiency of a try", "ended &lt;badly&gt;", "step 39&lt;b&gt;", "10 steps with less core time", "<title>name: 0 of 0 tasks</title>", "step 3&lt;b&gt;: ended"} {
		if !strings.Contains(page, want) {
			t.Errorf("%q is not there", want)
		}
	}
	if strings.Contains(page, "ZgotmplZ") || strings.Contains(page, "NaN") {
		t.Error("something could not be drawn")
	}
	// A page without tasks is possible too.
	if u, err = usage("/dir", func(func(*record.Task, error) bool) {}, common{}); err != nil {
		t.Fatal(err)
	}
	if _, err := u.WriteHTML(path); err != nil {
		t.Fatal(err)
	}
}

func TestHours(t *testing.T) {
	for s, want := range map[float64]string{0: "0", 0.1: "<0.0001", 7.2: "0.002", 36: "0.01", 5400: "1.5", 3600 * 562.4: "562"} {
		if got := hours(s); got != want {
			t.Errorf("%v: %s, want %s", s, got, want)
		}
	}
}

func TestBox(t *testing.T) {
	if got, want := box([]float32{5, 1, 2, 4, 3}), (Box{1, 2, 3, 4, 5}); got != want {
		t.Errorf("%v, want %v", got, want)
	}
	if got := box(nil); got != (Box{}) {
		t.Errorf("of nothing: %v", got)
	}
}

// A page with too many tries shows the failed and the longest ones, and a note about it.
func TestPageOfManyTries(t *testing.T) {
	var records []record.Task
	for i := range maxShown + 100 {
		rec := record.Task{Task: i + 1, Try: 1, Start: "cold", Seconds: float64(i + 1), Started: noon, Finished: noon.Add(time.Duration(i+1) * time.Second)}
		if i < 10 {
			rec.Cause, rec.Error = record.CauseExit, "it failed"
		}
		records = append(records, rec)
	}
	records = append(records, records[4])
	records[len(records)-1].Try, records[len(records)-1].Cause = 2, ""
	u, err := usage("/dir/name", each(records), common{})
	if err != nil {
		t.Fatal(err)
	}
	if len(u.shown) != maxShown || u.more != 101 {
		t.Fatalf("%d shown, %d not", len(u.shown), u.more)
	}
	failed, earlier := 0, 0
	for i := range u.shown {
		if s := &u.shown[i]; !s.OK() {
			failed++
		} else if s.Seconds <= 100 {
			t.Fatalf("task %d of %v s is shown", s.Task.Task, s.Seconds)
		}
		if !u.shown[i].last {
			earlier++
		}
	}
	if failed != 10 || earlier != 1 || u.shown[maxShown-1].Task.Task != 5 {
		t.Errorf("%d failed, %d earlier, the last is of task %d", failed, earlier, u.shown[maxShown-1].Task.Task)
	}
	path, err := u.WriteHTML(filepath.Join(t.TempDir(), "page.html"))
	if err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || !strings.Contains(string(text), "Of 20101 tries the timeline and the table have 20000") {
		t.Errorf("the page does not say that tries are left out (%v)", err)
	}
}

func TestAdvice(t *testing.T) {
	const g = 1 << 30
	for name, c := range map[string]struct {
		step StepUsage
		want []string // the beginning of each
	}{
		"memory":                      {StepUsage{Memory: 32 * g, MaxRSS: 23 * g / 10, Cores: 1}, []string{"ask for 3 GiB of memory, not 32 GiB"}},
		"the memory is used":          {StepUsage{Memory: 4 * g, MaxRSS: 3 * g, Cores: 1}, nil},
		"little memory":               {StepUsage{Memory: g / 2, MaxRSS: g / 100, Cores: 1}, nil},
		"memory is not counted":       {StepUsage{MaxRSS: g, Cores: 1}, nil},
		"memory is not known":         {StepUsage{Memory: 32 * g, Cores: 1}, nil},
		"cores":                       {StepUsage{Cores: 8, CoreUsage: CoreUsage{Efficiency: 0.2}, CoresUsed: 1.92}, []string{"ask for 2 cores, not 8"}},
		"cores that one try has used": {StepUsage{Cores: 8, CoreUsage: CoreUsage{Efficiency: 0.2}, CoresUsed: 8}, nil},
		"cores that are used":         {StepUsage{Cores: 2, CoreUsage: CoreUsage{Efficiency: 0.9}, CoresUsed: 1.8}, nil},
	} {
		c.step.Tries, c.step.OK, c.step.Seconds.Median = 5, 5, 60
		got := c.step.advice()
		if len(got) != len(c.want) || len(got) > 0 && !strings.HasPrefix(got[0], c.want[0]) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		c.step.Tries = 2
		if got := c.step.advice(); got != nil {
			t.Errorf("%s, of two tries: %q", name, got)
		}
	}
}

// Tries of several workers have the same slots; tries in one lane do not overlap.
func TestLanes(t *testing.T) {
	during := func(slot int, from, to time.Duration) try {
		return try{Task: record.Task{Slot: slot, Started: noon.Add(from), Finished: noon.Add(to)}}
	}
	for _, c := range []struct {
		tries []try
		want  []int
	}{
		{nil, []int{}},
		{[]try{during(1, 0, 5), during(0, 2, 3), during(1, 5, 6)}, []int{1, 0, 1}},
		{[]try{during(0, 0, 5), during(0, 1, 3), during(0, 3, 6), during(0, 5, 7)}, []int{0, 1, 1, 0}},
	} {
		if got := lanes(c.tries); !slices.Equal(got, c.want) {
			t.Errorf("%v, want %v", got, c.want)
		}
	}
}

// In a browser, at a narrow width and in dark mode, the page of a task directory is not wider than
// the screen, and a failed task shows its standard error.
func TestUsagePageInABrowser(t *testing.T) {
	b := browser.New(t)
	var records []record.Task
	for i := range 300 {
		rec := at(i+1, 1, "cold", float64(i), 0, 1.5)
		rec.Sample, rec.Group, rec.Cores, rec.Memory = "", []string{"map", "sort"}[i%2], 4, 32<<30
		rec.User, rec.System = 0.5, 0
		if i == 7 {
			rec = fails(rec, record.CauseExit, "the command ended with status 1")
		}
		records = append(records, rec)
	}
	u, err := usage(t.TempDir(), each(records), common{})
	if err != nil {
		t.Fatal(err)
	}
	u.stderr(func(*record.Task) []string { return []string{"no such <file>"} })
	path, err := u.WriteHTML(filepath.Join(t.TempDir(), "page.html"))
	if err != nil {
		t.Fatal(err)
	}
	b.View(400, 800, true)
	b.Go("file://" + path)
	b.Until(`document.querySelectorAll("tr[aria-rowindex]").length >= 5`)
	if got := b.Eval(`String(document.documentElement.scrollWidth)`); got != "400" {
		t.Errorf("the page is %s pixels wide on a screen of 400", got)
	}
	b.Eval(`(() => { const f = document.getElementById("filter"); f.value = "failed sort"; f.dispatchEvent(new Event("input")); return ""; })()`)
	b.Until(`document.querySelectorAll("tr[aria-rowindex]").length === 1`)
	b.Eval(`(document.querySelector("tr[aria-rowindex]").click(), "")`)
	dom := b.Eval(`document.getElementById("details").outerHTML`)
	for _, want := range []string{"<pre>no such &lt;file&gt;</pre>", "32.0 GiB", "sort"} {
		if !strings.Contains(dom, want) {
			t.Errorf("the details lack %q: %s", want, dom)
		}
	}
	for _, wide := range []int{400, 1280} {
		b.View(wide, 800, false)
		b.Shoot(fmt.Sprintf("report-%d", wide), true)
	}
	b.Print()
	if got := b.Eval(`String(document.documentElement.scrollWidth <= 794)`); got != "true" {
		t.Errorf("on paper the page is too wide: %s", b.Eval(`String(document.documentElement.scrollWidth)`))
	}
	b.Shoot("report-print", true)
	b.Sheets("report")
	if dom := b.Eval(`document.querySelector("main").textContent`); !strings.Contains(dom, "map: ask for 1 core, not 4") {
		t.Error("there is no advice")
	}
	for _, s := range b.Wrong {
		t.Errorf("the browser complains: %s", s)
	}
}
