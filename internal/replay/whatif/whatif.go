package whatif

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"premix/internal/kit/exit"
	"premix/internal/replay/machine"
	"premix/internal/replay/results"
	"premix/internal/replay/scheduling"
	"premix/internal/replay/simulate"
	"premix/internal/replay/trace"
)

// Change is a change of the workload or of the machine.
type Change struct {
	jobs  float64 // further jobs, as a part of the jobs
	nodes int     // nodes to take away
	part  float64 // nodes to take away from each group, as a part
}

// Parse parses a change.
func Parse(text string) (Change, error) {
	wrong := func(reason string) (Change, error) {
		return Change{}, exit.Errorf(exit.Usage, "write it as in more-jobs=10%, fewer-nodes=32 or fewer-nodes=5%", "--what-if %s: %s", text, reason)
	}
	key, value, _ := strings.Cut(text, "=")
	number, percent := strings.CutSuffix(value, "%")
	v, err := strconv.ParseFloat(number, 64)
	switch {
	case key != "more-jobs" && key != "fewer-nodes":
		return wrong("is not a known change")
	case err != nil || !(v > 0):
		return wrong("needs a number above 0")
	case key == "more-jobs" && (!percent || v > 1000):
		return wrong("needs a percentage of at most 1000 %")
	case key == "more-jobs":
		return Change{jobs: v / 100}, nil
	case percent && v >= 100:
		return wrong("leaves no node")
	case percent:
		return Change{part: v / 100}, nil
	case v != float64(int(v)) || v > 1<<28:
		return wrong("needs a whole number of nodes, or a percentage")
	}
	return Change{nodes: int(v)}, nil
}

// String returns the change in words.
func (c Change) String() string {
	switch {
	case c.jobs > 0:
		return fmt.Sprintf("%.4g %% more jobs", 100*c.jobs)
	case c.part > 0:
		return fmt.Sprintf("%.4g %% fewer nodes", 100*c.part)
	}
	return fmt.Sprintf("%d fewer nodes", c.nodes)
}

// Run replays a trace with each change under each policy, and adds the outcomes to r, which
// has the policies without a change. repeats is the number of draws of further jobs.
func Run(ctx context.Context, r *results.Results, t *trace.Trace, m *machine.Machine, policies []scheduling.Config, changes []Change, o simulate.Options, repeats int, seed uint64) error {
	for _, c := range changes {
		changed, err := c.machine(m)
		if err != nil {
			return err
		}
		n := 1
		if c.jobs > 0 {
			n = repeats
		}
		s := r.Scenario(c.String(), n)
		for k := range n {
			more := c.trace(t, rand.New(rand.NewPCG(seed, uint64(k))))
			for i, p := range policies {
				if p.Order == scheduling.Recorded {
					continue
				}
				schedule, err := simulate.Run(ctx, more, changed, scheduling.New(p), o)
				if err != nil {
					return err
				}
				s.Add(i, more, changed, schedule)
			}
		}
	}
	return nil
}

// machine returns the machine with the change. Nodes are taken from the largest group of the
// pool with most nodes.
func (c Change) machine(m *machine.Machine) (*machine.Machine, error) {
	changed := *m
	changed.Pools = slices.Clone(m.Pools)
	biggest := 0
	for i := range changed.Pools {
		p := &changed.Pools[i]
		p.Groups, p.Down = slices.Clone(p.Groups), slices.Clone(p.Down)
		if p.Nodes() > changed.Pools[biggest].Nodes() {
			biggest = i
		}
		for k := range p.Groups {
			g := &p.Groups[k]
			g.Count = max(g.Count-int(c.part*float64(g.Count)+0.5), 1)
		}
	}
	if c.nodes > 0 {
		p := &changed.Pools[biggest]
		group := &p.Groups[0]
		for k := range p.Groups {
			if p.Groups[k].Count > group.Count {
				group = &p.Groups[k]
			}
		}
		if group.Count <= c.nodes {
			return nil, exit.Errorf(exit.Usage, "write it as in more-jobs=10%, fewer-nodes=32 or fewer-nodes=5%", "--what-if %s: %s", "fewer-nodes="+strconv.Itoa(c.nodes), fmt.Sprintf("the largest group of equal nodes, in pool %s, has %d", p.Name, group.Count))
		}
		group.Count -= c.nodes
	}
	changed.Partitions = slices.Clone(m.Partitions)
	for i := range changed.Pools {
		p := &changed.Pools[i]
		if p.Names != nil {
			keepNumbers(&m.Pools[i], p, changed.Partitions)
		}
		for k := range p.Down {
			p.Down[k].Nodes = min(p.Down[k].Nodes, p.Nodes())
		}
	}
	return &changed, nil
}

// keepNumbers makes the partitions and drains of a pool refer to the same nodes when the
// last nodes of its groups are gone.
func keepNumbers(was, is *machine.Pool, partitions []machine.Partition) {
	var number []int32 // by old number; -1: gone
	n := int32(0)
	for g := range was.Groups {
		for k := range was.Groups[g].Count {
			if k >= is.Groups[g].Count {
				number = append(number, -1)
				continue
			}
			number = append(number, n)
			n++
		}
	}
	is.Names = nil
	for i, name := range was.Names {
		if number[i] >= 0 {
			is.Names = append(is.Names, name)
		}
	}
	is.Drains = nil
	for _, d := range was.Drains {
		if d.Node = number[d.Node]; d.Node >= 0 {
			is.Drains = append(is.Drains, d)
		}
	}
	for i := range partitions {
		p := &partitions[i]
		if p.Pool != is.Name || p.Nodes == nil {
			continue
		}
		kept := make([]int32, 0, len(p.Nodes))
		for _, old := range p.Nodes {
			if number[old] >= 0 {
				kept = append(kept, number[old])
			}
		}
		p.Nodes = kept
	}
}

// spread is how far from a job a further one like it may be submitted.
const spread = trace.Hour

// trace returns the trace with further jobs.
func (c Change) trace(t *trace.Trace, rng *rand.Rand) *trace.Trace {
	n := t.Len()
	more := int(c.jobs*float64(n) + 0.5)
	if more == 0 || n == 0 {
		return t
	}
	type job struct {
		like   int32
		submit trace.Time
		extra  bool
	}
	jobs := make([]job, 0, n+more)
	for i := range n {
		jobs = append(jobs, job{int32(i), t.Submit[i], false})
	}
	for range more {
		i := rng.IntN(n)
		at := t.Submit[i] + trace.Time(rng.Int64N(int64(2*spread)+1)) - spread
		jobs = append(jobs, job{int32(i), min(max(at, t.Submit[0]), t.Submit[n-1]), true})
	}
	slices.SortStableFunc(jobs, func(a, b job) int { return cmp.Compare(a.submit, b.submit) })
	like := make([]int32, len(jobs))
	for i, j := range jobs {
		like[i] = j.like
	}
	out := t.Like(like)
	last := slices.Max(t.Number)
	moved := make([]int32, n) // new index of each job
	for i, j := range jobs {
		out.Submit[i] = j.submit
		if j.extra {
			last++
			out.Number[i] = last
			continue
		}
		moved[j.like] = int32(i)
	}
	if t.AfterAt == nil {
		return out
	}
	out.AfterAt, out.After = make([]int32, len(jobs)+1), nil
	for i, j := range jobs {
		if !j.extra {
			for _, before := range t.Before(int(j.like)) {
				out.After = append(out.After, moved[before])
			}
		}
		out.AfterAt[i+1] = int32(len(out.After))
	}
	return out
}
