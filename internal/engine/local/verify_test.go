package local

import (
	"testing"

	"premix/internal/hotstart"
	"premix/internal/record"
)

// The sentinel selects tasks for verification. In a run of a thousand tasks of 1 s, with cold
// starts of 3 s, it spends 2 % of the time on verification. It selects the first and the last task,
// and all tasks on request.
func TestSentinel(t *testing.T) {
	for _, c := range []struct {
		name            string
		v               sentinel
		tasks           int
		cold            float64 // CPU seconds
		least, most     int     // tasks that are verified
		first, lastOnes bool
	}{
		{"none", sentinel{share: hotstart.ShareNone}, 1000, 3, 0, 0, false, false},
		{"all", sentinel{share: hotstart.ShareAll}, 100, 3, 100, 100, true, true},
		{"usual", sentinel{share: hotstart.ShareUsual}, 1000, 3, 5, 6, true, true},
		{"ten in a hundred", sentinel{share: 0.1}, 1000, 3, 32, 33, true, true},
		{"a short run", sentinel{share: hotstart.ShareUsual}, 10, 3, 2, 2, true, true},
		{"the first run of few", sentinel{share: hotstart.ShareUsual, few: true}, 3, 3, 1, 1, true, false},
		{"a later one", sentinel{share: hotstart.ShareUsual, few: true, verified: 1, spent: 3, cpu: 100}, 3, 3, 0, 0, false, false},
		{"a much later one", sentinel{share: hotstart.ShareUsual, few: true, verified: 1, spent: 3, cpu: 300}, 3, 3, 1, 1, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var chosen []int
			for i := range c.tasks {
				rec := &record.Task{User: 0.75, System: 0.25}
				wants := c.v.wants(i == c.tasks-1)
				if wants {
					chosen = append(chosen, i)
					rec.Verified, rec.Verifying = true, c.cold
				}
				c.v.settle(rec, wants)
			}
			if n := len(chosen); n < c.least || n > c.most {
				t.Errorf("%d tasks: %v", n, chosen)
			}
			has := func(task int) bool {
				for _, i := range chosen {
					if i == task {
						return true
					}
				}
				return false
			}
			if has(0) != c.first || has(c.tasks-1) != c.lastOnes {
				t.Errorf("chose %v", chosen)
			}
			if c.tasks == 1000 && c.v.spent > float64(c.v.share)*c.v.cpu {
				t.Errorf("%v s of %v s", c.v.spent, c.v.cpu)
			}
		})
	}
}

// After a task that could not be verified, the sentinel selects another one, a few times. It does
// not select all tasks that run at the same time as the first.
func TestSentinelInVain(t *testing.T) {
	v := sentinel{share: hotstart.ShareUsual}
	chosen := 0
	for range 20 {
		if !v.wants(false) {
			continue
		}
		chosen++
		if v.wants(false) {
			t.Error("two tasks are the first")
		}
		v.settle(&record.Task{User: 1}, true)
	}
	if chosen != maxVain+1 {
		t.Errorf("%d tasks were chosen", chosen)
	}
}
