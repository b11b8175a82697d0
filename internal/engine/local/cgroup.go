package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/engine/spawn"
	"premix/internal/kit/mountinfo"
	"premix/internal/kit/proc"
)

// The controllers that limit a task. Version 1 has a hierarchy for each, or for
// some together; version 2 has one for all (cgroups(7)).
var controllers = []string{"memory", "cpu", "pids"}

// maxPids is how many processes and threads one task may have: enough for any
// tool, too few for a fork bomb to take the machine down.
const maxPids = 4096

// cpuPeriod is the period of CPU quotas, in microseconds: the kernel's default.
const cpuPeriod = 100_000

// removeWait is the longest wait for the end of a cgroup's processes after
// SIGKILL.
const removeWait = 5 * time.Second

// staleWait is how long the processes that a killed premix has left are given to end by
// themselves.
const staleWait = 2 * time.Second

// hierarchy is a mounted cgroup hierarchy, seen from this process.
type hierarchy struct {
	mount       string   // mount point
	own         string   // directory of the cgroup that this process is in
	v2          bool     // the unified hierarchy
	controllers []string // the controllers of the hierarchy that premix uses
}

// hierarchies finds the hierarchies that this process can see, from the text of
// /proc/self/mountinfo and /proc/self/cgroup. It omits hierarchies without any of
// premix's controllers.
func hierarchies(table, cgroup string) []hierarchy {
	var list []hierarchy
	taken := make(map[string]bool)
	add := func(h hierarchy, has []string) {
		for _, c := range controllers {
			if slices.Contains(has, c) && !taken[c] {
				taken[c] = true
				h.controllers = append(h.controllers, c)
			}
		}
		if len(h.controllers) > 0 {
			list = append(list, h)
		}
	}
	mounts, _ := mountinfo.Parse(table)
	for line := range strings.Lines(cgroup) {
		// hierarchy-ID:controller-list:cgroup-path
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) != 3 || f[1] == "" {
			continue
		}
		has := strings.Split(f[1], ",")
		for _, m := range mounts {
			if m.Type == "cgroup" && slices.Contains(m.Options, has[0]) {
				add(hierarchy{mount: m.Path, own: m.Shows(f[2])}, has)
				break
			}
		}
	}
	for line := range strings.Lines(cgroup) {
		path, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::")
		if !ok {
			continue
		}
		for _, m := range mounts {
			if m.Type == "cgroup2" {
				h := hierarchy{mount: m.Path, own: m.Shows(path), v2: true}
				add(h, strings.Fields(readString(filepath.Join(h.own, "cgroup.controllers"))))
				break
			}
		}
	}
	return list
}

// thisHierarchies returns the hierarchies that this process is in.
func thisHierarchies() []hierarchy {
	return hierarchies(readString("/proc/self/mountinfo")+"\n", readString("/proc/self/cgroup")+"\n")
}

// limits are the limits of a task's cgroup.
type limits struct {
	memory  int64 // bytes; 0: none
	threads int   // share of the CPUs, relative to other tasks
}

// cgroups makes a cgroup for each task. The run as a whole is held to its cores
// by a quota on the parent, and a task to its threads by a share: a tool that
// starts more threads than it was given takes nothing from other tasks, and no
// core stays idle while a task could use it.
type cgroups struct {
	parents []parent
}

// parent is premix's own cgroup in a hierarchy, in which the tasks' cgroups are.
type parent struct {
	hierarchy
	dir     string
	moved   string   // version 2: the leaf this process moved to, "" if it did not
	enabled []string // version 2: controllers enabled for the children of own
}

// parentName returns the name of the parents of this process. The name identifies the process,
// even if its number is reused, so that others can see whether it is alive:
// premix-PID.STARTTIME.PIDNAMESPACE
func parentName(pid int) string {
	return fmt.Sprintf("premix-%d.%d.%s", pid, proc.StartTime(pid), pidNamespace())
}

func pidNamespace() string {
	link, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return "0"
	}
	return strings.Trim(strings.TrimPrefix(link, "pid:"), "[]")
}

// limitNames are the names of the controllers' resources, for people.
var limitNames = map[string]string{"memory": "memory", "cpu": "CPU", "pids": "processes"}

// newCgroups makes the parents. lacks has a line for people for each reason why
// resources cannot be limited; with no parent at all newCgroups returns nil.
func newCgroups(list []hierarchy, cores int) (c *cgroups, lacks []string) {
	c = &cgroups{}
	var why []string                     // in the order in which they were met
	without := make(map[string][]string) // controllers, by reason
	lack := func(reason string, which []string) {
		if without[reason] == nil {
			why = append(why, reason)
		}
		without[reason] = append(without[reason], which...)
	}
	for _, h := range list {
		cleanStale(h.own)
		p, err := newParent(h, cores)
		if err != nil {
			lack(cgroupReason(err), h.controllers)
			if !h.v2 {
				continue
			}
			h.controllers = nil // without controllers it can still kill
			if p, err = newParent(h, cores); err != nil {
				continue
			}
		}
		c.parents = append(c.parents, p)
	}
	if len(list) == 0 {
		lack("no cgroup hierarchy is mounted", controllers)
	}
	for _, reason := range why {
		var names []string
		for _, which := range controllers {
			if slices.Contains(without[reason], which) {
				names = append(names, limitNames[which])
			}
		}
		lacks = append(lacks, fmt.Sprintf("%s of tasks: %s", enumerate(names), reason))
	}
	if len(c.parents) == 0 {
		return nil, lacks
	}
	return c, lacks
}

