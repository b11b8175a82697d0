package freecapacity

import (
	"cmp"
	"slices"

	"premix/internal/replay/trace"
)

// Node is a node of a placed pool.
type Node struct {
	Name   string
	Cores  int32
	Memory int64 // MiB; 0: unlimited
}

// Placement is the rule by which a placed pool chooses among nodes with free capacity.
type Placement int

// The placements.
const (
	Pack   Placement = iota // the fullest first, which keeps others whole
	Spread                  // the emptiest first
	// Adjacent takes the shortest run of neighbouring nodes that is long enough; if none
	// is, the longest, and so on with the rest. Slurm places jobs in this way.
	Adjacent
)

// NodePool is a pool of named nodes, whose cores and memory jobs share.
type NodePool struct {
	nodes     []Node
	lines     []line
	whole     bool // a job has its nodes to itself
	placement Placement
	total     int64
	sets      [][]bool // by number of a set, minus 1: the nodes of the set
	held      map[int32][]Share
}

// Share is the part of a node that a job has.
type Share struct {
	Node  int32
	Cores int32
	used  int32 // cores taken, including unused cores of whole nodes
	mib   int64
}

// line is the free capacity of a node: for each moment at which it changes, until the next.
type line []segment

type segment struct {
	from  trace.Time
	cores int32
	mib   int64
}

// NewNodePool returns a pool of nodes. If whole is true, jobs do not share nodes.
func NewNodePool(nodes []Node, whole bool, placement Placement) *NodePool {
	p := &NodePool{nodes: nodes, whole: whole, placement: placement, held: make(map[int32][]Share)}
	for _, n := range nodes {
		p.total += int64(n.Cores)
		p.lines = append(p.lines, line{{from: -trace.Never, cores: n.Cores, mib: n.Memory}})
	}
	return p
}

// AddSet adds a set of nodes, and returns its number for requests.
func (p *NodePool) AddSet(nodes []int32) int32 {
	set := make([]bool, len(p.nodes))
	for _, n := range nodes {
		set[n] = true
	}
	p.sets = append(p.sets, set)
	return int32(len(p.sets))
}

// Shares returns the nodes of a holder.
func (p *NodePool) Shares(holder int32) []Share { return p.held[holder] }

// find returns the index of the segment that contains a moment.
func (l line) find(at trace.Time) int {
	i, ok := slices.BinarySearchFunc(l, at, func(s segment, at trace.Time) int { return cmp.Compare(s.from, at) })
	if !ok {
		i--
	}
	return max(i, 0)
}

// cut makes a segment begin at a moment, and returns its index.
func (l *line) cut(at trace.Time) int {
	i := l.find(at)
	if s := (*l)[i]; s.from < at {
		s.from = at
		i++
		*l = slices.Insert(*l, i, s)
	}
	return i
}

// change adds to the free capacity in [from, until).
func (l *line) change(from, until trace.Time, cores int32, mib int64) {
	if from >= until {
		return
	}
	i := l.cut(from)
	k := len(*l)
	if until < trace.Never {
		k = l.cut(until)
	}
	for at := i; at < k; at++ {
		(*l)[at].cores += cores
		(*l)[at].mib += mib
	}
	// Merge equal neighbours again.
	for _, at := range []int{k, i} {
		if at > 0 && at < len(*l) && (*l)[at].cores == (*l)[at-1].cores && (*l)[at].mib == (*l)[at-1].mib {
			*l = slices.Delete(*l, at, at+1)
		}
	}
}

// offer returns the number of cores that a request can have on a node for all of [from,
// until).
func (p *NodePool) offer(node int, r Request, from, until trace.Time) int32 {
	if r.Set > 0 && !p.sets[r.Set-1][node] {
		return 0
	}
	l := p.lines[node]
	n := &p.nodes[node]
	least, mib := n.Cores, n.Memory
	for i := l.find(from); i < len(l) && l[i].from < until; i++ {
		least, mib = min(least, l[i].cores), min(mib, l[i].mib)
	}
	if p.whole && least < n.Cores {
		return 0
	}
	if n.Memory > 0 && r.Memory > 0 {
		least = min(least, int32(max(mib, 0)/int64(r.Memory)))
	}
	return max(least, 0)
}

// each returns the number of cores that a request needs on each of its nodes, at most.
func (r Request) each() int32 { return (r.Cores + r.Nodes - 1) / r.Nodes }

