package collect

import (
	"cmp"
	"context"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"premix/internal/kit/mountinfo"
	"premix/internal/kit/proc"
	"premix/internal/watch"
)

// Causes for which a task does not proceed: values of the label cause of task.lost.
const (
	lostProcessor  = "processor"  // ready to run, and another one runs
	lostQuota      = "quota"      // ready to run, and throttled at a CPU quota
	lostDisk       = "disk"       // waits for a local file system
	lostMemory     = "memory"     // waits for reclaimed memory, or for pages that were taken away
	lostFilesystem = "filesystem" // waits for the server of a file system: FUSE, NFS, Lustre, ...
	lostNetwork    = "network"    // waits for a socket
)

const (
	// lookEvery is the time between looks at the threads of tasks.
	lookEvery = 100 * time.Millisecond
	// lookMost bounds the threads of one look. With more, the tasks take turns.
	lookMost = 400
	// mountsEvery is the time between reads of the table of mounts, and of the quotas.
	mountsEvery = 2 * time.Second
)

// lost is the collector of the time in which tasks do not proceed. It looks at their threads
// ten times a second. A task whose threads all rest by their own choice (a timer, a child, a
// pipe) loses nothing. Of the other threads, those count as lost that
//
//   - are ready to run, with the part of the time in which they waited for a processor
//     (the run delay in /proc/PID/schedstat), or were throttled (cpu.stat of their cgroups);
//   - sleep without interruption, or for a socket or the server of a file system, as the
//     function of the kernel in which they sleep shows (/proc/PID/wchan).
//
// A wait for a disk is a wait for memory in proportion to the pressure of both
// (/proc/pressure): a page that was taken away is read from the disk again.
type lost struct {
	*machine
	tree  *cgroupTree
	runOf func(pid string) string // returns the run directory of a premix process

	mu       sync.Mutex // guards the rest
	b        batch
	n        int // looks so far
	last     time.Time
	weight   float64 // seconds since the look before, of the present look
	looks    float64 // seconds of the looks since the last turn
	sums     map[lostKey]float64
	observed map[string]float64 // by run
	gauges   map[lostKey]*gauge
	counts   map[string]*gauge
	threads  map[int]*ranThread
	procs    map[int]bool // processes of tasks at the last look
	first    int          // index of the task with which the next look begins
	mounts   []mountinfo.Mount
	devices  map[string]string // names by major:minor
	quotas   map[string]*quota // by key of the task
	fresh    time.Time         // when mounts and quotas were read
	memory   steps
	io       steps
	thrash   float64                // part of the waits for disks that is for memory
	refaults map[string]*refaulting // by directory of a cgroup
}

// refaulting is the rate at which a cgroup reads pages again that were taken away from it.
type refaulting struct {
	steps
	rate float64
	seen time.Time
}

// manyRefaults is the rate of refaults, in pages a second, at which all waits of a task for
// pages are waits for memory.
const manyRefaults = 256

// lostKey are the labels of a series.
type lostKey struct{ cause, device, run, thing string }

// ranThread is the schedstat of a thread.
type ranThread struct {
	ran, waited float64 // nanoseconds; a wait counts when it ends
	ready       bool
	look        int
}

// quota holds the counters of the cgroups that may throttle a task.
type quota struct {
	memory string // directory of the task's cgroup of memory
	dirs   []string
	held   map[string]*steps
	share  float64 // part of the time in which one of them was throttled
	dir    string  // that one
}

// slotPattern recognises the cgroups of tasks that have no resources of their own.
var slotPattern = sync.OnceValue(func() taskPattern {
	return taskPattern{"premix", regexp.MustCompile(`/(?P<key>premix-(?P<pid>\d+)\.\d+\.\d+/(?P<task>slot-\d+))$`)}
})

func newLost(m *machine, patterns []taskPattern, runOf func(pid string) string) *lost {
	return &lost{machine: m, tree: newCgroupTree(m, append([]taskPattern{slotPattern()}, patterns...)), runOf: runOf,
		sums: make(map[lostKey]float64), observed: make(map[string]float64), gauges: make(map[lostKey]*gauge), counts: make(map[string]*gauge),
		threads: make(map[int]*ranThread), procs: make(map[int]bool), devices: make(map[string]string), quotas: make(map[string]*quota), refaults: make(map[string]*refaulting)}
}

// Name returns "lost".
func (c *lost) Name() string { return "lost" }

