package explain_test

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"premix/internal/watch"
	"premix/internal/watch/explain"
)

// curve is a simulated series of one value a second, with a level and a value in the
// planted time.
type curve struct {
	name        string
	unit        watch.Unit
	labels      []string
	usual, then float64
}

// loaded returns a machine of which ten tasks lose a third of their time to other work, with
// more series, and the window of one minute in whose second half the planted values hold.
func loaded(curves ...curve) (*simulated, explain.Window) {
	end := time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)
	w := explain.Window{Start: end.Add(-time.Minute), End: end}
	s := &simulated{now: end, first: end.Add(-time.Hour)}
	curves = append(curves, curve{"task.observed", watch.Count, nil, 10, 10}, curve{"task.lost", watch.Count, []string{"cause", "processor"}, 3, 3},
		curve{"node.program_cpu", watch.Cores, []string{"program", "others"}, 3, 3})
	seen := map[string]bool{}
	for i, c := range curves {
		id := watch.NewID(c.name, c.labels...)
		if seen[id.String()] { // the first of equal series counts
			continue
		}
		seen[id.String()] = true
		s.series = append(s.series, &wave{id: id, unit: c.unit, seed: uint64(i), interval: 1, level: c.usual, slow: 0.02 * c.usual, fast: 0.02 * c.usual,
			planted: func(t float64) float64 {
				if t < float64(end.Unix()-30) {
					return 0
				}
				return c.then - c.usual
			}})
	}
	return s, w
}

