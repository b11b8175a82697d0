package machine

import (
	"cmp"
	"fmt"
	"slices"

	"premix/internal/replay/trace"
)

// host is a node as the jobs that ran on it show it.
type host struct {
	name   string
	cores  int
	memory Size // 0: not all jobs have an amount
	steps  []hostStep
}

// hostStep is a change of the cores and the memory that jobs hold on a node.
type hostStep struct {
	at     trace.Time
	cores  int
	memory Size
}

// peaks computes the most cores and memory that were held at a time.
func (h *host) peaks() {
	slices.SortFunc(h.steps, func(a, b hostStep) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.cores, b.cores)) })
	cores, memory := 0, Size(0)
	for _, s := range h.steps {
		cores, memory = cores+s.cores, memory+s.memory
		h.cores, h.memory = max(h.cores, cores), max(h.memory, memory)
	}
}

// ofHosts derives a machine from the nodes on which the jobs of a trace ran, and reports
// whether the trace records them for all jobs. A node has as many cores and as much memory
// as jobs held on it at a time, and a partition has the nodes on which its jobs ran.
func (m *Machine) ofHosts(t *trace.Trace) bool {
	if t.Len() == 0 || t.HostList == nil || t.Waited == nil {
		return false
	}
	hosts := make([]host, len(t.Hosts.Names))
	known := make([]bool, len(hosts)) // all jobs on it have an amount of memory
	for i, name := range t.Hosts.Names {
		hosts[i].name, known[i] = name, true
	}
	members := make([]map[int32]bool, len(t.Partitions.Names))
	for job := range t.Len() {
		list, waited := t.HostsOf(job), t.WaitedOf(job)
		if list == nil || waited == trace.Unknown {
			return false
		}
		from := t.Submit[job] + waited
		for i, at := range list {
			n := len(list)
			cores := (int(t.Cores[job]) + n - 1 - i) / n
			memory := Size(cores) * Size(t.MemoryOf(job))
			known[at] = known[at] && memory > 0
			hosts[at].steps = append(hosts[at].steps, hostStep{from, cores, memory}, hostStep{from + t.Run[job], -cores, -memory})
			p := t.Partition[job]
			if members[p] == nil {
				members[p] = make(map[int32]bool)
			}
			members[p][at] = true
		}
	}
	// The nodes of a pool are in the order of their names; drains refer to it.
	c := slurmCluster{machine: m, memory: true, nodes: make(map[string]slurmNode)}
	for i := range hosts {
		h := &hosts[i]
		h.peaks()
		if !known[i] {
			h.memory = 0
		}
		if h.cores == 0 { // only jobs without duration ran there
			h.cores = 1
		}
		c.names = append(c.names, h.name)
		c.nodes[h.name] = slurmNode{cores: h.cores, memory: h.memory}
	}
	slices.Sort(c.names)
	for p, set := range members {
		var names []string
		for at := range set {
			names = append(names, hosts[at].name)
		}
		slices.Sort(names)
		c.put(Partition{Name: t.Partitions.Names[p]}, names, false)
	}
	if _, err := c.finish(); err != nil {
		return false
	}
	m.findDrains(t, hosts, c)
	m.Derived = fmt.Sprintf("the %d nodes on which jobs of the trace ran, with the most cores and memory that jobs held there at a time", len(hosts))
	return true
}

// shortest is the shortest time that is taken for a drain, and the shortest wait that shows
// that there was no room: batch systems look at their queues at intervals.
const shortest = 5 * trace.Minute

// span is a time.
type span struct{ from, until trace.Time }

// union sorts spans and joins the ones that overlap.
func union(list []span) []span {
	slices.SortFunc(list, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	joined := list[:0]
	for _, s := range list {
		if n := len(joined); n > 0 && s.from <= joined[n-1].until {
			joined[n-1].until = max(joined[n-1].until, s.until)
		} else {
			joined = append(joined, s)
		}
	}
	return joined
}

// common returns the parts of a span that lie in sorted spans which do not overlap.
func common(s span, list []span) (parts []span) {
	i, _ := slices.BinarySearchFunc(list, s.from, func(x span, at trace.Time) int { return cmp.Compare(x.until, at) })
	for ; i < len(list) && list[i].from < s.until; i++ {
		parts = append(parts, span{max(s.from, list[i].from), min(s.until, list[i].until)})
	}
	return parts
}

// findDrains finds the times in which a node had free cores and memory although jobs waited
// for which these are enough. They were not there for them, for a reason that the trace does
// not have: jobs of others, a reservation, a failure, a limit.
func (m *Machine) findDrains(t *trace.Trace, hosts []host, c slurmCluster) {
	type request struct {
		partition int32
		cores     int
		memory    Size
	}
	waits := make(map[request][]span)
	end := trace.Time(0)
	for job := range t.Len() {
		start := t.Submit[job] + t.WaitedOf(job)
		end = max(end, start+t.Run[job])
		if from := max(t.Submit[job], t.Since); start-from > shortest && !t.Given(job) {
			n := len(t.HostsOf(job))
			cores := (int(t.Cores[job]) + n - 1) / n
			r := request{t.Partition[job], cores, Size(cores) * Size(t.MemoryOf(job))}
			waits[r] = append(waits[r], span{from, start})
		}
	}
	for r := range waits {
		waits[r] = union(waits[r])
	}
	byName := make(map[string]*host, len(hosts))
	for i := range hosts {
		byName[hosts[i].name] = &hosts[i]
	}
	type room struct {
		partitions string
		cores      int
		memory     Size
		bounded    bool // there is an amount of memory
	}
	queues := make(map[room][]span) // when jobs waited for which a room is enough
	hours := 0.0
	for i := range m.Pools {
		p := &m.Pools[i]
		for at, name := range p.Names {
			h := byName[name]
			of := c.partitions(name)
			h.free(t.Since, end, func(s span, cores int, memory Size) {
				k := room{fmt.Sprint(of), cores, memory, h.memory > 0}
				queue, ok := queues[k]
				if !ok {
					for r, list := range waits {
						if slices.Contains(of, int(r.partition)) && r.cores <= cores && (h.memory == 0 || r.memory <= memory) {
							queue = append(queue, list...)
						}
					}
					queue = union(queue)
					queues[k] = queue
				}
				for _, d := range common(s, queue) {
					if length := d.until - d.from; length > shortest {
						p.Drains = append(p.Drains, Drain{int32(at), int32(cores), memory, d.from, d.until})
						hours += length.Seconds() / 3600 * float64(cores)
					}
				}
			})
		}
	}
	if hours > 0 {
		c.note("cores were free for %.0f core hours although jobs waited that they are enough for: no job gets them in these times here", hours)
	}
}

// free calls f with the times in which a node has free cores, and their number.
func (h *host) free(from, until trace.Time, f func(s span, cores int, memory Size)) {
	cores, memory := h.cores, h.memory
	part := func(to trace.Time) {
		if from < to && cores > 0 {
			f(span{from, to}, cores, memory)
		}
		from = max(from, to)
	}
	for _, s := range h.steps {
		part(s.at)
		cores -= s.cores
		if h.memory > 0 {
			memory -= s.memory
		}
	}
	part(until)
}
