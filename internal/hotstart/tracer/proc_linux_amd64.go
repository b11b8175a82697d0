package tracer

import (
	"errors"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrGone is returned when the process ended while it was worked on.
var ErrGone = errors.New("the process has ended")

// Supported returns nil: the package supports this processor.
func Supported() error { return nil }

// Proc is a held process. It must be used by the OS thread that made it.
type Proc struct {
	Pid     int
	Threads []int // thread ids, the leader first

	rest  map[int]unix.PtraceRegs // resting state of each thread
	again map[int]uint64          // number of the call that a thread restarts by restart_syscall(2)
	insn  uint64                  // address of a `syscall` instruction in the process
	// emulate executes the instruction at which a thread was stopped by SIGSEGV; nil, or
	// false, leaves the signal to the program.
	emulate func(tid int) bool
	later   []syscall.Signal // arrived during an injected call; sent again at the release
}

const (
	eventFork  = unix.PTRACE_EVENT_FORK
	eventVfork = unix.PTRACE_EVENT_VFORK
	eventClone = unix.PTRACE_EVENT_CLONE
	eventStop  = unix.PTRACE_EVENT_STOP

	// The kernel attaches the children of an injected clone. It kills held
	// processes when their tracer ends, so that none stays stopped.
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

// Hold attaches to every thread of pid and stops it, including threads that start
// during Hold. It is for tests: premix itself holds processes that it has started.
func Hold(pid int) (*Proc, error) {
	p := &Proc{Pid: pid, rest: map[int]unix.PtraceRegs{}, again: map[int]uint64{}}
	err := p.holdAll(func(tid int) error {
		if err := seize(tid); err != nil {
			return err
		}
		return p.interrupt(tid)
	})
	if err != nil && len(p.Threads) > 0 {
		p.Release()
	}
	return p, err
}

// holdAll holds every thread that is not held yet, each by a call of hold.
func (p *Proc) holdAll(hold func(tid int) error) error {
	over := map[int]bool{} // threads that have ended; they are there until their tracer waits for them
	for {
		tids, err := threads(p.Pid)
		if err != nil {
			return err
		}
		fresh := 0
		for _, tid := range tids {
			if _, ok := p.rest[tid]; ok || over[tid] {
				continue
			}
			fresh++
			if err := hold(tid); errors.Is(err, unix.ESRCH) || errors.Is(err, ErrGone) {
				over[tid] = true
			} else if err != nil {
				return err
			}
		}
		if fresh == 0 {
			break
		}
	}
	if len(p.Threads) == 0 || over[p.Pid] {
		return ErrGone
	}
	sort.Slice(p.Threads, func(i, j int) bool {
		return p.Threads[i] == p.Pid || p.Threads[j] != p.Pid && p.Threads[i] < p.Threads[j]
	})
	return nil
}

// interrupt stops a traced thread and notes its resting state.
func (p *Proc) interrupt(tid int) error {
	if err := unix.PtraceInterrupt(tid); err != nil {
		return fmt.Errorf("ptrace interrupt %d: %w", tid, err)
	}
	for {
		st, err := wait(tid)
		if err != nil {
			return err
		}
		ev := int(st) >> 16
		if ev == unix.PTRACE_EVENT_SECCOMP {
			return p.skipCall(tid)
		}
		if ev == eventStop {
			break
		}
		// A signal or a clone was on its way first: let it take its course.
		sig := 0
		if ev == 0 && st.StopSignal() != syscallStop {
			sig = int(st.StopSignal())
			if st.StopSignal() == unix.SIGSEGV && p.emulate != nil && p.emulate(tid) {
				sig = 0
			}
		}
		if err := unix.PtraceCont(tid, sig); err != nil {
			return fmt.Errorf("ptrace continue %d: %w", tid, err)
		}
	}
	return p.rests(tid)
}

// rests notes the resting state of a thread that is stopped, and not at the entry of a call.
func (p *Proc) rests(tid int) error {
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(tid, &r); err != nil {
		return fmt.Errorf("ptrace registers of %d: %w", tid, gone(err))
	}
	p.rest[tid] = rewind(r)
	if p.rest[tid].Rax == unix.SYS_RESTART_SYSCALL && int64(r.Orig_rax) >= 0 {
		p.again[tid] = r.Orig_rax
	}
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
		case int64(unix.EINTR):
			// These calls fail after a stop by which no signal came (signal(7)).
			switch r.Orig_rax {
			case unix.SYS_EPOLL_WAIT, unix.SYS_EPOLL_PWAIT, unix.SYS_EPOLL_PWAIT2, unix.SYS_SEMOP, unix.SYS_SEMTIMEDOP,
				unix.SYS_RT_SIGTIMEDWAIT, unix.SYS_IO_GETEVENTS:
				r.Rax = r.Orig_rax
				r.Rip -= 2
			}
		}
	}
	r.Orig_rax = ^uint64(0)
	return r
}

// Call returns the system call that a held thread will execute when it is released, and
// its arguments. ok is false if the thread is not in a system call.
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

// Restarting returns the original system call of a held thread that will execute
// restart_syscall(2). Only the kernel knows the remaining time of this call.
func (p *Proc) Restarting(tid int) (nr uint64, args [6]uint64, ok bool) {
	nr, ok = p.again[tid]
	r := p.rest[tid]
	return nr, [6]uint64{r.Rdi, r.Rsi, r.Rdx, r.R10, r.R8, r.R9}, ok
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
// instruction at insn, with the other registers as in r. It keeps signals that arrive
// during the call in p.later.
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
func (p *Proc) Release() error {
	for _, late := range p.later {
		if err := unix.Tgkill(p.Pid, p.Threads[0], late); err != nil {
			return gone(err)
		}
	}
	p.later = nil
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

// wait waits for one stop of one thread. It does not take the exit status of a thread that
// ends, for which the thread's parent waits.
func wait(tid int) (unix.WaitStatus, error) {
	var st unix.WaitStatus
	for {
		_, finished, err := peek(tid, 0)
		switch {
		case err != nil:
			return 0, gone(err)
		case finished:
			return 0, ErrGone
		}
		_, err = unix.Wait4(tid, &st, unix.WALL|unix.WNOHANG, nil)
		switch {
		case err == unix.EINTR || err == nil && st == 0:
			continue
		case err != nil:
			return 0, gone(err)
		case st.Exited() || st.Signaled():
			return 0, ErrGone
		}
		return st, nil
	}
}

// peek reads the next wait status of a thread and leaves it in place. is is true if a
// status exists, and ended is true if the thread has ended.
func peek(tid int, flags uintptr) (is, finished bool, err error) {
	var info struct { // siginfo_t
		signo, errno, code int32
		_                  [116]byte
	}
	const exited, killed, dumped = 1, 2, 3 // CLD_
	for {
		_, _, e := unix.Syscall6(unix.SYS_WAITID, unix.P_PID, uintptr(tid), uintptr(unsafe.Pointer(&info)),
			unix.WEXITED|unix.WSTOPPED|unix.WNOWAIT|unix.WALL|flags, 0, 0)
		switch e {
		case unix.EINTR:
			continue
		case 0:
			return info.signo != 0, info.code == exited || info.code == killed || info.code == dumped, nil
		}
		return false, false, e
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

// findSyscall finds the two bytes of the instruction in the vDSO. Every process has a
// vDSO, with any libraries, and the fall-back of clock_gettime in it has the instruction
// (vdso(7)).
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
