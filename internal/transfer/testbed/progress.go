package testbed

import (
	"bytes"
	"os"
	"strconv"
	"time"

	"premix/internal/kit/proc"
)

const (
	// leastRate is the smallest rate of reading and writing, in bytes a second, at which a
	// copy makes progress. The keep-alive messages of ssh are fewer.
	leastRate = 64
	// leastCPU is the smallest fraction of a core at which a program counts as computing.
	leastCPU = 0.05
	// ticksPerSecond is the unit of times in /proc, see sysconf(3): 100 on all
	// architectures that Go supports.
	ticksPerSecond = 100
)

// activity is the work of a process so far.
type activity struct {
	bytes int64 // read and written, by system calls or by the disk
	ticks int64 // of CPU time
	known bool  // bytes could be read
}

// progress detects whether a process group and its children make progress.
type progress struct {
	root  int
	stall time.Duration
	since time.Time
	last  map[int]activity // at the last progress
}

func newProgress(root int, stall time.Duration) *progress {
	return &progress{root: root, stall: stall, since: time.Now(), last: group(root)}
}

// stalled reports whether the group has made no progress for the time of a stall.
func (p *progress) stalled() bool {
	now := group(p.root)
	var bytes, ticks int64
	went := len(now) != len(p.last)
	for pid, a := range now {
		b, ok := p.last[pid]
		if !ok || !a.known {
			went = true // it is new, or its bytes cannot be read
			break
		}
		bytes += a.bytes - b.bytes
		ticks += a.ticks - b.ticks
	}
	if went || float64(bytes) >= leastRate*p.stall.Seconds() || float64(ticks)/ticksPerSecond >= leastCPU*p.stall.Seconds() {
		p.since, p.last = time.Now(), now
		return false
	}
	return time.Since(p.since) >= p.stall
}

// group lists the processes of a process group, and the children of each of them.
func group(root int) map[int]activity {
	type process struct {
		parent, group int
		ticks         int64
	}
	all := map[int]process{}
	for _, pid := range proc.All() {
		words, err := proc.Stat(pid)
		if err != nil || len(words) <= proc.System || words[0] == "Z" {
			continue // it has ended
		}
		number := func(i int) int64 { n, _ := strconv.ParseInt(words[i], 10, 64); return n }
		all[pid] = process{int(number(proc.Parent)), int(number(proc.Group)), number(proc.User) + number(proc.System)}
	}
	found := map[int]activity{}
	for more := true; more; {
		more = false
		for pid, p := range all {
			if _, ok := found[pid]; ok {
				continue
			}
			if _, child := found[p.parent]; child || p.group == root {
				a := activity{ticks: p.ticks}
				a.bytes, a.known = carried(pid)
				found[pid] = a
				more = true
			}
		}
	}
	return found
}

// carried returns the number of bytes that a process has read and written, see
// proc_pid_io(5).
func carried(pid int) (n int64, ok bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/io")
	if err != nil {
		return 0, false
	}
	for line := range bytes.Lines(text) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		switch string(name) {
		case "rchar", "wchar", "read_bytes", "write_bytes":
			v, err := strconv.ParseInt(string(bytes.TrimSpace(value)), 10, 64)
			if err != nil {
				return 0, false
			}
			n += v
		}
	}
	return n, true
}
