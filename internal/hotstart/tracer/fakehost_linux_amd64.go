package tracer

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// fakeHostCalls are the system calls that a FakeHost answers.
var fakeHostCalls = []uint64{unix.SYS_GETPPID, unix.SYS_GETPGRP, unix.SYS_GETPGID, unix.SYS_GETSID,
	unix.SYS_GETPRIORITY, unix.SYS_IOPRIO_GET, unix.SYS_SCHED_GETSCHEDULER, unix.SYS_SCHED_GETPARAM, unix.SYS_SCHED_GETATTR, unix.SYS_PRCTL,
	unix.SYS_SCHED_GETAFFINITY, unix.SYS_STATFS, unix.SYS_FSTATFS}

// A FakeHost answers a process that asks for its parent, its process group, its session, its
// priority or another property that it has inherited (prctl(2)), its processors or a file
// system, for the device, the owner or the blocks of one of Files, or for the number of links
// of a directory. The answers differ from the kernel's: a tool that
// keeps one of them has another memory than under the kernel.
type FakeHost struct {
	Number int                // another number has other answers about Files and processors
	Files  map[[2]uint64]bool // device and inode
	// Since is 0, or a time in seconds. Then the inode, the time of the change of the status and the
	// nanoseconds of all times of Files differ, too, and the time of the last access to any file; of
	// files that were changed since that time, the inode and all times. Package inplace compares the
	// memory of a head with them.
	Since int64
}

// statCalls are the calls that fill a struct stat, with the index of the argument that has
// its address.
var statCalls = map[uint64]int{unix.SYS_STAT: 1, unix.SYS_LSTAT: 1, unix.SYS_FSTAT: 1, unix.SYS_NEWFSTATAT: 2}

// mask returns bits for a property of a file. No byte of them is zero.
func (e *FakeHost) mask(property int) uint64 {
	h := uint64(e.Number*8+property+1) * 0x9e3779b97f4a7c15
	return (h ^ h>>29) | 0x0101010101010101
}

// Properties of a file, for mask.
const (
	maskDevice = iota
	maskOwner
	maskBlocks
	maskInode
	maskChange
)

// Restat changes a struct stat as a process gets it for a file of Files: the device, the
// owner and the blocks. byName is false for a stat of a descriptor, whose block size is left:
// by it the C library chooses the size of a buffer.
func (e *FakeHost) Restat(b []byte, byName bool) {
	change := func(from, to int, mask uint64) {
		var m [8]byte
		binary.NativeEndian.PutUint64(m[:], mask)
		for i := from; i < to; i++ {
			b[i] ^= m[i-from]
		}
	}
	var st unix.Stat_t
	change(int(unsafe.Offsetof(st.Dev)), 8, e.mask(maskDevice))
	at := int(unsafe.Offsetof(st.Uid))
	change(at, at+8, e.mask(maskOwner)) // and the group
	at = int(unsafe.Offsetof(st.Blocks))
	change(at, at+7, e.mask(maskBlocks)) // a positive number
	if e.Since > 0 {
		at = int(unsafe.Offsetof(st.Ino))
		change(at, at+8, e.mask(maskInode))
		at = int(unsafe.Offsetof(st.Ctim))
		change(at, at+4, e.mask(maskChange))
		for _, at := range []uintptr{unsafe.Offsetof(st.Atim), unsafe.Offsetof(st.Mtim), unsafe.Offsetof(st.Ctim)} {
			binary.NativeEndian.PutUint64(b[at+8:], e.nanoseconds())
		}
	}
	if at = int(unsafe.Offsetof(st.Blksize)); byName {
		binary.NativeEndian.PutUint64(b[at:], binary.NativeEndian.Uint64(b[at:])<<8)
	}
}

// other changes a time in seconds, in all of its bytes that a present time uses.
func (e *FakeHost) other(t *int64) { *t ^= int64(uint32(e.mask(maskChange))) }

// nanoseconds returns a part of a second that is not 0.
func (e *FakeHost) nanoseconds() uint64 { return e.mask(maskChange)%999_999_999 + 1 }

