package hotstart

import (
	"testing"
	"time"
)

// TestWorth has cold starts, each with a number of rounds for which a snapshot must not be worth
// its cost, and one for which it must be.
func TestWorth(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		coldStart
		further int
		no, yes float64
	}{
		"a process of 3 GB":               {coldStart{1860 * ms, 1900 * ms, 1850 * ms, 5 * ms, 3 << 30}, 0, 6, 8},
		"a process of 1 GB":               {coldStart{770 * ms, 800 * ms, 760 * ms, 5 * ms, 1 << 30}, 0, 5, 8},
		"an index that is mapped":         {coldStart{280 * ms, 300 * ms, 270 * ms, 10 * ms, 250 << 20}, 0, 4, 8},
		"a script that opens many files":  {coldStart{350 * ms, 360 * ms, 130 * ms, 400 * ms, 20 << 20}, 0, 12, 24},
		"the same, with a late word":      {coldStart{350 * ms, 360 * ms, 130 * ms, 400 * ms, 20 << 20}, 2, 24, 48},
		"an index on slow storage":        {coldStart{20_000 * ms, 20_100 * ms, 1000 * ms, 100 * ms, 1 << 30}, 0, 3, 5},
		"little to load before long work": {coldStart{30 * ms, 5000 * ms, 5000 * ms, 10 * ms, 50 << 20}, 0, 100, 1e5},
	} {
		for rounds, want := range map[float64]bool{c.no: false, c.yes: true} {
			if got := c.saves(rounds) >= c.costs(c.further); got != want {
				t.Errorf("%s, %v rounds: worth %v; it saves %v and costs %v", name, rounds, got, c.saves(rounds), c.costs(c.further))
			}
		}
	}
}