// Collect reports the looks since the last turn.
func (c *lost) Collect(_ context.Context, now time.Time, to watch.Sink) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.looks == 0 {
		return c.look()
	}
	c.b.begin(now, c.now())
	for run, n := range c.observed {
		g := c.counts[run]
		if g == nil {
			g = c.level("task.observed", run)
			c.counts[run] = g
		}
		c.b.level(g, round(n/c.looks))
	}
	for key, n := range c.sums {
		g := c.gauges[key]
		if g == nil {
			g = c.level("task.lost", key.cause, key.device, key.run, key.thing)
			c.gauges[key] = g
		}
		c.b.level(g, round(n/c.looks))
	}
	c.looks = 0
	clear(c.sums)
	clear(c.observed)
	to.Samples(c.b.samples)
	return nil
}

// Follow looks at the tasks until the context ends.
func (c *lost) Follow(ctx context.Context) {
	t := time.NewTicker(lookEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			c.tree.close()
			return
		case <-t.C:
		}
		c.mu.Lock()
		_ = c.look() // Collect reports errors
		c.mu.Unlock()
	}
}

// Processes returns the processes of tasks.
func (c *lost) Processes() map[int]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.procs)
}

// look adds one look. The caller holds mu.
func (c *lost) look() error {
	if err := c.tree.update(); err != nil {
		return err
	}
	// A look counts for the time since the one before: on a busy machine the watch waits, too.
	now := c.now()
	c.weight = lookEvery.Seconds()
	if !c.last.IsZero() {
		c.weight = min(max(now.Sub(c.last).Seconds(), 1e-3), 1)
	}
	c.last = now
	if c.fresh.IsZero() || now.Sub(c.fresh) >= mountsEvery {
		c.fresh = now
		c.refresh(now)
	}
	c.looks += c.weight
	c.n++
	keys := slices.Sorted(maps.Keys(c.tree.found))
	clear(c.procs)
	left := lookMost
	for i := range keys {
		if left <= 0 {
			c.first = (c.first + i) % len(keys)
			break
		}
		g := c.tree.found[keys[(c.first+i)%len(keys)]]
		left -= c.task(g)
	}
	for tid, t := range c.threads {
		if t.look < c.n-10 {
			delete(c.threads, tid)
		}
	}
	return nil
}

// refresh reads the table of mounts, the pressure and the counters of quotas.
func (c *lost) refresh(now time.Time) {
	if text, err := c.read("proc/self/mountinfo"); err == nil {
		c.mounts, _ = mountinfo.Parse(text) // lines that Parse cannot read are skipped
		c.mounts = slices.DeleteFunc(c.mounts, func(m mountinfo.Mount) bool {
			return slices.Contains(pseudo, m.Type) && m.Type != "overlay" || strings.HasPrefix(m.Path, "/sys/") || strings.HasPrefix(m.Path, "/proc/") || m.Type == "tmpfs"
		})
		slices.SortStableFunc(c.mounts, func(a, b mountinfo.Mount) int { return cmp.Compare(len(b.Path), len(a.Path)) })
	}
	stalled := func(resource string, s *steps) float64 {
		delta := 0.0
		if text, err := c.read("proc/pressure/" + resource); err == nil {
			pressures(text, func(kind string, total float64) {
				if kind != "some" {
					return
				}
				if more, _, ok := s.step(total, now); ok {
					delta = more
				}
			})
		}
		return delta
	}
	memory, io := stalled("memory", &c.memory), stalled("io", &c.io)
	c.thrash = 0
	if memory > 0 {
		c.thrash = min(1, memory/max(io, memory))
	}
	for dir, r := range c.refaults {
		text, err := os.ReadFile(filepath.Join(dir, "memory.stat"))
		if err != nil || now.Sub(r.seen) > time.Minute {
			delete(c.refaults, dir)
			continue
		}
		pages := 0.0
		pairs(string(text), func(key string, v float64) {
			if key == "workingset_refault_file" || key == "workingset_refault_anon" {
				pages += v
			}
		})
		r.rate = 0
		if delta, seconds, ok := r.step(pages, now); ok {
			r.rate = delta / seconds
		}
	}
	for key, q := range c.quotas {
		if c.tree.found[key] == nil {
			delete(c.quotas, key)
			continue
		}
		q.share, q.dir = 0, ""
		for _, dir := range q.dirs {
			text, err := os.ReadFile(filepath.Join(dir, "cpu.stat"))
			if err != nil {
				continue
			}
			held := 0.0
			pairs(string(text), func(key string, v float64) {
				switch key {
				case "throttled_usec":
					held = v / 1e6
				case "throttled_time":
					held = v / 1e9
				}
			})
			if delta, seconds, ok := q.held[dir].step(held, now); ok && min(delta/seconds, 1) > q.share {
				q.share, q.dir = min(delta/seconds, 1), dir
			}
		}
	}
}

