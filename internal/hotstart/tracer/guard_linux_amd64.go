package tracer

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"premix/internal/kit/proc"
)

// A Guard makes a private mapping of a file behave like anonymous memory. The two
// differ in these cases:
//
//   - After MADV_DONTNEED and similar advice, the mapping has the bytes of the file
//     again, and anonymous memory has zeros. The guard maps anonymous memory instead.
//   - A mapping that grows by mremap(2) shows more of the file. The guard adds
//     anonymous memory.
//   - MADV_WIPEONFORK, MADV_COLLAPSE and userfaultfd(2) work only on anonymous
//     memory, and locked or sealed memory cannot be replaced later. The guard
//     copies the mapping to anonymous memory before the call.
//
// A seccomp filter in the guarded process stops only these calls for the guard
// (SECCOMP_RET_TRACE); all other calls run at full speed. So the guard stays the tracer
// of the process and of its descendants until their end, and the owner of the guard must
// pass every wait status of a guarded thread to Handle.
type Guard struct {
	file    string         // device and inode of the mapped file, as /proc/PID/maps shows them
	insn    map[int]uint64 // thread id -> address of a system call instruction
	changed bool           // anonymous memory has taken the place of a part of a mapping
	waiting []stop         // of threads that were stopped for the time of a call
}

// stop is a wait status that has not been handled.
type stop struct {
	tid int
	st  unix.WaitStatus
}

