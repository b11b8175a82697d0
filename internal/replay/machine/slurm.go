package machine

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"premix/internal/kit/hostlist"
)

// This file makes a machine of slurm.conf, as slurm.conf(5) describes it: the lines NodeName,
// NodeSet and PartitionName, and the parameters that decide how nodes are shared.

// slurmLine is a line of slurm.conf: its first key, and all keys in lower case with their
// values.
type slurmLine struct {
	at    string // file and line
	first string
	value map[string]string
}

// looksSlurm reports whether a file is a slurm.conf, and not YAML.
func looksSlurm(b []byte) bool {
	for line := range bytes.Lines(b) {
		key, _, ok := bytes.Cut(bytes.TrimSpace(line), []byte("="))
		switch strings.ToLower(string(bytes.TrimSpace(key))) {
		case "nodename", "partitionname", "clustername", "slurmctldhost", "controlmachine":
			if ok {
				return true
			}
		}
	}
	return false
}

// maxInclude is the deepest nesting of included files.
const maxInclude = 8

// readSlurm returns the lines of a slurm.conf and of the files that it includes.
func readSlurm(path string, b []byte, depth int) ([]slurmLine, error) {
	var list []slurmLine
	text, begin := "", 0
	for n, line := range strings.Split(string(b), "\n") {
		line = strings.TrimRight(line, "\r")
		if at := comment(line); at >= 0 {
			line = line[:at]
		}
		if text == "" {
			begin = n + 1
		}
		line = strings.TrimSpace(line)
		if head, ok := strings.CutSuffix(line, "\\"); ok {
			text += head + " "
			continue
		}
		text += line
		at := fmt.Sprintf("%s: line %d", path, begin)
		whole := strings.TrimSpace(text)
		text = ""
		if whole == "" {
			continue
		}
		if word, rest, _ := strings.Cut(whole, " "); strings.EqualFold(word, "include") {
			more, err := include(path, strings.TrimSpace(rest), at, depth)
			if err != nil {
				return nil, err
			}
			list = append(list, more...)
			continue
		}
		l := slurmLine{at: at, value: make(map[string]string)}
		for i, pair := range pairs(whole) {
			key, value, ok := strings.Cut(pair, "=")
			if !ok {
				return nil, fmt.Errorf("%s: %q is not KEY=VALUE", at, pair)
			}
			key = strings.ToLower(strings.TrimSpace(key))
			if i == 0 {
				l.first = key
			}
			l.value[key] = strings.Trim(strings.TrimSpace(value), `"`)
		}
		list = append(list, l)
	}
	return list, nil
}

// comment returns where the comment of a line begins, or -1.
func comment(line string) int {
	for i := range len(line) {
		if line[i] == '#' && (i == 0 || line[i-1] != '\\') {
			return i
		}
	}
	return -1
}

// pairs splits a line at spaces outside of double quotes. Spaces around = are dropped.
func pairs(line string) (list []string) {
	quoted := false
	line = strings.Map(func(r rune) rune {
		if r == '"' {
			quoted = !quoted
		}
		if quoted && r == ' ' {
			return '\x00'
		}
		return r
	}, line)
	for _, f := range strings.Fields(strings.NewReplacer(" =", "=", "= ", "=", "\t", " ").Replace(line)) {
		list = append(list, strings.ReplaceAll(f, "\x00", " "))
	}
	return list
}

func include(path, name, at string, depth int) ([]slurmLine, error) {
	if depth == maxInclude {
		return nil, fmt.Errorf("%s: more than %d files include one another", at, maxInclude)
	}
	if !filepath.IsAbs(name) {
		name = filepath.Join(filepath.Dir(path), name)
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", at, err)
	}
	return readSlurm(name, b, depth+1)
}

// slurmNode is a node of slurm.conf or sinfo.
type slurmNode struct {
	cores  int
	memory Size
}