// cgroupReason returns the reason why a parent cannot be made. The usual reason is the same in
// all hierarchies, whatever their paths.
func cgroupReason(err error) string {
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
		return "no right to make cgroups"
	}
	return err.Error()
}

// enumerate joins words, at least one: a, b and c.
func enumerate(words []string) string {
	last := len(words) - 1
	if last == 0 {
		return words[0]
	}
	return strings.Join(words[:last], ", ") + " and " + words[last]
}

func newParent(h hierarchy, cores int) (p parent, err error) {
	p = parent{hierarchy: h, dir: filepath.Join(h.own, parentName(os.Getpid()))}
	if err := os.Mkdir(p.dir, 0o755); err != nil {
		return p, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	if h.v2 {
		if err := p.delegate(); err != nil {
			return p, err
		}
	}
	if p.has("cpu") {
		if err := p.setQuota(cores); err != nil {
			return p, err
		}
	}
	return p, nil
}

func (p *parent) has(controller string) bool { return slices.Contains(p.controllers, controller) }

// setQuota holds all tasks together to a number of cores.
func (p *parent) setQuota(cores int) error {
	if p.v2 {
		return write(p.dir, "cpu.max", fmt.Sprintf("%d %d", cores*cpuPeriod, cpuPeriod))
	}
	err := write(p.dir, "cpu.cfs_quota_us", strconv.Itoa(cores*cpuPeriod))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil // a kernel without CFS bandwidth control: shares alone then
	}
	return err
}

// delegate makes the controllers available to the tasks' cgroups. In version 2
// a cgroup with processes in it cannot have children with controllers; if this
// process is the only one in its cgroup, as in a delegated systemd scope, it
// moves into a leaf beside the tasks.
func (p *parent) delegate() error {
	present := strings.Fields(readString(filepath.Join(p.own, "cgroup.subtree_control")))
	for _, c := range p.controllers {
		if slices.Contains(present, c) {
			continue
		}
		err := write(p.own, "cgroup.subtree_control", "+"+c)
		if errors.Is(err, unix.EBUSY) && p.moved == "" {
			if err := p.moveAside(); err != nil {
				return err
			}
			err = write(p.own, "cgroup.subtree_control", "+"+c)
		}
		if err != nil {
			return err
		}
		p.enabled = append(p.enabled, c)
	}
	for _, c := range p.controllers {
		if err := write(p.dir, "cgroup.subtree_control", "+"+c); err != nil {
			return err
		}
	}
	return nil
}

func (p *parent) moveAside() error {
	self := strconv.Itoa(os.Getpid())
	for _, pid := range strings.Fields(readString(filepath.Join(p.own, "cgroup.procs"))) {
		if pid != self {
			return fmt.Errorf("%s holds other processes than premix: %w", p.own, unix.EBUSY)
		}
	}
	leaf := filepath.Join(p.dir, "premix")
	if err := os.Mkdir(leaf, 0o755); err != nil {
		return err
	}
	if err := write(leaf, "cgroup.procs", self); err != nil {
		return errors.Join(err, os.Remove(leaf))
	}
	p.moved = leaf
	return nil
}

// close removes the parent and undoes the changes that were made for it.
func (p *parent) close() error {
	var errs []error
	if p.moved != "" {
		for _, c := range p.controllers {
			// It fails where the controller was not enabled yet.
			_ = write(p.dir, "cgroup.subtree_control", "-"+c)
		}
		for _, c := range p.enabled {
			errs = append(errs, write(p.own, "cgroup.subtree_control", "-"+c))
		}
		errs = append(errs, write(p.own, "cgroup.procs", strconv.Itoa(os.Getpid())), os.Remove(p.moved))
	}
	return errors.Join(append(errs, removeGroups(p.dir))...)
}

// close removes the parents. Tasks that still run are killed.
func (c *cgroups) close() error {
	if c == nil {
		return nil
	}
	var errs []error
	for i := range c.parents {
		errs = append(errs, c.parents[i].close())
	}
	return errors.Join(errs...)
}

// group is the cgroup of one try.
type group struct {
	dirs   []string // one a hierarchy
	memory string   // the directory that has the memory controller, "" if none
	v2     bool     // memory is in version 2
}

// add makes the cgroup of a try.
func (c *cgroups) add(name string, l limits) (g *group, err error) {
	g = &group{}
	if c == nil {
		return g, nil
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.remove())
		}
	}()
	for i := range c.parents {
		p := &c.parents[i]
		dir := filepath.Join(p.dir, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return g, err
		}
		g.dirs = append(g.dirs, dir)
		if p.has("memory") {
			g.memory, g.v2 = dir, p.v2
		}
		if err := p.limit(dir, l); err != nil {
			return g, err
		}
	}
	return g, nil
}

