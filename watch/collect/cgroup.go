package collect

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"premix/watch"
)

// How many tasks are looked at in one turn: processor time and memory of quickMost,
// the rest of slowMost. With more tasks they take turns: each is seen less often, no
// amount is lost, as all but levels are counters, and looking costs no more.
const (
	quickMost = 250
	slowMost  = 50
)

// cgroups looks at the cgroups of tasks, version 1 and 2: Documentation/admin-guide/
// cgroup-v1 and cgroup-v2.rst.
type cgroups struct {
	*machine
	b     batch
	tree  *cgroupTree
	runOf func(pid string) string // the run directory of a premix
	tasks map[string]*taskState
	begun bool
	order []*taskState // in which they take turns
	quick int          // how far the turns have got
	slow  int
	files int // that may be kept open
	buf   []byte
}

// taskState is what is known of one task's cgroup.
type taskState struct {
	group                              *taskGroup
	cpu, read, written                 *counter
	memory, processes, throttled, ooms *gauge
	pressure                           map[string]*counter
	periods, held                      steps
	killed                             float64
	old                                bool // what was killed before it was looked at first has been told by another watcher, if any

	open map[string]int // descriptors, by path
	gone bool
}

// newCgroups makes the collector. runOf may be nil.
func newCgroups(m *machine, patterns []taskPattern, runOf func(pid string) string) *cgroups {
	c := &cgroups{machine: m, tree: newCgroupTree(m, patterns), runOf: runOf, tasks: make(map[string]*taskState), buf: make([]byte, 16<<10)}
	var limit unix.Rlimit
	// Half of what there is, since others open files, too.
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		c.files = int(min(limit.Cur/2, 1<<16))
	}
	return c
}

// Name is cgroup.
func (c *cgroups) Name() string { return "cgroup" }

// Close gives back descriptors.
func (c *cgroups) Close() {
	for _, s := range c.tasks {
		c.release(s)
	}
	c.tree.close()
}

// Collect looks once.
func (c *cgroups) Collect(ctx context.Context, now time.Time, to watch.Sink) error {
	c.b.begin(now, c.now())
	if err := c.tree.update(); err != nil {
		return err
	}
	c.follow()
	for i := range min(quickMost, len(c.order)) {
		c.lookQuick(c.order[(c.quick+i)%len(c.order)])
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

// follow takes in tasks that came, and lets go of those that went.
func (c *cgroups) follow() {
	old := !c.begun // what is there in the first turn was there before
	c.begun = true
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
		s = &taskState{group: g, old: old, open: make(map[string]int), pressure: make(map[string]*counter),
			cpu: c.counter("task.cpu", g.manager, run, g.task), read: c.counter("task.read_bytes", g.manager, run, g.task),
			written: c.counter("task.written_bytes", g.manager, run, g.task), memory: c.level("task.memory", g.manager, run, g.task),
			processes: c.level("task.processes", g.manager, run, g.task), throttled: c.level("task.throttled", g.manager, run, g.task),
			ooms: c.level("task.oom_kills", g.manager, run, g.task)}
		if g.dirs["v2"] != "" {
			for _, resource := range resources {
				for _, kind := range []string{"some", "full"} {
					s.pressure[resource+kind] = c.counter("task.pressure", kind, g.manager, resource, run, g.task)
				}
			}
		}
		c.tasks[key] = s
		c.order = append(c.order, s)
	}
	for key, s := range c.tasks {
		if c.tree.found[key] == nil {
			c.release(s)
			s.gone = true
			delete(c.tasks, key)
		}
	}
	c.order = slices.DeleteFunc(c.order, func(s *taskState) bool { return s.gone })
}

func (c *cgroups) release(s *taskState) {
	for _, fd := range s.open {
		if fd >= 0 {
			unix.Close(fd)
			c.files++
		}
	}
	clear(s.open)
}

// get reads a file of a cgroup, which is valid until the next one is read. ok is false
// where there is none: a controller may be missing, or the cgroup be gone.
func (c *cgroups) get(s *taskState, dir, name string) (text string, ok bool) {
	path := dir + "/" + name
	fd, kept := s.open[path]
	if !kept {
		var err error
		if fd, err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			if err != unix.ENOENT {
				return "", false
			}
			if len(s.open) < 64 { // it does not come later either
				s.open[path] = -1
			}
			return "", false
		}
		if kept = c.files > 0; kept {
			c.files--
			s.open[path] = fd
		}
	}
	if fd < 0 {
		return "", false
	}
	n, err := unix.Pread(fd, c.buf, 0)
	if !kept {
		unix.Close(fd)
	}
	if err != nil || n <= 0 {
		return "", false
	}
	return string(c.buf[:n]), true
}

