package spawn

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// shellPath interprets commands.
const shellPath = "/bin/sh"

// step is a part of the way of a child to its program.
type step uint8

const (
	stepPrepare step = iota + 1
	stepCgroup
	stepDirectory
	stepInput
	stepOutput
	stepExecute
)

// String returns the step as text for messages, after "cannot".
func (s step) String() string {
	switch s {
	case stepCgroup:
		return "join its cgroup"
	case stepDirectory:
		return "enter its directory"
	case stepInput:
		return "open its input"
	case stepOutput:
		return "open its output"
	case stepExecute:
		return "be executed"
	}
	return "be started"
}

// child describes a process for a starter.
type child struct {
	argv   []string   // of the program; empty: only the shell is used
	paths  [][]string // where the program may be, each in pieces
	shell  string     // command for the shell, if none of the paths can be executed; "" for none
	env    *environ   // variables that all children have
	more   []string   // further entries of the environment
	dir    string     // "": the spawner's
	joins  []int      // descriptors of cgroup.procs
	into   int        // directory of the cgroup that the child is born in; 0: the thread's
	procs  int        // its cgroup.procs, where the kernel knows only how to join it
	stdin  int        // 0: the spawner's, which is empty
	stdout int
	stderr int

	found int // set by the start: which of the paths was executed; -1: the shell
}

// environ is an environment as the kernel wants it.
type environ struct {
	entries  []string
	pointers []uintptr // into text
	text     []byte
	path     []string // directories of PATH
	index    map[string]int
}

// defaultPath is where programs are looked for without a PATH: as the shell does.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// newEnviron makes an environment of KEY=VALUE entries, without those named.
func newEnviron(entries []string, without ...string) *environ {
	e := &environ{index: make(map[string]int)}
	path, found := defaultPath, false
next:
	for _, entry := range entries {
		name, value, _ := strings.Cut(entry, "=")
		for _, w := range without {
			if name == w {
				continue next
			}
		}
		if at, ok := e.index[name]; ok {
			e.entries[at] = entry // the last one counts
		} else {
			e.index[name] = len(e.entries)
			e.entries = append(e.entries, entry)
		}
		if name == "PATH" {
			path, found = value, true
		}
	}
	if !found || path != "" {
		e.path = strings.Split(path, ":")
	} else {
		e.path = []string{""}
	}
	var starts []int
	for _, entry := range e.entries {
		starts = append(starts, len(e.text))
		e.text = append(append(e.text, entry...), 0)
	}
	for _, at := range starts {
		e.pointers = append(e.pointers, uintptr(unsafe.Pointer(&e.text[at])))
	}
	return e
}

// pathsOf returns the places to look for a program, each in pieces.
func (e *environ) pathsOf(name string, paths [][]string) [][]string {
	if strings.Contains(name, "/") {
		return append(paths, []string{name})
	}
	for _, dir := range e.path {
		if dir == "" {
			dir = "."
		}
		paths = append(paths, []string{dir, "/", name})
	}
	return paths
}

// hashMost is how many names a hash has at most.
const hashMost = 1000

// hash remembers in which directory of PATH programs were found, as a shell does: each
// directory that is tried in vain costs a short task as much as anything else that is
// done for it. So a program that comes up in an earlier directory is not seen by a
// spawner that has found another one of its name.
type hash struct {
	env   *environ
	found map[string]int // never 0
	name  string         // the last one asked for
	paths [][]string     // its
}

func newHash(e *environ) *hash { return &hash{env: e, found: make(map[string]int)} }

// pathsOf returns the places to look for a program, the likely one first.
func (h *hash) pathsOf(name string) [][]string {
	if h.name != name || h.paths == nil {
		h.name, h.paths = name, h.env.pathsOf(name, h.paths[:0])
		if n := h.found[name]; n > 0 {
			h.paths = slices.Insert(h.paths, 0, h.paths[n])
		}
	}
	return h.paths
}

// learn notes which of the paths that were last asked for was executed, -1 for none.
// What depends on the directory of the task is not noted.
func (h *hash) learn(at int) {
	if h.found[h.name] > 0 {
		if at == 0 {
			return
		}
		delete(h.found, h.name)
		at--
	} else if at <= 0 {
		return
	}
	h.paths = nil
	if at <= 0 {
		return
	}
	for _, dir := range h.env.path[:at+1] {
		if !strings.HasPrefix(dir, "/") {
			return
		}
	}
	if len(h.found) >= hashMost {
		clear(h.found)
	}
	h.found[h.name] = at
}

// joinText makes a shell join cgroups and execute the rest of its arguments. The first argument
// is the number of cgroups, and their descriptors begin at 3.
const joinText = `n=$1; shift; i=3; while [ $i -lt $((n+3)) ]; do echo 0 >/proc/self/fd/$i || exit 125; i=$((i+1)); done; exec "$@" 3>&- 4>&- 5>&- 6>&-`

// join has the child join the cgroup that it cannot be born in.
func (c *child) join() {
	if c.into > 0 {
		c.joins, c.into = append(c.joins, c.procs), 0
	}
}

// forkExec starts a child with the means of package syscall.
func forkExec(c *child) (pid int, at step, errno syscall.Errno) {
	c.join()
	attr := &syscall.ProcAttr{
		Dir:   c.dir,
		Env:   append(append([]string{}, c.env.entries...), c.more...),
		Files: []uintptr{uintptr(c.stdin), uintptr(c.stdout), uintptr(c.stderr)},
		Sys:   &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL},
	}
	for _, fd := range c.joins {
		attr.Files = append(attr.Files, uintptr(fd))
	}
	errno = unix.ENOENT
	try := func(path string, argv []string) bool {
		if n := len(c.joins); n > 0 {
			if err := unix.Access(path, unix.X_OK); err != nil {
				return false
			}
			argv = append([]string{"sh", "-c", joinText, "sh", strconv.Itoa(n), path}, argv[1:]...)
			path = shellPath
		}
		p, err := syscall.ForkExec(path, argv, attr)
		if err == nil {
			pid = p
			return true
		}
		var e syscall.Errno
		if !errors.As(err, &e) {
			e = unix.EINVAL
		}
		if e != unix.ENOENT {
			errno = e
		}
		return false
	}
	if len(c.argv) > 0 {
		for i, p := range c.paths {
			if c.found = i; try(strings.Join(p, ""), c.argv) {
				return pid, 0, 0
			}
			if errno == unix.ENOEXEC {
				break // a script for the shell: no reason to look further
			}
		}
	}
	c.found = -1
	if c.shell != "" && try(shellPath, []string{"sh", "-c", c.shell}) {
		return pid, 0, 0
	}
	if c.dir != "" && unix.Access(c.dir, unix.X_OK) != nil {
		return 0, stepDirectory, errno
	}
	return 0, stepExecute, errno
}
