package pilot

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"premix/internal/record"
)

func needs(n int, key string) []Requirements {
	list := make([]Requirements, n)
	for i := range list {
		list[i] = Requirements{Task: i + 1, Key: key, Cores: 1}
	}
	return list
}

// all checks that shares contain the tasks 1 to n, each once.
func all(t *testing.T, shares []Share, n int) {
	t.Helper()
	seen := make(map[int]bool)
	for _, s := range shares {
		for _, r := range s.Ranges {
			for task := r[0]; task <= r[1]; task++ {
				if seen[task] {
					t.Errorf("task %d is in two shares", task)
				}
				seen[task] = true
			}
		}
	}
	if len(seen) != n {
		t.Errorf("%d tasks of %d are in shares", len(seen), n)
	}
}

func TestSharesOfUnknownTasksAreSpread(t *testing.T) {
	p := &packing{cores: 2, target: time.Minute, jobs: 8, room: 8, times: newTimes()}
	list := p.shares(needs(1000, "a"))
	if len(list) != 8 {
		t.Fatalf("%d shares", len(list))
	}
	all(t, list, 1000)
	for _, s := range list {
		if n := s.Tasks(); n < 100 || n > 150 {
			t.Errorf("a share of %d tasks", n)
		}
	}
	// With few tasks, each job has a task for each of its cores.
	if list := p.shares(needs(5, "a")); len(list) != 3 {
		t.Errorf("5 tasks for jobs of 2 cores: %v", list)
	}
}

func TestSharesOfKnownTasks(t *testing.T) {
	for _, c := range []struct {
		name     string
		seconds  float64
		tasks    int
		shares   int
		assigned int
	}{
		{"short ones go into one job", 0.01, 1000, 1, 1000},
		{"as long as is worth a job", 1, 100, 3, 100},
		{"spread over all jobs", 10, 400, 8, 400},
		{"as much as the target allows", 100, 1000, 8, 48},
	} {
		p := &packing{cores: 2, target: 5 * time.Minute, jobs: 8, room: 8, times: newTimes()}
		p.times.add("a", &record.Task{Seconds: c.seconds})
		list := p.shares(needs(c.tasks, "a"))
		if len(list) != c.shares {
			t.Errorf("%s: %d shares, want %d", c.name, len(list), c.shares)
		}
		all(t, list, c.assigned)
	}
}

func TestSharesByClass(t *testing.T) {
	p := &packing{cores: 4, target: time.Minute, jobs: 8, room: 8, times: newTimes()}
	list := p.shares([]Requirements{{Task: 1, Cores: 1}, {Task: 2, Cores: 8}, {Task: 3, Cores: 2, Memory: 1 << 30}, {Task: 4, Cores: 1, Ask: "qos=high"}, {Task: 5, Cores: 2, Resources: "gpu=1"}, {Task: 6, Cores: 2, Resources: "gpu=2"}, {Task: 7, Cores: 2, Resources: "gpu=1"}})
	all(t, list, 7)
	// A job has the resources of one task, and no idle cores.
	want := []class{{cores: 4}, {cores: 8}, {cores: 4, memory: 2 << 30}, {cores: 4, ask: "qos=high"}, {cores: 2, resources: "gpu=1"}, {cores: 2, resources: "gpu=1"}, {cores: 2, resources: "gpu=2"}}
	for i, s := range list {
		if s.class() != want[i] {
			t.Errorf("share %d asks for %+v", i, s.class())
		}
	}
	if n := len(waves(list)); n != 6 {
		t.Errorf("%d waves", n)
	}
}

func TestStruckTasksAreHalved(t *testing.T) {
	p := &packing{cores: 1, target: time.Minute, jobs: 8, room: 8, times: newTimes(), strikes: make(map[int]strike)}
	for task := 1; task <= 6; task++ {
		p.strikes[task] = strike{limit: 3}
	}
	p.strikes[7] = strike{limit: 1, alone: 1}
	list := p.shares(needs(8, "a"))
	all(t, list, 8)
	want := [][][2]int{{{1, 3}}, {{4, 6}}, {{7, 7}}, {{8, 8}}}
	for i, s := range list {
		if !reflect.DeepEqual(s.Ranges, want[i]) {
			t.Errorf("share %d has %v, want %v", i, s.Ranges, want[i])
		}
	}
	if list[2].Strikes != 1 {
		t.Errorf("strikes %d", list[2].Strikes)
	}
}

