package queue

import "testing"

func TestParseResources(t *testing.T) {
	for text, want := range map[string]string{"gpu=4": "gpu=4", "b=2,a_1=1": "a_1=1,b=2", "gpu=0": ""} {
		r, err := ParseResources(text)
		if err != nil || r.String() != want {
			t.Errorf("%s: %q, %v; want %q", text, r, err, want)
		}
	}
	for _, text := range []string{"", "gpu", "gpu=", "gpu=x", "gpu=-1", "gpu=1,gpu=2", "GPU=1", "1=1", "a b=1", "gpu=100001"} {
		if r, err := ParseResources(text); err == nil {
			t.Errorf("%q is %v", text, r)
		}
	}
}

// A task that waits for a resource lets tasks pass that do not use it, and keeps its place.
func TestPickerPasses(t *testing.T) {
	q := open(t, t.TempDir())
	submit(t, q, BatchOptions{}, Input{Format: JSONL}, `{"command":"a","resources":{"gpu":1}}
{"command":"b","group":"other"}
{"command":"c","priority":-1}
`)
	p := q.Picker(nil)
	free := false
	fits := func(t *Task) bool { return t.Resources == "" || free }
	next := func() string {
		task, err := p.Next(fits)
		if err != nil {
			t.Fatal(err)
		}
		if task == nil {
			return ""
		}
		return task.Command
	}
	if got := next(); got != "" {
		t.Errorf("without Passes %q starts before the first", got)
	}
	p.Passes = func(t *Task) bool { return t.Resources != "" }
	got := []string{next(), next(), next()}
	free = true
	if got = append(got, next()); got[0] == "a" || got[1] == "a" || got[0] == got[1] || got[2] != "" || got[3] != "a" {
		t.Errorf("started %q", got)
	}
}
