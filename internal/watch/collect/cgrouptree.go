package collect

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"premix/internal/kit/mountinfo"
)

// cgroupTree finds the cgroups of tasks in all hierarchies. It notices new and removed ones
// by inotify(7): a walk through all hierarchies in each turn would cost more than
// reading the tasks' files. It watches the directories above tasks for new ones, and does
// not descend into a task's own cgroup.
type cgroupTree struct {
	*machine
	patterns []taskPattern
	fd       int // of inotify
	dirs     map[int32]string
	above    map[string]*hierarchy // by directory that is watched
	found    map[string]*taskGroup
	mounts   []*hierarchy
	walked   time.Time
	changes  int // incremented when found changes
	walks    int
}

// hierarchy is a mounted cgroup hierarchy (cgroups(7)).
type hierarchy struct {
	point       string
	v2          bool
	controllers []string // of version 1
}

// taskGroup is the cgroup of a task, in all hierarchies that have it.
type taskGroup struct {
	key string
	taskName
	dirs map[string]string // by controller; "v2" for version 2
}

// taskName identifies the task that a cgroup belongs to.
type taskName struct {
	manager string // premix, slurm, kubernetes, docker, podman, or as configured
	task    string
	pid     string // process id of the premix that runs the task
}

// taskPattern recognises cgroups by their path. The group named task matches the name of
// the task; pid, the premix that runs it; key, if there is one, the part of the path that
// its directories in different hierarchies have in common, otherwise that is the whole
// path.
type taskPattern struct {
	manager string
	path    *regexp.Regexp
}

// taskPatterns know the paths of premix (internal/engine/local), of Slurm's plugins for version
// 1 and 2 (https://slurm.schedmd.com/cgroups.html), of the kubelet with both of its
// drivers, and of docker and podman.
func taskPatterns() []taskPattern {
	id := `([0-9a-f]{12})[0-9a-f]{52}`
	return []taskPattern{
		{"premix", regexp.MustCompile(`/(?P<key>premix-(?P<pid>\d+)\.\d+\.\d+/(?P<task>\d+\.\d+))$`)},
		{"slurm", regexp.MustCompile(`/slurm(?:_[^/]+)?/uid_\d+/job_(?P<task>\d+/step_[^/]+)$`)},
		{"slurm", regexp.MustCompile(`slurmstepd\.scope/job_(?P<task>\d+/step_[^/]+)$`)},
		{"kubernetes", regexp.MustCompile(`/kubepods.*pod(?P<task>[0-9a-f_-]{32,36}(?:\.slice)?/(?:cri-containerd-|crio-|docker-)?` + strings.Replace(id, "(", "(?:", 1) + `)(?:\.scope)?$`)},
		{"docker", regexp.MustCompile(`/docker[-/](?P<task>[0-9a-f]{64})(?:\.scope)?$`)},
		{"podman", regexp.MustCompile(`/libpod-(?P<task>[0-9a-f]{64})(?:\.scope)?$`)},
	}
}

// recognise returns the task that the cgroup at a path below its mount point belongs to.
func recognise(patterns []taskPattern, path string) (key string, n taskName, ok bool) {
	for _, p := range patterns {
		m := p.path.FindStringSubmatch(path)
		if m == nil {
			continue
		}
		key, n = path, taskName{manager: p.manager, task: path}
		for i, name := range p.path.SubexpNames() {
			switch {
			case m[i] == "":
			case name == "task":
				n.task = m[i]
			case name == "pid":
				n.pid = m[i]
			case name == "key":
				key = m[i]
			}
		}
		n.task = short(n)
		return key, n, true
	}
	return "", n, false
}

// short returns the name of a task as people write it.
func short(n taskName) string {
	switch n.manager {
	case "slurm":
		return strings.Replace(n.task, "/step_", ".", 1)
	case "docker", "podman":
		return n.task[:12]
	case "kubernetes":
		pod, container, _ := strings.Cut(strings.ReplaceAll(strings.ReplaceAll(n.task, "_", "-"), ".slice", ""), "/")
		if i := strings.LastIndexByte(container, '-'); i >= 0 {
			container = container[i+1:]
		}
		return pod + "/" + container[:min(12, len(container))]
	}
	return n.task
}

// wanted are the controllers of version 1 that are read.
var wanted = []string{"cpuacct", "cpu", "memory", "blkio", "pids"}

// maxDepth is the depth to which cgroups are searched.
const maxDepth = 16

// rewalk is the time between full walks. They find cgroups that inotify did not report,
// for example cgroups created by the kernel.
const rewalk = time.Minute

