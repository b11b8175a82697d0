package inplace

import (
	"testing"
	"time"
)

// The expected rest of a preparation comes from its loads until now.
func TestRestAfter(t *testing.T) {
	const s = time.Second
	for _, one := range []struct {
		loads      int
		took, want time.Duration
	}{
		{1, 2 * s, 8 * s},                             // A, B and two further ones
		{4, 8 * s, 2 * s},                             // one further one
		{5, 10 * s, 0},                                // the proof alone
		{6, 12 * s, 0},                                // or a load more than expected
		{1, s, 6 * s},                                 // four further ones within three seconds
		{1, s / 100, 10 * s / 100},                    // eight further ones
		{11, 11 * s / 100, 0},                         // after them
		{1, 0, 10 * time.Nanosecond},                  // a clock that stands still
		{2, 2 * 1600 * s / 1000, 3 * 1600 * s / 1000}, // two take 3.2 s
	} {
		if got := restAfter(one.loads, one.took, enough); got != one.want {
			t.Errorf("after %d loads in %v: %v, and not %v", one.loads, one.took, got, one.want)
		}
	}
}

func TestLoadTime(t *testing.T) {
	const s = time.Second
	for _, one := range [][3]time.Duration{{2 * s, 0, 2 * s}, {4 * s, 2 * s, 4 * s}, {60 * s, 59 * s, 4 * s}, {s, 2 * s, 0}} {
		if got := loadTime(one[0], one[1]); got != one[2] {
			t.Errorf("%v, of which %v in a queue: %v, and not %v", one[0], one[1], got, one[2])
		}
	}
}
