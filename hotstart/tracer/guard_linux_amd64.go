package tracer

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// A Guard makes a private mapping of a file behave like anonymous memory where
// the two differ (madvise(2), mremap(2)):
//
//   - MADV_DONTNEED brings back the file's bytes, where anonymous memory reads
//     as zeros, and MADV_FREE is refused. The guard maps anonymous memory
//     instead.
//   - A mapping that grows by mremap shows more of the file, where anonymous
//     memory shows zeros. The guard makes an anonymous mapping of the new size
//     and copies the contents.
//
// A seccomp filter in the guarded process hands over just these calls
// (SECCOMP_RET_TRACE); all others run at full speed. The guard therefore stays
// the tracer of the process and of what it forks until their end, and its owner
// must pass every wait status of a guarded thread to Handle.
type Guard struct {
	file string         // the mapped file, as /proc/PID/maps shows it
	insn map[int]uint64 // thread id -> address of a system call instruction
	cont map[int]bool   // processes whose next SIGCONT is the guard's own
}

// NewGuard makes a guard for mappings of file, an absolute path.
func NewGuard(file string) *Guard {
	return &Guard{file: file, insn: map[int]uint64{}, cont: map[int]bool{}}
}

const guardOptions = options | unix.PTRACE_O_TRACESECCOMP | unix.PTRACE_O_TRACEEXEC

// Advice of madvise(2) that discards contents.
const (
	madvDontneed       = 4
	madvFree           = 8
	madvDontneedLocked = 24
)

// filter hands mremap, and madvise with advice that discards contents, to the
// tracer: struct seccomp_data has the call's number at offset 0, the
// architecture at 4 and the low half of the third argument at 32 (seccomp(2)).
var filter = []unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 4},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.AUDIT_ARCH_X86_64, Jt: 0, Jf: 8},
	{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_MREMAP, Jt: 5, Jf: 0},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_MADVISE, Jt: 0, Jf: 5},
	{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 32},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: madvDontneed, Jt: 2, Jf: 0},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: madvFree, Jt: 1, Jf: 0},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: madvDontneedLocked, Jt: 0, Jf: 1},
	{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_TRACE},
	{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
}

// Install puts the filter into all threads of a held process.
func (g *Guard) Install(p *Proc) error {
	mem, err := p.Alloc(4096)
	if err != nil {
		return err
	}
	const insnSize = 8
	program := make([]byte, 16, 16+insnSize*len(filter))
	binary.LittleEndian.PutUint16(program, uint16(len(filter))) // struct sock_fprog
	binary.LittleEndian.PutUint64(program[8:], mem+16)
	for _, f := range filter {
		program = binary.LittleEndian.AppendUint16(program, f.Code)
		program = append(program, f.Jt, f.Jf)
		program = binary.LittleEndian.AppendUint32(program, f.K)
	}
	if err := p.Write(mem, program); err != nil {
		return err
	}
	tid, err := p.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, mem)
	if err != nil {
		return fmt.Errorf("install the memory guard: %w", err)
	}
	if tid != 0 {
		return fmt.Errorf("install the memory guard: thread %d has a seccomp filter of its own", tid)
	}
	return p.Free(mem, 4096)
}

// Release lets a held process go on under guard. stopped says that it was in
// group-stop before it was held, as CRIU can leave what it restored.
func (g *Guard) Release(p *Proc, stopped bool) error {
	for _, tid := range p.Threads {
		if err := unix.PtraceSetOptions(tid, guardOptions); err != nil {
			return fmt.Errorf("ptrace options of %d: %w", tid, gone(err))
		}
		r := p.rest[tid]
		if err := unix.PtraceSetRegs(tid, &r); err != nil {
			return fmt.Errorf("ptrace registers of %d: %w", tid, gone(err))
		}
	}
	if stopped {
		g.cont[p.Pid] = true
		if err := unix.Kill(p.Pid, unix.SIGCONT); err != nil {
			return gone(err)
		}
	}
	for _, late := range p.later {
		if stopped && late == unix.SIGSTOP {
			continue // the one that stopped it, still on its way when it was held
		}
		if err := unix.Tgkill(p.Pid, p.Threads[0], late); err != nil {
			return gone(err)
		}
	}
	p.later = nil
	for _, tid := range p.Threads {
		if err := unix.PtraceCont(tid, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("ptrace continue %d: %w", tid, err)
		}
	}
	return nil
}

