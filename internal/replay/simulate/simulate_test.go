package simulate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"premix/internal/kit/exit"
	"premix/internal/replay/freecapacity"
	"premix/internal/replay/machine"
	"premix/internal/replay/trace"
)

func TestHeapSorts(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var h heap
	var want []event
	push := func() {
		e := event{at: trace.Time(rng.IntN(20)), kind: kind(rng.IntN(int(wakes) + 1)), arg: int32(rng.IntN(5))}
		h.push(e)
		want = append(want, e)
	}
	for range 2000 {
		if len(want) == 0 || rng.IntN(5) < 3 {
			push()
			continue
		}
		got := h.pop()
		first := slices.MinFunc(want, func(a, b event) int {
			if a.before(&b) {
				return -1
			}
			if b.before(&a) {
				return 1
			}
			return 0
		})
		if got != first {
			t.Fatalf("popped %+v, want %+v", got, first)
		}
		at := slices.Index(want, got)
		want = slices.Delete(want, at, at+1)
	}
}

// scripted is a policy whose schedule is a function of the test. queue contains the waiting
// jobs.
type scripted struct {
	c        *Cluster
	queue    []int32
	gone     []string
	changed  int
	schedule func(p *scripted) error
}

func (p *scripted) Name() string           { return "scripted" }
func (p *scripted) LooksAhead() bool       { return false }
func (p *scripted) Begin(c *Cluster) error { p.c = c; return nil }
func (p *scripted) Queued(job int32)       { p.queue = append(p.queue, job) }
func (p *scripted) Changed()               { p.changed++ }
func (p *scripted) Schedule() error        { return p.schedule(p) }
func (p *scripted) Given(int32)            {}

func (p *scripted) Gone(job int32, early bool) {
	p.gone = append(p.gone, fmt.Sprintf("%d at %g early %t", job, p.c.Now().Seconds(), early))
}

// whatFits starts all jobs that fit.
func whatFits(p *scripted) error {
	var err error
	p.queue = slices.DeleteFunc(p.queue, func(job int32) bool {
		if err != nil || p.c.Held(job) || !p.c.Fits(job) {
			return false
		}
		err = p.c.Start(job)
		return err == nil
	})
	return err
}

