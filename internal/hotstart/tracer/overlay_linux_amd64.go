package tracer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// An Overlay is a Watch that can let a process find other files under the names that it
// uses. It sees reads of standard input and of the files that Follow opens, and changes of
// files by their names, too.
type Overlay struct {
	*Watch
	memory   map[int]uint64          // process -> memory for a path, in the process
	followed map[int]map[uint64]bool // process -> descriptors that Follow has opened, and with followsClose those of FollowClose
}

// NewOverlay returns an Overlay of no process.
func NewOverlay() *Overlay {
	return &Overlay{Watch: NewWatch(), memory: map[int]uint64{}, followed: map[int]map[uint64]bool{}}
}

// changes are the calls that change files by their names. The paths of the others, which
// no program that starts needs, are in looks.
var changes = map[uint64]access{
	unix.SYS_MKDIR:       {AccessChange, -1, 0, -1},
	unix.SYS_MKDIRAT:     {AccessChange, 0, 1, -1},
	unix.SYS_MKNOD:       {AccessChange, -1, 0, -1},
	unix.SYS_MKNODAT:     {AccessChange, 0, 1, -1},
	unix.SYS_RENAME:      {AccessChange, -1, 0, -1},
	unix.SYS_RENAMEAT:    {AccessChange, 0, 1, -1},
	unix.SYS_RENAMEAT2:   {AccessChange, 0, 1, -1},
	unix.SYS_UNLINK:      {AccessChange, -1, 0, -1},
	unix.SYS_UNLINKAT:    {AccessChange, 0, 1, -1},
	unix.SYS_RMDIR:       {AccessChange, -1, 0, -1},
	unix.SYS_SYMLINK:     {AccessChange, -1, 1, -1},
	unix.SYS_SYMLINKAT:   {AccessChange, 1, 2, -1},
	unix.SYS_LINK:        {AccessChange, -1, 0, -1},
	unix.SYS_LINKAT:      {AccessChange, 0, 1, -1},
	unix.SYS_CHMOD:       {AccessChange, -1, 0, -1},
	unix.SYS_FCHMODAT:    {AccessChange, 0, 1, -1},
	unix.SYS_CHOWN:       {AccessChange, -1, 0, -1},
	unix.SYS_LCHOWN:      {AccessChange, -1, 0, -1},
	unix.SYS_FCHOWNAT:    {AccessChange, 0, 1, -1},
	unix.SYS_TRUNCATE:    {AccessChange, -1, 0, -1},
	unix.SYS_UTIME:       {AccessChange, -1, 0, -1},
	unix.SYS_UTIMES:      {AccessChange, -1, 0, -1},
	unix.SYS_FUTIMESAT:   {AccessChange, 0, 1, -1},
	unix.SYS_UTIMENSAT:   {AccessChange, 0, 1, -1},
	unix.SYS_SETXATTR:    {AccessChange, -1, 0, -1},
	unix.SYS_LSETXATTR:   {AccessChange, -1, 0, -1},
	unix.SYS_REMOVEXATTR: {AccessChange, -1, 0, -1},
	unix.SYS_CHDIR:       {AccessChange, -1, 0, -1},
	unix.SYS_FCHDIR:      {AccessChange, -1, -1, -1},
	unix.SYS_CHROOT:      {AccessChange, -1, 0, -1},
}

// targets are the calls of changes with a second path, and where they have it.
var targets = map[uint64]access{
	unix.SYS_RENAME:    {AccessChange, -1, 1, -1},
	unix.SYS_RENAMEAT:  {AccessChange, 2, 3, -1},
	unix.SYS_RENAMEAT2: {AccessChange, 2, 3, -1},
	unix.SYS_LINK:      {AccessChange, -1, 1, -1},
	unix.SYS_LINKAT:    {AccessChange, 2, 3, -1},
}

