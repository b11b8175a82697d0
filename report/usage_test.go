package report

import (
	"bytes"
	"strings"
	"testing"

	"premix/record"
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

func TestBox(t *testing.T) {
	if got, want := box([]float32{5, 1, 2, 4, 3}), (Box{1, 2, 3, 4, 5}); got != want {
		t.Errorf("%v, want %v", got, want)
	}
	if got := box(nil); got != (Box{}) {
		t.Errorf("of nothing: %v", got)
	}
}
