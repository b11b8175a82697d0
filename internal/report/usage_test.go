package report

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"premix/internal/record"
)

func TestUsage(t *testing.T) {
	records := []record.Task{
		{Task: 1, Group: "map", Seconds: 10, User: 30, System: 8, Cores: 4},
		{Task: 2, Group: "map", Seconds: 20, User: 40, Cores: 4, Cause: record.CauseExit},
		{Task: 3, Seconds: 0.5, User: 0.5},
	}
	u, err := usage("/dir", func(yield func(*record.Task, error) bool) {
		for i := range records {
			if !yield(&records[i], nil) {
				return
			}
		}
	}, "recipe", 2)
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

// The page has the plots, the tables and the failures, and nothing of a name gets
// through as markup.
func TestUsagePage(t *testing.T) {
	begun := time.Unix(1e9, 0)
	var records []record.Task
	for i := range 40 {
		rec := record.Task{Task: i + 1, Group: fmt.Sprintf("step %d<b>", i), Cores: 1 + i%2, Seconds: float64(i), User: float64(i) / 2, Started: begun, Ended: begun.Add(time.Duration(i) * time.Second)}
		if i == 3 {
			rec.Cause, rec.Error = record.CauseExit, "ended <badly>"
		}
		records = append(records, rec)
	}
	u, err := usage("/dir/name", func(yield func(*record.Task, error) bool) {
		for i := range records {
			if !yield(&records[i], nil) {
				return
			}
		}
	}, "", 1)
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
	for _, want := range []string{"CPU efficiency of a try", "ended &lt;badly&gt;", "step 39&lt;b&gt;", "10 steps with less core time", "<title>name: "} {
		if !strings.Contains(page, want) {
			t.Errorf("%q is not there", want)
		}
	}
	if strings.Contains(page, "ZgotmplZ") || strings.Contains(page, "NaN") {
		t.Error("something could not be drawn")
	}
	// Of nothing there is a page, too.
	if u, err = usage("/dir", func(func(*record.Task, error) bool) {}, "", 1); err != nil {
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