// slurmCluster collects nodes and partitions.
type slurmCluster struct {
	machine *Machine
	names   []string // of nodes, in the order of the file, which decides about neighbours
	nodes   map[string]slurmNode
	sets    map[string]string // NodeSet: list of nodes
	members [][]string        // of the partitions
	alone   []bool            // of the partitions: jobs have their nodes to themselves
	down    int
	memory  bool // memory is a resource of jobs
	linear  bool // jobs have their nodes to themselves
}

// parseSlurm makes a machine of a slurm.conf.
func parseSlurm(path string, b []byte) (*Machine, error) {
	lines, err := readSlurm(path, b, 0)
	if err != nil {
		return nil, err
	}
	c := &slurmCluster{machine: &Machine{Derived: filepath.Base(path)}, nodes: make(map[string]slurmNode), sets: make(map[string]string)}
	usual := map[string]map[string]string{"nodename": {}, "partitionname": {}}
	for _, l := range lines {
		switch l.first {
		case "nodename", "partitionname":
			// A line for DEFAULT sets what the lines after it do not.
			if strings.EqualFold(l.value[l.first], "default") {
				delete(l.value, l.first)
				for k, v := range l.value {
					usual[l.first][k] = v
				}
				continue
			}
			for k, v := range usual[l.first] {
				if _, ok := l.value[k]; !ok {
					l.value[k] = v
				}
			}
			if l.first == "nodename" {
				err = c.addNodes(&l)
			} else {
				err = c.addPartition(&l)
			}
			if err != nil {
				return nil, err
			}
		case "nodeset":
			c.sets[l.value["nodeset"]] = l.value["nodes"]
			if l.value["feature"] != "" {
				return nil, fmt.Errorf("%s: a NodeSet of a feature is not supported: name its Nodes", l.at)
			}
		case "clustername":
			c.machine.Name = l.value[l.first]
		case "selecttype":
			c.linear = strings.EqualFold(l.value[l.first], "select/linear")
		case "selecttypeparameters":
			c.memory = strings.Contains(strings.ToLower(l.value[l.first]), "memory")
		case "preemptmode", "preempttype":
			if v := strings.ToLower(l.value[l.first]); v != "off" && v != "preempt/none" {
				c.note("%s: preemption is not taken over: add preempts and preempted to a file of your own", l.at)
			}
		}
	}
	return c.finish()
}

func (c *slurmCluster) note(format string, args ...any) {
	c.machine.Notes = append(c.machine.Notes, fmt.Sprintf(format, args...))
}

