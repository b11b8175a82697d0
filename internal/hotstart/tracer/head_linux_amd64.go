package tracer

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// A Head lets a process run until it is about to open a file. It sees the system calls of this
// process alone: the processes that it makes have no tracer.
type Head struct {
	Path   string // of the open, as the process gives it
	Opens  int    // of Path, before that
	Random *Entropy
	// Children are the processes that the process has made, in order, as it knows them.
	Children []int

	pid   int
	entry bool // the next stop is at the entry of a call
}

const headOptions = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_EXITKILL

// Begin lets a process run that is held at its first instruction.
func (h *Head) Begin(p *Proc) error {
	h.pid, h.entry = p.Pid, true
	if err := h.Random.Plant(p); err != nil {
		return err
	}
	if err := unix.PtraceSetOptions(p.Pid, headOptions); err != nil {
		return fmt.Errorf("ptrace options of %d: %w", p.Pid, gone(err))
	}
	r := p.rest[p.Pid]
	if err := unix.PtraceSetRegs(p.Pid, &r); err != nil {
		return gone(err)
	}
	return gone(unix.PtraceSyscall(p.Pid, 0))
}

// Handle deals with a stop of the process, and lets it go on. It returns true if the process is at
// the open, where it stays stopped. If the process executes another program, Handle lets it go on
// without its tracer, and left is true.
func (h *Head) Handle(st unix.WaitStatus) (reached, left bool, err error) {
	sig := 0
	switch ev := int(st) >> 16; {
	case ev == unix.PTRACE_EVENT_EXEC:
		return false, true, h.Leave(0)
	case ev == eventStop && st.StopSignal() != unix.SIGTRAP:
		// A stop of the whole group, as by SIGTSTP: it stays stopped.
		return false, false, gone(ptrace(unix.PTRACE_LISTEN, h.pid, 0, nil))
	case ev == 0 && st.StopSignal() == syscallStop:
		entry := h.entry
		h.entry = !entry
		if !entry {
			if err := h.returns(); err != nil {
				return false, false, err
			}
			break
		}
		if reached, err := h.call(); reached || err != nil {
			return reached, false, err
		}
	case ev == 0:
		sig = int(st.StopSignal())
	}
	return false, false, gone(unix.PtraceSyscall(h.pid, sig))
}

// call answers a call at whose entry the process is stopped.
func (h *Head) call() (reached bool, err error) {
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(h.pid, &r); err != nil {
		return false, gone(err)
	}
	if r.Orig_rax == unix.SYS_GETRANDOM {
		return false, h.Random.Answer(h.pid)
	}
	if path, ok := opens(h.pid, &r); !ok || path != h.Path {
		return false, nil
	}
	h.Opens--
	return h.Opens < 0, nil
}

// returns notes the process that a call has made, at whose exit the process is stopped.
func (h *Head) returns() error {
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(h.pid, &r); err != nil {
		return gone(err)
	}
	switch r.Orig_rax {
	case unix.SYS_FORK, unix.SYS_VFORK, unix.SYS_CLONE, unix.SYS_CLONE3:
		if child := int(int64(r.Rax)); child > 0 {
			h.Children = append(h.Children, child)
		}
	}
	return nil
}

// opens returns the path of a call of open(2) or openat(2), as the process gives it.
func opens(tid int, r *unix.PtraceRegs) (string, bool) {
	if r.Orig_rax != unix.SYS_OPEN && r.Orig_rax != unix.SYS_OPENAT {
		return "", false
	}
	path, err := readPath(tid, arguments(r)[looks[r.Orig_rax].path])
	return path, err == nil
}

// Hold holds the process at the open, which it makes when it is released.
func (h *Head) Hold() (*Proc, error) {
	if err := unix.PtraceSetOptions(h.pid, options); err != nil {
		return nil, fmt.Errorf("ptrace options of %d: %w", h.pid, gone(err))
	}
	p := &Proc{Pid: h.pid, rest: map[int]unix.PtraceRegs{}, again: map[int]uint64{}}
	return p, p.skipCall(h.pid)
}

// Leave lets the process go on without its tracer.
func (h *Head) Leave(sig int) error { return detachWith(h.pid, unix.Signal(sig)) }

// Child returns the process that a thread has made, if that is the reason of its stop, or 0.
func Child(tid int, st unix.WaitStatus) int {
	if ev := int(st) >> 16; !st.Stopped() || ev != eventFork && ev != eventVfork && ev != eventClone {
		return 0
	}
	child, err := unix.PtraceGetEventMsg(tid)
	if err != nil || tgid(int(child)) == tgid(tid) {
		return 0
	}
	return int(child)
}

// Name returns the path of a Look, as the process gives it, if its call is open(2) or openat(2).
func (o *Overlay) Name(l *Access) (string, bool) {
	var r unix.PtraceRegs
	if unix.PtraceGetRegs(l.Tid, &r) != nil {
		return "", false
	}
	return opens(l.Tid, &r)
}

// Memory returns the memory that Redirect has mapped in a process: its address, or 0, and its size.
func (o *Overlay) Memory(pid int) (addr, size uint64) { return o.memory[pid], 2 * unix.PathMax }

// FollowNext does the same as Follow for the open of a FIFO, which may wait for another process. When
// the thread continues, it comes to the Look again, and the caller continues it there.
func (o *Overlay) FollowNext(l *Access) error { return o.followNext(l, inputs, shares) }

// FollowClose has the tracer see that the process closes the descriptor that the open of a Look is
// going to return, as a AccessClose. The rest is as for FollowNext.
func (o *Overlay) FollowClose(l *Access) error {
	return o.followNext(l, map[uint64]uint32{unix.SYS_CLOSE: 0})
}

func (o *Overlay) followNext(l *Access, calls ...map[uint64]uint32) error {
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(l.Tid, &r); err != nil {
		return gone(err)
	}
	err := o.instead(l.Tid, r, func(do func(nr uint64, args ...uint64) (uint64, error)) (uint64, error) {
		mem, err := o.memoryOf(l.Tid, do)
		if err != nil {
			return 0, err
		}
		// The open will return the lowest free number, as this call does.
		fd, err := do(unix.SYS_EVENTFD2, 0, 0)
		if err != nil {
			return 0, err
		}
		if _, err := do(unix.SYS_CLOSE, fd); err != nil {
			return 0, err
		}
		return fd, o.follow(l.Tid, mem, fd, do, calls...)
	})
	if err != nil {
		return err
	}
	r.Rax, r.Rip, r.Orig_rax = r.Orig_rax, r.Rip-2, ^uint64(0)
	return gone(unix.PtraceSetRegs(l.Tid, &r))
}
