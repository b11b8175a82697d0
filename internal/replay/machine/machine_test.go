package machine

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"premix/internal/kit/exit"
	"premix/internal/replay/trace"
)

const cluster = `
name: cluster
pools:
- name: cpu
  nodes: [{count: 100, cores: 32, memory: 128G}, {count: 4, cores: 64, memory: 1T}]
  down:
  - {from: 10d, until: 10d8h, count: 20}
  - {from: 12d, until: 12d1h, failure: true}
- name: gpu
  share: nodes
  place: spread
  nodes: [{cores: 16}]
partitions:
- {name: normal, pool: cpu, limit: 7d, default: 1h}
- {name: high, pool: cpu, tier: 1, charge: 1.5, preempts: [scavenger]}
- {name: scavenger, pool: cpu, charge: 0, preempted: cancel}
- {name: gpu, pool: gpu}
qos:
- {name: long, charge: 2, user: {jobs: 4}}
accounts:
- {name: biology, shares: 60, users: {anna: 2}}
- {name: genomics, parent: biology}
overhead: 2s
kill: true
`

func TestParse(t *testing.T) {
	m, err := Parse([]byte(cluster))
	if err != nil {
		t.Fatal(err)
	}
	if m.Cores() != 100*32+4*64+16 || m.Nodes() != 105 {
		t.Errorf("%d cores, %d nodes", m.Cores(), m.Nodes())
	}
	cpu, gpu := m.Pools[0], m.Pools[1]
	if cpu.Whole() || cpu.Place != "pack" || cpu.Groups[0].Memory != 128*1024 || cpu.Groups[1].Memory != 1<<20 {
		t.Errorf("cpu is %+v", cpu)
	}
	if !gpu.Whole() || gpu.Groups[0].Count != 1 {
		t.Errorf("gpu is %+v", gpu)
	}
	if d := cpu.Down; d[0].Nodes != 20 || d[0].Until != Span(10*trace.Day+8*trace.Hour) || d[1].Nodes != 104 || !d[1].Failure {
		t.Errorf("down are %+v", d)
	}
	if !m.Preemption() || !m.Kill || m.Overhead != Span(2*trace.Second) {
		t.Errorf("got %+v", m)
	}
}

func TestParseRefuses(t *testing.T) {
	pool := "pools: [{name: a, nodes: [{cores: 4}]}]\n"
	tests := []struct{ text, says string }{
		{"", "pools: is missing"},
		{"pools: [{nodes: []}]", "pool pool1: nodes: is missing"},
		{"pools: [{nodes: [{cores: 0}]}]", "cores of at least 1"},
		{"pools: [{nodes: [{cores: 1, count: -1}]}]", "cores of at least 1"},
		{"pools: [{nodes: [{cores: 1, count: 2000000}]}]", "more than 1048576 nodes"},
		{"pools: [{name: a, nodes: [{cores: 1}]}, {name: a, nodes: [{cores: 1}]}]", "a stands there twice"},
		{"pools: [{nodes: [{cores: 1}], share: halves}]", "share: is cores or nodes, not halves"},
		{"pools: [{nodes: [{cores: 1}], place: left}]", "place: is any, pack, spread or adjacent, not left"},
		{"pools: [{nodes: [{cores: 1}], down: [{from: 2h, until: 1h}]}]", "until comes after from"},
		{"pools: [{nodes: [{cores: 1}], down: [{from: 1h, until: 2h, count: 2}]}]", "there are 1 nodes, not 2"},
		{pool + "partitions: [{name: p, pool: b}]", `there is no pool "b"`},
		{pool + "partitions: [{name: p}, {name: p}]", "p stands there twice"},
		{pool + "partitions: [{name: p, preempts: [q]}]", `there is no partition or QOS "q"`},
		{pool + "partitions: [{name: p, preempted: shot}]", "not shot"},
		{pool + "accounts: [{shares: 1}]", "one has no name"},
		{pool + "accounts: [{name: x}, {name: x}]", "x stands there twice"},
		{pool + "accounts: [{name: x, shares: -1}]", "at least 1"},
		{pool + "accounts: [{name: x, parent: y}]", `there is no parent "y"`},
		{pool + "accounts: [{name: x, parent: y}, {name: y, parent: x}]", "its own parent"},
		{pool + "overhead: soon", `line 2: "soon" is not a time`},
		{"pools:\n- nodes: [{cores: 1,\n    memory: many}]", `line 3: "many" is not a size`},
		{pool + "partitions:\n- {name: p}\n- name: q\n  pool: b\naccounts: [{}]", "line 5: partition q: there is no pool \"b\"\nline 6: accounts: one has no name"},
		{pool + "colour: blue", "line 2: unknown key colour"},
	}
	for _, tt := range tests {
		_, err := Parse([]byte(tt.text))
		if err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%q: got %v, want %q", tt.text, err, tt.says)
		}
	}
}

func TestReadNamesTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.yaml")
	_, err := Read(path)
	var e *exit.Error
	if !errors.As(err, &e) || !strings.Contains(e.Error(), path) || !strings.Contains(e.Hint(), "derived from the trace") {
		t.Errorf("no such file: %v", err)
	}
	if err := os.WriteFile(path, []byte("pools: []"), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path); !errors.As(err, &e) || !strings.Contains(e.Error(), path) || !strings.Contains(e.Hint(), "premix help replay") {
		t.Errorf("no pools: %v", err)
	}
}

func TestParseTime(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"0": 0, "90s": 90 * time.Second, "2h": 2 * time.Hour, "1d": 24 * time.Hour, "1d0": 24 * time.Hour, "1d12h": 36 * time.Hour, "1.5h": 90 * time.Minute,
	} {
		if got, err := ParseTime(text); err != nil || got != trace.FromDuration(want) {
			t.Errorf("%s: got %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "1", "d", "-1d", "1d-1h", "1.5d", "h", "1-12:00:00:00"} {
		if got, err := ParseTime(text); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}

// read parses jobs in the Standard Workload Format: submit, wait, run and cores.
func read(t *testing.T, header string, jobs ...[4]int) *trace.Trace {
	t.Helper()
	text := header
	for i, j := range jobs {
		text += strings.Join([]string{strconv.Itoa(i + 1), strconv.Itoa(j[0]), strconv.Itoa(j[1]), strconv.Itoa(j[2]), strconv.Itoa(j[3]), "-1 -1 -1 -1 -1 1 1 1 -1 1 1 -1 -1\n"}, " ")
	}
	tr, err := trace.Read(strings.NewReader(text), "test", int64(len(text)), trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func TestFromTrace(t *testing.T) {
	// Jobs 1 and 2 run at the same time. Job 3 begins at the moment when job 1 ends.
	jobs := [][4]int{{0, 0, 10, 4}, {1, 2, 20, 3}, {5, 5, 10, 2}}
	alone := [][4]int{{0, -1, 10, 4}, {1, -1, 20, 3}}
	tests := []struct {
		name  string
		t     *trace.Trace
		given int
		cores int
		how   string
	}{
		{"header", read(t, "; MaxProcs: 64\n", jobs...), 0, 64, "the header"},
		{"given", read(t, "; MaxProcs: 64\n", jobs...), 2, 2, "--cores"},
		{"peak", read(t, "", jobs...), 0, 7, "held at a time"},
		{"largest", read(t, "", alone...), 0, 4, "the largest job"},
		{"header too small", read(t, "; MaxProcs: 2\n", jobs...), 0, 4, "fewer cores than the largest job"},
	}
	for _, tt := range tests {
		m := FromTrace(tt.t, tt.given)
		if m.Cores() != tt.cores || !strings.Contains(m.Derived, tt.how) {
			t.Errorf("%s: %d cores from %q, want %d", tt.name, m.Cores(), m.Derived, tt.cores)
		}
	}
}

func TestCharger(t *testing.T) {
	text := "; Queue: 1 long\n; Queue: 2 short\n; Partition: 1 normal\n; Partition: 2 high\n; Partition: 3 scavenger\n"
	for i, q := range [][2]int{{1, 1}, {2, 1}, {2, 2}, {1, 3}} {
		text += strconv.Itoa(i+1) + " 0 0 1 1 -1 -1 -1 -1 -1 1 1 1 -1 " + strconv.Itoa(q[0]) + " " + strconv.Itoa(q[1]) + " -1 -1\n"
	}
	tr, err := trace.Read(strings.NewReader(text), "test", int64(len(text)), trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	m, err := Parse([]byte(cluster))
	if err != nil {
		t.Fatal(err)
	}
	charge := m.Charger(tr)
	for job, want := range []float64{2, 1, 1.5, 0} {
		if got := charge(int32(job)); got != want {
			t.Errorf("job %d: %g, want %g", job+1, got, want)
		}
	}
}
