package tracer

import (
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// elsewhereCalls are the system calls that Elsewhere answers.
var elsewhereCalls = []uint64{unix.SYS_GETPPID, unix.SYS_GETPGRP, unix.SYS_GETPGID, unix.SYS_GETSID, unix.SYS_UNAME,
	unix.SYS_GETPRIORITY, unix.SYS_SCHED_GETSCHEDULER, unix.SYS_STATFS, unix.SYS_FSTATFS}

// An Elsewhere answers a process that asks for its parent, its process group, its session,
// its priority, the name of the machine or the free space of a file system. The answers
// differ from the kernel's: a tool that keeps one of them has another memory than under the
// kernel.
type Elsewhere struct{}

// Answers to a process.
const (
	elsewhereParent   = 1 << 20
	elsewhereGroup    = 1<<20 + 1
	elsewhereSession  = 1<<20 + 2
	elsewhereNode     = "elsewhere"
	elsewherePriority = 20 - 7 // of the system call: 20 minus the nice value
)

// answer answers a call for a thread that is stopped at its entry. It leaves calls that
// concern other processes to the kernel, and calls that the kernel would refuse.
func (*Elsewhere) answer(tid int, r *unix.PtraceRegs) error {
	var result uint64
	own := r.Rdi == 0 || int(r.Rdi) == tgid(tid)
	p := &Proc{Pid: tid}
	switch r.Orig_rax {
	case unix.SYS_GETPPID:
		result = elsewhereParent
	case unix.SYS_GETPGRP:
		result = elsewhereGroup
	case unix.SYS_GETPGID:
		result = elsewhereGroup
		if !own {
			return nil
		}
	case unix.SYS_GETSID:
		result = elsewhereSession
		if !own {
			return nil
		}
	case unix.SYS_GETPRIORITY:
		result = elsewherePriority
		if r.Rdi != unix.PRIO_PROCESS || r.Rsi != 0 {
			return nil
		}
	case unix.SYS_SCHED_GETSCHEDULER:
		const batch = 3 // SCHED_BATCH
		result = batch
		if !own {
			return nil
		}
	case unix.SYS_UNAME:
		var name unix.Utsname
		if unix.Uname(&name) != nil {
			return nil
		}
		clear(name.Nodename[:])
		copy(name.Nodename[:], elsewhereNode)
		if p.Write(r.Rdi, unsafe.Slice((*byte)(unsafe.Pointer(&name)), unsafe.Sizeof(name))) != nil {
			return nil
		}
	case unix.SYS_STATFS, unix.SYS_FSTATFS:
		var st unix.Statfs_t
		if unix.Statfs(fileAt(tid, r), &st) != nil {
			return nil
		}
		st.Bfree, st.Bavail, st.Ffree = 0, 0, 0
		if p.Write(r.Rsi, unsafe.Slice((*byte)(unsafe.Pointer(&st)), unsafe.Sizeof(st))) != nil {
			return nil
		}
	default:
		return nil
	}
	r.Rax, r.Orig_rax = result, ^uint64(0)
	return gone(unix.PtraceSetRegs(tid, r))
}

// fileAt returns a path of the file of a call of statfs(2) or fstatfs(2).
func fileAt(tid int, r *unix.PtraceRegs) string {
	if r.Orig_rax == unix.SYS_FSTATFS {
		return fmt.Sprintf("/proc/%d/fd/%d", tid, int32(r.Rdi))
	}
	path, err := readPath(tid, r.Rdi)
	if err != nil || path == "" || filepath.IsAbs(path) {
		return path
	}
	at, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", tid))
	if err != nil {
		return ""
	}
	return at + "/" + path
}