// inputs maps each call that reads from a descriptor to the index of its argument.
var inputs = map[uint64]uint32{
	unix.SYS_READ: 0, unix.SYS_READV: 0, unix.SYS_PREAD64: 0, unix.SYS_PREADV: 0, unix.SYS_PREADV2: 0,
	unix.SYS_SPLICE: 0, unix.SYS_TEE: 0, unix.SYS_COPY_FILE_RANGE: 0, unix.SYS_SENDFILE: 1,
}

// shares maps each call that makes another descriptor or a mapping of a descriptor to the
// index of its argument.
var shares = map[uint64]uint32{unix.SYS_DUP: 0, unix.SYS_DUP2: 0, unix.SYS_DUP3: 0, unix.SYS_FCNTL: 0, unix.SYS_MMAP: 4}

const load, equal, end = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K

// numberFilter returns the beginning of a filter: it loads the number of a call.
func numberFilter() []unix.SockFilter {
	return []unix.SockFilter{
		{Code: load, K: 4},
		{Code: equal, K: unix.AUDIT_ARCH_X86_64, Jt: 1},
		{Code: end, K: unix.SECCOMP_RET_ALLOW},
		{Code: load, K: 0},
	}
}

// descriptorFilter hands the calls that have a descriptor in an argument to the tracer.
func descriptorFilter(calls map[uint64]uint32, fd uint32) (filter []unix.SockFilter) {
	for nr, argument := range calls {
		filter = append(filter, unix.SockFilter{Code: equal, K: uint32(nr), Jf: 4}, unix.SockFilter{Code: load, K: 16 + 8*argument},
			unix.SockFilter{Code: equal, K: fd, Jt: 1}, unix.SockFilter{Code: end, K: unix.SECCOMP_RET_ALLOW}, unix.SockFilter{Code: end, K: unix.SECCOMP_RET_TRACE})
	}
	return filter
}

// overlayFilter hands changes, and reads of descriptor 0, to the tracer.
func overlayFilter() []unix.SockFilter {
	filter := numberFilter()
	for nr := range changes {
		filter = append(filter, unix.SockFilter{Code: equal, K: uint32(nr), Jf: 1}, unix.SockFilter{Code: end, K: unix.SECCOMP_RET_TRACE})
	}
	return append(append(filter, descriptorFilter(inputs, 0)...), unix.SockFilter{Code: end, K: unix.SECCOMP_RET_ALLOW})
}

// Install puts the filters into a process that is held at its first instruction.
func (o *Overlay) Install(p *Proc) error {
	if err := o.Watch.Install(p); err != nil {
		return err
	}
	mem, err := p.Alloc(4096)
	if err != nil {
		return err
	}
	if err := p.Write(mem, programAt(mem, overlayFilter())); err != nil {
		return err
	}
	if _, err := p.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, mem); err != nil {
		return fmt.Errorf("watch the tool: %w", err)
	}
	return p.Free(mem, 4096)
}

// Handle does the same as Watch.Handle, and also continues a Look that Redirect or Fail has
// answered.
func (o *Overlay) Handle(tid int, st unix.WaitStatus) (*Access, error) {
	if st.Stopped() {
		switch int(st) >> 16 {
		case unix.PTRACE_EVENT_EXEC:
			delete(o.memory, tgid(tid)) // another address space
		case unix.PTRACE_EVENT_SECCOMP:
			var r unix.PtraceRegs
			if err := unix.PtraceGetRegs(tid, &r); err != nil {
				return nil, gone(err)
			}
			if l := descriptorLook(tid, &r); l != nil {
				return l, nil
			}
			if call, ok := changes[r.Orig_rax]; ok {
				l := &Access{Tid: tid, Op: AccessChange}
				if l.Path = pathOf(tid, call, &r); l.Path == "" && namesNothing(tid, call, &r) {
					return nil, o.Continue(tid)
				}
				if second, ok := targets[r.Orig_rax]; ok {
					l.Target = pathOf(tid, second, &r)
				}
				return l, nil
			}
		}
	}
	return o.Watch.Handle(tid, st)
}