func (p *NodePool) Possible(r Request) bool {
	empty := NodePool{nodes: p.nodes, whole: p.whole, sets: p.sets}
	for _, n := range p.nodes {
		empty.lines = append(empty.lines, line{{from: -trace.Never, cores: n.Cores, mib: n.Memory}})
	}
	return empty.Fits(r, 0, 1)
}

func (p *NodePool) Fits(r Request, from, until trace.Time) bool {
	until = max(until, from+1)
	var cores int64
	var nodes int32
	for i := range p.nodes {
		o := p.offer(i, r, from, until)
		if r.Nodes > 0 {
			if o >= r.each() {
				if nodes++; nodes == r.Nodes {
					return true
				}
			}
			continue
		}
		if cores += int64(o); cores >= int64(r.Cores) {
			return true
		}
	}
	return false
}

// next returns the first change of any node after a moment.
func (p *NodePool) next(after trace.Time) trace.Time {
	first := trace.Never
	for _, l := range p.lines {
		if i := l.find(after) + 1; i < len(l) {
			first = min(first, l[i].from)
		}
	}
	return first
}

func (p *NodePool) Earliest(r Request, from, length trace.Time) trace.Time {
	length = max(length, 1)
	if r.Nodes == 0 {
		for t := from; t < trace.Never; t = p.next(t) {
			if p.Fits(r, t, t+length) {
				return t
			}
		}
		return trace.Never
	}
	// Each node has an earliest moment of its own. The job cannot start before enough nodes
	// have reached theirs; then it must be checked whether the early ones are still free.
	times := make([]trace.Time, 0, len(p.nodes))
	for t := from; ; {
		times = times[:0]
		for i := range p.nodes {
			if at := p.earliestOn(i, r, t, length); at < trace.Never {
				times = append(times, at)
			}
		}
		if len(times) < int(r.Nodes) {
			return trace.Never
		}
		slices.Sort(times)
		last := times[r.Nodes-1]
		if last == t {
			return t
		}
		t = last
	}
}

// earliestOn returns the first moment from which on one node has capacity for a request's
// share for a time.
func (p *NodePool) earliestOn(node int, r Request, from, length trace.Time) trace.Time {
	l, want := p.lines[node], r.each()
	for i := l.find(from); i < len(l); i++ {
		t := max(l[i].from, from)
		if l[i].cores >= want && p.offer(node, r, t, t+length) >= want {
			return t
		}
	}
	return trace.Never
}

func (p *NodePool) Gap(_ Request, from, until, _, _ trace.Time) bool { return from < until }

// candidate is a node that can have a share of a request.
type candidate struct {
	node  int32
	offer int32 // cores for the request
	left  int32 // free cores
}

// adjacent sorts nodes in the order in which the placement Adjacent takes them. list is
// sorted by index.
func adjacent(list []candidate, r Request) []candidate {
	// The length of a run counts cores or, if the request has a number of nodes, nodes.
	amount := func(run []candidate) int32 {
		if r.Nodes > 0 {
			return int32(len(run))
		}
		var sum int32
		for _, c := range run {
			sum += c.offer
		}
		return sum
	}
	var runs [][]candidate
	for i, from := 1, 0; i <= len(list); i++ {
		if i == len(list) || list[i].node != list[i-1].node+1 {
			runs = append(runs, list[from:i])
			from = i
		}
	}
	want := r.Cores
	if r.Nodes > 0 {
		want = r.Nodes
	}
	ordered := make([]candidate, 0, len(list))
	for want > 0 && len(runs) > 0 {
		best := 0
		for i := 1; i < len(runs); i++ {
			// Choose the shortest run that is long enough, or else the longest.
			n, m := amount(runs[i]), amount(runs[best])
			if n >= want && n < m || m < want && n > m {
				best = i
			}
		}
		ordered = append(ordered, runs[best]...)
		want -= amount(runs[best])
		runs = slices.Delete(runs, best, best+1)
	}
	return ordered
}