func newCgroupTree(m *machine, patterns []taskPattern) *cgroupTree {
	return &cgroupTree{machine: m, patterns: append(patterns, taskPatterns()...), fd: -1}
}

// close closes the descriptor of inotify.
func (t *cgroupTree) close() {
	if t.fd >= 0 {
		unix.Close(t.fd)
		t.fd = -1
	}
}

// update applies the changes since the last call.
func (t *cgroupTree) update() error {
	if t.fd < 0 || t.now().Sub(t.walked) > rewalk {
		return t.walk()
	}
	buf := make([]byte, 64<<10)
	for {
		n, err := unix.Read(t.fd, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return nil // EAGAIN: that was all
		}
		for at := 0; at+unix.SizeofInotifyEvent <= n; {
			e := (*unix.InotifyEvent)(unsafe.Pointer(&buf[at]))
			name := string(bytes.TrimRight(buf[at+unix.SizeofInotifyEvent:at+unix.SizeofInotifyEvent+int(e.Len)], "\x00"))
			at += unix.SizeofInotifyEvent + int(e.Len)
			switch {
			case e.Mask&unix.IN_Q_OVERFLOW != 0:
				return t.walk()
			case e.Mask&unix.IN_IGNORED != 0:
				delete(t.above, t.dirs[e.Wd])
				delete(t.dirs, e.Wd)
			case e.Mask&unix.IN_ISDIR == 0:
			case e.Mask&unix.IN_CREATE != 0:
				if dir, ok := t.dirs[e.Wd]; ok {
					t.look(t.above[dir], filepath.Join(dir, name))
				}
			case e.Mask&unix.IN_DELETE != 0:
				if dir, ok := t.dirs[e.Wd]; ok {
					t.forget(filepath.Join(dir, name))
				}
			}
		}
	}
}

// forget removes a directory of a task.
func (t *cgroupTree) forget(dir string) {
	t.changes++
	for key, g := range t.found {
		for c, d := range g.dirs {
			if d == dir {
				delete(g.dirs, c)
			}
		}
		if len(g.dirs) == 0 {
			delete(t.found, key)
		}
	}
}

// walk searches all hierarchies again.
func (t *cgroupTree) walk() error {
	text, err := t.read("proc/self/mountinfo")
	if err != nil {
		return err
	}
	t.close()
	if t.fd, err = unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC); err != nil {
		return os.NewSyscallError("inotify_init1", err)
	}
	t.dirs, t.above = make(map[int32]string), make(map[string]*hierarchy)
	t.found, t.mounts = make(map[string]*taskGroup), nil
	t.walked = t.now()
	t.walks++
	t.changes++
	seen := make(map[string]bool)
	list, _ := mountinfo.Parse(text) // lines that Parse cannot read are skipped
	for _, m := range list {
		if !m.Cgroup() {
			continue
		}
		h := &hierarchy{point: t.path(m.Path), v2: m.Type == "cgroup2"}
		for _, c := range m.Options {
			if !h.v2 && slices.Contains(wanted, c) && !seen[c] {
				seen[c] = true
				h.controllers = append(h.controllers, c)
			}
		}
		if h.v2 && !seen["v2"] {
			seen["v2"] = true
			h.controllers = []string{"v2"}
		}
		if len(h.controllers) > 0 {
			t.mounts = append(t.mounts, h)
			t.look(h, h.point)
		}
	}
	return nil
}

// look adds a directory and all directories below it.
func (t *cgroupTree) look(h *hierarchy, dir string) {
	rel := strings.TrimPrefix(dir, h.point)
	if key, name, ok := recognise(t.patterns, rel); ok {
		g := t.found[key]
		if g == nil {
			g = &taskGroup{key: key, taskName: name, dirs: make(map[string]string)}
			t.found[key] = g
		}
		t.changes++
		for _, c := range h.controllers {
			g.dirs[c] = dir
		}
		return
	}
	if strings.Count(rel, "/") > maxDepth {
		return
	}
	// The watch comes first: a directory created during the read is then reported twice,
	// and never missed.
	wd, err := unix.InotifyAddWatch(t.fd, dir, unix.IN_CREATE|unix.IN_DELETE|unix.IN_ONLYDIR)
	if err == nil {
		t.dirs[int32(wd)], t.above[dir] = dir, h
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // it was removed
	}
	for _, e := range entries {
		if e.IsDir() {
			t.look(h, filepath.Join(dir, e.Name()))
		}
	}
}
