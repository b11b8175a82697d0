package tracer

import (
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// facts are the calls that return a property of the machine or of the process that may
// differ between two executions. A limit has the number of the resource behind its name.
var facts = map[uint64]string{
	unix.SYS_UNAME:              FactHost,
	unix.SYS_SCHED_GETAFFINITY:  FactProcessors,
	unix.SYS_GETPRIORITY:        FactNice,
	unix.SYS_IOPRIO_GET:         FactIO,
	unix.SYS_SCHED_GETSCHEDULER: FactPolicy,
	unix.SYS_SCHED_GETPARAM:     FactPolicy,
	unix.SYS_SCHED_GETATTR:      FactPolicy,
	unix.SYS_SYSINFO:            FactMemory,
	unix.SYS_PRLIMIT64:          FactLimit,
	unix.SYS_GETRLIMIT:          FactLimit,
}

// attributes are the calls that return extended attributes or the file system of a file:
// by a path, or by a descriptor.
var attributes = map[uint64]AccessOp{
	unix.SYS_GETXATTR: AccessAttributes, unix.SYS_LGETXATTR: AccessAttributes, unix.SYS_LISTXATTR: AccessAttributes, unix.SYS_LLISTXATTR: AccessAttributes,
	unix.SYS_FGETXATTR: AccessAttributes, unix.SYS_FLISTXATTR: AccessAttributes, unix.SYS_STATFS: AccessSystem, unix.SYS_FSTATFS: AccessSystem,
}

// byDescriptor are the calls of attributes that have a descriptor and not a path.
var byDescriptor = []uint64{unix.SYS_FGETXATTR, unix.SYS_FLISTXATTR, unix.SYS_FSTATFS}

// states are the calls that make state that the kernel keeps, and that neither /proc nor
// ptrace(2) shows.
var states = map[uint64]string{
	unix.SYS_SEMGET: "System V semaphores", unix.SYS_SHMGET: "System V shared memory", unix.SYS_MSGGET: "System V message queues",
	unix.SYS_MQ_OPEN: "POSIX message queues", unix.SYS_MQ_UNLINK: "POSIX message queues", unix.SYS_IO_URING_SETUP: "io_uring",
	unix.SYS_ADD_KEY: "keyrings", unix.SYS_REQUEST_KEY: "keyrings", unix.SYS_KEYCTL: "keyrings", unix.SYS_MODIFY_LDT: "segments of its own",
	unix.SYS_PERF_EVENT_OPEN: "performance counters", unix.SYS_BPF: "BPF programs", unix.SYS_MOUNT: "mounts", unix.SYS_UMOUNT2: "mounts",
	unix.SYS_SETHOSTNAME: "another name of the machine", unix.SYS_OPEN_BY_HANDLE_AT: "file handles", unix.SYS_EXECVEAT: "programs by their descriptors",
}

// processes are the calls that take or change the state of another process.
var processes = []uint64{unix.SYS_WAIT4, unix.SYS_WAITID, unix.SYS_KILL, unix.SYS_TKILL, unix.SYS_TGKILL, unix.SYS_RT_SIGQUEUEINFO,
	unix.SYS_RT_TGSIGQUEUEINFO, unix.SYS_PIDFD_OPEN, unix.SYS_PIDFD_SEND_SIGNAL, unix.SYS_SETPGID, unix.SYS_PTRACE}

// sometimes are the calls that make such state only with some arguments.
var sometimes = map[uint64]func(tid int, args [6]uint64) string{
	unix.SYS_PRCTL: func(_ int, args [6]uint64) string {
		const userDispatch, setMDWE = 59, 65
		switch args[0] {
		case unix.PR_GET_NO_NEW_PRIVS, unix.PR_GET_SECCOMP:
			return "no_new_privs or seccomp, which a preparation changes" // see Watch.Install
		case userDispatch:
			return "its own handling of system calls"
		case setMDWE:
			return "memory that it cannot make executable"
		}
		return ""
	},
	unix.SYS_PERSONALITY: func(_ int, args [6]uint64) string {
		if uint32(args[0]) == 1<<32-1 {
			return ""
		}
		return "another personality"
	},
	unix.SYS_CONNECT: func(tid int, args [6]uint64) string {
		var family [2]byte
		if (&Proc{Pid: tid}).Read(args[1], family[:]) != nil {
			return ""
		}
		switch binary.NativeEndian.Uint16(family[:]) {
		case unix.AF_INET, unix.AF_INET6:
			return "a network"
		}
		return ""
	},
}

// changing are the calls of changes, without the calls that change only the process.
func changing(nr uint64) (access, bool) {
	switch nr {
	case unix.SYS_CHDIR, unix.SYS_FCHDIR, unix.SYS_CHROOT:
		return access{}, false
	}
	l, ok := changes[nr]
	return l, ok
}

// factCalls returns the numbers of all calls that fact describes.
func factCalls() []uint64 {
	all := slices.Concat(slices.Collect(maps.Keys(facts)), slices.Collect(maps.Keys(attributes)), slices.Collect(maps.Keys(states)), slices.Collect(maps.Keys(sometimes)), processes)
	for nr := range changes {
		if _, ok := changing(nr); ok && looks[nr].op == "" {
			all = append(all, nr)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// fact describes a call of factCalls at whose entry a thread is stopped, or returns nil.
func fact(tid int, r *unix.PtraceRegs) *Access {
	args := arguments(r)
	l := &Access{Tid: tid, Op: AccessFact}
	name, ok := facts[r.Orig_rax]
	if r.Orig_rax == unix.SYS_PRCTL && slices.Contains(inheritedProperties, int(args[0])) {
		name, ok = FactInherited, true
	}
	if ok {
		switch r.Orig_rax {
		case unix.SYS_GETRLIMIT:
			name = fmt.Sprint(name, args[0])
		case unix.SYS_PRLIMIT64:
			if args[3] == 0 {
				return nil // it sets the limit
			}
			name = fmt.Sprint(name, args[1])
		}
		l.Path = name
		return l
	}
	if slices.Contains(processes, r.Orig_rax) {
		l.Op = AccessProcess
		return l
	}
	if l.Op = attributes[r.Orig_rax]; l.Op != "" {
		if slices.Contains(byDescriptor, r.Orig_rax) {
			l.Path, _ = os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", tid, int32(args[0]))) // "": the call fails
		} else {
			l.Path = pathAt(tid, 0xffffffff&unix.AT_FDCWD, args[0])
		}
		return l
	}
	if call, ok := changing(r.Orig_rax); ok {
		l.Op, l.Path = AccessChange, pathOf(tid, call, r)
		if second, ok := targets[r.Orig_rax]; ok {
			l.Target = pathOf(tid, second, r)
		}
		return l
	}
	l.Op, l.Path = AccessState, states[r.Orig_rax]
	if when := sometimes[r.Orig_rax]; when != nil {
		l.Path = when(tid, args)
	}
	if l.Path == "" {
		return nil
	}
	return l
}
