package tracer

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrGone is returned when the process ended while it was worked on.
var ErrGone = errors.New("the process has ended")

// Proc is a held process. It must be used by the OS thread that made it.
type Proc struct {
	Pid     int
	Threads []int // thread ids, the leader first

	rest  map[int]unix.PtraceRegs // resting state of each thread
	insn  uint64                  // address of a `syscall` instruction in the process
	later []syscall.Signal        // arrived during an injected call; sent again when let go
}

const (
	eventFork  = unix.PTRACE_EVENT_FORK
	eventVfork = unix.PTRACE_EVENT_VFORK
	eventClone = unix.PTRACE_EVENT_CLONE
	eventStop  = unix.PTRACE_EVENT_STOP

	// Children of an injected clone are attached to by themselves, and what is
	// held dies with its tracer rather than being left stopped for ever.
	options = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK |
		unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_EXITKILL

	syscallStop = syscall.SIGTRAP | 0x80

	// The kernel's own codes for "restart this call", never seen by programs
	// (include/linux/errno.h).
	erestartSys          = 512
	erestartNoIntr       = 513
	erestartNoHand       = 514
	erestartRestartBlock = 516
)

// Hold attaches to every thread of pid and stops it. Threads that appear
// meanwhile are held as well.
func Hold(pid int) (*Proc, error) {
	p := &Proc{Pid: pid, rest: map[int]unix.PtraceRegs{}}
	for {
		tids, err := threads(pid)
		if err != nil {
			return nil, err
		}
		fresh := 0
		for _, tid := range tids {
			if _, ok := p.rest[tid]; ok {
				continue
			}
			fresh++
			if err := p.hold(tid); err != nil {
				if errors.Is(err, unix.ESRCH) || errors.Is(err, ErrGone) {
					continue // the thread ended on its own
				}
				p.Release()
				return nil, err
			}
		}
		if fresh == 0 {
			break
		}
	}
	if len(p.Threads) == 0 {
		return nil, ErrGone
	}
	sort.Slice(p.Threads, func(i, j int) bool {
		return p.Threads[i] == pid || p.Threads[j] != pid && p.Threads[i] < p.Threads[j]
	})
	return p, nil
}

func (p *Proc) hold(tid int) error {
	if err := seize(tid); err != nil {
		if errors.Is(err, unix.EPERM) {
			// Already ours, as a clone that arrived traced, or not to be had.
			return fmt.Errorf("ptrace thread %d: %w", tid, err)
		}
		return err
	}
	if err := unix.PtraceInterrupt(tid); err != nil {
		return fmt.Errorf("ptrace interrupt %d: %w", tid, err)
	}
	for {
		st, err := wait(tid)
		if err != nil {
			return err
		}
		if st.TrapCause() == eventStop || int(st)>>16 == eventStop {
			break
		}
		// A signal or a clone was on its way first: let it take its course.
		sig := 0
		if int(st)>>16 == 0 && st.StopSignal() != syscallStop {
			sig = int(st.StopSignal())
		}
		if err := unix.PtraceCont(tid, sig); err != nil {
			return fmt.Errorf("ptrace continue %d: %w", tid, err)
		}
	}
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(tid, &r); err != nil {
		return fmt.Errorf("ptrace registers of %d: %w", tid, err)
	}
	p.rest[tid] = rewind(r)
	p.Threads = append(p.Threads, tid)
	return nil
}

// rewind turns the state of a thread that was held in a system call into one
// that executes the call again, and leaves every other state as it is.
func rewind(r unix.PtraceRegs) unix.PtraceRegs {
	if int64(r.Orig_rax) >= 0 {
		switch -int64(r.Rax) {
		case erestartSys, erestartNoIntr, erestartNoHand:
			r.Rax = r.Orig_rax
			r.Rip -= 2
		case erestartRestartBlock:
			r.Rax = unix.SYS_RESTART_SYSCALL
			r.Rip -= 2
		}
	}
	r.Orig_rax = ^uint64(0)
	return r
}

