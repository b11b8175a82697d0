package pilot

import (
	"path/filepath"
	"testing"
	"time"

	"premix/internal/engine"
	"premix/internal/engine/local"
	"premix/internal/engine/queue"
	"premix/internal/record"
)

// newRun makes a run of n tasks without outputs.
func newRun(t *testing.T, dir string, n int) *queue.Run {
	t.Helper()
	plan := &engine.Plan{Header: engine.Header{Recipe: "r", Threads: 1, Tasks: n, Header: record.Header{Format: record.Format}}}
	for i := range n {
		plan.Tasks = append(plan.Tasks, engine.Task{Task: i + 1})
	}
	run, err := queue.OpenRun(dir, plan, 0, false)
	if err != nil {
		t.Fatal(err)
	}
	return run
}

// After a task has differed from a cold start, all tasks that started from the same snapshot wait
// again, whether they were done before this invocation, were done in it, or are done later.
func TestWithdrawn(t *testing.T) {
	run, tries := newRun(t, t.TempDir(), 5), make(map[int]int)
	write := func(task int, snapshot, cause string) {
		t.Helper()
		e := run.State(task)
		r := &record.Task{Task: task, Try: tries[task] + 1, Sample: "s", Snapshot: snapshot, Cause: cause, Start: "hot", Finished: time.Now()}
		if tries[task]++; e != queue.Waiting {
			t.Fatalf("task %d is %v", task, e)
		}
		if err := run.Settle([]*record.Task{r}); err != nil {
			t.Fatal(err)
		}
	}
	write(1, "a", "")
	d := dirOf(run, local.Options{Store: filepath.Join(t.TempDir(), "store")})
	defer d.Close()
	add := func(task int, snapshot, cause string) {
		t.Helper()
		write(task, snapshot, cause)
		if err := d.Refresh(func(*record.Task) {}); err != nil {
			t.Fatal(err)
		}
	}
	add(2, "a", "")
	add(3, "b", "")
	if s := d.Summary(); s.Before != 1 || s.Succeeded != 2 || s.NotRun != 2 {
		t.Fatalf("%+v", s)
	}
	add(4, "a", record.CauseDiffers)
	add(5, "a", "")
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
		add(task, "", "")
	}
	if sum := d.Summary(); sum.NotRun != 0 || sum.Succeeded != 5 || d.Result() != nil {
		t.Errorf("%+v, %v", sum, d.Result())
	}
}

// Cancelled tasks of a run are over and wait again after a retry, as failed ones do.
func TestOrdersOfARun(t *testing.T) {
	dir := t.TempDir()
	run := newRun(t, dir, 3)
	d := dirOf(run, local.Options{})
	defer d.Close()
	other, err := queue.Open(dir, "v1", false)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	check := func(when string, over []bool, failed, cancelled, notRun int) {
		t.Helper()
		if err := d.Refresh(func(*record.Task) {}); err != nil {
			t.Fatal(err)
		}
		s := d.Summary()
		if s.Failed != failed || s.Cancelled != cancelled || s.NotRun != notRun || s.Succeeded != 0 {
			t.Errorf("%s: %+v", when, s)
		}
		for i, want := range over {
			if d.Over(i+1) != want {
				t.Errorf("%s: task %d is over: %v", when, i+1, !want)
			}
		}
	}
	order := func(f func(*queue.Queue, *queue.Selection) (int, error), task int) {
		t.Helper()
		if err := other.Refresh(); err != nil {
			t.Fatal(err)
		}
		if n, err := f(other, &queue.Selection{Tasks: [][2]int{{task, task}}}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	order((*queue.Queue).Cancel, 2)
	check("cancelled", []bool{false, true, false}, 0, 1, 2)
	if err := run.Settle([]*record.Task{{Task: 3, Try: 1, Cause: record.CauseExit, Finished: time.Now()}}); err != nil {
		t.Fatal(err)
	}
	check("failed", []bool{false, true, true}, 1, 1, 1)
	if s := d.Summary(); len(s.Failures) != 1 || s.Failures[0].Task != 3 {
		t.Errorf("failures %+v", s.Failures)
	}
	order((*queue.Queue).Retry, 3)
	check("retried", []bool{false, true, false}, 0, 1, 2)
	order((*queue.Queue).Retry, 2)
	check("retried the other", []bool{false, false, false}, 0, 0, 3)
}
