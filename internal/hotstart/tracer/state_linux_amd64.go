package tracer

import (
	"encoding/binary"
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Requests of ptrace(2) that package unix has no functions for.
const (
	ptraceGetSigmask = 0x420a
	ptraceSetSigmask = 0x420b
	ptraceGetRseq    = 0x420f

	ntX86Xstate = 0x202 // NT_X86_XSTATE of elf.h

	// maxXstate is more than any processor's XSAVE area, bytes.
	maxXstate = 64 << 10
)

// RobustList is a thread's list of robust futexes (get_robust_list(2)).
type RobustList struct{ Head, Size uint64 }

// Rseq is a thread's registration of restartable sequences (rseq(2)).
type Rseq struct {
	Address   uint64
	Size      uint32
	Signature uint32
}

// Registers returns the registers with which a held thread will continue.
func (p *Proc) Registers(tid int) unix.PtraceRegs { return p.rest[tid] }

// SetRegisters changes the registers with which a held thread will continue.
func (p *Proc) SetRegisters(tid int, r unix.PtraceRegs) { p.rest[tid] = r }

// Late returns the signals that arrived while system calls were injected and
// have not been delivered yet.
func (p *Proc) Late() []syscall.Signal { return p.later }

// SyscallIn does the same as Syscall, in a thread other than the leader.
func (p *Proc) SyscallIn(tid int, nr uint64, args ...uint64) (uint64, error) {
	if p.insn == 0 {
		var err error
		if p.insn, err = findSyscall(p.Pid); err != nil {
			return 0, err
		}
	}
	v, _, err := p.execute(tid, p.insn, p.rest[tid], nr, args...)
	return v, err
}

// SetInstruction sets the address of a `syscall` instruction in the process, after the
// mappings have changed since the last injected call.
func (p *Proc) SetInstruction(addr uint64) { p.insn = addr }

// Instruction returns the address of a `syscall` instruction in the process.
func (p *Proc) Instruction() (uint64, error) {
	if p.insn == 0 {
		var err error
		if p.insn, err = findSyscall(p.Pid); err != nil {
			return 0, err
		}
	}
	return p.insn, nil
}

// Xstate returns the extended state of a held thread: x87, SSE, AVX and any other state
// of the processor, in the layout of XSAVE.
func (p *Proc) Xstate(tid int) ([]byte, error) {
	b := make([]byte, maxXstate)
	v := iovec(b)
	if err := ptrace(unix.PTRACE_GETREGSET, tid, ntX86Xstate, unsafe.Pointer(&v)); err != nil {
		return nil, fmt.Errorf("ptrace extended state of %d: %w", tid, err)
	}
	return b[:v.Len], nil
}

// SetXstate puts the extended state of a held thread back.
func (p *Proc) SetXstate(tid int, b []byte) error {
	v := iovec(b)
	if err := ptrace(unix.PTRACE_SETREGSET, tid, ntX86Xstate, unsafe.Pointer(&v)); err != nil {
		return fmt.Errorf("set extended state of %d: %w", tid, err)
	}
	return nil
}

// SignalMask returns the signals that a held thread blocks, bit N-1 for signal N.
func (p *Proc) SignalMask(tid int) (uint64, error) {
	var mask uint64
	if err := ptrace(ptraceGetSigmask, tid, 8, unsafe.Pointer(&mask)); err != nil {
		return 0, fmt.Errorf("ptrace signal mask of %d: %w", tid, err)
	}
	return mask, nil
}

// SetSignalMask sets the signals that a held thread blocks.
func (p *Proc) SetSignalMask(tid int, mask uint64) error {
	if err := ptrace(ptraceSetSigmask, tid, 8, unsafe.Pointer(&mask)); err != nil {
		return fmt.Errorf("set signal mask of %d: %w", tid, err)
	}
	return nil
}

// Rseq returns the registration of restartable sequences of a held thread. The address is
// 0 if the thread has not registered.
func (p *Proc) Rseq(tid int) (Rseq, error) {
	var b [24]byte // struct ptrace_rseq_configuration
	if err := ptrace(ptraceGetRseq, tid, uintptr(len(b)), unsafe.Pointer(&b)); err != nil {
		return Rseq{}, fmt.Errorf("ptrace restartable sequences of %d: %w", tid, err)
	}
	return Rseq{Address: binary.NativeEndian.Uint64(b[:]), Size: binary.NativeEndian.Uint32(b[8:]),
		Signature: binary.NativeEndian.Uint32(b[12:])}, nil
}

// RobustList returns the list of robust futexes of a held thread.
func (p *Proc) RobustList(tid int) (RobustList, error) {
	var r RobustList
	_, _, e := unix.Syscall(unix.SYS_GET_ROBUST_LIST, uintptr(tid), uintptr(unsafe.Pointer(&r.Head)), uintptr(unsafe.Pointer(&r.Size)))
	if e != 0 {
		return r, fmt.Errorf("robust list of thread %d: %w", tid, e)
	}
	return r, nil
}

func ptrace(request, tid int, addr uintptr, data unsafe.Pointer) error {
	_, _, e := unix.Syscall6(unix.SYS_PTRACE, uintptr(request), uintptr(tid), addr, uintptr(data), 0, 0)
	if e != 0 {
		return gone(e)
	}
	return nil
}

// RunCode lets a held thread execute code that ends with a breakpoint (int3),
// with register rbx set to arg, and holds it again there. It returns rbx and
// the threads that the code made, in their order, held. What the code does to
// registers is forgotten.
func (p *Proc) RunCode(tid int, code, arg uint64) (rbx uint64, made []int, err error) {
	r := p.rest[tid]
	r.Rip, r.Rbx, r.Orig_rax = code, arg, ^uint64(0)
	r.Eflags &^= 1<<8 | 1<<10 // no single steps, and strings go upward
	if err := unix.PtraceSetRegs(tid, &r); err != nil {
		return 0, nil, gone(err)
	}
	for done := false; !done; {
		if err := unix.PtraceCont(tid, 0); err != nil {
			return 0, nil, gone(err)
		}
		st, err := wait(tid)
		if err != nil {
			return 0, nil, err
		}
		switch ev := int(st) >> 16; {
		case ev == eventClone:
			id, err := unix.PtraceGetEventMsg(tid)
			if err != nil {
				return 0, nil, gone(err)
			}
			made = append(made, int(id))
		case ev == 0 && st.StopSignal() == unix.SIGTRAP:
			done = true
		case ev == 0 && (st.StopSignal() == unix.SIGSEGV || st.StopSignal() == unix.SIGBUS || st.StopSignal() == unix.SIGILL || st.StopSignal() == unix.SIGSYS):
			return 0, nil, fmt.Errorf("injected code was stopped by %v", st.StopSignal())
		case ev == 0:
			p.later = append(p.later, st.StopSignal())
		}
	}
	if err := unix.PtraceGetRegs(tid, &r); err != nil {
		return 0, nil, gone(err)
	}
	for _, id := range made {
		if err := p.adopt(id); err != nil {
			return 0, nil, err
		}
	}
	return r.Rbx, made, nil
}

// adopt waits for the first stop of a thread that a held one has made.
func (p *Proc) adopt(tid int) error {
	for {
		st, err := wait(tid)
		if err != nil {
			return err
		}
		if int(st)>>16 == eventStop {
			break
		}
		if err := unix.PtraceCont(tid, 0); err != nil {
			return gone(err)
		}
	}
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(tid, &r); err != nil {
		return gone(err)
	}
	r.Orig_rax = ^uint64(0)
	p.rest[tid] = r
	p.Threads = append(p.Threads, tid)
	return nil
}
