package results

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"premix/internal/replay/simulate"
	"premix/internal/replay/trace"
	"premix/internal/testkit/browser"
)

// compared returns the results of three policies for a workload that crowds the machine.
// Jobs wait longest under the last policy.
func compared(t *testing.T) *Results {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, 1))
	var jobs [][4]int
	for i := range 4000 {
		jobs = append(jobs, [4]int{i * 300, 60 + rng.IntN(7200), 1 + rng.IntN(2), 1 + rng.IntN(30)})
	}
	tr := read(t, jobs...)
	for i := range tr.Len() {
		tr.Waited[i] = trace.Time(i%50) * trace.Minute
	}
	m := twoCores(t)
	r := New(tr, m, Options{Estimates: simulate.Asked})
	for k, name := range []string{"conservative", "multifactor", "exec:python3 ./a-policy-of-our-own.py --weights=5"} {
		var starts []int
		for i := range tr.Len() {
			starts = append(starts, int(tr.Submit[i]/trace.Second)+(i%50)*(60+k*40))
		}
		s := schedule(tr, starts...)
		s.Policy = name
		r.Add(s, m.Charger(tr), 0.1)
	}
	r.Finish(1)
	return r
}

func TestCheck(t *testing.T) {
	r := compared(t)
	// The waits are i%50 times 60, 100 and 140 s, and the mean of i%50 is 24.5.
	for i, want := range []Check{{4000, 1470, 1470, 0}, {4000, 1470, 2450, 2.0 / 3}, {4000, 1470, 3430, 4.0 / 3}} {
		if c := r.Policies[i].Check; c == nil || c.Jobs != want.Jobs || !near(c.Recorded, want.Recorded) || !near(c.Replayed, want.Replayed) || !near(c.Difference, want.Difference) {
			t.Errorf("policy %d: %+v, want %+v", i, c, want)
		}
	}
	var text strings.Builder
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"conservative against the record: 4000 jobs waited 24.5min in reality and 24.5min in the replay (+0 %)\n",
		"multifactor against the record: 4000 jobs waited 24.5min in reality and 40.8min in the replay (+67 %): the machine or the policy differs from the recorded one\n",
		fmt.Sprintf("the recorded jobs held up to %d cores at a time: more than the machine has\n", r.Machine.Held),
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is missing in\n%s", want, &text)
		}
	}
	if r.Machine.Held <= 2 {
		t.Errorf("at most %d cores were held", r.Machine.Held)
	}
	// If a recorded start is missing, there is no check.
	tr := read(t, [4]int{0, 20, 2, 1}, [4]int{5, 20, 2, 1})
	tr.Waited[1] = trace.Unknown
	if r := New(tr, twoCores(t), Options{}); r.Add(schedule(tr, 0, 20), func(int32) float64 { return 1 }, 0).Check != nil || r.Machine.Held != 0 {
		t.Error("there is a check of an incomplete record")
	}
}

// TestComparisonPage checks that nothing on the page is clipped, and that compared charts
// have the same time axis.
func TestComparisonPage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page.html")
	if err := compared(t).WriteHTML(path); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	charts := regexp.MustCompile(`(?s)Gantt chart: [^<]*</h2>.*?</svg>`).FindAllString(string(text), -1)
	if len(charts) != 3 {
		t.Fatalf("%d Gantt charts", len(charts))
	}
	axis := regexp.MustCompile(`y="354.0" text-anchor="(?:start|end)">([^<]*)<`)
	for _, c := range charts {
		ends := axis.FindAllStringSubmatch(c, -1)
		if len(ends) != 2 || ends[0][1] == ends[1][1] || fmt.Sprint(ends) != fmt.Sprint(axis.FindAllStringSubmatch(charts[0], -1)) {
			t.Errorf("a chart shows %v, and the first one %v", ends, axis.FindAllStringSubmatch(charts[0], -1))
		}
		if n := strings.Count(c, "<rect"); n < 100 || n > 2*shownJobs+100 {
			t.Errorf("%d bars", n)
		}
	}
	s := httptest.NewServer(http.FileServer(http.Dir(filepath.Dir(path))))
	defer s.Close()
	b := browser.New(t)
	for _, wide := range []int{1280, 1300, 400} {
		b.View(wide, 900, false)
		b.Go("about:blank")
		b.Go(s.URL + "/page.html")
		b.Until(`document.querySelectorAll("svg").length === 6`)
		if got := b.Eval(`document.documentElement.scrollWidth <= innerWidth`); got != "true" {
			t.Errorf("at %d px the page is wider than the window", wide)
		}
		if got := b.Eval(`[...document.querySelectorAll(".scroll")].filter((e) => e.scrollWidth > e.clientWidth).length`); wide > 1000 && got != "0" {
			t.Errorf("at %d px %s tables and charts are clipped", wide, got)
		}
		b.Shoot(fmt.Sprintf("replay-%d", wide), true)
	}
	b.Print()
	if got := b.Eval(`document.documentElement.scrollWidth <= innerWidth`); got != "true" {
		t.Error("in print the page is wider than the paper")
	}
	b.Shoot("replay-print", true)
	b.Sheets("replay")
	if marked := b.Eval(`[...document.querySelectorAll("td.best")].length > 3 && [...document.querySelector("tbody tr").children].findIndex((e) => e.className === "best")`); marked != "1" {
		t.Errorf("the best mean wait is marked in column %s", marked)
	}
}
