package pack

import (
	"path/filepath"
	"testing"
	"time"

	"premix/engine"
	"premix/engine/local"
	"premix/record"
)

// After a task has differed from a cold start, tasks that started from the same snapshot
// wait again, whether they were done before this invocation, in it, or are done after that.
func TestWithdrawn(t *testing.T) {
	now := time.Now()
	d := &Runs{o: local.Options{Store: filepath.Join(t.TempDir(), "store")}, run: &engine.Run{}, begun: now,
		waits: []bool{false, true, true, true, true}, tries: make([]int, 5), failures: make([]int, 5), origin: make([]origin, 5),
		failed: make(map[int]*record.Task), kinds: make(map[string]*kind), wrong: make(map[string]*local.Quarantine)}
	d.sum.Before, d.sum.NotRun = 1, 4
	add := func(task int, snapshot, cause string, ended time.Time) {
		d.takeIn(&record.Task{Task: task, Sample: "s", Snapshot: snapshot, Cause: cause, Start: "hot", Ended: ended})
	}
	add(1, "a", "", now.Add(-time.Hour))
	add(2, "a", "", now.Add(time.Second))
	add(3, "b", "", now.Add(time.Second))
	if d.sum.Before != 1 || d.sum.Succeeded != 2 || d.sum.NotRun != 2 {
		t.Fatalf("%+v", d.sum)
	}
	add(4, "a", record.CauseDiffers, now.Add(time.Second))
	add(5, "a", "", now.Add(time.Second))
	for task, over := range []bool{false, false, true, false, false} {
		if d.Over(task+1) != over {
			t.Errorf("task %d is over: %v", task+1, !over)
		}
	}
	sum := d.Summary()
	if sum.Before != 0 || sum.Succeeded != 1 || sum.NotRun != 4 || sum.Failed != 0 {
		t.Errorf("%+v", sum)
	}
	if len(sum.Quarantined) != 1 || sum.Quarantined[0].Snapshot != "a" || sum.Quarantined[0].Again != 3 {
		t.Errorf("%+v", sum.Quarantined)
	}
	for _, task := range []int{1, 2, 4, 5} {
		add(task, "", "", now.Add(2*time.Second))
	}
	if sum := d.Summary(); sum.NotRun != 0 || sum.Succeeded != 5 || d.Result() != nil {
		t.Errorf("%+v, %v", sum, d.Result())
	}
}
