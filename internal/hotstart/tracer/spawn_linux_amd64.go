package tracer

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"premix/internal/hotstart/procstate"
)

// Spawn executes a program and holds it before its first instruction. Its
// addresses are not randomised where the kernel permits that; the personality
// that it would have had otherwise is returned, for Personality.
//
// The process is a child of the caller. attr.Sys.Ptrace is set by Spawn.
func Spawn(path string, argv []string, attr *os.ProcAttr) (p *Proc, personality uint64, err error) {
	personality, restore, _ := procstate.FixAddresses() // without it, memories are not comparable
	defer restore()
	p, err = SpawnPlain(path, argv, attr)
	return p, personality, err
}

// SpawnPlain does the same as Spawn, but the program has the addresses that it would have
// without a tracer: they differ between executions if the kernel randomizes them.
func SpawnPlain(path string, argv []string, attr *os.ProcAttr) (*Proc, error) {
	if attr.Sys == nil {
		attr.Sys = &syscall.SysProcAttr{}
	}
	attr.Sys.Ptrace = true
	proc, err := os.StartProcess(path, argv, attr)
	if err != nil {
		return nil, err
	}
	pid := proc.Pid
	if err := proc.Release(); err != nil { // its end is waited for by pid
		return nil, err
	}
	p, err := settle(pid)
	if err != nil {
		unix.Kill(pid, unix.SIGKILL)
		unix.Wait4(pid, nil, unix.WALL, nil)
		return nil, fmt.Errorf("hold %s at its first instruction: %w", path, err)
	}
	return p, nil
}

// settle replaces the attachment by PTRACE_TRACEME, which stops a process after its
// execve, by an attachment with PTRACE_SEIZE. Only with PTRACE_SEIZE does a stop of the
// whole process group differ from a stop by the tracer. The process executes no
// instruction in between: SIGSTOP stops it while it has no tracer, and PTRACE_INTERRUPT
// stops it when it continues.
func settle(pid int) (*Proc, error) {
	if _, err := wait(pid); err != nil { // the SIGTRAP of execve
		return nil, err
	}
	if err := detachWith(pid, unix.SIGSTOP); err != nil {
		return nil, err
	}
	var st unix.WaitStatus
	if _, err := unix.Wait4(pid, &st, unix.WUNTRACED|unix.WALL, nil); err != nil || !st.Stopped() {
		return nil, fmt.Errorf("wait for its stop: status %#x, %w", st, gone(err))
	}
	if err := seize(pid); err != nil {
		return nil, err
	}
	if err := unix.Kill(pid, unix.SIGCONT); err != nil {
		return nil, gone(err)
	}
	for continued := false; ; {
		st, err := wait(pid)
		if err != nil {
			return nil, err
		}
		event := int(st)>>16 == eventStop
		if event && continued {
			break
		}
		if !event && st.StopSignal() == unix.SIGCONT {
			continued = true
			if err := unix.PtraceInterrupt(pid); err != nil {
				return nil, gone(err)
			}
		}
		if err := unix.PtraceCont(pid, 0); err != nil {
			return nil, gone(err)
		}
	}
	return atFirst(pid)
}

// atFirst describes a process that is held at its first instruction.
func atFirst(pid int) (*Proc, error) {
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(pid, &r); err != nil {
		return nil, gone(err)
	}
	r.Orig_rax = ^uint64(0)
	return &Proc{Pid: pid, Threads: []int{pid}, rest: map[int]unix.PtraceRegs{pid: r}}, nil
}

func detachWith(tid int, sig syscall.Signal) error {
	_, _, e := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_DETACH, uintptr(tid), 0, uintptr(sig), 0, 0)
	if e != 0 {
		return fmt.Errorf("ptrace detach %d: %w", tid, gone(e))
	}
	return nil
}