// descriptorLook describes a call at a descriptor; nil if it is not one.
func descriptorLook(tid int, r *unix.PtraceRegs) *Access {
	if r.Orig_rax == unix.SYS_CLOSE {
		return &Access{Tid: tid, Op: AccessClose, Descriptor: int(int32(r.Rdi))}
	}
	l := &Access{Tid: tid, Op: AccessRead}
	argument, ok := inputs[r.Orig_rax]
	if !ok {
		l.Op = AccessShare
		if argument, ok = shares[r.Orig_rax]; !ok || r.Orig_rax == unix.SYS_FCNTL && r.Rsi != unix.F_DUPFD && r.Rsi != unix.F_DUPFD_CLOEXEC {
			return nil
		}
	}
	args := arguments(r)
	if l.Descriptor = int(int32(args[argument])); l.Descriptor > 0 {
		l.Path, _ = os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", tid, l.Descriptor)) // "" where it is closed
	}
	return l
}

// Part returns the part of a file that a Look by a read is about to read. ok is false for
// calls that do not read into the memory of the process.
func (o *Overlay) Part(l *Access) (offset, length int64, ok bool, err error) {
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(l.Tid, &r); err != nil {
		return 0, 0, false, gone(err)
	}
	switch r.Orig_rax {
	case unix.SYS_READ, unix.SYS_PREAD64:
		length = int64(r.Rdx)
	case unix.SYS_READV, unix.SYS_PREADV:
		b := make([]byte, 16*min(r.Rdx, 1024)) // struct iovec
		if len(b) == 0 || (&Proc{Pid: l.Tid}).Read(r.Rsi, b) != nil {
			return 0, 0, false, nil
		}
		for i := 8; i < len(b); i += 16 {
			length += int64(binary.NativeEndian.Uint64(b[i:]))
		}
	default:
		return 0, 0, false, nil
	}
	if offset = int64(r.R10); r.Orig_rax == unix.SYS_READ || r.Orig_rax == unix.SYS_READV {
		info, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", l.Tid, l.Descriptor))
		if err != nil {
			return 0, 0, false, err
		}
		if _, err := fmt.Sscanf(string(info), "pos:%d", &offset); err != nil {
			return 0, 0, false, fmt.Errorf("offset of descriptor %d: %w", l.Descriptor, err)
		}
	}
	return offset, length, offset >= 0 && length >= 0, nil
}

// pathOf returns the absolute path that a call has.
func pathOf(tid int, call access, r *unix.PtraceRegs) string {
	if call.path < 0 {
		return ""
	}
	args := arguments(r)
	dir := uint64(0xffffffff & unix.AT_FDCWD)
	if call.dir >= 0 {
		dir = args[call.dir]
	}
	return pathAt(tid, dir, args[call.path])
}

// namesNothing reports whether a call has an empty path, and fails (path_resolution(7)).
func namesNothing(tid int, call access, r *unix.PtraceRegs) bool {
	switch {
	case call.path < 0, r.Orig_rax == unix.SYS_FCHOWNAT, r.Orig_rax == unix.SYS_LINKAT, r.Orig_rax == unix.SYS_UTIMENSAT:
		return false // the path may stand for a descriptor
	}
	path, err := readPath(tid, arguments(r)[call.path])
	return err == nil && path == ""
}

// Family returns the first argument of socket(2). The Look must be a AccessSocket of that
// call.
func (o *Overlay) Family(l *Access) (int, error) {
	var r unix.PtraceRegs
	err := unix.PtraceGetRegs(l.Tid, &r)
	return int(r.Rdi), gone(err)
}

func arguments(r *unix.PtraceRegs) [6]uint64 {
	return [6]uint64{r.Rdi, r.Rsi, r.Rdx, r.R10, r.R8, r.R9}
}