// Handle deals with the stop of a guarded thread that st tells of, and lets the
// thread go on. The end of a thread is not its business.
func (g *Guard) Handle(tid int, st unix.WaitStatus) error {
	if !st.Stopped() {
		delete(g.insn, tid)
		return nil
	}
	sig := 0
	switch ev := int(st) >> 16; ev {
	case 0:
		sig = int(st.StopSignal())
		if pid := tgid(tid); st.StopSignal() == unix.SIGCONT && g.cont[pid] {
			delete(g.cont, pid)
			sig = 0 // the program never knew of its stop
		}
	case unix.PTRACE_EVENT_SECCOMP:
		if err := g.call(tid); err != nil {
			return gone(err)
		}
	case eventStop:
		if s := st.StopSignal(); s != unix.SIGTRAP {
			// A stop of the whole group, as by SIGTSTP: it stays stopped.
			_, _, e := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_LISTEN, uintptr(tid), 0, 0, 0, 0)
			if e != 0 && e != unix.ESRCH {
				return fmt.Errorf("ptrace listen %d: %w", tid, e)
			}
			return nil
		}
	case unix.PTRACE_EVENT_EXEC:
		delete(g.insn, tid) // another address space
	}
	if err := unix.PtraceCont(tid, sig); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("ptrace continue %d: %w", tid, err)
	}
	return nil
}

// call carries out a guarded system call at whose entry the thread stands.
func (g *Guard) call(tid int) error {
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(tid, &r); err != nil {
		return err
	}
	old, size := r.Rdi, pageAlign(r.Rsi)
	if r.Orig_rax == unix.SYS_MREMAP && pageAlign(r.Rdx) <= size {
		return nil // it does not grow
	}
	parts, err := g.mapped(tid, old, old+size)
	if err != nil || len(parts) == 0 {
		return err // none of ours: as the program wants it
	}
	insn, err := g.instruction(tid)
	if err != nil {
		return err
	}
	// Skip the call itself; what stands for it is executed from its exit.
	skipped := r
	skipped.Orig_rax = ^uint64(0)
	if err := unix.PtraceSetRegs(tid, &skipped); err != nil {
		return err
	}
	w := &worker{p: &Proc{Pid: tid}, tid: tid, insn: insn, regs: r}
	if _, err := w.p.toSyscallStop(tid); err != nil {
		return err
	}
	var result uint64
	if r.Orig_rax == unix.SYS_MADVISE {
		result = w.discard(old, old+size, r.Rdx, parts)
	} else {
		result = w.grow(r, parts)
	}
	if w.fatal != nil {
		return w.fatal
	}
	r.Rax, r.Orig_rax = result, ^uint64(0)
	if err := unix.PtraceSetRegs(tid, &r); err != nil {
		return err
	}
	for _, sig := range w.p.later {
		if err := unix.Tgkill(tgid(tid), tid, sig); err != nil {
			return err
		}
	}
	return nil
}

// part is a piece of an address range that maps the guarded file.
type part struct{ start, end, prot uint64 }

// mapped lists the parts of [start, end) that map the file.
func (g *Guard) mapped(tid int, start, end uint64) ([]part, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", tid))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var parts []part
	for s := bufio.NewScanner(f); s.Scan(); {
		if !strings.HasSuffix(s.Text(), " "+g.file) {
			continue
		}
		var lo, hi uint64
		var perms string
		if _, err := fmt.Sscanf(s.Text(), "%x-%x %4s", &lo, &hi, &perms); err != nil {
			return nil, err
		}
		if lo, hi = max(lo, start), min(hi, end); lo >= hi {
			continue
		}
		prot := uint64(0)
		for i, bit := range []uint64{unix.PROT_READ, unix.PROT_WRITE, unix.PROT_EXEC} {
			if perms[i] != '-' {
				prot |= bit
			}
		}
		parts = append(parts, part{lo, hi, prot})
	}
	return parts, nil
}

