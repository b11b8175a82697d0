package scheduling

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"premix/internal/replay/machine"
	"premix/internal/replay/simulate"
	"premix/internal/replay/trace"
)

// random returns jobs that crowd a machine of 16 cores. Their estimates are right if exact
// is set, and otherwise too long or too short.
func random(t *testing.T, rng *rand.Rand, n int, exact bool) *trace.Trace {
	var specs []spec
	at := 0
	for range n {
		at += rng.IntN(20)
		s := spec{submit: at, run: rng.IntN(100), cores: 1 + rng.IntN(1+rng.IntN(16)), user: 1 + rng.IntN(4), queue: 1 + rng.IntN(3)}
		s.asked = s.run
		if !exact {
			s.asked = max(s.run*(50+rng.IntN(300))/100, 1)
		}
		specs = append(specs, s)
	}
	return workload(t, specs)
}

// check checks that a schedule is valid: it uses no core twice, starts no job before its
// submission, and runs all jobs for their run time.
func check(t *testing.T, tr *trace.Trace, s *simulate.Schedule, cores int) {
	t.Helper()
	type change struct {
		at    trace.Time
		cores int
	}
	var changes []change
	for i := range tr.Submit {
		if s.Start[i] < tr.Submit[i] || s.Start[i] < s.Eligible[i] {
			t.Errorf("job %d starts at %v, submitted at %v", tr.Number[i], s.Start[i], tr.Submit[i])
		}
		if s.End[i]-s.Start[i] != tr.Run[i] && s.Preemptions == 0 {
			t.Errorf("job %d runs for %v, not %v", tr.Number[i], s.End[i]-s.Start[i], tr.Run[i])
		}
		if s.Ran(i) != tr.Run[i] {
			t.Errorf("job %d ran for %v, not %v", tr.Number[i], s.Ran(i), tr.Run[i])
		}
		changes = append(changes, change{s.Start[i], int(tr.Cores[i])}, change{s.End[i], -int(tr.Cores[i])})
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.cores, b.cores)) })
	used := 0
	for _, c := range changes {
		if used += c.cores; used > cores {
			t.Fatalf("%d cores used at %v", used, c.at)
		}
	}
}

var everyPolicy = []string{"fcfs", "sjf", "easy", "conservative", "multifactor", "order: sjf, backfill: easy", "order: sjf, backfill: conservative", "order: fcfs, backfill: conservative, depth: 2",
	"order: multifactor, backfill: easy, calc_period: 10s", "order: multifactor, backfill: conservative, calc_period: 10s", "order: fcfs, backfill: slurm, interval: 1ms, resolution: 1ms"}

var everyMachine = map[string]string{
	"counted":         "pools: [{nodes: [{count: 16, cores: 1}], place: any}]\n",
	"limits":          "pools: [{nodes: [{count: 16, cores: 1}], place: any}]\nuser: {jobs: 3}\naccount: {jobs: 2}\n",
	"placed":          "pools: [{nodes: [{count: 2, cores: 4}, {count: 1, cores: 8}]}]\n",
	"spread":          "pools: [{nodes: [{count: 4, cores: 4}], place: spread}]\n",
	"adjacent":        "pools: [{nodes: [{count: 16, cores: 1}], share: nodes, place: adjacent}]\n",
	"whole":           "pools: [{nodes: [{count: 16, cores: 1}], share: nodes}]\n",
	"preempted":       "pools: [{nodes: [{count: 16, cores: 1}], place: any}]\nqos: [{name: high, tier: 1, preempts: [low]}, {name: low, preempted: resume}]\n",
	"preempted nodes": "pools: [{nodes: [{count: 4, cores: 4}]}]\nqos: [{name: high, tier: 1, preempts: [low]}, {name: low}]\n",
	"parts":           "pools: [{nodes: [{count: 4, cores: 4}, {count: 4, cores: 4}], place: adjacent}]\n",
	"down":            "pools: [{nodes: [{count: 16, cores: 1}], place: any, down: [{from: 100s, until: 300s, count: 7}, {from: 400s, until: 500s, count: 9, failure: true}]}]\n",
	"down nodes":      "pools: [{nodes: [{count: 4, cores: 4}], down: [{from: 100s, until: 300s, count: 2}, {from: 400s, until: 500s, count: 3, failure: true}]}]\n",
}