func (p *NodePool) Take(holder int32, r Request, from, until trace.Time) bool {
	until = max(until, from+1)
	var list []candidate
	for i := range p.nodes {
		o := p.offer(i, r, from, until)
		if o > 0 && (r.Nodes == 0 || o >= r.each()) {
			list = append(list, candidate{int32(i), o, p.lines[i][p.lines[i].find(from)].cores})
		}
	}
	switch p.placement {
	case Pack:
		slices.SortStableFunc(list, func(a, b candidate) int { return cmp.Compare(a.left, b.left) })
	case Spread:
		slices.SortStableFunc(list, func(a, b candidate) int { return cmp.Compare(b.left, a.left) })
	case Adjacent:
		list = adjacent(list, r)
	}
	var shares []Share
	want := r.Cores
	for _, c := range list {
		if want == 0 {
			break
		}
		take := min(c.offer, want)
		if r.Nodes > 0 {
			left := r.Nodes - int32(len(shares)) // nodes still to be found
			take = (want + left - 1) / left
		}
		s := Share{Node: c.node, Cores: take, used: take, mib: int64(take) * int64(r.Memory)}
		if p.whole {
			s.used = p.nodes[c.node].Cores
		}
		if p.nodes[c.node].Memory == 0 {
			s.mib = 0
		}
		shares = append(shares, s)
		want -= take
	}
	if want > 0 {
		return false
	}
	for _, s := range shares {
		p.lines[s.Node].change(from, until, -s.used, -s.mib)
	}
	p.held[holder] = shares
	return true
}

func (p *NodePool) Give(holder int32, _ Request, from, until trace.Time) {
	for _, s := range p.held[holder] {
		p.lines[s.Node].change(from, until, s.used, s.mib)
	}
	delete(p.held, holder)
}

func (p *NodePool) Extend(holder int32, _ Request, until, to trace.Time) {
	for _, s := range p.held[holder] {
		p.lines[s.Node].change(until, to, -s.used, -s.mib)
	}
}

// TakeOn takes room on the given nodes, whether it is free or not.
func (p *NodePool) TakeOn(holder int32, r Request, nodes []int32, from, until trace.Time) {
	until = max(until, from+1)
	var shares []Share
	for i, node := range nodes {
		cores := (r.Cores + int32(len(nodes)-1-i)) / int32(len(nodes))
		s := Share{Node: node, Cores: cores, used: cores, mib: int64(cores) * int64(r.Memory)}
		if p.whole {
			s.used = p.nodes[node].Cores
		}
		if p.nodes[node].Memory == 0 {
			s.mib = 0
		}
		p.lines[node].change(from, until, -s.used, -s.mib)
		shares = append(shares, s)
	}
	p.held[holder] = shares
}

// Drain takes cores and memory (MiB) of a node, whether they are free or not.
func (p *NodePool) Drain(holder, node, cores int32, mib int64, from, until trace.Time) {
	s := Share{Node: node, Cores: cores, used: cores, mib: mib}
	p.lines[node].change(from, until, -s.used, -s.mib)
	p.held[holder] = []Share{s}
}

// Block takes whole nodes, the highest indexes first, whether they are free or not: for
// downtime.
func (p *NodePool) Block(holder int32, nodes int, from, until trace.Time) {
	var shares []Share
	for i := len(p.nodes) - 1; i >= max(len(p.nodes)-nodes, 0); i-- {
		s := Share{Node: int32(i), Cores: p.nodes[i].Cores, used: p.nodes[i].Cores, mib: p.nodes[i].Memory}
		p.lines[i].change(from, until, -s.used, -s.mib)
		shares = append(shares, s)
	}
	p.held[holder] = shares
}

// Crowded reports whether a holder has a node whose capacity is exceeded.
func (p *NodePool) Crowded(holder int32, at trace.Time) bool {
	for _, s := range p.held[holder] {
		if l := p.lines[s.Node]; l[l.find(at)].cores < 0 {
			return true
		}
	}
	return false
}

func (p *NodePool) Free(at trace.Time) int64 {
	var free int64
	for _, l := range p.lines {
		free += int64(max(l[l.find(at)].cores, 0))
	}
	return free
}

func (p *NodePool) Total() int64          { return p.total }
func (p *NodePool) Least(r Request) int32 { return r.Cores }

func (p *NodePool) Short(at trace.Time) bool {
	return slices.ContainsFunc(p.lines, func(l line) bool { return l[l.find(at)].cores < 0 })
}

func (p *NodePool) Forget(now trace.Time) {
	for i, l := range p.lines {
		if at := l.find(now); at > 0 {
			p.lines[i] = slices.Delete(l, 0, at)
		}
	}
}
