package spawn

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/proc"
)

// TaskCgroup is a cgroup for the tasks of a slot, one after another. It limits the number of
// processes of a task. When the task ends, all its processes in the cell are killed, also a
// daemon that has made a session of its own. Making a cgroup for each task takes as long as a
// short task, and so does moving a process into one (cgroups(7)). So a task is born in its
// cell: in version 1 the thread of the slot is a member, and in version 2 clone3(2) gets the
// cell.
type TaskCgroup struct {
	Dir string // "" for none
	V2  bool
}

// cell is a cell as its slot uses it.
type cell struct {
	TaskCgroup
	dir     int    // version 2: for clone3
	procs   int    // version 2: cgroup.procs, where clone3 does not know cgroups
	state   int    // the file that shows whether the cell is empty
	empty   string // content of state for an empty cell, or a part of it
	events  int    // the file that counts refused processes; -1: without a limit
	refused int64  // count of events when the last task had ended
	limit   int    // of processes; 0: none
	raised  bool   // the limit is higher now, see clear
}

// emptyWait is the longest wait for the end of processes that were killed.
const emptyWait = 5 * time.Second

// openCell opens a cell, and in version 1 makes the calling thread, which the caller has
// locked, a member.
func openCell(c TaskCgroup) (_ *cell, err error) {
	o := &cell{TaskCgroup: c, events: -1}
	file := func(name string, flags int) int {
		fd, ferr := open(filepath.Join(c.Dir, name), flags, 0)
		if err == nil && ferr != nil {
			err = &os.PathError{Op: "open", Path: filepath.Join(c.Dir, name), Err: ferr}
		}
		return fd
	}
	if o.limit, _ = strconv.Atoi(read(c.Dir, "pids.max")); o.limit > 0 {
		o.events = file("pids.events", unix.O_RDONLY)
		o.refused = o.refusals()
	}
	switch {
	case !c.V2:
		o.state, o.empty = file("pids.current", unix.O_RDONLY), "1\n" // the slot's own thread
		if err == nil {
			err = write(c.Dir, "tasks", "0")
		}
		return o, err
	case o.limit > 0:
		o.state, o.empty = file("pids.current", unix.O_RDONLY), "0\n"
	default:
		o.state, o.empty = file("cgroup.events", unix.O_RDONLY), "populated 0\n"
	}
	o.dir = file("", unix.O_RDONLY|unix.O_DIRECTORY)
	o.procs = file("cgroup.procs", unix.O_WRONLY)
	return o, err
}

// refusals returns how many processes and threads the kernel has refused.
func (c *cell) refusals() int64 {
	var buf [64]byte
	n, _ := unix.Pread(c.events, buf[:], 0)
	_, count, _ := bytes.Cut(buf[:max(0, n)], []byte("max "))
	v, _ := strconv.ParseInt(string(bytes.TrimSpace(count)), 10, 64)
	return v
}

// quiet reports, for the price of one system call, whether the cell is surely empty.
func (c *cell) quiet() bool {
	var buf [64]byte
	n, err := unix.Pread(c.state, buf[:], 0)
	return err == nil && bytes.HasPrefix(buf[:n], []byte(c.empty))
}

// end ends a task whose first process has ended: it kills all its remaining processes. It
// reports whether the kernel had refused the task a process.
func (c *cell) end() (refused bool) {
	now := c.refusals()
	refused = now > c.refused
	if !c.quiet() || c.raised {
		c.clear()
		now = c.refusals() // including the processes that were refused while the task was ended
	}
	c.refused = now
	return refused
}

// clear kills all processes in the cell, and prepares it for the next task.
func (c *cell) clear() {
	for end := time.Now().Add(emptyWait); !c.quiet(); time.Sleep(time.Millisecond) {
		if Kill(c.Dir) == 0 || time.Now().After(end) {
			break
		}
	}
	if c.limit == 0 {
		_ = write(c.Dir, "cgroup.freeze", "0")
		return
	}
	// Zombies count until their parents, or process 1, have waited for them. They must not
	// reduce the number of processes for the next task.
	left := 0
	if c.raised = !c.quiet(); c.raised {
		left, _ = strconv.Atoi(read(c.Dir, "pids.current"))
	}
	_ = write(c.Dir, "pids.max", strconv.Itoa(c.limit+left)) // it was written before
}

// Kill sends SIGKILL to the processes in a cgroup and below it. It first makes the cgroup
// refuse further processes, or freezes it: otherwise a process could fork and
// escape. Kill returns the number of processes, without zombies. The file cgroup.kill would do
// the same, but on Linux 6.14 and later it also kills every process that clone3(2) creates in
// the cgroup afterwards. Kill spares a process that has only a thread other than the first in
// the cgroup: the spawner, with the thread of a slot.
func Kill(dir string) (n int) {
	if write(dir, "pids.max", "1") != nil {
		_ = write(dir, "cgroup.freeze", "1") // without either the caller repeats it
	}
	_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return nil // it may be gone already
		}
		for word := range strings.FieldsSeq(read(path, "cgroup.procs")) {
			// 0 is a process of another PID namespace.
			if pid, err := strconv.Atoi(word); err == nil && pid > 0 && pid != os.Getpid() && !visits(word, path) {
				_ = unix.Kill(pid, unix.SIGKILL) // it may be gone already
				n++
			}
		}
		return nil
	})
	return n
}

// visits reports whether a process has threads in a cgroup of version 1, but not its first
// one, which lives.
func visits(pid, dir string) bool {
	within := strings.Fields(read(dir, "tasks"))
	if slices.Contains(within, pid) {
		return false
	}
	number, _ := strconv.Atoi(pid)
	state := proc.State(number)
	return state != 0 && state != 'Z' && slices.ContainsFunc(proc.Threads(number), func(tid int) bool { return slices.Contains(within, strconv.Itoa(tid)) })
}

// write writes a control file of a cgroup.
func write(dir, name, value string) error {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// read reads a control file of a cgroup; "" if it cannot be read.
func read(dir, name string) string {
	text, _ := os.ReadFile(filepath.Join(dir, name))
	return strings.TrimSpace(string(text))
}