// read parses jobs: submit, run, cores and asked. Times are in seconds.
func read(t *testing.T, jobs ...[4]int) *trace.Trace {
	t.Helper()
	var b strings.Builder
	for i, j := range jobs {
		fmt.Fprintf(&b, "%d %d 0 %d %d -1 -1 -1 %d -1 1 1 1 -1 1 1 -1 -1\n", i+1, j[0], j[1], j[2], j[3])
	}
	tr, err := trace.Read(strings.NewReader(b.String()), "test", int64(b.Len()), trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func parse(t *testing.T, text string) *machine.Machine {
	t.Helper()
	m, err := machine.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

const two = "pools: [{nodes: [{count: 2, cores: 1}], place: any}]\n"

func TestPolicyIsToldWhatHappens(t *testing.T) {
	// The first job ends before its estimate, and the second one overruns it.
	tr := read(t, [4]int{0, 10, 1, 20}, [4]int{0, 90, 1, 30}, [4]int{5, 10, 1, 10})
	p := &scripted{schedule: whatFits}
	s, err := Run(context.Background(), tr, parse(t, two), p, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"0 at 10 early true", "2 at 20 early false", "1 at 90 early false"}; !slices.Equal(p.gone, want) {
		t.Errorf("gone: %q, want %q", p.gone, want)
	}
	if s.Overran != 1 || p.changed == 0 {
		t.Errorf("%d overran, %d changes told", s.Overran, p.changed)
	}
	if got := s.Start[2]; got != 10*trace.Second {
		t.Errorf("the third job began at %v", got)
	}
}

func TestLimitsHoldBack(t *testing.T) {
	tr := read(t, [4]int{0, 10, 1, 10}, [4]int{0, 10, 1, 10})
	for text, second := range map[string]trace.Time{
		"":                   0,
		"user: {jobs: 1}":    10 * trace.Second,
		"user: {cores: 1}":   10 * trace.Second,
		"account: {jobs: 1}": 10 * trace.Second,
	} {
		s, err := Run(context.Background(), tr, parse(t, two+text), &scripted{schedule: whatFits}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if s.Start[0] != 0 || s.Start[1] != second {
			t.Errorf("%q: begun at %v", text, s.Start)
		}
	}
}

// A job whose nodes fail starts again, and the work before that is lost.
func TestFailure(t *testing.T) {
	tr := read(t, [4]int{0, 100, 2, 100})
	m := parse(t, "pools: [{nodes: [{count: 2, cores: 1}], place: any, down: [{from: 30s, until: 50s, count: 1, failure: true}]}]")
	s, err := Run(context.Background(), tr, m, &scripted{schedule: whatFits}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if s.Failures != 1 || s.Lost[0] != 30*trace.Second || s.Start[0] != 50*trace.Second || s.End[0] != 150*trace.Second {
		t.Errorf("got %+v", s)
	}
	if s.Ran(0) != 100*trace.Second || s.Wait(0) != 50*trace.Second {
		t.Errorf("it ran %v and waited %v", s.Ran(0), s.Wait(0))
	}
}

// A policy that starts a job that cannot run, or never starts one, gets an error.
func TestPolicyAtFault(t *testing.T) {
	tr := read(t, [4]int{0, 10, 2, 10}, [4]int{1, 10, 1, 10})
	_, err := Run(context.Background(), tr, parse(t, two), &scripted{schedule: func(*scripted) error { return nil }}, Options{})
	var stuck *StuckError
	if !errors.As(err, &stuck) || stuck.Jobs != 2 || stuck.First != 1 || stuck.Hint() == "" {
		t.Errorf("nothing is started: %v", err)
	}
	_, err = Run(context.Background(), tr, parse(t, two), &scripted{schedule: func(p *scripted) error {
		for _, job := range p.queue {
			if err := p.c.Start(job); err != nil {
				return err
			}
		}
		p.queue = nil
		return nil
	}}, Options{})
	var start *exit.Error
	if !errors.As(err, &start) || start.Hint() == "" || !strings.Contains(err.Error(), "wants to start job") {
		t.Errorf("more is started than fits: %v", err)
	}
	over, cancel := context.WithCancel(context.Background())
	cancel()
	var many [][4]int
	for i := range 3000 {
		many = append(many, [4]int{i, 1, 1, 1})
	}
	if _, err := Run(over, read(t, many...), parse(t, two), &scripted{schedule: whatFits}, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}

// TestGiven: job 1 ran, on node n2, before the log has all jobs; job 2 waited then. The policy
// decides on job 2, from then on, and on job 3.
func TestGiven(t *testing.T) {
	const text = `JobID|Partition|User|Submit|Start|End|Elapsed|State|NNodes|NCPUS|NodeList
1|p|anna|2024-01-01T00:00:00|2024-01-01T00:00:10|2024-01-01T00:00:50|00:00:40|COMPLETED|1|2|n2
2|p|anna|2024-01-01T00:00:05|2024-01-01T00:01:00|2024-01-01T00:02:00|00:01:00|COMPLETED|1|2|n1
3|p|anna|2024-01-01T00:01:05|2024-01-01T00:02:00|2024-01-01T00:02:20|00:00:20|COMPLETED|1|2|n1
`
	tr, err := trace.Read(strings.NewReader(text), "test", int64(len(text)), trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var taken []freecapacity.Share
	p := &scripted{schedule: func(p *scripted) error {
		if p.c.State(0) == Running {
			taken = p.c.Rooms[0].(*freecapacity.NodePool).Shares(0)
		}
		return whatFits(p)
	}}
	m := machine.FromTrace(tr, 0)
	m.Pools[0].Drains = []machine.Drain{{Node: 0, Cores: 2, From: 0, Until: 55 * trace.Second}, {Node: 1, Cores: 2, From: 52 * trace.Second, Until: 200 * trace.Second}}
	s, err := Run(context.Background(), tr, m, p, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(taken) != 1 || taken[0].Node != 1 {
		t.Errorf("job 1 has %+v, want the second node", taken)
	}
	// At 50 s only the second node is free. That it takes no job from 52 s on is not known.
	if want := []trace.Time{10 * trace.Second, 50 * trace.Second, 65 * trace.Second}; !slices.Equal(s.Start, want) {
		t.Errorf("starts %v, want %v", s.Start, want)
	}
	if s.Eligible[1] != 5*trace.Second || len(s.Given) != 1 || !s.Given[0] {
		t.Errorf("job 2 eligible at %v, given %v", s.Eligible[1], s.Given)
	}
	if len(p.gone) == 0 || !strings.HasPrefix(p.gone[0], "0 at 50") {
		t.Errorf("gone: %v", p.gone)
	}
}

func TestRecorded(t *testing.T) {
	text := "1 0 5 10 1 -1 -1 -1 10 -1 1 1 1 -1 1 1 -1 -1\n" +
		"2 3 14 10 1 -1 -1 -1 10 -1 1 1 1 -1 1 1 1 0\n" +
		"3 4 0 10 1 -1 -1 -1 10 -1 1 1 1 -1 1 1 -1 -1\n"
	read := func(text string) *trace.Trace {
		tr, err := trace.Read(strings.NewReader(text), "test", int64(len(text)), trace.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return tr
	}
	s, err := Recorded(read(text))
	if err != nil {
		t.Fatal(err)
	}
	for job, want := range []struct{ eligible, start, end trace.Time }{{0, 5, 15}, {15, 17, 27}, {4, 4, 14}} {
		if s.Eligible[job] != want.eligible*trace.Second || s.Start[job] != want.start*trace.Second || s.End[job] != want.end*trace.Second {
			t.Errorf("job %d: eligible at %v, from %v to %v, want %v", job+1, s.Eligible[job], s.Start[job], s.End[job], want)
		}
	}
	_, err = Recorded(read(text + "4 5 -1 10 1 -1 -1 -1 10 -1 1 1 1 -1 1 1 -1 -1\n"))
	var e *UnrecordedError
	if !errors.As(err, &e) || e.First != 4 || e.Missing != 1 || e.Hint() == "" {
		t.Errorf("got %v", err)
	}
}
