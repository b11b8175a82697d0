package machine

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"premix/internal/replay/trace"
	"premix/internal/testkit/shortdir"
	"premix/internal/testkit/slurmtest"
)

// readText writes the texts to files and reads the first file as a machine.
func readText(t *testing.T, texts ...string) (*Machine, error) {
	t.Helper()
	dir := t.TempDir()
	for i, text := range texts {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("file%d", i)), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return Read(filepath.Join(dir, "file0"))
}

// shape returns the pools and partitions of a machine, one per line.
func shape(m *Machine) string {
	var b strings.Builder
	for _, p := range m.Pools {
		fmt.Fprintf(&b, "pool %s %s %s:", p.Name, p.Share, p.Place)
		for _, g := range p.Groups {
			fmt.Fprintf(&b, " %dx%d/%d", g.Count, g.Cores, g.Memory)
		}
		b.WriteByte('\n')
	}
	for _, p := range m.Partitions {
		fmt.Fprintf(&b, "partition %s in %s: limit %v, default %v, tier %d, priority %d", p.Name, p.Pool, trace.Time(p.Limit), trace.Time(p.Default), p.Tier, p.Priority)
		if p.Nodes != nil {
			fmt.Fprintf(&b, ", nodes %v", p.Nodes)
		}
		b.WriteByte('\n')
	}
	for _, n := range m.Notes {
		fmt.Fprintf(&b, "note %s\n", n)
	}
	return b.String()
}

const slurmText = `# a cluster
ClusterName=alpha
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
NodeName=DEFAULT Sockets=2 CoresPerSocket=16 RealMemory=128000
NodeName=n[001-040,050]  # as bought
NodeName=big[1-2]-ib ThreadsPerCore=2 RealMemory=1000000 MemSpecLimit=1000 \
  CoreSpecCount=1
NodeName=old[1-3] CPUs=8 State=DOWN Reason="no = longer here"
NodeSet=fat Nodes=big1-ib,big2-ib
Include file1
`

const slurmPartitions = `PartitionName=DEFAULT MaxTime=7-0 PriorityTier=1
PartitionName=normal Nodes=n[001-040],n050,old[1-3] Default=YES DefaultTime=60
PartitionName=quick Nodes=n[001-010] MaxTime=30:00 PriorityTier=5 PriorityJobFactor=10
PartitionName=fat Nodes=fat MaxTime=UNLIMITED OverSubscribe=EXCLUSIVE
`

func TestSlurmConf(t *testing.T) {
	m, err := readText(t, slurmText, slurmPartitions)
	if err != nil {
		t.Fatal(err)
	}
	const want = `pool normal cores adjacent: 41x32/128000
pool fat nodes adjacent: 2x62/999000
partition normal in normal: limit 168h0m0s, default 1h0m0s, tier 1, priority 0
partition quick in normal: limit 30m0s, default 0s, tier 5, priority 10, nodes [0 1 2 3 4 5 6 7 8 9]
partition fat in fat: limit 0s, default 0s, tier 1, priority 0
note nodes that are down in the file, and left out: 3
`
	if got := shape(m); got != want || m.Name != "alpha" || m.Derived != "file0" {
		t.Errorf("%s, %s:\n%s\nwant\n%s", m.Name, m.Derived, got, want)
	}
	// Memory is not a resource here, and nodes are not shared.
	m, err = readText(t, "NodeName=n[1-4] Procs=4 RealMemory=1000\nSelectType=select/linear\nPartitionName=a Nodes=ALL\n")
	if err != nil || shape(m) != "pool a nodes adjacent: 4x4/0\npartition a in a: limit 0s, default 0s, tier 0, priority 0\n" {
		t.Errorf("%v, %v", m, err)
	}
	for text, want := range map[string]string{
		"NodeName=n[1-4 CPUs=1\n":                                `line 1: "n[1-4" is not a list of nodes`,
		"NodeName=n1 CPUs=many\n":                                "line 1: cpus=many is not a number",
		"NodeName=n1\nNodeName=n[1-2]\nPartitionName=a Nodes=n1": "line 2: node n1 stands there twice",
		"NodeName=n1\nPartitionName=a Nodes=n1,n2":               "line 2: there is no node n2",
		"NodeName=n1\nPartitionName=a Nodes=n1 MaxTime=soon":     "line 2: maxtime=soon is not understood",
		"NodeName=n1\nInclude file7\nPartitionName=a Nodes=n1":   "line 2: open ",
		"NodeName=n1\nInclude file0\nPartitionName=a Nodes=n1":   "more than 8 files include one another",
		"NodeName=n1 State=DOWN\nPartitionName=a Nodes=n1":       "it has no node that can run jobs",
		"NodeName=n1\nNodeSet=g Feature=gpu\n":                   "line 2: a NodeSet of a feature is not supported",
	} {
		if m, err := readText(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v, want %q", text, m, err, want)
		}
	}
}