// ErrRedirect is the error of Redirect for a call that it cannot make: one without a path,
// or execve(2).
var ErrRedirect = errors.New("the call cannot be redirected")

// Redirect makes the call of a Look with another path, and with another target if the call
// has a target. The thread is then stopped after the call, with its result, and Continue
// continues it.
func (o *Overlay) Redirect(l *Access, path, target string) error {
	return o.redirect(l, path, target, false)
}

// Follow is Redirect for the open of an input. After it, each read of the descriptor by
// the process is a AccessRead, and each other use is a AccessShare.
func (o *Overlay) Follow(l *Access, path string) error { return o.redirect(l, path, "", true) }

func (o *Overlay) redirect(l *Access, path, target string, follow bool) error {
	if len(path) >= unix.PathMax || len(target) >= unix.PathMax {
		return unix.ENAMETOOLONG
	}
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(l.Tid, &r); err != nil {
		return gone(err)
	}
	call, ok := looks[r.Orig_rax]
	if !ok {
		call = changes[r.Orig_rax]
	}
	if call.path < 0 || r.Orig_rax == unix.SYS_EXECVE {
		return ErrRedirect
	}
	return o.instead(l.Tid, r, func(do func(nr uint64, args ...uint64) (uint64, error)) (uint64, error) {
		mem, err := o.memoryOf(l.Tid, do)
		if err != nil {
			return 0, err
		}
		if err := (&Proc{Pid: l.Tid}).Write(mem, append([]byte(path), 0)); err != nil {
			return 0, err
		}
		args := arguments(&r)
		args[call.path] = mem
		if second, ok := targets[r.Orig_rax]; ok {
			if err := (&Proc{Pid: l.Tid}).Write(mem+unix.PathMax, append([]byte(target), 0)); err != nil {
				return 0, err
			}
			args[second.path] = mem + unix.PathMax
		}
		fd, err := do(r.Orig_rax, args[:]...)
		if err == nil && o.FakeHost != nil {
			err = o.FakeHost.restat(l.Tid, r.Orig_rax, args)
		}
		if err != nil || !follow {
			return fd, err
		}
		return fd, o.follow(l.Tid, mem, fd, do, inputs, shares)
	})
}

// farMemory is an address far from those that the kernel chooses: mappings that a process makes
// later have the addresses that they would have without a tracer.
const farMemory = 1 << 44

// memoryOf returns memory of the process of a thread for the arguments of calls.
func (o *Overlay) memoryOf(tid int, do func(nr uint64, args ...uint64) (uint64, error)) (uint64, error) {
	process := tgid(tid)
	if mem := o.memory[process]; mem != 0 {
		return mem, nil
	}
	const size, prot = 2 * unix.PathMax, unix.PROT_READ | unix.PROT_WRITE
	mem, err := do(unix.SYS_MMAP, farMemory, size, prot, anonymous|unix.MAP_FIXED_NOREPLACE, ^uint64(0), 0)
	if err != nil {
		mem, err = do(unix.SYS_MMAP, 0, size, prot, anonymous, ^uint64(0), 0)
	}
	if err == nil {
		o.memory[process] = mem
	}
	return mem, err
}

// followsClose marks a descriptor of FollowClose.
const followsClose = 1 << 32

// follow has the tracer see calls of a process with a descriptor.
func (o *Overlay) follow(tid int, mem, fd uint64, do func(nr uint64, args ...uint64) (uint64, error), calls ...map[uint64]uint32) error {
	process, key := tgid(tid), fd
	if _, closes := calls[0][unix.SYS_CLOSE]; closes {
		key |= followsClose
	}
	if o.followed[process][key] {
		return nil
	}
	filter := numberFilter()
	for _, c := range calls {
		filter = append(filter, descriptorFilter(c, uint32(fd))...)
	}
	filter = append(filter, unix.SockFilter{Code: end, K: unix.SECCOMP_RET_ALLOW})
	if err := (&Proc{Pid: tid}).Write(mem, programAt(mem, filter)); err != nil {
		return err
	}
	if other, err := do(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, mem); err != nil || other != 0 {
		return fmt.Errorf("follow descriptor %d of the tool: thread %d: %v", fd, other, err)
	}
	if o.followed[process] == nil {
		o.followed[process] = map[uint64]bool{}
	}
	o.followed[process][key] = true
	return nil
}

