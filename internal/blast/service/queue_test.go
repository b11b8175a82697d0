package service

import (
	"testing"
	"time"
)

// A due scan waits while jobs keep arriving, up to a limit.
func TestTakeWaitsForMore(t *testing.T) {
	const delay, most = 100 * time.Millisecond, 1000
	start := time.Unix(1000, 0)
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	more := func(key string) time.Duration {
		if key == "slow" {
			return 500 * time.Millisecond
		}
		return 0
	}
	for _, c := range []struct {
		name    string
		key     string
		came    []int // arrival times of jobs in milliseconds
		letters int64 // of each
		now     int
		items   int
		wait    int // in milliseconds
	}{
		{"nobody", "slow", nil, 0, 0, 0, 0},
		{"not due", "slow", []int{0}, 10, 40, 0, 60},
		{"alone", "slow", []int{0}, 10, 100, 1, 0},
		{"others come", "slow", []int{0, 50, 90}, 10, 100, 0, 90},
		{"no more come", "slow", []int{0, 50, 90}, 10, 190, 3, 0},
		{"they come for too long", "slow", []int{0, 90, 180, 270, 360, 450, 540}, 10, 590, 0, 10},
		{"longer than that", "slow", []int{0, 90, 180, 270, 360, 450, 540}, 10, 600, 7, 0},
		{"a scan is full", "slow", []int{0, 50, 90}, 400, 100, 2, 0},
		{"not worth while", "quick", []int{0, 50, 90}, 10, 100, 3, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := newQueue()
			for _, ms := range c.came {
				q.add(&item{job: &job{User: "ann", Letters: c.letters}, result: &result{queued: at(ms)}, key: c.key})
				q.came = at(ms)
			}
			items, wait := q.take(at(c.now), delay, more, most, false)
			if len(items) != c.items || wait != time.Duration(c.wait)*time.Millisecond {
				t.Errorf("%d jobs, wait %v; want %d, %d ms", len(items), wait, c.items, c.wait)
			}
		})
	}
}