// The finding with the greatest cost comes first, with its kind and the program that took
// the resource.
func TestCosts(t *testing.T) {
	lost := func(cause string, then float64, labels ...string) curve {
		usual := 0.1
		if cause == "processor" {
			usual = 3
		}
		return curve{"task.lost", watch.Count, append([]string{"cause", cause}, labels...), usual, then}
	}
	disk := []string{"device", "sdb", "thing", "/scratch"}
	on := func(name string, unit watch.Unit, usual, then float64) curve {
		return curve{name, unit, []string{"device", "sdb"}, usual, then}
	}
	user := func(resource string, unit watch.Unit, then float64, more ...string) curve {
		return curve{"node.program_" + resource, unit, append([]string{"program", "culprit"}, more...), 0, then}
	}
	space := func(then float64) []curve {
		return []curve{{"mount.size", watch.Bytes, []string{"mount", "/scratch"}, 1e12, 1e12}, {"mount.available", watch.Bytes, []string{"mount", "/scratch"}, 5e11, then}}
	}
	for name, c := range map[string]struct {
		curves    []curve
		kind      explain.Kind // "": no finding
		thing, by string
		cost      float64 // seconds of tasks
	}{
		"busy, as ever":                        {},
		"busy, with programs that come and go": {curves: []curve{user("cpu", watch.Cores, 2), {"node.forks", watch.PerSecond, nil, 100, 3000}}},
		"waits without a taker":                {curves: []curve{lost("disk", 5, disk...)}},
		"another program": {[]curve{lost("processor", 7), user("cpu", watch.Cores, 8, "cgroup", "/others")},
			explain.Processor, "tasks", "culprit of cgroup /others", 120},
		"many short processes": {[]curve{lost("processor", 7), {"node.ended_cpu", watch.Cores, nil, 0.1, 2}, {"node.forks", watch.PerSecond, nil, 100, 3000}, user("forked_cpu", watch.Cores, 1.5)},
			explain.Forks, "tasks", "culprit", 120},
		"processor time that moves bytes": {[]curve{lost("processor", 7), user("cpu", watch.Cores, 2), {"network.sent_bytes", watch.BytesPerSecond, []string{"interface", "lo"}, 1e6, 2e9}},
			explain.Network, "network lo", "culprit", 120},
		"an interface": {[]curve{lost("network", 5), {"network.sent_bytes", watch.BytesPerSecond, []string{"interface", "eth0"}, 1e6, 1e8}},
			explain.Network, "network eth0", "", 147},
		"small files": {[]curve{lost("disk", 5, disk...), on("disk.writes", watch.PerSecond, 50, 3000), on("disk.written_bytes", watch.BytesPerSecond, 1e6, 2e7), user("bytes", watch.BytesPerSecond, 1e7, "device", "sdb")},
			explain.Metadata, "disk sdb", "culprit", 147},
		"large files": {[]curve{lost("disk", 5, disk...), on("disk.writes", watch.PerSecond, 50, 900), on("disk.written_bytes", watch.BytesPerSecond, 1e6, 5e8), user("bytes", watch.BytesPerSecond, 5e8, "device", "sdb"), user("memory", watch.Bytes, 9e9)},
			explain.Bandwidth, "disk sdb", "culprit", 147},
		"on another disk": {[]curve{lost("disk", 5, disk...), on("disk.writes", watch.PerSecond, 50, 900), on("disk.written_bytes", watch.BytesPerSecond, 1e6, 5e8), user("bytes", watch.BytesPerSecond, 5e8, "device", "sdc")},
			explain.Bandwidth, "disk sdb", "", 147},
		"a full disk": {append(space(1e9), lost("disk", 5, disk...), on("disk.written_bytes", watch.BytesPerSecond, 1e6, 5e7), user("bytes", watch.BytesPerSecond, 5e7, "device", "sdb")),
			explain.Full, "disk sdb", "culprit", 147},
		"memory": {[]curve{lost("memory", 5, "thing", "/sys/fs/cgroup/memory/box"), user("memory", watch.Bytes, 2e9, "cgroup", "/box"), {"node.program_memory", watch.Bytes, []string{"program", "elsewhere", "cgroup", "/other"}, 0, 9e9}},
			explain.Memory, "tasks", "culprit of cgroup /box", 147},
		"a server": {[]curve{lost("filesystem", 9, "thing", "/far")}, explain.Mount, "file system /far", "", 267},
		"a quota":  {[]curve{lost("quota", 5, "thing", "/sys/fs/cgroup/box")}, explain.Quota, "cgroup /sys/fs/cgroup/box", "", 147},
	} {
		t.Run(name, func(t *testing.T) {
			src, w := loaded(c.curves...)
			r, err := explain.Explain(context.Background(), src, w, explain.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if c.kind == "" {
				if len(r.Findings) > 0 {
					t.Errorf("it found %+v", r.Findings)
				}
				if r.Lost.Observed < 550 || r.Lost.Share < 0.25 {
					t.Errorf("the loss is not stated: %+v", r.Lost)
				}
				return
			}
			if len(r.Findings) == 0 {
				t.Fatalf("nothing found: %+v", r.Lost)
			}
			f := r.Findings[0]
			if f.Kind != c.kind || f.Thing != c.thing || f.By != c.by || math.Abs(f.CostSeconds-c.cost) > 0.1*c.cost {
				t.Errorf("%s on %q by %q, %.0f s, and not %s on %q by %q, %.0f s: %s", f.Kind, f.Thing, f.By, f.CostSeconds, c.kind, c.thing, c.by, c.cost, f.Sentence)
			}
			if off := f.Began.Sub(w.End.Add(-30 * time.Second)); off.Abs() > 3*time.Second {
				t.Errorf("it began %s off", off)
			}
			for _, n := range r.Notes {
				if n.CostSeconds > 0 {
					t.Errorf("a note with a cost: %s", n.Sentence)
				}
			}
		})
	}
}

// A loss is split between the programs that took the resource, in proportion.
func TestCostsAreSplit(t *testing.T) {
	src, w := loaded(curve{"task.lost", watch.Count, []string{"cause", "processor"}, 3, 7},
		curve{"node.program_cpu", watch.Cores, []string{"program", "large"}, 0, 3}, curve{"node.program_cpu", watch.Cores, []string{"program", "small"}, 0, 1},
		curve{"task.lost", watch.Count, []string{"cause", "filesystem", "thing", "/far"}, 0.1, 9})
	r, err := explain.Explain(context.Background(), src, w, explain.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	for _, f := range r.Findings {
		said = append(said, f.By)
	}
	if got := strings.Join(said, ","); got != ",large,small" {
		t.Fatalf("the order is %s", got)
	}
	if a, b := r.Findings[1].CostSeconds, r.Findings[2].CostSeconds; math.Abs(a/b-3) > 0.3 || math.Abs(a+b-120) > 12 {
		t.Errorf("%.0f s and %.0f s of 120 s", a, b)
	}
}

// Tries that fail on a full disk cost their time.
func TestFailingTasks(t *testing.T) {
	src, w := loaded(curve{"mount.size", watch.Bytes, []string{"mount", "/scratch"}, 1e12, 1e12}, curve{"mount.available", watch.Bytes, []string{"mount", "/scratch"}, 5e11, 1e8})
	for at := src.first; at.Before(w.End); at = at.Add(2 * time.Second) {
		src.tasks = append(src.tasks, watch.Task{Key: at.String(), Engine: "local", Began: at, End: at.Add(2 * time.Second), OK: at.Before(w.End.Add(-30 * time.Second))})
	}
	r, err := explain.Explain(context.Background(), src, w, explain.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Findings) != 1 || r.Findings[0].Kind != explain.Full || r.Findings[0].Thing != "file system /scratch" || math.Abs(r.Findings[0].CostSeconds-30) > 3 {
		t.Errorf("%+v", r.Findings)
	}
}

// Without observed tasks, the order is that in which series left their usual range.
func TestNoCosts(t *testing.T) {
	src, w := loaded(curve{"node.pressure", watch.Ratio, []string{"kind", "some", "resource", "io"}, 0.02, 0.9})
	src.series = slices.DeleteFunc(src.series, func(s *wave) bool { return s.id.Name == "task.observed" })
	r, err := explain.Explain(context.Background(), src, w, explain.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Findings) != 1 || r.Findings[0].Series.Name != "node.pressure" || r.Lost.Observed != 0 {
		t.Errorf("%+v", r)
	}
}

// The losses on one machine are not laid to programs of another one.
func TestCostsOfManyMachines(t *testing.T) {
	lost := func(node string, usual, then float64) []curve {
		return []curve{{"task.observed", watch.Count, []string{"node", node}, 10, 10}, {"task.lost", watch.Count, []string{"cause", "processor", "node", node}, usual, then}}
	}
	src, w := loaded(append(append(lost("a", 3, 7), lost("b", 3, 3)...),
		curve{"node.program_cpu", watch.Cores, []string{"program", "here", "node", "a"}, 0, 1}, curve{"node.program_cpu", watch.Cores, []string{"program", "there", "node", "b"}, 0, 30})...)
	r, err := explain.Explain(context.Background(), src, w, explain.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Findings) != 1 || r.Findings[0].By != "here" || r.Findings[0].Series.Label("node") != "a" || !strings.HasPrefix(r.Findings[0].Sentence, "a: ") {
		t.Errorf("%+v", r.Findings)
	}
	if r.Lost.Observed < 1700 || math.Abs(r.Lost.Share-0.37) > 0.03 {
		t.Errorf("of three machines, tasks lost %+v", r.Lost)
	}
}
