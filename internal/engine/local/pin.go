package local

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Pin says what tasks are held to.
type Pin string

// What tasks are held to.
const (
	PinNone Pin = ""
	PinCore Pin = "core" // cores of their own
	PinNUMA Pin = "numa" // the cores and the memory of one NUMA node
)

// pins gives cores out. It is for one goroutine. A nil *pins gives none.
type pins struct {
	kind  Pin
	nodes []node
}

// node is a NUMA node, or the machine where it has none.
type node struct {
	number int // -1: the machine
	cpus   []int
	free   []int // that no task holds
	held   int   // cores that tasks hold
}

// pinned is the cores and nodes that one task was given.
type pinned struct {
	cpus, nodes []int
	at          int   // number of the node in pins
	own         []int // cores for this task alone
	cores       int
}

func newPins(kind Pin) (*pins, error) {
	if kind == PinNone {
		return nil, nil
	}
	var home unix.CPUSet
	if err := unix.SchedGetaffinity(0, &home); err != nil {
		return nil, fmt.Errorf("sched_getaffinity: %w", err)
	}
	p := &pins{kind: kind}
	dirs, err := filepath.Glob("/sys/devices/system/node/node[0-9]*")
	if err != nil {
		return nil, err
	}
	for _, dir := range dirs {
		number, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), "node"))
		if err != nil {
			continue
		}
		n := node{number: number}
		for _, c := range parseList(readString(filepath.Join(dir, "cpulist"))) {
			if home.IsSet(c) {
				n.cpus = append(n.cpus, c)
			}
		}
		if len(n.cpus) > 0 {
			p.nodes = append(p.nodes, n)
		}
	}
	if len(p.nodes) == 0 {
		n := node{number: -1}
		for c := range 1024 {
			if home.IsSet(c) {
				n.cpus = append(n.cpus, c)
			}
		}
		p.nodes = []node{n}
	}
	for i := range p.nodes {
		p.nodes[i].free = slices.Clone(p.nodes[i].cpus)
	}
	return p, nil
}

// parseList reads a list of numbers and ranges, as in 0-3,8.
func parseList(text string) []int {
	var list []int
	for _, f := range strings.Split(text, ",") {
		a, b, isRange := strings.Cut(strings.TrimSpace(f), "-")
		first, err := strconv.Atoi(a)
		if err != nil {
			continue
		}
		last := first
		if isRange {
			if last, err = strconv.Atoi(b); err != nil {
				continue
			}
		}
		for n := first; n <= last; n++ {
			list = append(list, n)
		}
	}
	return list
}

// take gives cores to a task: on the node where most are free. Where more are held
// than there are, tasks share.
func (p *pins) take(cores int) *pinned {
	at := 0
	for i := range p.nodes {
		if len(p.nodes[i].cpus)-p.nodes[i].held > len(p.nodes[at].cpus)-p.nodes[at].held {
			at = i
		}
	}
	n := &p.nodes[at]
	n.held += cores
	t := &pinned{at: at, cores: cores}
	if p.kind == PinNUMA || len(n.free) < cores {
		t.cpus = n.cpus
	} else {
		t.own = slices.Clone(n.free[:cores])
		n.free = n.free[cores:]
		t.cpus = t.own
	}
	if p.kind == PinNUMA && n.number >= 0 {
		t.nodes = []int{n.number}
	}
	return t
}

// give takes back the cores of a task.
func (p *pins) give(t *pinned) {
	n := &p.nodes[t.at]
	n.held -= t.cores
	n.free = append(n.free, t.own...)
}