// restat changes the result of a stat, or of statx(2), that a thread has made with some
// arguments and without an error.
func (e *FakeHost) restat(tid int, nr uint64, args [6]uint64) error {
	p := &Proc{Pid: tid}
	if nr == unix.SYS_STATX {
		var st unix.Statx_t
		b := unsafe.Slice((*byte)(unsafe.Pointer(&st)), unsafe.Sizeof(st))
		if p.Read(args[4], b) != nil {
			return nil
		}
		if !e.Files[[2]uint64{unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino}] {
			if st.Mode&unix.S_IFMT == unix.S_IFDIR {
				st.Nlink++
			}
			changed := st.Ctime.Sec >= e.Since
			if e.Since > 0 {
				e.other(&st.Atime.Sec)
				st.Atime.Nsec = uint32(e.nanoseconds())
			}
			if e.Since > 0 && changed {
				st.Ino ^= e.mask(maskInode)
				e.other(&st.Mtime.Sec)
				e.other(&st.Ctime.Sec)
				st.Mtime.Nsec, st.Ctime.Nsec = uint32(e.nanoseconds()), uint32(e.nanoseconds())
			}
			return gone(p.Write(args[4], b))
		}
		st.Dev_major ^= uint32(e.mask(maskDevice))
		st.Dev_minor ^= uint32(e.mask(maskDevice) >> 32)
		st.Mnt_id ^= e.mask(maskDevice)
		st.Uid ^= uint32(e.mask(maskOwner))
		st.Gid ^= uint32(e.mask(maskOwner) >> 32)
		st.Blocks ^= e.mask(maskBlocks) >> 8
		st.Btime.Sec ^= int64(e.mask(maskBlocks) >> 24)
		if e.Since > 0 {
			st.Ino ^= e.mask(maskInode)
			st.Ctime.Sec ^= int64(uint32(e.mask(maskChange)))
			for _, t := range []*unix.StatxTimestamp{&st.Atime, &st.Mtime, &st.Ctime} {
				t.Nsec = uint32(e.nanoseconds())
			}
		}
		return gone(p.Write(args[4], b))
	}
	at, ok := statCalls[nr]
	if !ok {
		return nil
	}
	var st unix.Stat_t
	b := unsafe.Slice((*byte)(unsafe.Pointer(&st)), unsafe.Sizeof(st))
	switch {
	case p.Read(args[at], b) != nil:
		return nil
	case e.Files[[2]uint64{st.Dev, st.Ino}]:
		e.Restat(b, nr != unix.SYS_FSTAT)
	default:
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			// It changes with each directory in it, and its stamp does not have it.
			st.Nlink++
		}
		changed := st.Ctim.Sec >= e.Since
		if e.Since > 0 {
			e.other(&st.Atim.Sec)
			st.Atim.Nsec = int64(e.nanoseconds())
		}
		if e.Since > 0 && changed {
			st.Ino ^= e.mask(maskInode)
			e.other(&st.Mtim.Sec)
			e.other(&st.Ctim.Sec)
			st.Mtim.Nsec, st.Ctim.Nsec = int64(e.nanoseconds()), int64(e.nanoseconds())
		}
	}
	return gone(p.Write(args[at], b))
}

// CPUs returns a set of processors (sched_getaffinity(2)) as a process gets it: with as many
// processors, and others.
func (e *FakeHost) CPUs(set []byte) []byte {
	other := make([]byte, len(set))
	shift := 3 * e.Number % (8 * max(len(set), 1))
	for i, b := range set {
		for ; b != 0; b &= b - 1 {
			to := (8*i + bits.TrailingZeros8(b) + shift) % (8 * len(set))
			other[to/8] |= 1 << (to % 8)
		}
	}
	return other
}

// affinity answers sched_getaffinity(2).
func (e *FakeHost) affinity(p *Proc, r *unix.PtraceRegs) (size uint64, ok bool) {
	set := OwnCPUs()
	if r.Rsi < uint64(len(set)) || r.Rsi%8 != 0 {
		return 0, false
	}
	return uint64(len(set)), p.Write(r.Rdx, e.CPUs(set)) == nil
}