// lookQuick reads processor time and memory.
func (c *cgroups) lookQuick(s *taskState) {
	b := &c.b
	if dir := s.group.dirs["v2"]; dir != "" {
		if text, ok := c.get(s, dir, "memory.current"); ok {
			b.level(s.memory, number(strings.TrimSpace(text)))
		}
		if s.group.dirs["cpuacct"] == "" {
			if text, ok := c.get(s, dir, "cpu.stat"); ok {
				c.cpuStat(s, text)
				return
			}
		}
	}
	if dir := s.group.dirs["memory"]; dir != "" {
		if text, ok := c.get(s, dir, "memory.usage_in_bytes"); ok {
			b.level(s.memory, number(strings.TrimSpace(text)))
		}
	}
	if dir := s.group.dirs["cpuacct"]; dir != "" {
		if text, ok := c.get(s, dir, "cpuacct.usage"); ok {
			b.rate(s.cpu, number(strings.TrimSpace(text)), 1e-9)
		}
		return
	}
	// Version 1 without accounting of processor time for this task: its processes know.
	if s.group.dirs["v2"] == "" {
		c.processes(s)
	}
}

// cpuStat takes cpu.stat of either version. Version 1 has no usage_usec.
func (c *cgroups) cpuStat(s *taskState, text string) {
	var periods, held float64
	has := false
	pairs(text, func(key string, v float64) {
		switch key {
		case "usage_usec":
			c.b.rate(s.cpu, v, 1e-6)
		case "nr_periods":
			periods, has = v, true
		case "nr_throttled":
			held = v
		}
	})
	if !has {
		return
	}
	p, _, ok := s.periods.step(periods, c.b.read)
	h, _, known := s.held.step(held, c.b.read)
	if ok && known && p > 0 {
		c.b.level(s.throttled, h/p)
	}
}

// processes sums up the processor time of the processes of a task, with that of
// children they have waited for. What ended and was waited for outside is lost, so the
// sum may shrink: then there is no rate in that turn.
func (c *cgroups) processes(s *taskState) {
	for _, dir := range s.group.dirs {
		text, ok := c.get(s, dir, "cgroup.procs")
		if !ok {
			return
		}
		sum := 0.0
		for _, pid := range strings.Fields(text) {
			stat, err := c.read(filepath.Join("proc", pid, "stat"))
			if err != nil {
				continue
			}
			f := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
			for i := 11; i < 15 && i < len(f); i++ { // utime stime cutime cstime
				sum += number(f[i])
			}
		}
		c.b.rate(s.cpu, sum, tick)
		return // all hierarchies have the same processes
	}
}

// lookSlow reads the rest.
func (c *cgroups) lookSlow(s *taskState, now time.Time, to watch.Sink) {
	if dir := s.group.dirs["v2"]; dir != "" {
		c.slow2(s, dir, now, to)
	}
	if dir := s.group.dirs["cpu"]; dir != "" {
		if text, ok := c.get(s, dir, "cpu.stat"); ok {
			c.cpuStat(s, text)
		}
	}
	if dir := s.group.dirs["memory"]; dir != "" {
		if text, ok := c.get(s, dir, "memory.oom_control"); ok {
			c.oom(s, text, now, to)
		}
	}
	if dir := s.group.dirs["pids"]; dir != "" {
		if text, ok := c.get(s, dir, "pids.current"); ok {
			c.b.level(s.processes, number(strings.TrimSpace(text)))
		}
	}
	if dir := s.group.dirs["blkio"]; dir != "" {
		if text, ok := c.get(s, dir, "blkio.throttle.io_service_bytes_recursive"); ok {
			read, written := blkio(text)
			c.b.rate(s.read, read, 1)
			c.b.rate(s.written, written, 1)
		}
	}
}

func (c *cgroups) slow2(s *taskState, dir string, now time.Time, to watch.Sink) {
	if text, ok := c.get(s, dir, "memory.events"); ok {
		c.oom(s, text, now, to)
	}
	if text, ok := c.get(s, dir, "pids.current"); ok {
		c.b.level(s.processes, number(strings.TrimSpace(text)))
	}
	if text, ok := c.get(s, dir, "io.stat"); ok {
		read, written := iostat(text)
		c.b.rate(s.read, read, 1)
		c.b.rate(s.written, written, 1)
	}
	for _, resource := range resources {
		if text, ok := c.get(s, dir, resource+".pressure"); ok {
			pressures(text, func(kind string, total float64) {
				if p := s.pressure[resource+kind]; p != nil {
					c.b.ratio(p, total, 1e-6)
				}
			})
		}
	}
}

// oom takes memory.events, or memory.oom_control of version 1.
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

// iostat sums io.stat up over devices: 8:16 rbytes=1459200 wbytes=314773504 rios=192 ...
func iostat(text string) (read, written float64) {
	for _, f := range strings.Fields(text) {
		if v, ok := strings.CutPrefix(f, "rbytes="); ok {
			read += number(v)
		} else if v, ok := strings.CutPrefix(f, "wbytes="); ok {
			written += number(v)
		}
	}
	return read, written
}

// blkio sums blkio.throttle.io_service_bytes up over devices: 8:0 Read 4096
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