// Call says which system call a held thread is going to execute when it is
// let go, and with which arguments. ok is false where it is not in one.
func (p *Proc) Call(tid int) (nr uint64, args [6]uint64, ok bool) {
	r, held := p.rest[tid]
	if !held {
		return 0, args, false
	}
	var b [2]byte
	if err := p.Read(r.Rip, b[:]); err != nil || b != [2]byte{0x0f, 0x05} {
		return 0, args, false
	}
	return r.Rax, [6]uint64{r.Rdi, r.Rsi, r.Rdx, r.R10, r.R8, r.R9}, true
}

// Syscall executes one system call in the leader and returns its result.
// A result that is an error comes back as a syscall.Errno.
func (p *Proc) Syscall(nr uint64, args ...uint64) (uint64, error) {
	v, _, err := p.syscall(nr, args...)
	return v, err
}

func (p *Proc) syscall(nr uint64, args ...uint64) (result uint64, child int, err error) {
	if p.insn == 0 {
		if p.insn, err = findSyscall(p.Pid); err != nil {
			return 0, 0, err
		}
	}
	tid := p.Threads[0]
	return p.execute(tid, p.insn, p.rest[tid], nr, args...)
}

// execute makes a thread in a ptrace-stop execute one system call, at the
// instruction at insn, with the other registers as in r. Signals that arrive
// meanwhile are kept in p.later.
func (p *Proc) execute(tid int, insn uint64, r unix.PtraceRegs, nr uint64, args ...uint64) (result uint64, child int, err error) {
	r.Rip, r.Rax, r.Orig_rax = insn, nr, ^uint64(0)
	for i, dst := range []*uint64{&r.Rdi, &r.Rsi, &r.Rdx, &r.R10, &r.R8, &r.R9} {
		*dst = 0
		if i < len(args) {
			*dst = args[i]
		}
	}
	if err := unix.PtraceSetRegs(tid, &r); err != nil {
		return 0, 0, gone(err)
	}
	for range 2 { // the stops at its entry and at its exit
		ev, err := p.toSyscallStop(tid)
		if err != nil {
			return 0, 0, err
		}
		if ev != 0 {
			child = ev
		}
	}
	if err := unix.PtraceGetRegs(tid, &r); err != nil {
		return 0, 0, gone(err)
	}
	if v := int64(r.Rax); v < 0 && v > -4096 {
		return 0, child, syscall.Errno(-v)
	}
	return r.Rax, child, nil
}

// toSyscallStop lets a thread run to its next stop at the entry or exit of a
// system call, and returns the process that it made on the way, if it did.
func (p *Proc) toSyscallStop(tid int) (child int, err error) {
	for {
		if err := unix.PtraceSyscall(tid, 0); err != nil {
			return 0, gone(err)
		}
		st, err := wait(tid)
		if err != nil {
			return 0, err
		}
		switch ev := int(st) >> 16; {
		case ev == eventFork || ev == eventVfork || ev == eventClone:
			msg, err := unix.PtraceGetEventMsg(tid)
			if err != nil {
				return 0, gone(err)
			}
			child = int(msg)
		case ev == 0 && st.StopSignal() == syscallStop:
			return child, nil
		case ev == 0:
			// A signal for the program must not be delivered into our call.
			p.later = append(p.later, st.StopSignal())
		}
	}
}

