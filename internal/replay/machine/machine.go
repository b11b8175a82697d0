package machine

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"gopkg.in/yaml.v3"

	"premix/internal/kit/exit"
	"premix/internal/kit/problem"
	"premix/internal/kit/units"
	"premix/internal/replay/trace"
)

// Machine is a machine for jobs.
type Machine struct {
	Name       string      `yaml:"name" json:"name"`
	Pools      []Pool      `yaml:"pools" json:"pools"`
	Partitions []Partition `yaml:"partitions" json:"partitions"`
	QOS        []QOS       `yaml:"qos" json:"qos,omitempty"`
	Accounts   []Account   `yaml:"accounts" json:"accounts,omitempty"`
	User       Limit       `yaml:"user" json:"user,omitzero"`       // of each user
	Account    Limit       `yaml:"account" json:"account,omitzero"` // of each account
	Overhead   Span        `yaml:"overhead" json:"overhead,omitempty"`
	Kill       bool        `yaml:"kill" json:"kill"` // jobs end at their limit; otherwise they run for their recorded time

	Derived string   `yaml:"-" json:"derived,omitempty"` // how it was derived from the trace, or from a file of Slurm
	Notes   []string `yaml:"-" json:"notes,omitempty"`   // properties in a file of Slurm that differ here
}

// Pool is a set of nodes.
type Pool struct {
	Name   string   `yaml:"name" json:"name"`
	Groups []Node   `yaml:"nodes" json:"nodes"`
	Share  string   `yaml:"share" json:"share"` // cores or nodes
	Place  string   `yaml:"place" json:"place"` // any, pack, spread or adjacent
	Down   []Outage `yaml:"down" json:"down,omitempty"`
	Drains []Drain  `yaml:"-" json:"-"`

	Names []string `yaml:"-" json:"-"` // of its nodes; nil: they have none
}

// Node is a number of equal nodes.
type Node struct {
	Count  int    `yaml:"count" json:"count"`
	Names  string `yaml:"names" json:"names,omitempty"` // a list as in n[01-40,60], instead of the count
	Cores  int    `yaml:"cores" json:"cores"`
	Memory Size   `yaml:"memory" json:"memory,omitempty"` // of a node; 0: unlimited
}

// Outage is a time in which nodes cannot be used.
type Outage struct {
	From    Span `yaml:"from" json:"from"` // since the begin of the trace
	Until   Span `yaml:"until" json:"until"`
	Nodes   int  `yaml:"count" json:"count"`     // 0: all
	Failure bool `yaml:"failure" json:"failure"` // unknown in advance
}

// Drain is a time in which jobs cannot have some cores and memory of a node. Jobs that have
// them keep them.
type Drain struct {
	Node        int32 // index in the pool
	Cores       int32
	Memory      Size
	From, Until trace.Time
}

// Partition is a partition, to which jobs are submitted.
type Partition struct {
	Name     string   `yaml:"name" json:"name"`
	Pool     string   `yaml:"pool" json:"pool"`
	Tier     int      `yaml:"tier" json:"tier,omitempty"`
	Priority int      `yaml:"priority" json:"priority,omitempty"` // of the multifactor policy
	Limit    Span     `yaml:"limit" json:"limit,omitempty"`       // longest time that a job may request
	Default  Span     `yaml:"default" json:"default,omitempty"`   // for jobs that do not request a time
	Charge   *float64 `yaml:"charge" json:"charge,omitempty"`
	Preempt  `yaml:",inline"`

	Nodes []int32 `yaml:"-" json:"-"` // indexes of the nodes of the pool that its jobs may have; nil: all
}

// QOS is a quality of service.
type QOS struct {
	Name     string   `yaml:"name" json:"name"`
	Tier     int      `yaml:"tier" json:"tier,omitempty"`
	Priority int      `yaml:"priority" json:"priority,omitempty"`
	Charge   *float64 `yaml:"charge" json:"charge,omitempty"`
	User     Limit    `yaml:"user" json:"user,omitzero"` // of each user, in this QOS
	Preempt  `yaml:",inline"`
}

// Preempt describes which jobs make others end.
type Preempt struct {
	Preempts  []string `yaml:"preempts" json:"preempts,omitempty"`   // names of partitions or QOS
	Preempted string   `yaml:"preempted" json:"preempted,omitempty"` // effect on a preempted job
}

// The effects on a preempted job.
const (
	Requeue = "requeue" // it waits again, and starts from the beginning; the default
	Cancel  = "cancel"  // it ends
	Resume  = "resume"  // it waits again, and continues where it was
)

