package tracer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Begin lets a process that is held at its first instruction run. The Watch sees the
// programs that it executes, and that its children execute.
func (w *Watch) Begin(p *Proc) error {
	if err := unix.PtraceSetOptions(p.Pid, options|unix.PTRACE_O_TRACEEXEC); err != nil {
		return fmt.Errorf("ptrace options of %d: %w", p.Pid, gone(err))
	}
	w.threads[p.Pid] = true
	return w.Start(p)
}

// Instead makes a watched process execute another program, with the same environment. The
// process must be stopped after an execve(2), before the first instruction of its program.
// After Instead the process runs and is not watched any more. After an error that is not
// ErrGone, it is still stopped before the first instruction of its first program, and
// Continue continues it.
func (w *Watch) Instead(pid int, path string, argv []string) error {
	p := &Proc{Pid: pid, rest: map[int]unix.PtraceRegs{}, again: map[int]uint64{}}
	// First the process must return from execve(2).
	if err := unix.PtraceInterrupt(pid); err != nil {
		return gone(err)
	}
	if err := unix.PtraceCont(pid, 0); err != nil {
		return gone(err)
	}
	for stopped := false; !stopped; {
		st, err := wait(pid)
		if err != nil {
			return err
		}
		if stopped = int(st)>>16 == eventStop; !stopped {
			p.later = append(p.later, st.StopSignal())
			if err := unix.PtraceCont(pid, 0); err != nil {
				return gone(err)
			}
		}
	}
	if err := p.rests(pid); err != nil {
		return err
	}
	err := p.execve(path, argv)
	if err != nil {
		r := p.rest[pid]
		return errors.Join(err, gone(unix.PtraceSetRegs(pid, &r)))
	}
	delete(w.threads, pid)
	for _, sig := range p.later {
		if err := unix.Tgkill(pid, pid, sig); err != nil {
			return gone(err)
		}
	}
	return gone(unix.PtraceDetach(pid))
}

// execve makes a process that is held at its first instruction execute a program.
func (p *Proc) execve(path string, argv []string) error {
	// Argument 0 and the environment are on the stack: argc, argv, 0, envp, 0.
	sp := p.rest[p.Pid].Rsp
	var argc [8]byte
	if err := p.Read(sp, argc[:]); err != nil {
		return err
	}
	env := sp + 8*(binary.NativeEndian.Uint64(argc[:])+2)
	size := len(path) + 1 + 8*(len(argv)+1)
	for _, arg := range argv {
		size += len(arg) + 1
	}
	mem, err := p.Alloc(size)
	if err != nil {
		return err
	}
	b := make([]byte, 8*(len(argv)+1), size)
	add := func(text string) uint64 {
		at := mem + uint64(len(b))
		b = append(append(b, text...), 0)
		return at
	}
	for i, arg := range argv {
		binary.NativeEndian.PutUint64(b[i*int(unsafe.Sizeof(mem)):], add(arg))
	}
	program := add(path)
	if err := p.Write(mem, b); err != nil {
		return errors.Join(err, p.Free(mem, size))
	}
	if _, err := p.Syscall(unix.SYS_EXECVE, program, mem, env); err != nil {
		return errors.Join(fmt.Errorf("execute %s: %w", path, err), p.Free(mem, size))
	}
	return nil
}

// Detach lets watched processes run without their tracer. The owner must still pass their
// wait statuses to Leave until no process is left.
func (w *Watch) Detach() {
	for tid := range w.threads {
		_ = unix.PtraceInterrupt(tid) // it may have ended
	}
}

// Leave does the same as Handle, for a watched thread that continues without its tracer.
func (w *Watch) Leave(tid int, st unix.WaitStatus) error {
	delete(w.threads, tid)
	sig := 0
	switch {
	case !st.Stopped():
		return nil
	case int(st)>>16 == 0:
		sig = int(st.StopSignal())
	}
	if err := detachWith(tid, unix.Signal(sig)); err != nil && !errors.Is(err, ErrGone) {
		return err
	}
	return nil
}