// Enter holds a process that executes Stub, when the program that it has been
// given is at its first instruction. The process is a child of the caller.
func Enter(pid int) (*Proc, error) {
	_, _, e := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, options|unix.PTRACE_O_TRACEEXEC, 0, 0)
	if e != 0 {
		return nil, fmt.Errorf("ptrace seize %d: %w", pid, e)
	}
	executed := false
	for {
		st, err := wait(pid)
		if err != nil {
			return nil, err
		}
		sig := 0
		switch ev := int(st) >> 16; {
		case ev == unix.PTRACE_EVENT_EXEC:
			program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
			if err != nil {
				return nil, err
			}
			if filepath.Base(program) == StubName {
				break // the stub itself
			}
			executed = true
			if err := unix.PtraceInterrupt(pid); err != nil {
				return nil, gone(err)
			}
		case ev == eventStop && executed:
			if err := unix.PtraceSetOptions(pid, options); err != nil {
				return nil, gone(err)
			}
			return atFirst(pid)
		case ev == eventStop && st.StopSignal() == unix.SIGSTOP:
			// It stopped before it was traced.
			if err := unix.Kill(pid, unix.SIGCONT); err != nil {
				return nil, gone(err)
			}
		case ev == 0 && st.StopSignal() != unix.SIGSTOP && st.StopSignal() != unix.SIGCONT && st.StopSignal() != unix.SIGTRAP:
			sig = int(st.StopSignal())
		}
		if err := unix.PtraceCont(pid, sig); err != nil {
			return nil, gone(err)
		}
	}
}

// StubName is the name that a file with Stub must have.
const StubName = "premix-stub"

// Stub is a static program, `premix-stub PROGRAM ARGV0 ARG...`. It stops itself,
// and when it is continued it executes PROGRAM with the arguments from ARGV0 on
// and the environment that it has. It is the way into a container, whose runtime
// executes programs by itself and lets no one look at their first instruction.
//
// Its only segment begins with the ELF header, and the code follows.
var Stub = append(elfHeader(), stubCode...)

var stubCode = []byte{
	0xb8, 0x27, 0x00, 0x00, 0x00, // mov eax, 39 (getpid)
	0x0f, 0x05, // syscall
	0x89, 0xc7, // mov edi, eax
	0xbe, 0x13, 0x00, 0x00, 0x00, // mov esi, 19 (SIGSTOP)
	0xb8, 0x3e, 0x00, 0x00, 0x00, // mov eax, 62 (kill)
	0x0f, 0x05, // syscall
	0x48, 0x8b, 0x7c, 0x24, 0x10, // mov rdi, [rsp+16]
	0x48, 0x8d, 0x74, 0x24, 0x18, // lea rsi, [rsp+24]
	0x48, 0x8b, 0x0c, 0x24, // mov rcx, [rsp]
	0x48, 0x8d, 0x54, 0xcc, 0x10, // lea rdx, [rsp+rcx*8+16]
	0xb8, 0x3b, 0x00, 0x00, 0x00, // mov eax, 59 (execve)
	0x0f, 0x05, // syscall
	0xbf, 0x7f, 0x00, 0x00, 0x00, // mov edi, 127
	0xb8, 0x3c, 0x00, 0x00, 0x00, // mov eax, 60 (exit)
	0x0f, 0x05, // syscall
}

// elfHeader returns the header of an ELF file with one segment. The whole file is loaded,
// and the code begins after the header.
func elfHeader() []byte {
	const (
		base   = 0x400000
		header = 64 + 56 // Elf64_Ehdr, Elf64_Phdr
	)
	size := uint64(header + len(stubCode))
	b := []byte("\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00")
	le := binary.LittleEndian
	b = le.AppendUint16(b, 2)  // ET_EXEC
	b = le.AppendUint16(b, 62) // EM_X86_64
	b = le.AppendUint32(b, 1)
	b = le.AppendUint64(b, base+header) // e_entry
	b = le.AppendUint64(b, 64)          // e_phoff
	b = le.AppendUint64(b, 0)
	b = le.AppendUint32(b, 0)
	for _, v := range []uint16{64, 56, 1, 64, 0, 0} {
		b = le.AppendUint16(b, v)
	}
	b = le.AppendUint32(b, 1) // PT_LOAD
	b = le.AppendUint32(b, 5) // PF_R | PF_X
	for _, v := range []uint64{0, base, base, size, size, 4096} {
		b = le.AppendUint64(b, v)
	}
	return b
}