// cell makes the cgroup of a slot for tasks without a cgroup of their own. It limits only the
// number of processes. In version 2 the cell also serves without a limit: it ends tasks with
// all their processes.
func (c *cgroups) cell(slot, processes int) (cell spawn.TaskCgroup, err error) {
	if c == nil {
		return cell, nil
	}
	at := slices.IndexFunc(c.parents, func(p parent) bool { return p.has("pids") })
	if at < 0 {
		at = slices.IndexFunc(c.parents, func(p parent) bool { return p.v2 })
	}
	if at < 0 {
		return cell, nil
	}
	p := &c.parents[at]
	cell = spawn.TaskCgroup{Dir: filepath.Join(p.dir, fmt.Sprintf("slot-%d", slot)), V2: p.v2}
	if err := os.Mkdir(cell.Dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return cell, err
	}
	if p.has("pids") {
		err = write(cell.Dir, "pids.max", strconv.Itoa(processes))
	}
	return cell, err
}

func (p *parent) limit(dir string, l limits) error {
	if p.has("pids") {
		if err := write(dir, "pids.max", strconv.Itoa(maxPids)); err != nil {
			return err
		}
	}
	if p.has("cpu") {
		// The scales are 1024 and 100 for one thread (cgroups v1 and v2).
		var err error
		if p.v2 {
			err = write(dir, "cpu.weight", strconv.Itoa(min(100*l.threads, 10000)))
		} else {
			err = write(dir, "cpu.shares", strconv.Itoa(1024*l.threads))
		}
		if err != nil {
			return err
		}
	}
	if !p.has("memory") || l.memory == 0 {
		return nil
	}
	bytes := strconv.FormatInt(l.memory, 10)
	// A task that swaps is as good as lost and takes the others with it, so the
	// limit covers swap. A kernel without swap accounting lacks those files.
	if p.v2 {
		return errors.Join(
			write(dir, "memory.max", bytes),
			optional(write(dir, "memory.swap.max", "0")),
			optional(write(dir, "memory.oom.group", "1")))
	}
	return errors.Join(
		write(dir, "memory.limit_in_bytes", bytes),
		optional(write(dir, "memory.memsw.limit_in_bytes", bytes)))
}

func optional(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil
	}
	return err
}

// oomKills returns how many processes of the try the kernel killed at the limit.
//
// Records do not use the peak of the memory controller: it counts
// page cache, which the kernel gives back when it has to, and in a hot
// start it counts shared pages for whichever task touched them first.
func (g *group) oomKills() int {
	return spawn.OOMKills(g.events())
}

// events returns the file that counts the kills, "" without a memory limit.
func (g *group) events() string {
	switch {
	case g.memory == "":
		return ""
	case g.v2:
		return filepath.Join(g.memory, "memory.events")
	}
	return filepath.Join(g.memory, "memory.oom_control")
}

// remove kills the remaining processes of the try and removes its cgroup.
func (g *group) remove() error {
	var errs []error
	for _, dir := range g.dirs {
		errs = append(errs, removeGroup(dir))
	}
	return errors.Join(errs...)
}

// removeGroups removes a cgroup and those below it.
func removeGroups(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var errs []error
	for _, e := range entries {
		if e.IsDir() {
			errs = append(errs, removeGroups(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(append(errs, err, removeGroup(dir))...)
}

// removeGroup kills the processes of a cgroup and removes it.
func removeGroup(dir string) error {
	// Most tries have left nothing by now.
	pause, deadline := time.Millisecond, time.Now().Add(removeWait)
	for {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return &os.PathError{Op: "remove cgroup", Path: dir, Err: err}
		}
		spawn.Kill(dir)
		time.Sleep(pause)
		pause = min(2*pause, 100*time.Millisecond)
	}
}

// cleanStale removes the parents that premix processes left in a cgroup when they
// were killed. A spawner that has just lost its premix is given time to end its tasks
// itself: it notes how they ended. What cannot be removed stays for the next one.
func cleanStale(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	deadline := time.Now().Add(staleWait)
	for _, e := range entries {
		rest, ok := strings.CutPrefix(e.Name(), "premix-")
		f := strings.Split(rest, ".")
		if !ok || len(f) != 3 || f[2] != pidNamespace() {
			continue
		}
		pid, err := strconv.Atoi(f[0])
		if err != nil || pid == os.Getpid() || strconv.FormatUint(proc.StartTime(pid), 10) == f[1] {
			continue
		}
		stale := filepath.Join(dir, e.Name())
		for inUse(stale) && time.Now().Before(deadline) {
			time.Sleep(10 * time.Millisecond)
		}
		_ = removeGroups(stale)
	}
}

// inUse reports whether there are processes in a cgroup or below it.
func inUse(dir string) (used bool) {
	_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		// A directory that was removed in between has no processes.
		used = used || err == nil && e.Name() == "cgroup.procs" && readString(path) != ""
		return nil
	})
	return used
}

// write writes a control file of a cgroup. For a file that does not exist the
// kernel returns fs.ErrPermission.
func write(dir, name, value string) error {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}