// Filters returns the number of filters that Follow has added to a process.
func (o *Overlay) Filters(pid int) int { return len(o.followed[pid]) }

// Fail makes the call of a Look fail.
func (o *Overlay) Fail(l *Access, errno syscall.Errno) error {
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(l.Tid, &r); err != nil {
		return gone(err)
	}
	return o.instead(l.Tid, r, func(func(uint64, ...uint64) (uint64, error)) (uint64, error) { return 0, errno })
}

// instead skips the call at whose entry a thread is stopped, and lets f make others. The
// result of f is the result of the call.
func (o *Overlay) instead(tid int, r unix.PtraceRegs, f func(do func(nr uint64, args ...uint64) (uint64, error)) (uint64, error)) error {
	skipped := r
	skipped.Orig_rax = ^uint64(0)
	if err := unix.PtraceSetRegs(tid, &skipped); err != nil {
		return gone(err)
	}
	p := &Proc{Pid: tid}
	if _, err := p.toSyscallStop(tid); err != nil {
		return err
	}
	result, err := f(func(nr uint64, args ...uint64) (uint64, error) {
		v, _, err := p.execute(tid, r.Rip-2, r, nr, args...)
		return v, err
	})
	var errno syscall.Errno
	if errors.As(err, &errno) {
		result, err = failed(errno), nil
	}
	if err != nil {
		return err
	}
	r.Rax, r.Orig_rax = result, ^uint64(0)
	if err := unix.PtraceSetRegs(tid, &r); err != nil {
		return gone(err)
	}
	for _, sig := range p.later {
		if err := unix.Tgkill(tgid(tid), tid, sig); err != nil {
			return gone(err)
		}
	}
	return nil
}

// Hold does the same as Watch.Hold, and also frees the memory that Redirect has mapped in
// the process.
func (o *Overlay) Hold(pid, at int) (*Proc, error) {
	p, err := o.Watch.Hold(pid, at)
	if err != nil {
		return nil, err
	}
	if mem := o.memory[pid]; mem != 0 {
		delete(o.memory, pid)
		err = p.Free(mem, 2*unix.PathMax)
	}
	return p, err
}

// GuardedFilter returns the seccomp filter for a process that is started from a snapshot.
// It stops the calls of a Guard, of a Watch and of an Overlay.
func (o *Overlay) GuardedFilter() []unix.SockFilter {
	all := append([]unix.SockFilter{}, filter...)
	for _, f := range [][]unix.SockFilter{watchFilter(), overlayFilter()} {
		all = append(all[:len(all)-1], f[4:]...)
	}
	return all
}

// Sees reports whether the call at whose entry a thread is stopped is a Look. Other calls
// at which the filter stops a thread belong to a Guard.
func (o *Overlay) Sees(tid int) bool {
	var r unix.PtraceRegs
	if unix.PtraceGetRegs(tid, &r) != nil {
		return false
	}
	_, look := looks[r.Orig_rax]
	_, change := changes[r.Orig_rax]
	return look || change || descriptorLook(tid, &r) != nil
}

// Forget removes the record of a process's memory. The caller calls it if a process has
// executed another program and Handle did not get the event.
func (o *Overlay) Forget(tid int) { delete(o.memory, tgid(tid)) }

// Tids returns the threads that were seen and have not ended.
func (o *Overlay) Tids() []int { return slices.Collect(maps.Keys(o.threads)) }