// Limit bounds running jobs. 0 is unlimited.
type Limit struct {
	Jobs  int `yaml:"jobs" json:"jobs,omitempty"`
	Cores int `yaml:"cores" json:"cores,omitempty"`
}

// Account is an account in Slurm's tree of shares.
type Account struct {
	Name   string         `yaml:"name" json:"name"`
	Parent string         `yaml:"parent" json:"parent,omitempty"`
	Shares int            `yaml:"shares" json:"shares,omitempty"` // 0: 1
	Users  map[string]int `yaml:"users" json:"users,omitempty"`   // shares; those not named have 1
}

// Span is a length of time in YAML: as in 90s, 2h or 1d12h.
type Span trace.Time

func (s *Span) UnmarshalYAML(n *yaml.Node) error {
	v, err := ParseTime(n.Value)
	if err != nil {
		return fmt.Errorf("line %d: %w", n.Line, err)
	}
	*s = Span(v)
	return nil
}

// MarshalJSON writes seconds.
func (s Span) MarshalJSON() ([]byte, error) {
	return strconv.AppendFloat(nil, trace.Time(s).Seconds(), 'f', -1, 64), nil
}

// ParseTime parses a length of time.
func ParseTime(text string) (trace.Time, error) {
	d, err := units.ParseDelay(text)
	if err != nil {
		return 0, fmt.Errorf("%w: %s", err, units.TimeHint)
	}
	return trace.FromDuration(d), nil
}

// Size is an amount of memory in MiB.
type Size int64

func (s *Size) UnmarshalYAML(n *yaml.Node) error {
	v, err := units.ParseMemory(n.Value)
	if err != nil {
		return fmt.Errorf("line %d: %w: %s", n.Line, err, units.SizeHint)
	}
	*s = Size(v >> 20)
	return nil
}

// Read reads a machine file: YAML, a slurm.conf, or an output of sinfo.
func Read(path string) (*Machine, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		var p *os.PathError
		if errors.As(err, &p) {
			err = p.Err
		}
		return nil, exit.Errorf(exit.Usage, "without --machine it is derived from the trace", "machine %s: %w", path, err)
	}
	var m *Machine
	switch {
	case looksSlurm(b):
		m, err = parseSlurm(path, b)
	case looksSinfo(b):
		m, err = parseSinfo(path, b)
	default:
		m, err = Parse(b)
	}
	if err != nil {
		return nil, exit.Errorf(exit.Usage, "premix help replay describes the file", "machine %s: %w", path, err)
	}
	return m, nil
}

// Parse parses a machine. The error lists all mistakes, each with its line.
func Parse(b []byte) (*Machine, error) {
	m := &Machine{}
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	if err := dec.Decode(m); err != nil && err != io.EOF {
		return nil, errors.New(problem.Words(err))
	}
	c := checker{}
	if err := yaml.Unmarshal(b, &c.root); err != nil {
		return nil, err
	}
	c.machine(m)
	if err := errors.Join(c.problems...); err != nil {
		return nil, err
	}
	return m, nil
}

// HasParts reports whether the jobs of a partition may use only a part of the nodes of a
// pool.
func (m *Machine) HasParts(pool string) bool {
	for _, p := range m.Partitions {
		if p.Pool == pool && p.Nodes != nil {
			return true
		}
	}
	return false
}

// Whole reports whether jobs have nodes to themselves.
func (p *Pool) Whole() bool { return p.Share == "nodes" }

// Cores returns the number of cores of a pool, and Nodes the number of its nodes.
func (p *Pool) Cores() (n int) {
	for _, g := range p.Groups {
		n += g.Count * g.Cores
	}
	return n
}

func (p *Pool) Nodes() (n int) {
	for _, g := range p.Groups {
		n += g.Count
	}
	return n
}

// Cores returns the number of all cores, and Nodes the number of all nodes.
func (m *Machine) Cores() (n int) {
	for i := range m.Pools {
		n += m.Pools[i].Cores()
	}
	return n
}

func (m *Machine) Nodes() (n int) {
	for i := range m.Pools {
		n += m.Pools[i].Nodes()
	}
	return n
}

// maxNodes bounds a machine, so that a mistyped number is an error and does not fill the
// memory.
const maxNodes = 1 << 20

// checker checks a machine, and sets defaults.
type checker struct {
	root     yaml.Node
	problems []error
}

// bad adds a mistake at a place in the file: keys of mappings and indexes in lists, as far
// as they exist.
func (c *checker) bad(at []any, format string, args ...any) {
	n := &c.root
	if n.Kind == yaml.DocumentNode && len(n.Content) > 0 {
		n = n.Content[0]
	}
	for _, step := range at {
		next := n
		switch step := step.(type) {
		case string:
			for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
				if n.Content[i].Value == step {
					next = n.Content[i+1]
				}
			}
		case int:
			if n.Kind == yaml.SequenceNode && step < len(n.Content) {
				next = n.Content[step]
			}
		}
		n = next
	}
	c.problems = append(c.problems, fmt.Errorf("line %d: %s", max(n.Line, 1), fmt.Sprintf(format, args...)))
}

