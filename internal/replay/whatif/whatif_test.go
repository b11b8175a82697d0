package whatif

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"premix/internal/replay/machine"
	"premix/internal/replay/results"
	"premix/internal/replay/scheduling"
	"premix/internal/replay/simulate"
	"premix/internal/replay/trace"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]string{"more-jobs=10%": "10 % more jobs", "fewer-nodes=32": "32 fewer nodes", "fewer-nodes=2.5%": "2.5 % fewer nodes"} {
		if c, err := Parse(text); err != nil || c.String() != want {
			t.Errorf("%s: %v, %v", text, c, err)
		}
	}
	for _, text := range []string{"", "more-jobs", "more-jobs=10", "more-jobs=-1%", "fewer-nodes=100%", "fewer-nodes=1.5", "fewer-nodes=NaN", "racks=1"} {
		if _, err := Parse(text); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}

// crowded returns a workload of two weeks that keeps a machine of 12 cores busy. Every
// tenth job comes after the job before it.
func crowded(t *testing.T) *trace.Trace {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, 1))
	var b strings.Builder
	for i := 1; i <= 2000; i++ {
		after := -1
		if i%10 == 0 {
			after = i - 1
		}
		run := 600 + rng.IntN(6000)
		fmt.Fprintf(&b, "%d %d -1 %d %d -1 -1 -1 %d -1 1 %d 1 -1 1 1 %d -1\n", i, i*600, run, 1+rng.IntN(3), run, i%7+1, after)
	}
	tr, err := trace.Read(strings.NewReader(b.String()), "test", int64(b.Len()), trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func TestMoreJobs(t *testing.T) {
	tr := crowded(t)
	before := slices.Clone(tr.Submit)
	c, _ := Parse("more-jobs=10%")
	more := c.trace(tr, rand.New(rand.NewPCG(1, 2)))
	if more.Len() != 2200 || !slices.IsSorted(more.Submit) || !slices.Equal(tr.Submit, before) {
		t.Fatalf("%d jobs", more.Len())
	}
	index := make(map[int64]int)
	for i, number := range more.Number {
		index[number] = i
	}
	if len(index) != 2200 {
		t.Errorf("%d numbers", len(index))
	}
	for i, number := range tr.Number {
		k := index[number]
		if more.Submit[k] != tr.Submit[i] || more.Run[k] != tr.Run[i] || more.Cores[k] != tr.Cores[i] || more.User[k] != tr.User[i] {
			t.Fatalf("job %d has changed", number)
		}
		var want, got []int64
		for _, b := range tr.Before(i) {
			want = append(want, tr.Number[b])
		}
		for _, b := range more.Before(k) {
			got = append(got, more.Number[b])
		}
		if !slices.Equal(got, want) {
			t.Fatalf("job %d comes after %v, not %v", number, got, want)
		}
	}
	for i, number := range more.Number {
		if number > 2000 && len(more.Before(i)) > 0 {
			t.Errorf("further job %d depends on others", number)
		}
	}
	other := c.trace(tr, rand.New(rand.NewPCG(1, 3)))
	if slices.Equal(other.Submit, more.Submit) {
		t.Error("two draws are equal")
	}
}

func TestFewerNodes(t *testing.T) {
	m, err := machine.Parse([]byte("pools: [{name: a, nodes: [{count: 40, cores: 8}, {count: 100, cores: 4}], down: [{from: 1s, until: 2s}]}, {name: b, nodes: [{count: 3, cores: 64}]}]"))
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string][3]int{"fewer-nodes=32": {40, 68, 3}, "fewer-nodes=10%": {36, 90, 3}} {
		c, _ := Parse(text)
		f, err := c.machine(m)
		if err != nil {
			t.Fatal(err)
		}
		if got := [3]int{f.Pools[0].Groups[0].Count, f.Pools[0].Groups[1].Count, f.Pools[1].Groups[0].Count}; got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
		if f.Pools[0].Down[0].Nodes != f.Pools[0].Nodes() {
			t.Errorf("%s: %d nodes are down", text, f.Pools[0].Down[0].Nodes)
		}
	}
	if m.Nodes() != 143 {
		t.Error("the machine itself has changed")
	}
	c, _ := Parse("fewer-nodes=100")
	if _, err := c.machine(m); err == nil || !strings.Contains(err.Error(), "in pool a, has 100") {
		t.Error(err)
	}
}

