package collect

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"premix/internal/kit/proc"
	"premix/internal/watch"
)

// These constants bound the tasks that are read in one turn: quickMost for processor time
// and memory, slowMost for the rest. With more tasks they take turns: each is read less
// often at the same total cost, and no amount is lost, because all values except levels are
// counters. Most of so many tasks wait at any moment: a task that used no processor time
// from one of its turns to the next skips restTurns turns.
const (
	quickMost = 250
	slowMost  = 50
	restTurns = 3
)

// cgroups is the collector of the cgroups of tasks, version 1 and 2:
// Documentation/admin-guide/ cgroup-v1 and cgroup-v2.rst.
type cgroups struct {
	*machine
	b       batch
	tree    *cgroupTree
	runOf   func(pid string) string // returns the run directory of a premix process
	tasks   map[string]*taskState
	started bool
	order   []*taskState // the order of their turns
	quick   int          // index in order of the next quick turn
	slow    int
	files   groupReader
	known   int // value of tree.changes at the last turn
	walks   int // value of tree.walks at the last turn
}

// taskState holds the counters and series of one task's cgroup.
type taskState struct {
	group                              *taskGroup
	run                                string
	cpu, read, written                 *counter
	memory, processes, throttled, ooms *gauge
	pressure                           map[groupFile]*[2]*counter // both kinds: some and full
	periods, held                      steps
	killed                             float64
	used                               usage
	rested                             int  // turns that it still skips
	old                                bool // it existed before the first turn; another watcher may have reported its earlier kills

	files keptFiles
	gone  bool
}

// usage is the processor time of a task, in the unit of the file that has it.
type usage struct {
	v     float64
	known bool
}

// still reports whether no processor time was used since the last call, and stores the new
// value.
func (u *usage) still(v float64) bool {
	still := u.known && u.v == v
	*u = usage{v, true}
	return still
}

// newCgroups returns the collector. runOf may be nil.
func newCgroups(m *machine, patterns []taskPattern, runOf func(pid string) string) *cgroups {
	return &cgroups{machine: m, tree: newCgroupTree(m, patterns), runOf: runOf, tasks: make(map[string]*taskState), files: newGroupReader()}
}

// Name returns "cgroup".
func (c *cgroups) Name() string { return "cgroup" }

// Close closes all descriptors.
func (c *cgroups) Close() {
	for _, s := range c.tasks {
		c.files.release(&s.files)
	}
	c.files.renew()
	c.tree.close()
}

// Collect reads the cgroups whose turn it is.
func (c *cgroups) Collect(ctx context.Context, now time.Time, to watch.Sink) error {
	c.b.begin(now, c.now())
	if err := c.tree.update(); err != nil {
		return err
	}
	c.follow()
	for i := range min(quickMost, len(c.order)) {
		if s := c.order[(c.quick+i)%len(c.order)]; s.rested > 0 && len(c.order) > quickMost {
			s.rested--
		} else {
			c.lookQuick(s)
		}
		if i%64 == 63 && ctx.Err() != nil {
			break
		}
	}
	for i := range min(slowMost, len(c.order)) {
		c.lookSlow(c.order[(c.slow+i)%len(c.order)], now, to)
	}
	if len(c.order) > 0 {
		c.quick = (c.quick + quickMost) % len(c.order)
		c.slow = (c.slow + slowMost) % len(c.order)
	}
	to.Samples(c.b.samples)
	return nil
}

// follow adds new tasks, and removes tasks that are gone.
func (c *cgroups) follow() {
	old := !c.started // cgroups found in the first turn existed before it
	if c.started && c.known == c.tree.changes {
		return
	}
	c.started, c.known = true, c.tree.changes
	if c.walks != c.tree.walks {
		c.walks = c.tree.walks
		c.files.renew()
	}
	for key, g := range c.tree.found {
		s := c.tasks[key]
		if s != nil {
			s.group = g
			continue
		}
		run := ""
		if g.pid != "" && c.runOf != nil {
			run = c.runOf(g.pid)
		}
		s = &taskState{group: g, run: run, old: old, pressure: make(map[groupFile]*[2]*counter),
			cpu: c.counter("task.cpu", g.manager, run, g.task), read: c.counter("task.read_bytes", g.manager, run, g.task),
			written: c.counter("task.written_bytes", g.manager, run, g.task), memory: c.level("task.memory", g.manager, run, g.task),
			processes: c.level("task.processes", g.manager, run, g.task), throttled: c.level("task.throttled", g.manager, run, g.task),
			ooms: c.level("task.oom_kills", g.manager, run, g.task)}
		c.tasks[key] = s
		c.order = append(c.order, s)
	}
	for key, s := range c.tasks {
		if c.tree.found[key] == nil {
			c.files.release(&s.files)
			s.gone = true
			delete(c.tasks, key)
		}
	}
	c.order = slices.DeleteFunc(c.order, func(s *taskState) bool { return s.gone })
}

// get reads a file of a task's cgroup. ok is false if the file does not exist. The text is
// valid until the next call.
func (c *cgroups) get(s *taskState, f groupFile) (text string, ok bool) {
	dir := s.group.dirs[groupFileNames[f].controller]
	if dir == "" {
		return "", false
	}
	return c.files.get(&s.files, dir, f)
}