func (c *checker) machine(m *Machine) {
	if len(m.Pools) == 0 {
		c.bad([]any{"pools"}, "pools: is missing: name at least one, with its nodes")
		return
	}
	pools := make(map[string]bool)
	for i := range m.Pools {
		p := &m.Pools[i]
		if p.Name == "" {
			p.Name = fmt.Sprintf("pool%d", i+1)
		}
		if pools[p.Name] {
			c.bad([]any{"pools", i, "name"}, "pools: %s stands there twice", p.Name)
		}
		pools[p.Name] = true
		c.pool(i, p)
	}
	if len(m.Partitions) == 0 {
		for _, p := range m.Pools {
			m.Partitions = append(m.Partitions, Partition{Name: p.Name, Pool: p.Name})
		}
	}
	names := make(map[string]bool)
	for i := range m.Partitions {
		p := &m.Partitions[i]
		if p.Pool == "" && len(m.Pools) == 1 {
			p.Pool = m.Pools[0].Name
		}
		if !pools[p.Pool] {
			c.bad([]any{"partitions", i, "pool"}, "partition %s: there is no pool %q", p.Name, p.Pool)
		}
		if names[p.Name] {
			c.bad([]any{"partitions", i, "name"}, "partitions: %s stands there twice", p.Name)
		}
		names[p.Name] = true
	}
	for _, q := range m.QOS {
		names[q.Name] = true
	}
	for i := range m.Partitions {
		c.preempt([]any{"partitions", i}, &m.Partitions[i].Preempt, names)
	}
	for i := range m.QOS {
		c.preempt([]any{"qos", i}, &m.QOS[i].Preempt, names)
	}
	c.accounts(m)
}

func (c *checker) pool(i int, p *Pool) {
	if len(p.Groups) == 0 {
		c.bad([]any{"pools", i, "nodes"}, "pool %s: nodes: is missing", p.Name)
		return
	}
	total := 0
	for k := range p.Groups {
		g := &p.Groups[k]
		if g.Names != "" {
			names, err := expandHosts(g.Names)
			switch {
			case err != nil:
				c.bad([]any{"pools", i, "nodes", k}, "pool %s: names: %v", p.Name, err)
			case g.Count != 0 && g.Count != len(names):
				c.bad([]any{"pools", i, "nodes", k}, "pool %s: names: has %d nodes, and count is %d", p.Name, len(names), g.Count)
			}
			g.Count = len(names)
		}
		if g.Count == 0 {
			g.Count = 1
		}
		if g.Count < 1 || g.Cores < 1 || g.Cores > maxNodes || g.Count > 1<<28 {
			c.bad([]any{"pools", i, "nodes", k}, "pool %s: nodes need a count and cores of at least 1", p.Name)
		}
		total += g.Count
	}
	switch p.Share {
	case "":
		p.Share = "cores"
	case "cores", "nodes":
	default:
		c.bad([]any{"pools", i, "share"}, "pool %s: share: is cores or nodes, not %s", p.Name, p.Share)
	}
	switch p.Place {
	case "":
		p.Place = "pack"
	case "any", "pack", "spread", "adjacent":
	default:
		c.bad([]any{"pools", i, "place"}, "pool %s: place: is any, pack, spread or adjacent, not %s", p.Name, p.Place)
	}
	if p.Place != "any" && total > maxNodes {
		c.bad([]any{"pools", i, "nodes"}, "pool %s: more than %d nodes", p.Name, maxNodes)
	}
	for k := range p.Down {
		d := &p.Down[k]
		if d.Until <= d.From {
			c.bad([]any{"pools", i, "down", k}, "pool %s: down: until comes after from", p.Name)
		}
		if d.Nodes == 0 {
			d.Nodes = total
		}
		if d.Nodes < 0 || d.Nodes > total {
			c.bad([]any{"pools", i, "down", k}, "pool %s: down: there are %d nodes, not %d", p.Name, total, d.Nodes)
		}
	}
}

func (c *checker) preempt(at []any, p *Preempt, names map[string]bool) {
	for k, name := range p.Preempts {
		if !names[name] {
			c.bad(append(at, "preempts", k), "preempts: there is no partition or QOS %q", name)
		}
	}
	switch p.Preempted {
	case "", Requeue, Cancel, Resume:
	default:
		c.bad(append(at, "preempted"), "preempted: is %s, %s or %s, not %s", Requeue, Cancel, Resume, p.Preempted)
	}
}