// TestFewerNodesWithNames: nodes 2 and 3 of 5 go; the others have new numbers.
func TestFewerNodesWithNames(t *testing.T) {
	m := &machine.Machine{Pools: []machine.Pool{{Name: "a", Groups: []machine.Node{{Count: 4, Cores: 8}, {Count: 1, Cores: 4}}, Names: []string{"n0", "n1", "n2", "n3", "n4"},
		Drains: []machine.Drain{{Node: 3, Cores: 1}, {Node: 4, Cores: 2}}}},
		Partitions: []machine.Partition{{Name: "p", Pool: "a", Nodes: []int32{1, 3, 4}}, {Name: "q", Pool: "a"}, {Name: "r", Pool: "a", Nodes: []int32{2}}}}
	c, _ := Parse("fewer-nodes=2")
	f, err := c.machine(m)
	if err != nil {
		t.Fatal(err)
	}
	p, q, r := f.Partitions[0].Nodes, f.Partitions[1].Nodes, f.Partitions[2].Nodes
	if !slices.Equal(p, []int32{1, 2}) || q != nil || r == nil || len(r) != 0 {
		t.Errorf("partitions have %v, %v, %v", p, q, r)
	}
	if d := f.Pools[0].Drains; len(d) != 1 || d[0].Node != 2 || d[0].Cores != 2 || !slices.Equal(f.Pools[0].Names, []string{"n0", "n1", "n4"}) {
		t.Errorf("drains %+v, names %v", d, f.Pools[0].Names)
	}
	if len(m.Pools[0].Drains) != 2 || len(m.Partitions[0].Nodes) != 3 {
		t.Error("the machine itself has changed")
	}
}

// TestRun checks that both changes make jobs wait longer on a crowded machine, beyond
// chance.
func TestRun(t *testing.T) {
	tr := crowded(t)
	m := machine.FromTrace(tr, 14)
	policies, err := scheduling.Choose([]string{"easy", "conservative"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	make := func() *results.Results {
		r := results.New(tr, m, results.Options{})
		for _, p := range policies {
			s, err := simulate.Run(context.Background(), tr, m, scheduling.New(p), simulate.Options{})
			if err != nil {
				t.Fatal(err)
			}
			r.Add(s, m.Charger(tr), 0)
		}
		more, _ := Parse("more-jobs=10%")
		fewer, _ := Parse("fewer-nodes=1")
		if err := Run(context.Background(), r, tr, m, policies, []Change{more, fewer}, simulate.Options{}, 3, 1); err != nil {
			t.Fatal(err)
		}
		r.Finish(1)
		return r
	}
	r := make()
	if len(r.WhatIf) != 2 || r.WhatIf[0].Repeats != 3 || r.WhatIf[1].Repeats != 1 {
		t.Fatalf("%+v", r.WhatIf)
	}
	for _, s := range r.WhatIf {
		for i, v := range s.Policies {
			base := r.Policies[i]
			if v.Policy != base.Name || v.Change == nil {
				t.Fatalf("%s: %+v", s.Name, v)
			}
			if change := v.Wait - base.Wait.Mean; change <= 0 || v.Change[0] <= 0 || v.Change[0] > change || v.Change[1] < change || v.Utilisation <= base.Utilisation {
				t.Errorf("%s under %s: a wait of %g s in place of %g, changed by %v; utilisation %g in place of %g", s.Name, v.Policy, v.Wait, base.Wait.Mean, *v.Change, v.Utilisation, base.Utilisation)
			}
		}
	}
	var text, again strings.Builder
	if err := r.WriteText(&text); err != nil || !strings.Contains(text.String(), "10 % more jobs  conservative") {
		t.Errorf("%v\n%s", err, &text)
	}
	for _, to := range []struct {
		r *results.Results
		b *strings.Builder
	}{{r, &text}, {make(), &again}} {
		to.b.Reset()
		if err := to.r.WriteJSON(to.b); err != nil {
			t.Fatal(err)
		}
	}
	if text.String() != again.String() {
		t.Error("two runs differ")
	}
}