// quotaOf returns the quota of a task, which a process of it belongs to.
func (c *lost) quotaOf(g *taskGroup, pid int) *quota {
	if q := c.quotas[g.key]; q != nil {
		return q
	}
	q := &quota{held: make(map[string]*steps)}
	c.quotas[g.key] = q
	text, err := c.read(filepath.Join("proc", strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return q
	}
	for line := range strings.Lines(text) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		for _, h := range c.tree.mounts {
			if h.v2 && f[1] == "" && q.memory == "" || !h.v2 && slices.Contains(strings.Split(f[1], ","), "memory") && slices.Contains(h.controllers, "memory") {
				q.memory = filepath.Join(h.point, f[2])
			}
			if h.v2 != (f[1] == "") || !h.v2 && !slices.Contains(strings.Split(f[1], ","), "cpu") || !h.v2 && !slices.Contains(h.controllers, "cpu") {
				continue
			}
			for dir := f[2]; dir != "/" && dir != "."; dir = filepath.Dir(dir) {
				q.dirs = append(q.dirs, filepath.Join(h.point, dir))
			}
		}
	}
	for _, dir := range q.dirs {
		q.held[dir] = &steps{}
	}
	return q
}

// thrashes returns the part of a task's waits for disks that are for memory, and the cgroup
// whose limit is the reason, or "".
func (c *lost) thrashes(g *taskGroup, pid int) (part float64, group string) {
	q := c.quotaOf(g, pid)
	if q.memory == "" {
		return c.thrash, ""
	}
	r := c.refaults[q.memory]
	if r == nil {
		r = &refaulting{}
		c.refaults[q.memory] = r
	}
	r.seen = c.now()
	if own := min(1, r.rate/manyRefaults); own >= c.thrash && own > 0 {
		return own, q.memory
	}
	return c.thrash, ""
}

// task adds one look at a task, and returns the number of threads that it looked at.
func (c *lost) task(g *taskGroup) (threads int) {
	var list []byte
	for _, dir := range g.dirs {
		list, _ = os.ReadFile(filepath.Join(dir, "cgroup.procs")) // a removed cgroup has none
		break
	}
	pids := strings.Fields(string(list))
	if len(pids) == 0 {
		return 0
	}
	run := ""
	if g.pid != "" && c.runOf != nil {
		run = c.runOf(g.pid)
	}
	c.observed[run] += c.weight
	shares := make(map[lostKey]float64)
	active := 0.0
	for _, text := range pids {
		pid, err := strconv.Atoi(text)
		if err != nil {
			continue
		}
		c.procs[pid] = true
		for _, tid := range c.threadsOf(text) {
			if threads++; threads > lookMost {
				break
			}
			key, share, is := c.thread(g, pid, tid)
			if !is {
				continue
			}
			active++
			key.run = run
			if key.cause == lostProcessor {
				q := c.quotaOf(g, pid)
				if q.share > 0 {
					shares[lostKey{cause: lostQuota, thing: q.dir, run: run}] += q.share
					share *= 1 - q.share
				}
			}
			if key.cause == lostDisk {
				if part, group := c.thrashes(g, pid); part > 0 {
					shares[lostKey{cause: lostMemory, run: run, thing: group}] += share * part
					share *= 1 - part
				}
			}
			shares[key] += share
		}
	}
	for key, share := range shares {
		if share > 0 {
			c.sums[key] += c.weight * share / active
		}
	}
	return threads
}