// lookQuick reads processor time and memory.
func (c *cgroups) lookQuick(s *taskState) {
	for _, f := range [...]groupFile{memoryCurrent, memoryUsage} {
		if text, ok := c.get(s, f); ok {
			c.b.level(s.memory, number(strings.TrimSpace(text)))
		}
	}
	s.rested = 0
	switch {
	case s.group.dirs["cpuacct"] != "":
		if text, ok := c.get(s, cpuacctUsage); ok {
			v := number(strings.TrimSpace(text))
			c.b.rate(s.cpu, v, 1e-9)
			s.rest(v)
		}
	case s.group.dirs["v2"] != "":
		if text, ok := c.get(s, cpuStat2); ok {
			s.rest(c.cpuStat(s, text))
		}
	default: // the times of processes come in hundredths of a second: too coarse to recognise resting tasks
		c.processes(s)
	}
}

// rest makes a task skip turns if it has used no processor time since its last one.
func (s *taskState) rest(used float64) {
	if s.used.still(used) {
		s.rested = restTurns
	}
}

// cpuStat reads cpu.stat of either version. It returns usage_usec, which version 1 does not
// have.
func (c *cgroups) cpuStat(s *taskState, text string) (used float64) {
	var periods, held float64
	has := false
	pairs(text, func(key string, v float64) {
		switch key {
		case "usage_usec":
			used = v
			c.b.rate(s.cpu, v, 1e-6)
		case "nr_periods":
			periods, has = v, true
		case "nr_throttled":
			held = v
		}
	})
	if !has {
		return used
	}
	p, _, ok := s.periods.step(periods, c.b.read)
	h, _, known := s.held.step(held, c.b.read)
	if ok && known && p > 0 {
		c.b.level(s.throttled, h/p)
	}
	return used
}

// processes adds up the processor time of the processes of a task and of the children they
// have waited for. The time of a process whose parent outside of the task waited for it is
// lost, so that the sum may shrink: then that turn has no rate.
func (c *cgroups) processes(s *taskState) {
	for _, dir := range s.group.dirs {
		list, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			return
		}
		sum := 0.0
		for _, pid := range strings.Fields(string(list)) {
			stat, err := c.read(filepath.Join("proc", pid, "stat"))
			if err != nil {
				continue
			}
			f := proc.Fields(stat)
			for i := proc.User; i < proc.User+4 && i < len(f); i++ { // utime stime cutime cstime
				sum += number(f[i])
			}
		}
		c.b.rate(s.cpu, sum, tick)
		return // all hierarchies have the same processes
	}
}

// lookSlow reads all values except processor time and memory.
func (c *cgroups) lookSlow(s *taskState, now time.Time, to watch.Sink) {
	for _, f := range [...]groupFile{memoryEvents, memoryOOM} {
		if text, ok := c.get(s, f); ok {
			c.oom(s, text, now, to)
		}
	}
	for _, f := range [...]groupFile{pidsCurrent2, pidsCurrent1} {
		if text, ok := c.get(s, f); ok {
			c.b.level(s.processes, number(strings.TrimSpace(text)))
		}
	}
	if text, ok := c.get(s, cpuStat1); ok {
		c.cpuStat(s, text)
	}
	if text, ok := c.get(s, ioStat); ok {
		c.transferred(s, iostat, text)
	}
	if text, ok := c.get(s, blkioBytes); ok {
		c.transferred(s, blkio, text)
	}
	for _, f := range [...]groupFile{cpuPressure, memoryPressure, ioPressure} {
		if text, ok := c.get(s, f); ok {
			c.pressures(s, f, text)
		}
	}
}

func (c *cgroups) transferred(s *taskState, parse func(text string) (read, written float64), text string) {
	read, written := parse(text)
	c.b.rate(s.read, read, 1)
	c.b.rate(s.written, written, 1)
}

// pressures reads a pressure file.
func (c *cgroups) pressures(s *taskState, f groupFile, text string) {
	p := s.pressure[f]
	if p == nil {
		resource := strings.TrimSuffix(groupFileNames[f].name, ".pressure")
		p = new([2]*counter)
		for i, kind := range [...]string{"some", "full"} {
			p[i] = c.counter("task.pressure", kind, s.group.manager, resource, s.run, s.group.task)
		}
		s.pressure[f] = p
	}
	pressures(text, func(kind string, total float64) {
		switch kind {
		case "some":
			c.b.ratio(p[0], total, 1e-6)
		case "full":
			c.b.ratio(p[1], total, 1e-6)
		}
	})
}

// oom reads memory.events, or memory.oom_control of version 1.
func (c *cgroups) oom(s *taskState, text string, now time.Time, to watch.Sink) {
	pairs(text, func(key string, v float64) {
		if key != "oom_kill" {
			return
		}
		c.b.level(s.ooms, v)
		if v > s.killed && !s.old {
			to.Event(watch.Event{Time: now, Node: c.node, Layer: watch.LayerTask, Kind: "oom_kill",
				Text: fmt.Sprintf("Task %s of %s: %s killed at its memory limit.", s.group.task, s.group.manager, processesText(v-s.killed))})
		}
		s.killed, s.old = v, false
	})
}

func processesText(n float64) string {
	if n == 1 {
		return "a process was"
	}
	return strconv.Itoa(int(n)) + " processes were"
}

// iostat adds up io.stat over all devices: 8:16 rbytes=1459200 wbytes=314773504 rios=192
// ...
func iostat(text string) (read, written float64) {
	for f := range strings.FieldsSeq(text) {
		if v, ok := strings.CutPrefix(f, "rbytes="); ok {
			read += number(v)
		} else if v, ok := strings.CutPrefix(f, "wbytes="); ok {
			written += number(v)
		}
	}
	return read, written
}

// blkio adds up blkio.throttle.io_service_bytes over all devices: 8:0 Read 4096
func blkio(text string) (read, written float64) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) != 3 {
			continue // Total 4096
		}
		switch f[1] {
		case "Read":
			read += number(f[2])
		case "Write":
			written += number(f[2])
		}
	}
	return read, written
}