func (g *Guard) instruction(tid int) (uint64, error) {
	if insn, ok := g.insn[tid]; ok {
		return insn, nil
	}
	insn, err := findSyscall(tid)
	if err == nil {
		g.insn[tid] = insn
	}
	return insn, err
}

// worker executes, in one stopped thread, what stands for a guarded call.
type worker struct {
	p     *Proc
	tid   int
	insn  uint64
	regs  unix.PtraceRegs
	fatal error // the thread is gone or cannot be worked on
}

// do executes one call. An errno is returned as a program would get it.
func (w *worker) do(nr uint64, args ...uint64) (uint64, syscall.Errno) {
	if w.fatal != nil {
		return 0, unix.EFAULT
	}
	v, _, err := w.p.execute(w.tid, w.insn, w.regs, nr, args...)
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return 0, errno
	}
	w.fatal = err
	return v, 0
}

func failed(errno syscall.Errno) uint64 { return -uint64(errno) }

const anonymous = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE

// discard is madvise(start, end-start, advice): the parts that map the file
// become fresh anonymous memory, the rest gets the advice.
func (w *worker) discard(start, end, advice uint64, parts []part) uint64 {
	at := start
	for _, m := range append(parts, part{start: end, end: end}) {
		if at < m.start {
			if _, errno := w.do(unix.SYS_MADVISE, at, m.start-at, advice); errno != 0 {
				return failed(errno)
			}
		}
		if m.start < m.end {
			if _, errno := w.do(unix.SYS_MMAP, m.start, m.end-m.start, m.prot, anonymous|unix.MAP_FIXED, ^uint64(0), 0); errno != 0 {
				return failed(errno)
			}
		}
		at = m.end
	}
	return 0
}

// grow is mremap to a larger size: a new anonymous mapping with the contents of
// the old one. That the mapping cannot grow where it is, is always a possible
// answer of the kernel's.
func (w *worker) grow(r unix.PtraceRegs, parts []part) uint64 {
	old, oldSize, newSize, flags := r.Rdi, pageAlign(r.Rsi), pageAlign(r.Rdx), r.R10
	switch {
	case flags&unix.MREMAP_MAYMOVE == 0:
		return failed(unix.ENOMEM)
	case flags&unix.MREMAP_DONTUNMAP != 0 || old%4096 != 0:
		return failed(unix.EINVAL)
	}
	// What the guard discarded within is a mapping of its own now, though to the
	// program it is all one: the parts that map the file need not be the whole.
	where, mapFlags := uint64(0), uint64(anonymous)
	if flags&unix.MREMAP_FIXED != 0 {
		where, mapFlags = r.R8, mapFlags|unix.MAP_FIXED
	}
	prot := parts[0].prot
	fresh, errno := w.do(unix.SYS_MMAP, where, newSize, prot|unix.PROT_WRITE, mapFlags, ^uint64(0), 0)
	if errno != 0 {
		return failed(errno)
	}
	buf := make([]byte, 4<<20)
	for done := uint64(0); done < oldSize && w.fatal == nil; {
		b := buf[:min(uint64(len(buf)), oldSize-done)]
		if err := w.p.Read(old+done, b); errors.Is(err, ErrGone) {
			w.fatal = err
		} else if err != nil {
			w.do(unix.SYS_MUNMAP, fresh, newSize)
			return failed(unix.EFAULT) // not all of it is mapped
		} else {
			w.fatal = w.p.Write(fresh+done, b)
		}
		done += uint64(len(b))
	}
	if prot&unix.PROT_WRITE == 0 {
		w.do(unix.SYS_MPROTECT, fresh, newSize, prot)
	}
	w.do(unix.SYS_MUNMAP, old, oldSize)
	return fresh
}

func pageAlign(n uint64) uint64 { return (n + 4095) &^ 4095 }

// tgid is the process that a thread belongs to.
func tgid(tid int) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	if err != nil {
		return tid
	}
	_, after, _ := strings.Cut(string(b), "\nTgid:")
	id := tid
	fmt.Sscanf(after, "%d", &id)
	return id
}