func (c *checker) accounts(m *Machine) {
	parents := make(map[string]string)
	for i, a := range m.Accounts {
		at := []any{"accounts", i}
		if a.Name == "" {
			c.bad(at, "accounts: one has no name")
			continue
		}
		if _, ok := parents[a.Name]; ok {
			c.bad(at, "accounts: %s stands there twice", a.Name)
		}
		if a.Shares < 0 {
			c.bad(at, "account %s: shares are at least 1", a.Name)
		}
		parents[a.Name] = a.Parent
	}
	for i, a := range m.Accounts {
		seen := map[string]bool{}
		for name := a.Name; name != ""; name = parents[name] {
			if _, ok := parents[name]; !ok {
				c.bad([]any{"accounts", i}, "account %s: there is no parent %q", a.Name, name)
				break
			}
			if seen[name] {
				c.bad([]any{"accounts", i}, "account %s is its own parent", a.Name)
				break
			}
			seen[name] = true
		}
	}
}

func (m *Machine) preempts() (list []*Preempt) {
	for i := range m.Partitions {
		list = append(list, &m.Partitions[i].Preempt)
	}
	for i := range m.QOS {
		list = append(list, &m.QOS[i].Preempt)
	}
	return list
}

// Preemption reports whether any job may make another one end.
func (m *Machine) Preemption() bool {
	for _, p := range m.preempts() {
		if len(p.Preempts) > 0 {
			return true
		}
	}
	return false
}

// Charger returns a function for the cost of a core hour of a job: the charge factor of its
// partition, multiplied by the factor of its QOS; each is 1 by default.
func (m *Machine) Charger(t *trace.Trace) func(job int32) float64 {
	partitions, qos := make([]float64, len(t.Partitions.Names)), make([]float64, max(len(t.QOSs.Names), 1))
	for i, name := range t.Partitions.Names {
		partitions[i] = 1
		for _, p := range m.Partitions {
			if p.Charge != nil && (p.Name == name || len(m.Partitions) == 1) {
				partitions[i] = *p.Charge
			}
		}
	}
	for i := range qos {
		qos[i] = 1
		for _, q := range m.QOS {
			if q.Charge != nil && i < len(t.QOSs.Names) && q.Name == t.QOSs.Names[i] {
				qos[i] = *q.Charge
			}
		}
	}
	return func(job int32) float64 { return partitions[t.Partition[job]] * qos[t.QOSOf(int(job))] }
}

// FromTrace returns a machine derived from a trace: one pool of cores, whose places do not
// matter. If cores is not 0, it is their number.
func FromTrace(t *trace.Trace, cores int) *Machine {
	m := &Machine{Name: t.Name}
	if cores == 0 && t.Procs == 0 && m.ofHosts(t) {
		return m
	}
	how := "--cores"
	if cores == 0 {
		cores, how = t.Procs, "the header of the trace"
	}
	if cores == 0 {
		if cores = PeakCores(t); cores > 0 {
			how = "the most cores that jobs of the trace held at a time"
		}
	}
	largest := 0
	for _, c := range t.Cores {
		largest = max(largest, int(c))
	}
	if cores == 0 {
		cores, how = largest, "the largest job, as the trace tells neither cores nor waiting times"
	}
	if cores < largest && how != "--cores" {
		cores, how = largest, how+" has fewer cores than the largest job, which is taken instead"
	}
	m.Pools = []Pool{{Name: "all", Groups: []Node{{Count: cores, Cores: 1}}, Share: "cores", Place: "any"}}
	for _, name := range t.Partitions.Names {
		m.Partitions = append(m.Partitions, Partition{Name: name, Pool: "all"})
	}
	m.Derived = how
	return m
}

// PeakCores returns the largest number of cores that jobs held at a time in reality; 0 if the
// trace does not record all starts.
func PeakCores(t *trace.Trace) int {
	if t.Waited == nil {
		return 0
	}
	var begins, ends []event
	for i := range t.Submit {
		if t.Waited[i] == trace.Unknown {
			return 0
		}
		at := t.Submit[i] + t.Waited[i]
		begins = append(begins, event{at, int(t.Cores[i])})
		ends = append(ends, event{at + t.Run[i], int(t.Cores[i])})
	}
	sortEvents(begins)
	sortEvents(ends)
	held, most, k := 0, 0, 0
	for _, b := range begins {
		for k < len(ends) && ends[k].at <= b.at {
			held -= ends[k].cores
			k++
		}
		held += b.cores
		most = max(most, held)
	}
	return most
}