// Fork makes a copy of a held process of one thread, held too, whose parent is
// the parent of p and whose exit signal is SIGCHLD, as fork(2) in the program
// itself would: the C library's notion of its thread id is set in the child.
func (p *Proc) Fork() (*Proc, error) {
	if len(p.Threads) != 1 {
		return nil, fmt.Errorf("cannot fork a process of %d threads", len(p.Threads))
	}
	flags, tidAddr := uint64(unix.CLONE_PARENT)|uint64(unix.SIGCHLD), uint64(0)
	if mem, err := p.Alloc(4096); err == nil {
		if _, err := p.Syscall(unix.SYS_PRCTL, unix.PR_GET_TID_ADDRESS, mem); err == nil {
			var b [8]byte
			if err := p.Read(mem, b[:]); err != nil {
				return nil, err
			}
			tidAddr = *(*uint64)(unsafe.Pointer(&b))
		}
		if err := p.Free(mem, 4096); err != nil {
			return nil, err
		}
	}
	if tidAddr != 0 {
		flags |= unix.CLONE_CHILD_SETTID | unix.CLONE_CHILD_CLEARTID
	}
	robust, robustLen := p.robustList()
	_, pid, err := p.syscall(unix.SYS_CLONE, flags, 0, 0, tidAddr, 0)
	if err != nil {
		return nil, fmt.Errorf("injected clone: %w", err)
	}
	if pid == 0 {
		return nil, errors.New("injected clone: the kernel reported no child")
	}
	// In a PID namespace of its own the tracee's number for the child differs
	// from ours; the event message carries ours.
	for {
		st, err := wait(pid)
		if err != nil {
			return nil, err
		}
		if int(st)>>16 == eventStop {
			break
		}
		if err := unix.PtraceCont(pid, 0); err != nil {
			return nil, gone(err)
		}
	}
	c := &Proc{Pid: pid, Threads: []int{pid}, insn: p.insn,
		rest: map[int]unix.PtraceRegs{pid: p.rest[p.Threads[0]]}}
	if robust != 0 {
		// The kernel drops the list of robust futexes at fork; the C library
		// registers it anew in the child, and so do we.
		if _, err := c.Syscall(unix.SYS_SET_ROBUST_LIST, robust, robustLen); err != nil {
			c.Kill()
			return nil, fmt.Errorf("injected set_robust_list: %w", err)
		}
	}
	return c, nil
}

func (p *Proc) robustList() (head, size uint64) {
	_, _, e := unix.Syscall(unix.SYS_GET_ROBUST_LIST, uintptr(p.Threads[0]),
		uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&size)))
	if e != 0 {
		return 0, 0
	}
	return head, size
}

// SuspendSeccomp lets injected calls pass by the process's seccomp filters until it
// is let go. The caller must have CAP_SYS_ADMIN.
func (p *Proc) SuspendSeccomp() error {
	for _, tid := range p.Threads {
		if err := unix.PtraceSetOptions(tid, options|unix.PTRACE_O_SUSPEND_SECCOMP); err != nil {
			return fmt.Errorf("suspend seccomp of %d: %w", tid, gone(err))
		}
	}
	return nil
}

// Alloc maps size bytes of fresh memory into the process.
func (p *Proc) Alloc(size int) (uint64, error) {
	return p.Syscall(unix.SYS_MMAP, 0, uint64(size), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, ^uint64(0), 0)
}

// Free undoes Alloc.
func (p *Proc) Free(addr uint64, size int) error {
	_, err := p.Syscall(unix.SYS_MUNMAP, addr, uint64(size))
	return err
}

// Read fills b from the memory of the process.
func (p *Proc) Read(addr uint64, b []byte) error {
	n, err := unix.ProcessVMReadv(p.Pid, []unix.Iovec{iovec(b)},
		[]unix.RemoteIovec{{Base: uintptr(addr), Len: len(b)}}, 0)
	if err != nil {
		return fmt.Errorf("read memory of process %d at %#x: %w", p.Pid, addr, gone(err))
	}
	if n != len(b) {
		return fmt.Errorf("read memory of process %d at %#x: %d of %d bytes", p.Pid, addr, n, len(b))
	}
	return nil
}

// Write copies b into the memory of the process.
func (p *Proc) Write(addr uint64, b []byte) error {
	n, err := unix.ProcessVMWritev(p.Pid, []unix.Iovec{iovec(b)},
		[]unix.RemoteIovec{{Base: uintptr(addr), Len: len(b)}}, 0)
	if err != nil {
		return fmt.Errorf("write memory of process %d at %#x: %w", p.Pid, addr, gone(err))
	}
	if n != len(b) {
		return fmt.Errorf("write memory of process %d at %#x: %d of %d bytes", p.Pid, addr, n, len(b))
	}
	return nil
}

func iovec(b []byte) unix.Iovec {
	v := unix.Iovec{Base: &b[0]}
	v.SetLen(len(b))
	return v
}

// Release puts every thread back into its resting state and lets the process
// run untraced.
func (p *Proc) Release() error { return p.detach(0) }