func (c *slurmCluster) addNodes(l *slurmLine) error {
	names, err := expandHosts(l.value["nodename"])
	if err != nil {
		return fmt.Errorf("%s: %w", l.at, err)
	}
	number := func(key string, otherwise int) int {
		text, ok := l.value[key]
		if !ok || err != nil {
			return otherwise
		}
		var v int
		if v, err = strconv.Atoi(text); err != nil || v < 0 || v > 1<<28 {
			err = fmt.Errorf("%s: %s=%s is not a number", l.at, key, text)
		}
		return v
	}
	sockets := number("sockets", 0)
	if sockets == 0 {
		sockets = number("boards", 1) * number("socketsperboard", 1)
	}
	n := slurmNode{cores: sockets * number("corespersocket", 1) * number("threadspercore", 1)}
	n.cores = max(number("cpus", number("procs", n.cores)), 1)
	if special := l.value["cpuspeclist"]; special != "" {
		c.note("%s: CpuSpecList is not taken over: all %d cores are for jobs", l.at, n.cores)
	}
	n.cores = max(n.cores-number("corespeccount", 0)*number("threadspercore", 1), 1)
	// RealMemory and MemSpecLimit are MiB. Without RealMemory it is unknown here.
	n.memory = Size(number("realmemory", 0))
	if limit := Size(number("memspeclimit", 0)); limit < n.memory {
		n.memory -= limit
	}
	if err != nil {
		return err
	}
	state := strings.ToUpper(l.value["state"])
	for _, name := range names {
		if _, ok := c.nodes[name]; ok {
			return fmt.Errorf("%s: node %s stands there twice", l.at, name)
		}
		switch {
		case strings.HasPrefix(state, "DOWN"), strings.HasPrefix(state, "DRAIN"), strings.HasPrefix(state, "FAIL"), strings.HasPrefix(state, "FUTURE"):
			c.nodes[name] = slurmNode{}
			c.down++
			continue
		}
		c.nodes[name] = n
		c.names = append(c.names, name)
	}
	return nil
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (c *slurmCluster) addPartition(l *slurmLine) error {
	p := Partition{Name: l.value["partitionname"]}
	fail := func(key string) error {
		return fmt.Errorf("%s: %s=%s is not understood", l.at, key, l.value[key])
	}
	var err error
	for key, to := range map[string]*Span{"maxtime": &p.Limit, "defaulttime": &p.Default} {
		if text, ok := l.value[key]; ok && err == nil {
			var v Span
			if v, ok = slurmSpan(text); !ok {
				err = fail(key)
			}
			*to = v
		}
	}
	for key, to := range map[string]*int{"prioritytier": &p.Tier, "priorityjobfactor": &p.Priority} {
		if text, ok := l.value[key]; ok && err == nil {
			if *to, err = strconv.Atoi(text); err != nil {
				err = fail(key)
			}
		}
	}
	if err != nil {
		return err
	}
	if state := strings.ToUpper(l.value["state"]); state == "DOWN" || state == "INACTIVE" {
		c.note("%s: partition %s is %s in the file; its jobs run here", l.at, p.Name, strings.ToLower(state))
	}
	nodes, err := c.expand(l.value["nodes"])
	if err != nil {
		return fmt.Errorf("%s: %w", l.at, err)
	}
	c.put(p, nodes, strings.HasPrefix(strings.ToUpper(l.value["oversubscribe"]), "EXCLUSIVE") || strings.HasPrefix(strings.ToUpper(l.value["shared"]), "EXCLUSIVE"))
	return nil
}

func (c *slurmCluster) put(p Partition, nodes []string, alone bool) {
	c.machine.Partitions = append(c.machine.Partitions, p)
	c.members = append(c.members, nodes)
	c.alone = append(c.alone, alone)
}

// expand returns the nodes of a list, which may name sets, or ALL.
func (c *slurmCluster) expand(list string) (nodes []string, err error) {
	if strings.EqualFold(list, "all") {
		return slices.Clone(c.names), nil
	}
	names, err := expandHosts(list)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if inner, ok := c.sets[name]; ok {
			more, err := expandHosts(inner)
			if err != nil {
				return nil, err
			}
			nodes = append(nodes, more...)
			continue
		}
		nodes = append(nodes, name)
	}
	for _, name := range nodes {
		if _, ok := c.nodes[name]; !ok {
			return nil, fmt.Errorf("there is no node %s", name)
		}
	}
	return nodes, nil
}

// slurmSpan parses a time of slurm.conf: minutes, minutes:seconds, hours:minutes:seconds,
// days-hours, days-hours:minutes, days-hours:minutes:seconds; 0 for UNLIMITED.
func slurmSpan(text string) (Span, bool) {
	switch strings.ToUpper(text) {
	case "UNLIMITED", "INFINITE", "NONE", "-1", "N/A":
		return 0, true
	}
	days, rest, dashed := strings.Cut(text, "-")
	if !dashed {
		days, rest = "0", text
	}
	parts := strings.Split(rest, ":")
	units := []int64{60, 1} // minutes, seconds
	switch {
	case dashed, len(parts) == 3:
		units = []int64{3600, 60, 1}
	}
	if len(parts) > len(units) {
		return 0, false
	}
	d, err := strconv.ParseUint(days, 10, 20)
	total := int64(d) * 86400
	for i, part := range parts {
		v, e := strconv.ParseUint(part, 10, 31)
		err = errors.Join(err, e)
		total += int64(v) * units[i]
	}
	return Span(total * 1000), err == nil
}

