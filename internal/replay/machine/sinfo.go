package machine

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// sinfoHint is the hint for an output of sinfo that lacks columns.
const sinfoHint = `make it with sinfo -N -o "%P|%N|%c|%m|%T|%l|%L" > FILE`

// sinfoHeader returns the columns of an output of sinfo, which its header line names, and
// the delimiter, "" for spaces; nil if a line is no such header.
func sinfoHeader(line string) (columns map[string]int, delimiter string) {
	fields := strings.Fields(line)
	if strings.Contains(line, "|") {
		delimiter = "|"
		fields = strings.Split(line, "|")
	}
	columns = make(map[string]int)
	for i, f := range fields {
		columns[strings.ToUpper(strings.TrimSpace(f))] = i
	}
	_, partition := columns["PARTITION"]
	_, nodes := columns["NODELIST"]
	if !partition || !nodes {
		return nil, ""
	}
	return columns, delimiter
}

// looksSinfo reports whether a file is an output of sinfo. With --long a date comes first.
func looksSinfo(b []byte) bool {
	n := 0
	for line := range bytes.Lines(b) {
		if columns, _ := sinfoHeader(string(line)); columns != nil {
			return true
		}
		if n++; n == 3 {
			break
		}
	}
	return false
}

// parseSinfo makes a machine of an output of sinfo with a header line and the columns
// PARTITION, NODELIST and CPUS; MEMORY, STATE, TIMELIMIT and DEFAULTTIME may be there. It has
// a line for each node and partition, or lists of equal nodes.
func parseSinfo(path string, b []byte) (*Machine, error) {
	c := &slurmCluster{machine: &Machine{Name: filepath.Base(path), Derived: filepath.Base(path)}, nodes: make(map[string]slurmNode)}
	var columns map[string]int
	var delimiter string
	at := make(map[string]int) // partitions
	for n, line := range strings.Split(string(b), "\n") {
		if strings.TrimSpace(line) == "" {
			continue
		}
		if columns == nil {
			if columns, delimiter = sinfoHeader(line); columns != nil {
				if _, ok := columns["CPUS"]; !ok {
					return nil, fmt.Errorf("line %d: there is no column CPUS: %s", n+1, sinfoHint)
				}
				_, c.memory = columns["MEMORY"]
			}
			continue
		}
		fields := strings.Fields(line)
		if delimiter != "" {
			fields = strings.Split(line, delimiter)
		}
		get := func(name string) string {
			if i, ok := columns[name]; ok && i < len(fields) {
				return strings.TrimSpace(fields[i])
			}
			return ""
		}
		names, err := expandHosts(get("NODELIST"))
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n+1, err)
		}
		node := slurmNode{}
		if node.cores, err = strconv.Atoi(get("CPUS")); err != nil || node.cores < 1 {
			return nil, fmt.Errorf("line %d: CPUS is %q, which is not one number of cores: %s", n+1, get("CPUS"), sinfoHint)
		}
		if text := get("MEMORY"); text != "" {
			mib, err := strconv.ParseInt(text, 10, 40)
			if err != nil {
				return nil, fmt.Errorf("line %d: MEMORY is %q, which is not one number of MiB: %s", n+1, text, sinfoHint)
			}
			node.memory = Size(mib)
		}
		state := strings.ToLower(strings.TrimRight(get("STATE"), "*~#!%$@^-+"))
		if slices.Contains([]string{"down", "drain", "drained", "draining", "drng", "fail", "failing", "failg", "future", "futr", "unknown", "unk"}, state) {
			node = slurmNode{}
		}
		for _, name := range names {
			known, ok := c.nodes[name]
			if ok && known != node {
				return nil, fmt.Errorf("line %d: node %s differs from an earlier line", n+1, name)
			}
			if !ok {
				c.nodes[name] = node
				if node.cores == 0 {
					c.down++
				} else {
					c.names = append(c.names, name)
				}
			}
		}
		partition := strings.TrimSuffix(get("PARTITION"), "*")
		if i, ok := at[partition]; ok {
			c.members[i] = append(c.members[i], names...)
			continue
		}
		p := Partition{Name: partition}
		for name, to := range map[string]*Span{"TIMELIMIT": &p.Limit, "DEFAULTTIME": &p.Default} {
			if text := get(name); text != "" {
				v, ok := slurmSpan(text)
				if !ok {
					return nil, fmt.Errorf("line %d: %s is %q, which is not a time", n+1, name, text)
				}
				*to = v
			}
		}
		at[partition] = len(c.machine.Partitions)
		c.put(p, names, false)
	}
	c.note("sinfo does not say whether jobs have whole nodes, nor the tiers and priorities of partitions: slurm.conf does")
	return c.finish()
}