// ReleaseStopped is Release, but leaves the process stopped by SIGSTOP, as a
// checkpointer wants it: no thread executes an instruction in between. It returns
// when all are stopped: to whoever attaches before, a thread would seem to run, and
// take the signal later, in the middle of what is done to it.
func (p *Proc) ReleaseStopped() error {
	if err := p.detach(unix.SIGSTOP); err != nil {
		return err
	}
	for _, tid := range p.Threads {
		for begun := time.Now(); ; time.Sleep(100 * time.Microsecond) {
			state, err := p.state(tid)
			if err != nil {
				return gone(err)
			}
			if state == 'T' {
				break
			}
			if time.Since(begun) > stopWithin {
				return fmt.Errorf("thread %d is in state %c, and does not stop", tid, state)
			}
		}
	}
	return nil
}

// stopWithin is far longer than a thread that has been let go takes to stop, on
// whatever machine.
const stopWithin = time.Minute

// state is that of a thread in proc_pid_stat(5).
func (p *Proc) state(tid int) (byte, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(p.Pid) + "/task/" + strconv.Itoa(tid) + "/stat")
	if err != nil {
		return 0, unix.ESRCH
	}
	// The name in parentheses may hold anything.
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) == 0 || f[0][0] == 'Z' || f[0][0] == 'X' {
		return 0, unix.ESRCH
	}
	return f[0][0], nil
}

func (p *Proc) detach(sig unix.Signal) error {
	for _, late := range p.later {
		if err := unix.Tgkill(p.Pid, p.Threads[0], late); err != nil {
			return gone(err)
		}
	}
	p.later = nil
	if sig != 0 {
		// Sent while all threads are held: it is taken on the way out of the
		// kernel, before the first instruction of the program.
		if err := unix.Kill(p.Pid, sig); err != nil {
			return gone(err)
		}
	}
	var first error
	for _, tid := range p.Threads {
		r := p.rest[tid]
		err := unix.PtraceSetRegs(tid, &r)
		if err == nil {
			err = unix.PtraceDetach(tid)
		}
		if err != nil && first == nil && !errors.Is(err, unix.ESRCH) {
			first = fmt.Errorf("ptrace detach %d: %w", tid, err)
		}
	}
	return first
}

// Kill ends the process at once. Its parent still has to reap it.
func (p *Proc) Kill() { unix.Kill(p.Pid, unix.SIGKILL) }

func seize(tid int) error {
	_, _, e := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(tid), 0, options, 0, 0)
	if e != 0 {
		return fmt.Errorf("ptrace seize %d: %w", tid, e)
	}
	return nil
}

// wait waits for one stop of one thread.
func wait(tid int) (unix.WaitStatus, error) {
	var st unix.WaitStatus
	for {
		_, err := unix.Wait4(tid, &st, unix.WALL, nil)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return 0, gone(err)
		case st.Exited() || st.Signaled():
			return 0, ErrGone
		}
		return st, nil
	}
}

func gone(err error) error {
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ECHILD) {
		return ErrGone
	}
	return err
}

func threads(pid int) ([]int, error) {
	entries, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task")
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil, ErrGone
		}
		return nil, err
	}
	var tids []int
	for _, e := range entries {
		if tid, err := strconv.Atoi(e.Name()); err == nil {
			tids = append(tids, tid)
		}
	}
	return tids, nil
}

// findSyscall looks for the two bytes of the instruction in the vDSO, which
// every process has, whatever it is linked with, and which holds the fall-back
// of clock_gettime (vdso(7)).
func findSyscall(pid int) (uint64, error) {
	maps, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/maps")
	if err != nil {
		return 0, err
	}
	for _, line := range strings.Split(string(maps), "\n") {
		if !strings.HasSuffix(line, "[vdso]") {
			continue
		}
		var lo, hi uint64
		if _, err := fmt.Sscanf(line, "%x-%x", &lo, &hi); err != nil {
			return 0, fmt.Errorf("maps of process %d: %w", pid, err)
		}
		b := make([]byte, hi-lo)
		if err := (&Proc{Pid: pid}).Read(lo, b); err != nil {
			return 0, err
		}
		if i := strings.Index(string(b), "\x0f\x05"); i >= 0 {
			return lo + uint64(i), nil
		}
	}
	var r unix.PtraceRegs
	if gone(unix.PtraceGetRegs(pid, &r)) == ErrGone {
		return 0, ErrGone // killed, and some of its mappings went before the others
	}
	return 0, fmt.Errorf("process %d has no vDSO with a system call instruction", pid)
}