// A ledger that is cut at any byte is the ledger of an earlier moment, and can be continued.
func TestLedgerCutAnywhere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.jsonl")
	l := &ledger{path: path, version: "v1"}
	share := func(worker int) Share {
		return Share{Worker: worker, WorkerSlot: 1, Ranges: [][2]int{{worker, worker}}}
	}
	for _, e := range []*Entry{
		{Event: eventWave, Wave: 1, Engine: "slurm", Token: "a", Shares: []Share{share(1)}},
		{Event: eventSubmitted, Wave: 1, Jobs: []string{"7_0"}},
		{Event: eventClosed, Worker: 1, Reason: "it is over"},
		{Event: eventWave, Wave: 2, Engine: "slurm", Token: "b", Shares: []Share{share(2)}},
		{Event: eventDrain},
	} {
		if err := l.append(e); err != nil {
			t.Fatal(err)
		}
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(l.open()) != 1 || l.workers[0].job != "7_0" || !l.drain {
		t.Fatalf("%+v", l)
	}
	for cut := range len(whole) + 1 {
		if err := os.WriteFile(path, whole[:cut], 0o644); err != nil {
			t.Fatal(err)
		}
		l := &ledger{path: path, version: "v1"}
		if err := l.read(); err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		n := len(l.workers)
		if err := l.append(&Entry{Event: eventWave, Wave: len(l.waves) + 1, Engine: "slurm", Shares: []Share{share(n + 1)}}); err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		again := &ledger{path: path}
		if err := again.read(); err != nil || len(again.workers) != n+1 || again.drain {
			t.Fatalf("cut at %d: %v, %d workers", cut, err, len(again.workers))
		}
		if err := l.close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestParseOptions(t *testing.T) {
	var o Options
	rest, err := o.ParseOptions([]string{"jobs=4", "cores=2", "memory=2G", "target=90s", "partition=short", "sbatch=--nice=5"})
	if err != nil || o.Jobs != 4 || o.Cores != 2 || o.Memory != 2<<30 || o.Target != 90*time.Second {
		t.Errorf("%+v, %v", o, err)
	}
	if want := map[string]string{"partition": "short", "sbatch": "--nice=5"}; !reflect.DeepEqual(rest, want) {
		t.Errorf("%v", rest)
	}
	for _, bad := range []string{"jobs", "=1", "jobs=0", "memory=x", "target=x"} {
		if _, err := o.ParseOptions([]string{bad}); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}

// After a cut at any byte the ledger consists of the entries that were complete before the cut, and
// can be continued.
func TestEveryCutOfTheLedger(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.jsonl")
	l := &ledger{path: path, version: "v1"}
	for _, e := range []*Entry{
		{Event: eventWave, Wave: 1, Engine: "x", Token: "a", Shares: []Share{{Worker: 1, WorkerSlot: 1, Ranges: [][2]int{{1, 5}}}, {Worker: 2, WorkerSlot: 2, Ranges: [][2]int{{6, 9}}}}},
		{Event: eventSubmitted, Wave: 1, Jobs: []string{"1_0", "1_1"}},
		{Event: eventClosed, Worker: 1, Reason: "it ended"},
	} {
		if err := l.append(e); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.close(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for cut := range len(text) + 1 {
		if err := os.WriteFile(path, text[:cut], 0o644); err != nil {
			t.Fatal(err)
		}
		lines := bytes.Count(text[:cut], []byte("\n"))
		l := &ledger{path: path, version: "v1"}
		if err := l.read(); err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		want := map[int]int{0: 0, 1: 0, 2: 2, 3: 2, 4: 1}[lines]
		if n := len(l.open()); n != want {
			t.Fatalf("cut at %d, after %d lines: %d workers are open", cut, lines, n)
		}
		if err := l.append(&Entry{Event: eventDrain}); err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		again := &ledger{path: path}
		if err := errors.Join(again.read(), l.close()); err != nil || !again.drain || len(again.open()) != want {
			t.Fatalf("cut at %d, gone on with: %v, drain %v, %d open", cut, err, again.drain, len(again.open()))
		}
	}
}
