package machine

import (
	"cmp"
	"slices"

	"premix/internal/replay/trace"
)

// event is a change of the number of cores held.
type event struct {
	at    trace.Time
	cores int
}

func sortEvents(list []event) {
	slices.SortFunc(list, func(a, b event) int { return cmp.Compare(a.at, b.at) })
}
