package collect

import (
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// groupFile is a file of a task's cgroup, in the hierarchy of one controller.
type groupFile uint8

const (
	memoryCurrent groupFile = iota // of version 2
	cpuStat2
	memoryEvents
	pidsCurrent2
	ioStat
	cpuPressure
	memoryPressure
	ioPressure
	memoryUsage // of version 1
	cpuacctUsage
	cpuStat1
	memoryOOM
	pidsCurrent1
	blkioBytes
	groupFiles // number of files
)

var groupFileNames = [groupFiles]struct{ controller, name string }{
	memoryCurrent: {"v2", "memory.current"}, cpuStat2: {"v2", "cpu.stat"}, memoryEvents: {"v2", "memory.events"},
	pidsCurrent2: {"v2", "pids.current"}, ioStat: {"v2", "io.stat"},
	cpuPressure: {"v2", "cpu.pressure"}, memoryPressure: {"v2", "memory.pressure"}, ioPressure: {"v2", "io.pressure"},
	memoryUsage: {"memory", "memory.usage_in_bytes"}, cpuacctUsage: {"cpuacct", "cpuacct.usage"}, cpuStat1: {"cpu", "cpu.stat"},
	memoryOOM: {"memory", "memory.oom_control"}, pidsCurrent1: {"pids", "pids.current"}, blkioBytes: {"blkio", "blkio.throttle.io_service_bytes_recursive"},
}

// groupReader reads files of cgroups, many small ones a second. Most of the cost is to find
// and open them. Therefore
//
//   - files stay open, as far as the limit of descriptors permits;
//   - they are opened relative to the directory above the task's, which many tasks share;
//   - a file that is missing in one task's cgroup is not looked for in its siblings, since
//     the cgroup above decides which files its children have.
//
// Now and then a call of renew discards these findings: a controller may have been switched
// on, or a cgroup created again.
type groupReader struct {
	files  int            // number of files that may stay open
	above  map[string]int // O_PATH descriptors of the directories above tasks'
	absent map[absence]struct{}
	round  int // number of calls of renew
	buf    []byte
}

// absence is a file that the cgroups in a directory do not have.
type absence struct {
	above string
	file  groupFile
}

// maxAbove is the number of directories above tasks' that stay open.
const maxAbove = 256

// keptFiles are the open files of one task's cgroup.
type keptFiles struct {
	fds   [groupFiles]int32 // descriptor + 1; 0: not opened; -1: does not exist
	round int               // in which the -1 were found
}

func newGroupReader() groupReader {
	r := groupReader{above: make(map[string]int), absent: make(map[absence]struct{}), buf: make([]byte, 16<<10)}
	var limit unix.Rlimit
	// Half of the limit, since others open files, too.
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		r.files = int(min(limit.Cur/2, 1<<16))
	}
	return r
}

// renew discards all findings about missing files.
func (r *groupReader) renew() {
	for _, fd := range r.above {
		unix.Close(fd)
	}
	clear(r.above)
	clear(r.absent)
	r.round++
}

func (r *groupReader) release(k *keptFiles) {
	for i := range k.fds {
		r.drop(k, groupFile(i))
	}
}

func (r *groupReader) drop(k *keptFiles, f groupFile) {
	if k.fds[f] > 0 {
		unix.Close(int(k.fds[f] - 1))
		r.files++
	}
	k.fds[f] = 0
}

// get reads a file of the cgroup in a directory. ok is false if it does not exist: the
// controller may be missing, or the cgroup removed. The text is valid until the next call.
func (r *groupReader) get(k *keptFiles, dir string, f groupFile) (text string, ok bool) {
	if k.round != r.round {
		k.round = r.round
		for i := range k.fds {
			k.fds[i] = max(k.fds[i], 0)
		}
	}
	fd := int(k.fds[f]) - 1
	kept := fd >= 0
	if !kept {
		if k.fds[f] < 0 {
			return "", false
		}
		var there bool
		if fd, there = r.open(dir, f); !there {
			k.fds[f] = -1
		}
		if fd < 0 {
			return "", false
		}
		if kept = r.files > 0; kept {
			r.files--
			k.fds[f] = int32(fd + 1)
		}
	}
	n, err := unix.Pread(fd, r.buf, 0)
	switch {
	case !kept:
		unix.Close(fd)
	case err != nil: // the cgroup was removed; a new one may have its name
		r.drop(k, f)
	}
	if err != nil || n <= 0 {
		return "", false
	}
	return unsafe.String(&r.buf[0], n), true
}

// open returns a descriptor, or a negative number. there is true if the cgroup may have the
// file, and false if the cgroup exists without it.
func (r *groupReader) open(dir string, f groupFile) (fd int, there bool) {
	parent, base := filepath.Split(dir)
	what := absence{parent, f}
	if _, no := r.absent[what]; no {
		return -1, false
	}
	name := groupFileNames[f].name
	at, known := r.above[parent]
	if !known && len(r.above) < maxAbove {
		var err error
		if at, err = unix.Open(parent, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err == nil {
			known = true
			r.above[parent] = at
		}
	}
	if known {
		if fd, err := unix.Openat(at, base+"/"+name, unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
			return fd, true
		}
	}
	fd, err := unix.Open(dir+"/"+name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	switch {
	case err == nil && known: // the directory above was created again
		unix.Close(at)
		delete(r.above, parent)
	case err == unix.ENOENT && unix.Access(dir, unix.F_OK) == nil:
		r.absent[what] = struct{}{}
		return -1, false
	case err != nil:
		return -1, true
	}
	return fd, true
}
