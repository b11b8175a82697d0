package main

import (
	"context"
	"slices"
	"testing"
	"time"

	"premix/internal/testkit/figures"
)

// The loop, and the other contenders on this machine, run a command the requested number of
// times.
func TestContenders(t *testing.T) {
	b := newBenchmark(t, "loop,xargs,make")
	list, end, err := b.contenders()
	defer end()
	if err != nil || len(list) == 0 {
		t.Fatal(list, err)
	}
	for _, c := range list {
		if _, _, err := b.once(c, job{program: "true", path: "/bin/true", args: []string{"1"}, count: 5}); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if _, _, err := b.once(c, job{program: "false", path: "/bin/false", args: []string{"1"}, count: 1}); err == nil {
			t.Errorf("%s: a command that fails is not noticed", c.name)
		}
	}
}

func newBenchmark(t *testing.T, wanted string) *benchmark {
	return &benchmark{options: options{premix: "/no/such/premix", wanted: wanted, cores: 2}, ctx: context.Background(), work: t.TempDir(), cut: make(map[string]measured)}
}

// A contender that is too slow for all commands runs as many as fit into the bound, once,
// and is not run with more commands. premix and fast contenders run all commands.
func TestBound(t *testing.T) {
	b := newBenchmark(t, "")
	b.bound = time.Second
	results, err := figures.Open(b.path("results.jsonl"), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	defer results.Close()
	ran := make(map[string][]int)
	at := func(name string, each time.Duration) contender {
		return contender{name, func(j job) (float64, error) {
			ran[name] = append(ran[name], j.count)
			time.Sleep(time.Duration(j.count) * each)
			return 0, nil
		}}
	}
	list := []contender{at("premix", 0), at("fast", 0), at("slow", 10*time.Millisecond)}
	for _, count := range []int{1000, 2000} {
		if err := b.measure(results, "true", job{program: "true", count: count}, list, 2); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string][]int{"premix": {1000, 1000, 2000, 2000}, "fast": {20, 1000, 1000, 40, 2000, 2000}} {
		if !slices.Equal(ran[name], want) {
			t.Errorf("%s ran %v, not %v", name, ran[name], want)
		}
	}
	if got := ran["slow"]; len(got) < 2 || got[0] != 20 || slices.Max(got) > 100 {
		t.Errorf("the slow one ran %v", got)
	}
}