func TestInvariants(t *testing.T) {
	for name, text := range everyMachine {
		for _, p := range everyPolicy {
			t.Run(name+"/"+p, func(t *testing.T) {
				for seed := range uint64(6) {
					rng := rand.New(rand.NewPCG(seed, 1))
					m, err := machine.Parse([]byte(text))
					if err != nil {
						t.Fatal(err)
					}
					if len(m.Partitions) == 1 {
						m.Partitions[0].Name = "main"
					}
					if name == "parts" {
						// Jobs may have all nodes but the second one and the last three.
						m.Partitions[0].Nodes = []int32{0, 2, 3, 4}
						m.Pools[0].Drains = []machine.Drain{{Node: 0, Cores: 3, From: 100 * trace.Second, Until: 300 * trace.Second}, {Node: 1, Cores: 4, From: 0, Until: trace.Hour}}
					}
					tr := random(t, rng, 120, seed%2 == 0)
					s := play(t, tr, m, built(t, p), simulate.Options{Estimates: []string{simulate.Asked, simulate.Exact, simulate.Learned}[seed%3]})
					if s.Preemptions+s.Failures == 0 {
						check(t, tr, s, 16)
					}
					for i := range tr.Submit {
						if s.Ran(i) != tr.Run[i] || s.Wait(i) < 0 {
							t.Fatalf("seed %d: job %d ran for %v and waited %v", seed, tr.Number[i], s.Ran(i), s.Wait(i))
						}
					}
					if p == "fcfs" && name != "limits" && name != "preempted" && name != "preempted nodes" && s.Failures == 0 && !slices.IsSorted(s.Start) {
						t.Errorf("seed %d: starts are out of order", seed)
					}
				}
			})
		}
	}
}

// watched is EASY with a check of the head's earliest start before and after each pass.
type watched struct {
	*scheduler
	t     *testing.T
	heads int
}

func (w *watched) Schedule() error {
	p := w.pools[0]
	head, ok, err := w.head(p)
	if err != nil || !ok {
		return err
	}
	r, length := w.c.Request(head.job), w.c.Estimate(head.job)
	before := p.room.Earliest(r, w.c.Now(), length)
	if err := w.scheduler.Schedule(); err != nil {
		return err
	}
	w.heads++
	if after := p.room.Earliest(r, w.c.Now(), length); after != before {
		w.t.Errorf("at %v the head, job %d, is delayed from %v to %v", w.c.Now(), w.c.Trace.Number[head.job], before, after)
	}
	return nil
}

func TestHeadIsNotDelayed(t *testing.T) {
	for name, text := range map[string]string{"counted": everyMachine["counted"], "placed": everyMachine["placed"]} {
		for seed := range uint64(10) {
			m, _ := machine.Parse([]byte(text))
			m.Partitions[0].Name = "main"
			c, _ := builtIn("easy")
			w := &watched{scheduler: New(c).(*scheduler), t: t}
			if _, err := simulate.Run(context.Background(), random(t, rand.New(rand.NewPCG(seed, 2)), 200, seed%2 == 0), m, w, simulate.Options{}); err != nil {
				t.Fatal(err)
			}
			if w.heads == 0 {
				t.Errorf("%s: no head ever waited", name)
			}
		}
	}
}

