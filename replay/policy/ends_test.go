package policy

import (
	"slices"
	"testing"

	"premix/replay/trace"
)

func TestTogether(t *testing.T) {
	tests := []struct {
		name              string
		ends              []trace.Time
		moment, precision trace.Time
		linear, want      trace.Time
	}{
		{"nobody runs", nil, 5, 30, 0, 5},
		{"no end at that moment", []trace.Time{10, 20}, 15, 30, 0, 15},
		{"the first group", []trace.Time{100, 110, 130, 131}, 100, 30, 0, 130},
		{"its last", []trace.Time{100, 110, 130, 131}, 130, 30, 0, 130},
		{"the second is twice as long", []trace.Time{100, 131, 190, 191, 192}, 131, 30, 0, 191},
		{"and the third four times", []trace.Time{0, 31, 92, 211, 212}, 92, 30, 0, 212},
		{"or by a step", []trace.Time{0, 31, 62, 63}, 31, 30, 1, 62},
		{"equal ends", []trace.Time{7, 7, 7}, 7, 30, 0, 7},
	}
	for _, tt := range tests {
		e := ends{of: make(map[int32]trace.Time)}
		for job, at := range tt.ends {
			e.add(int32(job), at)
		}
		if got := e.together(tt.moment, tt.precision, tt.linear); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
	}
	var many ends
	many.of = make(map[int32]trace.Time)
	for job := range 500 {
		many.add(int32(job), trace.Time(job))
	}
	if got := many.together(0, 1000, 0); got != most-1 {
		t.Errorf("of many the first group ends at %d", got)
	}
}

func TestEndsAreKept(t *testing.T) {
	e := ends{of: make(map[int32]trace.Time)}
	for job, at := range []trace.Time{30, 10, 20, 10} {
		e.add(int32(job), at)
	}
	e.remove(1)
	e.remove(9) // nobody knows it
	if want := []trace.Time{10, 20, 30}; !slices.Equal(e.sorted, want) {
		t.Errorf("ends are %v, want %v", e.sorted, want)
	}
	e.renew(func(job int32) trace.Time { return trace.Time(job) })
	if want := []trace.Time{0, 2, 3}; !slices.Equal(e.sorted, want) || e.of[2] != 2 {
		t.Errorf("renewed they are %v, want %v", e.sorted, want)
	}
}