func TestSinfo(t *testing.T) {
	const rows = `PARTITION|NODELIST|CPUS|MEMORY|STATE|TIMELIMIT|DEFAULTTIME
normal*|n001|32|128000|allocated|7-00:00:00|1:00:00
normal*|n002|32|128000|mixed-|7-00:00:00|1:00:00
normal*|n003|32|128000|drained*|7-00:00:00|1:00:00
quick|n001|32|128000|allocated|30:00|n/a
fat|big[1-2]|64|999000|idle~|infinite|n/a
`
	const want = `pool normal cores adjacent: 2x32/128000
pool fat cores adjacent: 2x64/999000
partition normal in normal: limit 168h0m0s, default 1h0m0s, tier 0, priority 0
partition quick in normal: limit 30m0s, default 0s, tier 0, priority 0, nodes [0]
partition fat in fat: limit 0s, default 0s, tier 0, priority 0
note sinfo does not say whether jobs have whole nodes, nor the tiers and priorities of partitions: slurm.conf does
note nodes that are down in the file, and left out: 1
`
	for name, text := range map[string]string{"delimiters": rows, "spaces": "Tue Nov 24 12:00:00 2026\n" + strings.ReplaceAll(rows, "|", "   ")} {
		m, err := readText(t, text)
		if err != nil || shape(m) != want {
			t.Errorf("%s: %v\n%s\nwant\n%s", name, err, shape(m), want)
		}
	}
	for text, want := range map[string]string{
		"PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\nnormal* up infinite 2 idle n[1-2]\n": "there is no column CPUS",
		"PARTITION NODELIST CPUS\nnormal n[1-2] 32+\n":                                           `CPUS is "32+", which is not one number of cores`,
		"PARTITION NODELIST CPUS\nnormal n1 32\nfat n1 64\n":                                     "line 3: node n1 differs from an earlier line",
	} {
		if _, err := readText(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestNodeLists(t *testing.T) {
	m, err := readText(t, "pools: [{nodes: [{names: 'n[01-40,60],x[1-2]y[1-3]', cores: 4}]}]\n")
	if err != nil || m.Nodes() != 47 || m.Cores() != 188 {
		t.Errorf("%+v, %v", m, err)
	}
	if _, err := readText(t, "pools: [{nodes: [{names: 'n[01-40]', count: 4, cores: 4}]}]\n"); err == nil || !strings.Contains(err.Error(), "names: has 40 nodes, and count is 4") {
		t.Error(err)
	}
	names, err := expandHosts("x[1-2]y[08-10],z")
	if want := "[x1y08 x1y09 x1y10 x2y08 x2y09 x2y10 z]"; err != nil || fmt.Sprint(names) != want {
		t.Errorf("%v, %v, want %s", names, err, want)
	}
}

// TestOfSlurm reads the configuration of a running Slurm and the output of its sinfo.
func TestOfSlurm(t *testing.T) {
	if list := slurmtest.Missing(false); len(list) > 0 {
		t.Skipf("there is no %s: scripts/setup.sh test installs it", strings.Join(list, ", "))
	}
	box, err := slurmtest.Start(shortdir.New(t), slurmtest.Options{Nodes: 3, CPUs: 2, Memory: 4000})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := box.Stop(); err != nil {
			t.Error(err)
		}
	}()
	if err := box.AwaitIdle(); err != nil {
		t.Fatal(err)
	}
	conf, err := Read(box.Conf())
	if err != nil {
		t.Fatal(err)
	}
	text, err := box.Run("sinfo", "-N", "-o", "%P|%N|%c|%m|%T|%l|%L")
	if err != nil {
		t.Fatal(err)
	}
	long, err := box.Run("sinfo", "-N", "--long")
	if err != nil {
		t.Fatal(err)
	}
	for name, m := range map[string]func() (*Machine, error){"slurm.conf": func() (*Machine, error) { return conf, nil },
		"sinfo -o": func() (*Machine, error) { return readText(t, text) }, "sinfo --long": func() (*Machine, error) { return readText(t, long) }} {
		m, err := m()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if m.Nodes() != 3 || m.Cores() != 6 || len(m.Pools) != 1 || len(m.Partitions) != len(conf.Partitions) || m.Partitions[0].Name != conf.Partitions[0].Name {
			t.Errorf("%s: %s", name, shape(m))
		}
	}
}