// TestReservationsHold checks that with exact estimates no job starts later than promised
// at its submission.
func TestReservationsHold(t *testing.T) {
	for seed := range uint64(10) {
		tr := random(t, rand.New(rand.NewPCG(seed, 3)), 200, true)
		m, _ := machine.Parse([]byte(everyMachine["counted"]))
		c, _ := builtIn("conservative")
		w := &promised{scheduler: New(c).(*scheduler), promises: make(map[int32]trace.Time)}
		s, err := simulate.Run(context.Background(), tr, m, w, simulate.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for job, at := range w.promises {
			if s.Start[job] > at {
				t.Errorf("seed %d: job %d starts at %v, promised for %v", seed, tr.Number[job], s.Start[job], at)
			}
		}
	}
}

type promised struct {
	*scheduler
	promises map[int32]trace.Time
	queued   []int32
}

func (p *promised) Queued(job int32) {
	p.scheduler.Queued(job)
	p.queued = append(p.queued, job)
}

func (p *promised) Schedule() error {
	err := p.scheduler.Schedule()
	for _, job := range p.queued {
		if p.promises[job] = p.plans[job].at; p.c.State(job) != simulate.Queued {
			p.promises[job] = p.c.Now()
		}
	}
	p.queued = p.queued[:0]
	return err
}

// TestAgainstPlainEASY compares the policy with a plain version of EASY as in its paper,
// without trees.
func TestAgainstPlainEASY(t *testing.T) {
	for seed := range uint64(20) {
		tr := random(t, rand.New(rand.NewPCG(seed, 4)), 200, true)
		m, _ := machine.Parse([]byte(everyMachine["counted"]))
		s := play(t, tr, m, built(t, "easy"), simulate.Options{})
		if want := plainEASY(tr, 16); !slices.Equal(s.Start, want) {
			t.Fatalf("seed %d: starts\n%v, want\n%v", seed, s.Start, want)
		}
	}
}

func plainEASY(tr *trace.Trace, total int32) []trace.Time {
	n := tr.Len()
	start := make([]trace.Time, n)
	var running, queue []int
	free, next := total, 0
	end := func(j int) trace.Time { return start[j] + tr.Run[j] }
	for now := trace.Time(0); next < n || len(queue) > 0; {
		// Advance to the next event.
		at := trace.Never
		if next < n {
			at = tr.Submit[next]
		}
		for _, j := range running {
			at = min(at, end(j))
		}
		now = at
		for {
			before := len(running)
			running = slices.DeleteFunc(running, func(j int) bool {
				if end(j) <= now {
					free += tr.Cores[j]
					return true
				}
				return false
			})
			for next < n && tr.Submit[next] == now {
				queue = append(queue, next)
				next++
			}
			begin := func(j int) {
				start[j] = now
				free -= tr.Cores[j]
				running = append(running, j)
			}
			started := false
			for len(queue) > 0 && tr.Cores[queue[0]] <= free {
				begin(queue[0])
				queue = queue[1:]
				started = true
			}
			if len(queue) > 1 {
				// Compute the shadow time and the extra cores from expected ends. Jobs
				// without a duration still count as running for a moment.
				byEnd := slices.Clone(running)
				slices.SortStableFunc(byEnd, func(a, b int) int { return cmp.Compare(max(end(a), now+1), max(end(b), now+1)) })
				there, shadow := free, trace.Never
				for i, j := range byEnd {
					there += tr.Cores[j]
					last := i+1 == len(byEnd) || max(end(byEnd[i+1]), now+1) > max(end(j), now+1)
					if there >= tr.Cores[queue[0]] && last {
						shadow = max(end(j), now+1)
						break
					}
				}
				extra := there - tr.Cores[queue[0]]
				rest := queue[:1]
				for _, j := range queue[1:] {
					ends := now + max(tr.Run[j], 1)
					if tr.Cores[j] > free || ends > shadow && tr.Cores[j] > extra {
						rest = append(rest, j)
						continue
					}
					if ends > shadow {
						extra -= tr.Cores[j]
					}
					begin(j)
					started = true
				}
				queue = rest
			}
			if !started && before == len(running) {
				break
			}
		}
	}
	return start
}

// TestAgainstPlainConservative compares the policy with conservative backfilling as in its
// paper, which uses an array of seconds. Jobs end before their estimates, and others arrive
// in the same second.
func TestAgainstPlainConservative(t *testing.T) {
	moved := 0
	for seed := range uint64(12) {
		rng := rand.New(rand.NewPCG(seed, 5))
		var specs []spec
		at := 0
		for range 150 {
			at += rng.IntN(12)
			run := 1 + rng.IntN(60)
			specs = append(specs, spec{submit: at, run: run, cores: 1 + rng.IntN(1+rng.IntN(16)), asked: run * (100 + 100*rng.IntN(3)) / 100})
		}
		tr := workload(t, specs)
		m, _ := machine.Parse([]byte(everyMachine["counted"]))
		s := play(t, tr, m, built(t, "order: fcfs, backfill: conservative, depth: 0"), simulate.Options{})
		want, n := plainConservative(tr, 16)
		moved += n
		if !slices.Equal(s.Start, want) {
			t.Fatalf("seed %d: starts\n%v, want\n%v", seed, s.Start, want)
		}
		// All waiting jobs are within the depth, so the schedule is the same.
		if s := play(t, tr, m, built(t, "order: fcfs, backfill: conservative, depth: 150"), simulate.Options{}); !slices.Equal(s.Start, want) {
			t.Fatalf("seed %d: with a depth, starts\n%v, want\n%v", seed, s.Start, want)
		}
	}
	if moved < 1000 {
		t.Errorf("only %d reservations moved", moved)
	}
}

// plainConservative also returns how many reservations it moved.
func plainConservative(tr *trace.Trace, total int32) (start []trace.Time, moved int) {
	n := tr.Len()
	free := make([]int32, 100_000) // free cores by second
	for i := range free {
		free[i] = total
	}
	change := func(from, until int, cores int32) {
		for i := from; i < until; i++ {
			free[i] += cores
		}
	}
	seconds := func(v trace.Time) int { return int(v / trace.Second) }
	at := make([]int, n) // start of the reservation, or of the job
	reserve := func(job, now int) {
		long := seconds(tr.Asked[job])
		for at[job] = now; ; at[job]++ {
			if !slices.ContainsFunc(free[at[job]:at[job]+long], func(v int32) bool { return v < tr.Cores[job] }) {
				break
			}
		}
		change(at[job], at[job]+long, -tr.Cores[job])
	}
	var queue, running []int
	next := 0
	for now := 0; next < n || len(queue)+len(running) > 0; now++ {
		early := false
		running = slices.DeleteFunc(running, func(job int) bool {
			if at[job]+seconds(tr.Run[job]) > now {
				return false
			}
			change(now, at[job]+seconds(tr.Asked[job]), tr.Cores[job])
			early = early || tr.Asked[job] > tr.Run[job]
			return true
		})
		for _, job := range queue {
			if was := at[job]; early {
				change(was, was+seconds(tr.Asked[job]), tr.Cores[job])
				if reserve(job, now); at[job] != was {
					moved++
				}
			}
		}
		for ; next < n && seconds(tr.Submit[next]) == now; next++ {
			reserve(next, now)
			queue = append(queue, next)
		}
		queue = slices.DeleteFunc(queue, func(job int) bool {
			if at[job] == now {
				running = append(running, job)
			}
			return at[job] == now
		})
	}
	for job := range n {
		start = append(start, trace.Time(at[job])*trace.Second)
	}
	return start, moved
}

func TestSameTwice(t *testing.T) {
	for _, p := range everyPolicy {
		m, _ := machine.Parse([]byte(everyMachine["limits"]))
		m.Partitions[0].Name = "main"
		tr := random(t, rand.New(rand.NewPCG(7, 7)), 150, false)
		a, b := play(t, tr, m, built(t, p), simulate.Options{}), play(t, tr, m, built(t, p), simulate.Options{})
		if !slices.Equal(a.Start, b.Start) {
			t.Errorf("%s: two replays differ", p)
		}
	}
}

// TestFairTree follows the example of Slurm's documentation: users of the account with less
// usage per share come first, whatever they have used themselves.
func TestFairTree(t *testing.T) {
	s := newShares([]machine.Account{{Name: "a", Shares: 60}, {Name: "b", Shares: 40}}, true, 1, 0)
	a1, a2, b1, b2 := s.leaf("a", "u1"), s.leaf("a", "u2"), s.leaf("b", "u1"), s.leaf("b", "u2")
	use := func(leaf int, usage float64) { s.change(leaf, usage, 0) }
	use(a1, 30)
	use(a2, 10)
	use(b1, 60)
	s.advance(1)
	// Account a has 0.6 of the shares and 0.4 of the usage; b has 0.4 and 0.6. In a, u2 has
	// used less.
	got := fmt.Sprint(s.factor(a1), s.factor(a2), s.factor(b1), s.factor(b2))
	if want := "0.75 1 0.25 0.5"; got != want {
		t.Errorf("factors %s, want %s", got, want)
	}
	// Users with equal usage have equal ranks.
	s = newShares(nil, true, 1, 0)
	x, y, z := s.leaf("a", "x"), s.leaf("a", "y"), s.leaf("a", "z")
	s.change(z, 1, 0)
	s.advance(1)
	if s.factor(x) != 1 || s.factor(y) != 1 || s.factor(z) != 1.0/3 {
		t.Errorf("factors %v %v %v", s.factor(x), s.factor(y), s.factor(z))
	}
}

func TestHalfLife(t *testing.T) {
	s := newShares(nil, false, 1, 10*trace.Second)
	a, b := s.leaf("", "a"), s.leaf("", "b")
	s.change(a, 1, 0)
	s.change(b, 1, 0)
	s.advance(10 * trace.Second)
	s.change(a, -1, 10*trace.Second)
	s.advance(20 * trace.Second)
	if ua, ub := s.nodes[a].usage, s.nodes[b].usage; ua != 5000 || ub != 15000 {
		t.Errorf("usage %v and %v, want 5000 and 15000", ua, ub)
	}
}