// OwnCPUs returns the set of processors that this thread may run on, in the form and of the
// size that sched_getaffinity(2) has.
func OwnCPUs() []byte {
	var set [1024]byte
	n, _, errno := unix.RawSyscall(unix.SYS_SCHED_GETAFFINITY, 0, unsafe.Sizeof(set), uintptr(unsafe.Pointer(&set)))
	if errno != 0 {
		return nil
	}
	return set[:n]
}

// Answers to a process.
const (
	elsewhereParent   = 1 << 20
	elsewhereGroup    = 1<<20 + 1
	elsewhereSession  = 1<<20 + 2
	elsewherePriority = 20 - 7    // of the system call: 20 minus the nice value
	elsewhereIO       = 2<<13 | 6 // best effort, level 6 (ioprio_get(2))
	elsewherePolicy   = 3         // SCHED_BATCH
)

// attr answers sched_getattr(2).
func (e *FakeHost) attr(p *Proc, r *unix.PtraceRegs) bool {
	now, err := unix.SchedGetAttr(p.Pid, 0)
	if err != nil || r.R10 != 0 {
		return false
	}
	size := min(r.Rdx, unix.SizeofSchedAttr)
	now.Policy, now.Nice, now.Runtime = elsewherePolicy, 20-elsewherePriority, now.Runtime+12345
	return p.Write(r.Rsi, unsafe.Slice((*byte)(unsafe.Pointer(now)), size)) == nil
}

// prctl answers the calls of prctl(2) that return one of the inheritedProperties.
func (e *FakeHost) prctl(r *unix.PtraceRegs) (result uint64, ok bool) {
	if !slices.Contains(inheritedProperties, int(r.Rdi)) {
		return 0, false
	}
	now, err := unix.PrctlRetInt(int(r.Rdi), 0, 0, 0, 0)
	return uint64(now) ^ 1, err == nil
}

// answer answers a call for a thread that is stopped at its entry. It leaves calls that
// concern other processes to the kernel, and calls that the kernel would refuse.
func (e *FakeHost) answer(tid int, r *unix.PtraceRegs) error {
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
	case unix.SYS_IOPRIO_GET:
		const process = 1 // IOPRIO_WHO_PROCESS
		result = elsewhereIO
		if r.Rdi != process || r.Rsi != 0 && int(r.Rsi) != tid {
			return nil
		}
	case unix.SYS_SCHED_GETSCHEDULER:
		result = elsewherePolicy
		if !own {
			return nil
		}
	case unix.SYS_SCHED_GETPARAM:
		var b [4]byte
		binary.NativeEndian.PutUint32(b[:], 7)
		if !own || p.Write(r.Rsi, b[:]) != nil {
			return nil
		}
	case unix.SYS_SCHED_GETATTR:
		if !own || !e.attr(p, r) {
			return nil
		}
	case unix.SYS_PRCTL:
		value, ok := e.prctl(r)
		if result = value; !ok {
			return nil
		}
	case unix.SYS_SCHED_GETAFFINITY:
		size, ok := e.affinity(p, r)
		if result = size; !own || !ok {
			return nil
		}
	case unix.SYS_STATFS, unix.SYS_FSTATFS:
		var st unix.Statfs_t
		if unix.Statfs(fileAt(tid, r), &st) != nil {
			return nil
		}
		st.Bfree, st.Bavail, st.Ffree = 0, 0, 0
		st.Type, st.Bsize, st.Frsize, st.Flags = ^st.Type&0xffffffff, st.Bsize<<8, st.Frsize<<8, st.Flags^0xf
		st.Blocks, st.Files, st.Namelen = st.Blocks+12345, st.Files+12345, st.Namelen+1
		st.Fsid.Val[0], st.Fsid.Val[1] = ^st.Fsid.Val[0], ^st.Fsid.Val[1]
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
