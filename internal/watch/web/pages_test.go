package web

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"premix/internal/kit/quantile"
	"premix/internal/watch"
)

func sumUsage(tasks ...watch.Task) []*usage {
	sums := make(usages)
	for _, t := range tasks {
		sums.add(t)
	}
	return sums.list()
}

func TestAdvice(t *testing.T) {
	const gib = 1 << 30
	task := func(asked, used int64, cores, cpu, warm float64, start string) watch.Task {
		return watch.Task{Step: "s", Began: begin, End: begin.Add(100 * time.Second), OK: true, Cores: cores, CPU: cpu, Memory: asked, MaxRSS: used, WarmedIn: warm, Start: start}
	}
	for _, tt := range []struct {
		name  string
		task  watch.Task
		tasks int
		want  []string
	}{
		{"memory", task(32*gib, 3*gib, 1, 100, 0, "fork"), 3, []string{"asked for 32 GiB, used at most 3 GiB: ask for 4 GiB"}},
		{"little memory", task(2*gib, 100<<20, 1, 100, 0, "fork"), 3, []string{"asked for 2 GiB, used at most 100 MiB: ask for 256 MiB"}},
		{"fits", task(4*gib, 3*gib, 1, 100, 0, "fork"), 3, nil},
		{"all of it", task(4*gib, 4*gib, 1, 100, 0, "fork"), 3, []string{"used all of the 4 GiB it asked for: ask for 6 GiB"}},
		{"no limit", task(0, 3*gib, 1, 100, 0, "fork"), 3, nil},
		{"too few to tell", task(32*gib, 3*gib, 1, 100, 0, "fork"), 2, nil},
		{"cores", task(0, 0, 8, 130, 0, "fork"), 3, []string{"held 8 cores, used 1.3: ask for 2"}},
		{"busy cores", task(0, 0, 8, 700, 0, "fork"), 3, nil},
		{"loading", task(0, 0, 1, 100, 34, "cold"), 3, []string{"34 % of its time passes before it reads its input: premix prepare makes a snapshot of that"}},
		{"loading, forked", task(0, 0, 1, 100, 34, "fork"), 3, nil},
	} {
		list := sumUsage(slices.Repeat([]watch.Task{tt.task}, tt.tasks)...)
		if len(list) != 1 || !slices.Equal(list[0].Advice, append([]string{}, tt.want...)) {
			t.Errorf("%s: %q", tt.name, list[0].Advice)
		}
	}
}

// A process outside premix has requested no resources. It therefore gets no advice, and is
// not counted among the tasks of a step with the same name.
func TestNoAdviceForProcesses(t *testing.T) {
	k := watch.Task{Step: "grep", User: "u", Began: begin, End: begin.Add(time.Second), Cores: 8, CPU: 1, Memory: 32 << 30, MaxRSS: 1 << 20}
	p := k
	p.Engine = watch.ProcessEngine
	list := sumUsage(k, k, k, p, p, p, p)
	slices.SortFunc(list, func(a, b *usage) int { return a.Tasks - b.Tasks })
	if len(list) != 2 || list[0].Tasks != 3 || list[1].Tasks != 4 || len(list[0].Advice) != 3 || len(list[1].Advice) != 0 || list[1].Engine != "process" {
		t.Errorf("%+v, %+v", list[0], list[1])
	}
}

// The parts of the usage add up to the time that has passed.
func TestUsageAddsUp(t *testing.T) {
	tasks := []watch.Task{
		{Step: "a", User: "u", Queued: begin.Add(-10 * time.Second), Began: begin, End: begin.Add(50 * time.Second), OK: true, Cores: 2, CPU: 60, WarmedIn: 5},
		{Step: "a", User: "u", Began: begin, End: begin.Add(10 * time.Second), Cores: 1, CPU: 20}, // more processor time than the cores allow
		{Step: "a", User: "u", Began: begin, Cores: 1}, // still runs
	}
	u := sumUsage(tasks...)[0]
	if u.Tasks != 2 || u.Failed != 1 || u.Running != 1 || u.Waited != 10 || u.Warming != 5 || u.Working != 40 || u.Idle != 15 {
		t.Errorf("%+v", u)
	}
	if sum := u.Warming + u.Working + u.Idle; sum != 60 {
		t.Errorf("%v of 60 s are told", sum)
	}
}

func TestSaved(t *testing.T) {
	task := func(step, start string, warm float64) watch.Task {
		return watch.Task{Step: step, Start: start, WarmedIn: warm}
	}
	took := make(starts)
	for _, t := range []watch.Task{
		task("a", "cold", 10), task("a", "cold", 14), task("a", "fork", 1), task("a", "fork", 3), task("a", "hot", 2),
		task("b", "fork", 1),                       // no start to compare with
		task("c", "cold", 5), task("c", "fork", 0), // unknown
	} {
		took.add(t)
	}
	got := took.saved()
	want := []savedAnswer{{"a", "fork", 2, 12, 2, 20}, {"a", "hot", 1, 12, 2, 10}}
	if !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
}

// A spread of few values is exact. A spread of many values is within a hundredth, and
// small.
func TestSpread(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, n := range []int{0, 1, 2, 100, exactly, exactly + 1, 200_000} {
		var s spread
		var all []float64
		for range n {
			v := math.Exp(6 * rng.NormFloat64())
			if rng.IntN(10) == 0 {
				v = 0
			}
			s.add(v)
			all = append(all, v)
		}
		slices.Sort(all)
		for _, q := range []float64{0, 0.05, 0.5, 0.95, 1} {
			got, want := s.quantile(q), 0.0
			if n > 0 {
				want = quantile.Of(all, q)
			}
			if n > exactly {
				want = all[int(q*float64(n-1))]
			}
			if math.Abs(got-want) > 0.01*want || n <= exactly && got != want {
				t.Errorf("%v of %d values is %v, not %v", q, n, got, want)
			}
		}
		if len(s.exact) > exactly || len(s.classes) > 10_000 {
			t.Errorf("%d values are kept as %d and %d classes", n, len(s.exact), len(s.classes))
		}
	}
}