// NewGuard makes a guard for mappings of file.
func NewGuard(file *os.File) (*Guard, error) {
	// A file system may show another device in maps than stat(2) does.
	b, err := unix.Mmap(int(file.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return nil, &os.PathError{Op: "map", Path: file.Name(), Err: err}
	}
	defer unix.Munmap(b)
	at := uint64(uintptr(unsafe.Pointer(&b[0])))
	areas, err := readAreas("/proc/self/maps", "", at, at+4096)
	if err != nil {
		return nil, err
	}
	if len(areas) != 1 {
		return nil, fmt.Errorf("the mapping of %s is not in /proc/self/maps", file.Name())
	}
	return &Guard{file: areas[0].file, insn: map[int]uint64{}}, nil
}

const guardOptions = options | unix.PTRACE_O_TRACESECCOMP | unix.PTRACE_O_TRACEEXEC

// Advice of madvise(2) that means something else for a mapping of a file, or
// cannot be given to one.
const (
	madvDontneed       = 4
	madvFree           = 8
	madvRemove         = 9
	madvDontfork       = 10
	madvWipeonfork     = 18
	madvDontneedLocked = 24
	madvCollapse       = 25
	madvGuardInstall   = 102
)

var guardedAdvice = []uint64{madvDontneed, madvFree, madvRemove, madvDontfork, madvWipeonfork, madvDontneedLocked, madvCollapse, madvGuardInstall}

const (
	sysMseal       = 462
	uffdioRegister = 0xc020aa00 // UFFDIO_REGISTER
)

// filter hands guarded calls to the tracer: struct seccomp_data has the number of
// the call at offset 0, the architecture at 4 and the low half of argument N at
// 16+8*N (seccomp(2)).
var filter = makeFilter()

func makeFilter() []unix.SockFilter {
	const load, equal, end = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	// argument traces a call if its argument has one of some values.
	argument := func(nr uint32, argument uint32, values ...uint64) []unix.SockFilter {
		n := uint8(len(values))
		f := []unix.SockFilter{{Code: equal, K: nr, Jf: n + 3}, {Code: load, K: 16 + 8*argument}}
		for i, v := range values {
			f = append(f, unix.SockFilter{Code: equal, K: uint32(v), Jt: n - uint8(i)})
		}
		return append(f, unix.SockFilter{Code: end, K: unix.SECCOMP_RET_ALLOW}, unix.SockFilter{Code: end, K: unix.SECCOMP_RET_TRACE})
	}
	f := []unix.SockFilter{
		{Code: load, K: 4},
		{Code: equal, K: unix.AUDIT_ARCH_X86_64, Jt: 1},
		{Code: end, K: unix.SECCOMP_RET_ALLOW},
		{Code: load, K: 0},
	}
	for _, nr := range []uint32{unix.SYS_MREMAP, unix.SYS_PROCESS_MADVISE, unix.SYS_MLOCK, unix.SYS_MLOCK2, unix.SYS_MLOCKALL, sysMseal} {
		f = append(f, unix.SockFilter{Code: equal, K: nr, Jf: 1}, unix.SockFilter{Code: end, K: unix.SECCOMP_RET_TRACE})
	}
	f = append(f, argument(unix.SYS_MADVISE, 2, guardedAdvice...)...)
	f = append(f, argument(unix.SYS_IOCTL, 1, uffdioRegister)...)
	return append(f, unix.SockFilter{Code: end, K: unix.SECCOMP_RET_ALLOW})
}

// GuardFilter returns the seccomp filter that a guarded process needs in all its threads.
func GuardFilter() []unix.SockFilter { return filter }

// Attach makes the calls of a held process possible that its filter hands to a tracer. Release
// does the same.
func (g *Guard) Attach(p *Proc) error {
	for _, tid := range p.Threads {
		if err := unix.PtraceSetOptions(tid, guardOptions); err != nil {
			return fmt.Errorf("ptrace options of %d: %w", tid, gone(err))
		}
	}
	return nil
}

// Release lets a held process go on under guard.
func (g *Guard) Release(p *Proc) error {
	if err := g.Attach(p); err != nil {
		return err
	}
	for _, tid := range p.Threads {
		r := p.rest[tid]
		if err := unix.PtraceSetRegs(tid, &r); err != nil {
			return fmt.Errorf("ptrace registers of %d: %w", tid, gone(err))
		}
	}
	for _, late := range p.later {
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

// Handle handles the stop of a guarded thread with the wait status st, and continues the
// thread. The caller handles the end of a thread.
func (g *Guard) Handle(tid int, st unix.WaitStatus) error {
	err := g.handle(tid, st)
	for len(g.waiting) > 0 {
		next := g.waiting[0]
		g.waiting = g.waiting[1:]
		if e := g.handle(next.tid, next.st); e != nil && !errors.Is(e, ErrGone) {
			err = e
		}
	}
	return err
}

func (g *Guard) handle(tid int, st unix.WaitStatus) error {
	if !st.Stopped() {
		delete(g.insn, tid)
		return nil
	}
	sig := 0
	switch ev := int(st) >> 16; ev {
	case 0:
		sig = int(st.StopSignal())
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

// call makes a guarded system call at whose entry the thread is stopped.
func (g *Guard) call(tid int) error {
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(tid, &r); err != nil {
		return err
	}
	w := &worker{g: g, p: &Proc{Pid: tid}, tid: tid, regs: r}
	instead, err := w.instead()
	if err != nil || instead == nil {
		return err // the guarded file is not affected: the kernel makes the call
	}
	if w.insn, err = g.instruction(tid); err != nil {
		return err
	}
	// Skip the call; its replacement runs when the thread is at the exit of the call.
	skipped := r
	skipped.Orig_rax = ^uint64(0)
	if err := unix.PtraceSetRegs(tid, &skipped); err != nil {
		return err
	}
	if _, err := w.p.toSyscallStop(tid); err != nil {
		return err
	}
	result := instead()
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

// area is a mapping, or the part of a mapping within a range.
type area struct {
	start, end uint64
	prot       uint64
	file       string // device and inode
	ours       bool   // it maps the guarded file
	plain      bool   // it is private, and anonymous or ours
}

// readAreas returns the mappings in [start, end) of a maps file.
func readAreas(path, guarded string, start, end uint64) ([]area, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []area
	scan := bufio.NewScanner(f)
	scan.Buffer(nil, 1<<20)
	for scan.Scan() {
		w := strings.SplitN(scan.Text(), " ", 6)
		if len(w) < 5 || len(w[1]) != 4 {
			return nil, fmt.Errorf("%s: malformed line %q", path, scan.Text())
		}
		first, last, _ := strings.Cut(w[0], "-")
		lo, err1 := strconv.ParseUint(first, 16, 64)
		hi, err2 := strconv.ParseUint(last, 16, 64)
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if lo, hi = max(lo, start), min(hi, end); lo >= hi {
			continue
		}
		a := area{start: lo, end: hi, file: w[3] + " " + w[4]}
		for i, bit := range []uint64{unix.PROT_READ, unix.PROT_WRITE, unix.PROT_EXEC} {
			if w[1][i] != '-' {
				a.prot |= bit
			}
		}
		a.ours = a.file == guarded
		a.plain = w[1][3] == 'p' && (a.ours || w[4] == "0")
		all = append(all, a)
	}
	return all, scan.Err()
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

// worker executes the replacement of a guarded call in one stopped thread.
type worker struct {
	g     *Guard
	p     *Proc
	tid   int
	insn  uint64
	regs  unix.PtraceRegs
	fatal error // the thread is gone or cannot be worked on
}

// areas returns the mappings in [start, end), and whether one of them maps the guarded
// file.
func (w *worker) areas(start, end uint64) (all []area, ours bool, err error) {
	all, err = readAreas(fmt.Sprintf("/proc/%d/maps", w.tid), w.g.file, start, end)
	return all, slices.ContainsFunc(all, func(a area) bool { return a.ours }), err
}

// instead returns the function that replaces the call of the thread and returns the
// result of the call. It returns nil if the kernel should make the call.
func (w *worker) instead() (func() uint64, error) {
	r := &w.regs
	// before copies mappings to anonymous memory, then makes the call.
	before := func(start, end uint64) (func() uint64, error) {
		if _, ours, err := w.areas(start, end); err != nil || !ours {
			return nil, err
		}
		return func() uint64 {
			w.materialise(start, end)
			return w.result(w.do(r.Orig_rax, r.Rdi, r.Rsi, r.Rdx, r.R10, r.R8, r.R9))
		}, nil
	}
	switch r.Orig_rax {
	case unix.SYS_MREMAP:
		return w.mremap()
	case unix.SYS_MADVISE:
		if _, ours, err := w.areas(r.Rdi, r.Rdi+pageAlign(r.Rsi)); err != nil || !ours {
			return nil, err
		}
		return func() uint64 { return w.advise(r.Rdi, r.Rsi, r.Rdx) }, nil
	case unix.SYS_PROCESS_MADVISE:
		return w.processMadvise()
	case unix.SYS_MLOCK, unix.SYS_MLOCK2:
		start := r.Rdi &^ 4095
		return before(start, start+pageAlign(r.Rsi+r.Rdi-start))
	case sysMseal:
		return before(r.Rdi, r.Rdi+pageAlign(r.Rsi))
	case unix.SYS_MLOCKALL:
		if r.Rdi&unix.MCL_CURRENT == 0 {
			return nil, nil
		}
		return before(0, ^uint64(0))
	case unix.SYS_IOCTL:
		var b [16]byte // struct uffdio_range
		if w.p.Read(r.Rdx, b[:]) != nil {
			return nil, nil
		}
		start := binary.LittleEndian.Uint64(b[:])
		return before(start, start+binary.LittleEndian.Uint64(b[8:]))
	}
	return nil, nil
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

// result returns the value that the program sees for a result of do.
func (w *worker) result(v uint64, errno syscall.Errno) uint64 {
	if errno != 0 {
		return failed(errno)
	}
	return v
}

func failed(errno syscall.Errno) uint64 { return -uint64(errno) }

const anonymous = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE

// fresh replaces a part of a mapping by anonymous memory.
func (w *worker) fresh(a area) syscall.Errno {
	w.g.changed = true
	_, errno := w.do(unix.SYS_MMAP, a.start, a.end-a.start, a.prot, anonymous|unix.MAP_FIXED, ^uint64(0), 0)
	return errno
}

// advise replaces madvise(2).
func (w *worker) advise(start, size, advice uint64) uint64 {
	end := start + pageAlign(size)
	switch {
	case start%4096 != 0 || end < start || size > pageAlign(size):
		return failed(unix.EINVAL)
	case start == end:
		return 0
	}
	discards := advice == madvDontneed || advice == madvFree || advice == madvDontneedLocked || advice == madvGuardInstall
	if !discards && advice != madvRemove {
		w.materialise(start, end)
		return w.result(w.do(unix.SYS_MADVISE, start, size, advice))
	}
	if advice == madvDontneedLocked || advice == madvGuardInstall {
		// A kernel that does not know the advice must not lose the content.
		page, errno := w.do(unix.SYS_MMAP, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, anonymous, ^uint64(0), 0)
		if errno != 0 {
			return failed(errno)
		}
		_, errno = w.do(unix.SYS_MADVISE, page, 4096, advice)
		w.do(unix.SYS_MUNMAP, page, 4096)
		if errno != 0 {
			return failed(errno)
		}
	}
	areas, _, err := w.areas(start, end)
	if err != nil {
		w.fatal = err
		return 0
	}
	var hole syscall.Errno
	at := start
	for _, a := range areas {
		if a.start > at {
			hole = unix.ENOMEM // the kernel continues after the hole
		}
		at = a.end
		if a.ours {
			if advice == madvRemove {
				return failed(unix.EINVAL) // as for anonymous memory
			}
			if errno := w.fresh(a); errno != 0 {
				return failed(errno)
			}
			if advice != madvGuardInstall {
				continue
			}
		}
		if _, errno := w.do(unix.SYS_MADVISE, a.start, a.end-a.start, advice); errno != 0 {
			return failed(errno)
		}
	}
	if at < end {
		hole = unix.ENOMEM
	}
	return w.result(0, hole)
}

// processMadvise returns the replacement of process_madvise(2) of a process on itself.
func (w *worker) processMadvise() (func() uint64, error) {
	r := &w.regs
	fd, count, advice := int32(r.Rdi), r.Rdx, r.R10
	if !slices.Contains(guardedAdvice, advice) || count > 1024 || !w.itself(fd) {
		return nil, nil
	}
	b := make([]byte, 16*count)
	if count == 0 || w.p.Read(r.Rsi, b) != nil {
		return nil, nil
	}
	type vector struct{ start, size uint64 }
	var all []vector
	any := false
	for ; len(b) > 0; b = b[16:] {
		v := vector{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])}
		_, ours, err := w.areas(v.start, v.start+pageAlign(v.size))
		if err != nil {
			return nil, err
		}
		any = any || ours
		all = append(all, v)
	}
	if !any {
		return nil, nil
	}
	return func() uint64 {
		// With no ranges the kernel says whether it permits the advice.
		if _, errno := w.do(unix.SYS_PROCESS_MADVISE, r.Rdi, r.Rsi, 0, advice, r.R8); errno != 0 {
			return failed(errno)
		}
		done := uint64(0)
		for _, v := range all {
			if e := w.advise(v.start, v.size, advice); e != 0 {
				if done == 0 {
					return e
				}
				break
			}
			done += v.size
		}
		return done
	}, nil
}

// itself reports whether a descriptor of the thread refers to the thread's own process
// (pidfd_open(2), or PIDFD_SELF).
func (w *worker) itself(fd int32) bool {
	const selfThread, selfProcess = -10000, -10001 // PIDFD_SELF
	if fd == selfThread || fd == selfProcess {
		return true
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", w.tid, fd))
	if err != nil {
		return false
	}
	_, after, _ := strings.Cut(string(b), "\nPid:")
	var id int
	fmt.Sscanf(after, "%d", &id)
	return id == tgid(w.tid)
}

// mremap returns the replacement of mremap(2) if a mapping of the file grows, is left in
// place (MREMAP_DONTUNMAP), or consists of several mappings where anonymous memory would
// have one.
func (w *worker) mremap() (func() uint64, error) {
	const mayMove, fixed, dontUnmap = unix.MREMAP_MAYMOVE, unix.MREMAP_FIXED, unix.MREMAP_DONTUNMAP
	r := &w.regs
	old, oldSize, newSize, flags, to := r.Rdi, pageAlign(r.Rsi), pageAlign(r.Rdx), r.R10, r.R8
	end := old + oldSize
	if flags&^(mayMove|fixed|dontUnmap) != 0 || old%4096 != 0 || oldSize == 0 || newSize == 0 || end < old {
		return nil, nil
	}
	if flags&(fixed|dontUnmap) == 0 && newSize <= oldSize {
		return nil, nil // it is cut off
	}
	areas, ours, err := w.areas(old, end)
	if err != nil || !ours && !(w.g.changed && len(areas) > 1) {
		return nil, err
	}
	at := old
	for _, a := range areas {
		if a.start != at || !a.plain || a.prot != areas[0].prot {
			return nil, nil // not one mapping of anonymous memory either
		}
		at = a.end
	}
	if at != end {
		return nil, nil
	}
	prot := areas[0].prot
	return func() uint64 {
		switch {
		case flags&(fixed|dontUnmap) != 0 && flags&mayMove == 0,
			flags&dontUnmap != 0 && oldSize != newSize,
			flags&(fixed|dontUnmap) != 0 && (to%4096 != 0 || to+newSize < to || old < to+newSize && to < end):
			return failed(unix.EINVAL)
		}
		where, mapFlags := uint64(0), uint64(anonymous)
		if flags&dontUnmap != 0 {
			where = to // a wish
		}
		if flags&fixed != 0 {
			where, mapFlags = to, mapFlags|unix.MAP_FIXED
		} else if flags&dontUnmap == 0 {
			_, errno := w.do(unix.SYS_MMAP, end, newSize-oldSize, prot, anonymous|unix.MAP_FIXED_NOREPLACE, ^uint64(0), 0)
			switch {
			case errno == 0:
				w.g.changed = true
				return old
			case flags&mayMove == 0:
				return failed(unix.ENOMEM)
			}
		}
		if newSize < oldSize {
			if _, errno := w.do(unix.SYS_MUNMAP, old+newSize, oldSize-newSize); errno != 0 {
				return failed(errno)
			}
			end = old + newSize
		}
		w.g.changed = true
		fresh, errno := w.do(unix.SYS_MMAP, where, newSize, prot, mapFlags, ^uint64(0), 0)
		if errno != 0 {
			return failed(errno)
		}
		for _, a := range areas {
			if a.end = min(a.end, end); a.start >= a.end {
				break
			}
			size := a.end - a.start
			if _, errno := w.do(unix.SYS_MREMAP, a.start, size, size, mayMove|fixed|flags, fresh+a.start-old); errno != 0 {
				w.fatal = cmp.Or(w.fatal, fmt.Errorf("move %#x-%#x: %w", a.start, a.end, errno))
				return 0
			}
			if flags&dontUnmap != 0 && a.ours {
				if errno := w.fresh(a); errno != 0 {
					w.fatal = cmp.Or(w.fatal, fmt.Errorf("discard %#x-%#x: %w", a.start, a.end, errno))
				}
			}
		}
		return fresh
	}, nil
}

// materialise copies the mappings of the file in [start, end) to anonymous memory,
// which takes their place. The other threads of the process are stopped for that
// time.
func (w *worker) materialise(start, end uint64) {
	if w.fatal != nil {
		return
	}
	w.g.stopOthers(w.tid)
	areas, _, err := w.areas(start, end)
	if err != nil {
		w.fatal = err
		return
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", w.tid))
	if err != nil {
		w.fatal = err
		return
	}
	defer mem.Close()
	for _, a := range areas {
		if !a.ours {
			continue
		}
		if err := w.replace(mem, a); err != nil {
			w.fatal = cmp.Or(w.fatal, fmt.Errorf("copy %#x-%#x to anonymous memory: %w", a.start, a.end, err))
			return
		}
	}
}

func (w *worker) replace(mem *os.File, a area) error {
	w.g.changed = true
	size := a.end - a.start
	aside, errno := w.do(unix.SYS_MMAP, 0, size, unix.PROT_READ|unix.PROT_WRITE, anonymous, ^uint64(0), 0)
	if errno != 0 {
		return errno
	}
	buf, zeros := make([]byte, 1<<20), make([]byte, 4096)
	for done := uint64(0); done < size; {
		b := buf[:min(uint64(len(buf)), size-done)]
		if _, err := mem.ReadAt(b, int64(a.start+done)); err != nil {
			return err
		}
		for at := 0; at < len(b); {
			n := 0
			for at+n < len(b) && !bytes.Equal(b[at+n:at+n+4096], zeros) {
				n += 4096
			}
			if n > 0 {
				if err := w.p.Write(aside+done+uint64(at), b[at:at+n]); err != nil {
					return err
				}
			}
			at += n + 4096
		}
		done += uint64(len(b))
	}
	if a.prot != unix.PROT_READ|unix.PROT_WRITE {
		if _, errno := w.do(unix.SYS_MPROTECT, aside, size, a.prot); errno != 0 {
			return errno
		}
	}
	if _, errno := w.do(unix.SYS_MREMAP, aside, size, size, unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, a.start); errno != 0 {
		return errno
	}
	return w.fatal
}

// stopOthers stops the threads of a process but one. What they report is handled
// after the call.
func (g *Guard) stopOthers(tid int) {
	known := map[int]bool{tid: true}
	for _, s := range g.waiting {
		known[s.tid] = true
	}
	for fresh := true; fresh; {
		fresh = false
		tids, err := threads(tid)
		if err != nil {
			return
		}
		for _, other := range tids {
			if known[other] {
				continue
			}
			known[other], fresh = true, true
			if unix.PtraceInterrupt(other) != nil {
				continue // it has ended
			}
			for {
				var st unix.WaitStatus
				if _, finished, err := peek(other, unix.WNOHANG); err != nil || finished {
					break
				}
				if id, err := unix.Wait4(other, &st, unix.WALL|unix.WNOHANG, nil); err != nil && err != unix.EINTR {
					break
				} else if id == other {
					g.waiting = append(g.waiting, stop{other, st})
					break
				}
				if !stops(other) {
					break
				}
				time.Sleep(20 * time.Microsecond)
			}
		}
	}
}

// stops reports whether a thread that was asked to stop will stop. A thread that has
// ended will not, and neither will a thread that waits for the child of its vfork(2).
func stops(tid int) bool {
	switch proc.State(tid) {
	case 0, 'Z', 'X':
		return false
	case 'D':
	default:
		return true
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", tid))
	if err != nil {
		return false
	}
	var nr int
	fmt.Sscanf(string(b), "%d", &nr)
	return nr != unix.SYS_VFORK && nr != unix.SYS_CLONE && nr != unix.SYS_CLONE3
}

func pageAlign(n uint64) uint64 { return (n + 4095) &^ 4095 }

// tgid returns the process that a thread belongs to. It is called for each traced system call
// of a tool, and most of these come from the first thread of a process.
func tgid(tid int) int {
	if unix.Tgkill(tid, tid, 0) == nil {
		return tid
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	if err != nil {
		return tid
	}
	_, after, _ := strings.Cut(string(b), "\nTgid:")
	id := tid
	fmt.Sscanf(after, "%d", &id)
	return id
}