func (c *lost) threadsOf(pid string) (list []string) {
	entries, err := os.ReadDir(c.path(filepath.Join("proc", pid, "task")))
	if err != nil {
		return nil
	}
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

// thread returns the part of the time that a thread lost, and the cause. is is false for a
// thread that rests.
func (c *lost) thread(g *taskGroup, pid int, tid string) (key lostKey, share float64, is bool) {
	dir := filepath.Join("proc", strconv.Itoa(pid), "task", tid)
	text, err := c.read(filepath.Join(dir, "stat"))
	f := proc.Fields(text)
	if err != nil || len(f) == 0 {
		return key, 0, false
	}
	ran, waited := 0.0, 0.0
	if text, err := c.read(filepath.Join(dir, "schedstat")); err == nil {
		if s := strings.Fields(text); len(s) >= 2 {
			ran, waited = number(s[0]), number(s[1])
		}
	}
	id, _ := strconv.Atoi(tid)
	last := c.threads[id]
	if last == nil || last.ran > ran || last.waited > waited { // the id is used again
		last = &ranThread{}
		c.threads[id] = last
	}
	dr, dw, wasReady := ran-last.ran, waited-last.waited, last.ready
	*last = ranThread{ran, waited, f[0] == "R", c.n}
	switch state := f[0]; state {
	case "R":
		switch {
		case wasReady: // all the time since the last look, most likely
			share = max(0, 1-dr/1e9/c.weight)
		case dr+dw == 0: // it has waited since it became ready
			share = 1
		default:
			share = dw / (dr + dw)
		}
		return lostKey{cause: lostProcessor}, share, true
	case "D", "S":
		at, err := c.read(filepath.Join(dir, "wchan"))
		if err != nil {
			return key, 0, false
		}
		cause := causeOfWait(at, state == "D")
		switch cause {
		case "":
			return key, 0, false
		case lostFilesystem, lostDisk:
			key = c.place(pid, cause == lostFilesystem, true)
		}
		key.cause = cause
		return key, 1, true
	}
	return key, 0, false
}

// served are beginnings of functions of the kernel in which a thread waits for the server of
// a file system.
var served = []string{"request_wait_answer", "fuse_", "__fuse_", "nfs", "rpc_", "__rpc_", "cifs", "smb", "ceph_", "ll_", "cl_", "ptlrpc", "ldlm", "osc_", "lov_", "cxi", "p9_", "beegfs", "FhgfsOps"}

// reclaiming are parts of functions in which a thread waits for memory.
var reclaiming = []string{"throttle_direct_reclaim", "reclaim_throttle", "mem_cgroup", "memcg", "try_charge", "shrink_", "swap_", "do_swap_page"}

// talking are beginnings of functions in which a thread waits for a socket.
var talking = []string{"sk_", "__sk_", "tcp_", "inet_", "wait_woken", "__skb_wait", "unix_stream", "__inet_"}

// causeOfWait returns the cause of a wait in a function of the kernel, or "" for a rest.
func causeOfWait(at string, uninterrupted bool) string {
	begins := func(list []string) bool {
		return slices.ContainsFunc(list, func(p string) bool { return strings.HasPrefix(at, p) })
	}
	switch {
	case begins(served):
		return lostFilesystem
	case slices.ContainsFunc(reclaiming, func(p string) bool { return strings.Contains(at, p) }):
		return lostMemory
	case begins(talking):
		return lostNetwork
	case uninterrupted && (strings.HasPrefix(at, "do_wait") || strings.HasPrefix(at, "kernel_clone") || strings.HasPrefix(at, "wait_for_vfork")):
		return "" // vfork(2): the child is the thread that counts
	case uninterrupted:
		return lostDisk
	}
	return ""
}

// place returns the file system that a process most likely waits for: one with an open file,
// one that its command line names, or the file system of its working directory. Links in /proc
// do not ask the file system. The caller holds mu.
func (c *lost) place(pid int, remote, cwd bool) lostKey {
	dir := c.path(filepath.Join("proc", strconv.Itoa(pid)))
	var paths []string
	entries, _ := os.ReadDir(filepath.Join(dir, "fd")) // of another user, or it has ended
	for _, e := range entries[:min(len(entries), 32)] {
		if path, err := os.Readlink(filepath.Join(dir, "fd", e.Name())); err == nil && strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "/dev/") {
			paths = append(paths, path)
		}
	}
	words, _ := proc.Strings(filepath.Join(dir, "cmdline"))
	for _, w := range words {
		if _, path, ok := strings.Cut(w, "/"); ok {
			paths = append(paths, "/"+path)
		}
	}
	if path, err := os.Readlink(filepath.Join(dir, "cwd")); err == nil && cwd {
		paths = append(paths, path)
	}
	best := -1
	for _, p := range paths {
		for i, m := range c.mounts {
			if (p == m.Path || strings.HasPrefix(p, strings.TrimSuffix(m.Path, "/")+"/")) && remoteType(m.Type) == remote {
				if best < 0 || c.mounts[best].Path == "/" {
					best = i
				}
				break
			}
		}
	}
	if best < 0 {
		return lostKey{}
	}
	m := c.mounts[best]
	key := lostKey{thing: m.Path}
	if !remote {
		key.device = c.deviceOf(m.Dev)
	}
	return key
}

// remoteType reports whether a server answers for a type of file systems.
func remoteType(kind string) bool {
	return slices.ContainsFunc([]string{"fuse", "nfs", "cifs", "smb", "ceph", "lustre", "gpfs", "beegfs", "9p", "afs"}, func(p string) bool { return strings.HasPrefix(kind, p) })
}

// DeviceOf returns the block device that a process has files on, or "" if it is not known.
func (c *lost) DeviceOf(pid int) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.place(pid, false, false).device
}

// deviceOf returns the name of a block device, or "".
func (c *lost) deviceOf(dev string) string {
	name, ok := c.devices[dev]
	if !ok {
		if link, err := os.Readlink(c.path("sys/dev/block/" + dev)); err == nil {
			name = filepath.Base(link)
		}
		c.devices[dev] = name
	}
	return name
}
