package results

import (
	"fmt"
	"io"
	"math/rand/v2"
	"text/tabwriter"

	"premix/internal/replay/machine"
	"premix/internal/replay/simulate"
	"premix/internal/replay/trace"
)

// Scenario is the outcome of a change of the workload or of the machine.
type Scenario struct {
	Name     string            `json:"name"`
	Repeats  int               `json:"repeats"` // with further jobs drawn anew
	Policies []*ScenarioResult `json:"policies"`

	r *Results
}

// ScenarioResult is the outcome of a change under one policy: means over the repeats.
type ScenarioResult struct {
	Policy      string      `json:"policy"`
	Wait        float64     `json:"mean_wait"`
	Slowdown    float64     `json:"mean_bounded_slowdown"`
	Utilisation float64     `json:"utilisation"`
	Refused     int         `json:"refused"`               // most of a repeat
	Change      *[2]float64 `json:"wait_change,omitempty"` // of the mean wait; 95 % of draws

	n    int
	sums [][]unitSums // by repeat and unit
}

// Scenario adds a scenario.
func (r *Results) Scenario(name string, repeats int) *Scenario {
	s := &Scenario{Name: name, Repeats: repeats, r: r, Policies: make([]*ScenarioResult, len(r.Policies))}
	r.WhatIf = append(r.WhatIf, s)
	return s
}

// Add adds the schedule of a policy.
func (s *Scenario) Add(policy int, t *trace.Trace, m *machine.Machine, schedule *simulate.Schedule) {
	p := New(t, m, s.r.Options).Add(schedule, func(int32) float64 { return 1 }, 0)
	v := s.Policies[policy]
	if v == nil {
		v = &ScenarioResult{Policy: schedule.Policy}
		s.Policies[policy] = v
	}
	mean := func(to *float64, value float64) { *to += (value - *to) / float64(v.n) }
	v.n++
	mean(&v.Wait, p.Wait.Mean)
	mean(&v.Slowdown, p.Slowdown.Mean)
	mean(&v.Utilisation, p.Utilisation)
	v.Refused = max(v.Refused, p.Refused)
	unit, _, units := s.r.unit()
	v.sums = append(v.sums, sumUnits(t, schedule, unit, units))
}

// finish computes the intervals: in each draw, one repeat and as many units as there are,
// the same with the change and without it. base has the sums of the policies without it.
func (s *Scenario) finish(base [][]unitSums, units int, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0x77686174))
	for i, v := range s.Policies {
		if v == nil || units < leastUnits {
			continue
		}
		var changes []float64
		for range draws {
			with := v.sums[rng.IntN(len(v.sums))]
			var a, b unitSums
			for range units {
				u := rng.IntN(units)
				a.add(&base[i][u])
				b.add(&with[u])
			}
			if a[measures] > 0 && b[measures] > 0 {
				changes = append(changes, b[0]/b[measures]-a[0]/a[measures])
			}
		}
		change := interval(changes)
		v.Change = &change
	}
	kept := s.Policies[:0]
	for _, v := range s.Policies {
		if v != nil {
			kept = append(kept, v)
		}
	}
	s.Policies = kept
}

func (r *Results) writeScenarios(w io.Writer) error {
	if len(r.WhatIf) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "what if\tpolicy\twait\tchange of the wait\tslowdown\tutilisation\trefused\t")
	for _, s := range r.WhatIf {
		for _, v := range s.Policies {
			fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%.4g\t%.1f %%\t%d\t\n", s.Name, v.Policy, span(v.Wait), v.Between(), v.Slowdown, 100*v.Utilisation, v.Refused)
		}
	}
	return tw.Flush()
}

// Between returns the interval of the change in words.
func (v *ScenarioResult) Between() string {
	if v.Change == nil {
		return "-"
	}
	return signed(v.Change[0]) + " to " + signed(v.Change[1])
}