// finish makes pools of the nodes. Partitions that share nodes share a pool.
func (c *slurmCluster) finish() (*Machine, error) {
	m := c.machine
	if len(c.names) == 0 {
		return nil, errors.New("it has no node that can run jobs")
	}
	if len(m.Partitions) == 0 {
		c.put(Partition{Name: "all"}, slices.Clone(c.names), false)
	}
	down := func(name string) bool { return c.nodes[name].cores == 0 }
	pool := make(map[string]int) // by node
	of := make([]int, len(m.Partitions))
	for i := range of {
		c.members[i] = slices.DeleteFunc(c.members[i], down)
		of[i] = i
		for _, name := range c.members[i] {
			if other, ok := pool[name]; ok && of[other] != of[i] {
				from, to := max(of[other], of[i]), min(of[other], of[i])
				for k := range i + 1 {
					if of[k] == from {
						of[k] = to
					}
				}
			} else if !ok {
				pool[name] = i
			}
		}
	}
	if c.down > 0 {
		c.note("nodes that are down in the file, and left out: %d", c.down)
	}
	for i := range m.Partitions {
		if of[i] != i {
			continue
		}
		c.pool(i, of, pool)
	}
	m.Partitions = slices.DeleteFunc(m.Partitions, func(p Partition) bool {
		if p.Pool == "" {
			c.note("partition %s has no node that can run jobs: its jobs are refused", p.Name)
		}
		return p.Pool == ""
	})
	if len(m.Partitions) == 0 {
		return nil, errors.New("no partition has a node that can run jobs")
	}
	check := checker{}
	check.machine(m)
	return m, errors.Join(check.problems...)
}

// pool makes the pool of all partitions that share nodes with the first of them.
func (c *slurmCluster) pool(first int, of []int, by map[string]int) {
	m := c.machine
	p := Pool{Name: m.Partitions[first].Name, Share: "cores", Place: "adjacent"}
	n := 0
	index := make(map[string]int32)
	for _, name := range c.names {
		at, ok := by[name]
		if !ok || of[at] != first {
			continue
		}
		index[name] = int32(n)
		p.Names = append(p.Names, name)
		n++
		node := c.nodes[name]
		if !c.memory {
			node.memory = 0
		}
		if k := len(p.Groups) - 1; k >= 0 && p.Groups[k].Cores == node.cores && p.Groups[k].Memory == node.memory {
			p.Groups[k].Count++
			continue
		}
		p.Groups = append(p.Groups, Node{Count: 1, Cores: node.cores, Memory: node.memory})
	}
	if n == 0 {
		return
	}
	alone := 0
	for i := range m.Partitions {
		if of[i] != first || len(c.members[i]) == 0 {
			continue
		}
		m.Partitions[i].Pool = p.Name
		slices.Sort(c.members[i])
		if mine := slices.Compact(c.members[i]); len(mine) < n {
			for _, name := range mine {
				m.Partitions[i].Nodes = append(m.Partitions[i].Nodes, index[name])
			}
			slices.Sort(m.Partitions[i].Nodes)
		}
		alone += btoi(c.alone[i])
	}
	switch {
	case c.linear:
		p.Share = "nodes"
	case alone == count(of, first):
		p.Share = "nodes"
	case alone > 0:
		c.note("%d of the %d partitions of pool %s give jobs whole nodes: here none does", alone, count(of, first), p.Name)
	}
	m.Pools = append(m.Pools, p)
}

// partitions returns the indexes of the partitions that have a node.
func (c *slurmCluster) partitions(node string) (list []int) {
	for i, nodes := range c.members {
		if _, ok := slices.BinarySearch(nodes, node); ok {
			list = append(list, i)
		}
	}
	return list
}

func count(list []int, v int) (n int) {
	for _, x := range list {
		n += btoi(x == v)
	}
	return n
}

// maxHosts bounds the names of a list.
const maxHosts = 1 << 20

// expandHosts expands a list of hosts, which has at least one.
func expandHosts(list string) ([]string, error) {
	all, err := hostlist.Expand(list, maxHosts)
	if tooMany := (*hostlist.Error)(nil); errors.As(err, &tooMany) && tooMany.Most > 0 {
		return nil, err
	}
	if err != nil || len(all) == 0 {
		return nil, fmt.Errorf("%q is not a list of nodes: write it as in n1,n[3-5]", list)
	}
	return all, nil
}
