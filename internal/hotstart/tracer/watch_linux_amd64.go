package tracer

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Watch sees which files a process, its threads and the processes that it
// makes look at. A seccomp filter hands over the calls that take a path; all
// others run at full speed.
//
// Its owner passes every wait status of a watched thread to Handle.
type Watch struct {
	// Random answers in place of the kernel where a process asks for random bytes; nil
	// leaves that to the kernel. It is set before Install.
	Random *Entropy
	// Clock answers in place of the kernel where a process asks for the time, and has the
	// threads of a process run one at a time; nil leaves that to the kernel. It is set
	// before Install.
	Clock *Clock
	// Alone is the process for which Random and Clock answer, or 0 for all. Its children, which run
	// beside it in no fixed order, then have others. It is set before Install.
	Alone int
	// Facts has the Watch see calls that ask for facts, that change files by their names,
	// and that make state which neither /proc nor ptrace(2) shows. It is set before Install.
	Facts bool
	// FakeHost answers in place of the kernel where a process asks for its surroundings;
	// nil leaves that to the kernel. It is set before Install.
	FakeHost *FakeHost
	// Streams has fstat(2) of standard output and error return a random status in place of a fixed
	// one. It needs Clock.
	Streams bool
	// Threads is set when a process has made a thread.
	Threads bool

	threads map[int]bool       // that are traced
	turns   map[int]*turns     // by thread
	random  *Entropy           // for processes other than Alone
	clock   *Clock             // the same
	output  map[[2]uint64]bool // device and inode of regular files that are standard output and error
}

// NewWatch returns a Watch of no process.
func NewWatch() *Watch {
	return &Watch{threads: map[int]bool{}, turns: map[int]*turns{}, output: map[[2]uint64]bool{}}
}

// access has the indexes of a call's arguments: directory, path and flags. -1 means that
// the call does not have the argument.
type access struct {
	op              AccessOp
	dir, path, flag int
}

var looks = map[uint64]access{
	unix.SYS_OPEN:       {AccessOpen, -1, 0, 1},
	unix.SYS_OPENAT:     {AccessOpen, 0, 1, 2},
	unix.SYS_OPENAT2:    {AccessOpen, 0, 1, -1},
	unix.SYS_CREAT:      {AccessWrite, -1, 0, -1},
	unix.SYS_STAT:       {AccessStat, -1, 0, -1},
	unix.SYS_LSTAT:      {AccessStat, -1, 0, -1},
	unix.SYS_NEWFSTATAT: {AccessStat, 0, 1, -1},
	unix.SYS_STATX:      {AccessStat, 0, 1, -1},
	unix.SYS_ACCESS:     {AccessAllows, -1, 0, -1},
	unix.SYS_FACCESSAT:  {AccessAllows, 0, 1, -1},
	unix.SYS_FACCESSAT2: {AccessAllows, 0, 1, -1},
	unix.SYS_READLINK:   {AccessLink, -1, 0, -1},
	unix.SYS_READLINKAT: {AccessLink, 0, 1, -1},
	unix.SYS_EXECVE:     {AccessOpen, -1, 0, -1},
	unix.SYS_MKDIR:      {AccessWrite, -1, 0, -1},
	unix.SYS_MKDIRAT:    {AccessWrite, 0, 1, -1},
	unix.SYS_SOCKET:     {AccessSocket, -1, -1, -1},
}

// watchFilter hands the calls of looks, and others, to the tracer (seccomp(2)).
func watchFilter(others ...uint64) []unix.SockFilter {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 4}, // the architecture
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.AUDIT_ARCH_X86_64, Jt: 1, Jf: 0},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number
	}
	all := append(slices.Sorted(maps.Keys(looks)), others...)
	slices.Sort(all)
	for _, nr := range slices.Compact(all) {
		filter = append(filter,
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(nr), Jt: 0, Jf: 1},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_TRACE})
	}
	return append(filter, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
}

const watchOptions = options | unix.PTRACE_O_TRACESECCOMP | unix.PTRACE_O_TRACEEXEC

// Install puts the filter into a process that is held at its first instruction,
// and takes the right to new privileges from it, without which it could not have
// one.
func (w *Watch) Install(p *Proc) error {
	if _, err := p.Syscall(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("give up new privileges: %w", err)
	}
	var others []uint64
	if w.Facts {
		others = factCalls()
	}
	if w.Random != nil {
		others = append(others, unix.SYS_GETRANDOM)
		if err := w.Random.Plant(p); err != nil {
			return err
		}
	}
	if w.Clock != nil {
		others = slices.Concat(others, clockCalls, turnCalls, []uint64{unix.SYS_FSTAT})
		if err := w.Clock.install(p); err != nil {
			return err
		}
		for fd := 1; fd <= 2; fd++ {
			var st unix.Stat_t
			if unix.Stat(fmt.Sprintf("/proc/%d/fd/%d", p.Pid, fd), &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
				w.output[[2]uint64{st.Dev, st.Ino}] = true
			}
		}
	}
	if w.FakeHost != nil {
		others = append(others, fakeHostCalls...)
	}
	mem, err := p.Alloc(4096)
	if err != nil {
		return err
	}
	if err := p.Write(mem, programAt(mem, watchFilter(others...))); err != nil {
		return err
	}
	if _, err := p.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, mem); err != nil {
		return fmt.Errorf("watch the tool: %w", err)
	}
	if err := p.Free(mem, 4096); err != nil {
		return err
	}
	if err := unix.PtraceSetOptions(p.Pid, watchOptions); err != nil {
		return fmt.Errorf("ptrace options of %d: %w", p.Pid, gone(err))
	}
	w.threads[p.Pid] = true
	return nil
}

// Start lets a process on which the Watch was installed run.
func (w *Watch) Start(p *Proc) error {
	r := p.rest[p.Pid]
	w.turnsOf(p.Pid)
	if err := unix.PtraceSetRegs(p.Pid, &r); err != nil {
		return gone(err)
	}
	return w.Continue(p.Pid)
}

// Continue lets a thread that is stopped at a Look make its call.
func (w *Watch) Continue(tid int) error { return w.resume(tid, 0, false) }

// Handle deals with a stop of a watched thread, and lets it go on unless it
// returns a Look.
func (w *Watch) Handle(tid int, st unix.WaitStatus) (*Access, error) {
	if !st.Stopped() {
		delete(w.threads, tid)
		return nil, w.finished(tid)
	}
	w.threads[tid] = true
	sig := 0
	switch ev := int(st) >> 16; {
	case ev == unix.PTRACE_EVENT_SECCOMP:
		if t := w.turnsOf(tid); t != nil {
			if done, err := t.call(tid); done || err != nil {
				return nil, err
			}
		}
		l, err := w.look(tid)
		if l != nil || err != nil {
			return l, err
		}
	case ev == eventClone:
		w.Threads = true
		if err := w.made(tid); err != nil {
			return nil, err
		}
	case ev == unix.PTRACE_EVENT_EXEC:
		if w.Random != nil {
			if err := w.randomOf(tid).Plant(&Proc{Pid: tid}); err != nil {
				return nil, err
			}
		}
		if w.Clock != nil {
			w.forget(tid)
			if err := w.clockOf(tid).plant(tid); err != nil {
				return nil, err
			}
		}
	case ev == 0 && st.StopSignal() == unix.SIGSEGV && w.Clock != nil && w.clockOf(tid).cycles(tid):
	case ev == eventStop && st.StopSignal() != unix.SIGTRAP:
		// A stop of the whole group, as by SIGTSTP: it stays stopped.
		if err := ptrace(unix.PTRACE_LISTEN, tid, 0, nil); err != nil && !errors.Is(err, ErrGone) {
			return nil, fmt.Errorf("ptrace listen %d: %w", tid, err)
		}
		return nil, nil
	case ev == 0:
		sig = int(st.StopSignal())
	}
	return nil, w.resume(tid, sig, int(st)>>16 == eventStop)
}

// randomOf returns the source of random bytes of a thread.
func (w *Watch) randomOf(tid int) *Entropy {
	if w.Alone == 0 || tgid(tid) == w.Alone {
		return w.Random
	}
	if w.random == nil {
		var seed [32]byte
		rand.Read(seed[:]) // never fails
		w.random = NewEntropy(seed)
	}
	return w.random
}

// clockOf returns the clock of a thread.
func (w *Watch) clockOf(tid int) *Clock {
	if w.Alone == 0 || tgid(tid) == w.Alone {
		return w.Clock
	}
	if w.clock == nil {
		c := w.Clock
		w.clock = &Clock{Realtime: c.Realtime, Monotonic: c.Monotonic, Boottime: c.Boottime, Cycles: c.Cycles}
	}
	return w.clock
}

// access describes the call at whose entry a thread is stopped. It returns nil if the call
// is not a look.
func (w *Watch) look(tid int) (*Access, error) {
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(tid, &r); err != nil {
		return nil, gone(err)
	}
	args := [6]uint64{r.Rdi, r.Rsi, r.Rdx, r.R10, r.R8, r.R9}
	call, ok := looks[r.Orig_rax]
	if !ok {
		if w.Facts {
			if l := fact(tid, &r); l != nil {
				switch {
				case w.FakeHost != nil && slices.Contains(fakeHostCalls, r.Orig_rax):
					return l, w.FakeHost.answer(tid, &r)
				case w.Clock == nil:
					return l, nil
				}
				return l, w.clockOf(tid).Answer(tid)
			}
		}
		switch {
		case r.Orig_rax == unix.SYS_FSTAT:
			return nil, w.evenStream(tid, args[1])
		case r.Orig_rax == unix.SYS_GETRANDOM && w.Random != nil:
			return nil, w.randomOf(tid).Answer(tid)
		case w.FakeHost != nil && slices.Contains(fakeHostCalls, r.Orig_rax):
			return nil, w.FakeHost.answer(tid, &r)
		case w.Clock != nil:
			return nil, w.clockOf(tid).Answer(tid)
		}
		return nil, nil
	}
	l := &Access{Tid: tid, Op: call.op}
	if call.path < 0 {
		return l, nil
	}
	if r.Orig_rax == unix.SYS_OPENAT2 {
		var how [8]byte // the flags of struct open_how
		if err := (&Proc{Pid: tid}).Read(args[2], how[:]); err == nil && writes(uint64(how[0])|uint64(how[1])<<8|uint64(how[2])<<16) {
			l.Op = AccessWrite
		}
	} else if call.flag >= 0 && writes(args[call.flag]) {
		l.Op = AccessWrite
	}
	dir := uint64(0xffffffff & unix.AT_FDCWD)
	if call.dir >= 0 {
		dir = args[call.dir]
	}
	path := pathAt(tid, dir, args[call.path])
	if path == "" && r.Orig_rax == unix.SYS_NEWFSTATAT && args[3]&unix.AT_EMPTY_PATH != 0 && w.Clock != nil {
		return nil, w.evenStream(tid, args[2])
	}
	if w.Random != nil && l.Op == AccessOpen && r.Orig_rax != unix.SYS_EXECVE && slices.Contains(randomDevices, filepath.Clean(path)) {
		return nil, w.randomOf(tid).open(tid, args[call.path])
	}
	l.Path = path
	if w.Facts && l.Op == AccessOpen && isMounts(tid, path) {
		l.Op, l.Path = AccessState, "the table of mounts"
	}
	return l, nil
}

// isMounts reports whether a path names the table of mounts, which changes with each
// login and each container on a machine.
func isMounts(tid int, path string) bool {
	path = filepath.Clean(path)
	return slices.Contains([]string{"/etc/mtab", "/proc/mounts", "/proc/self/mounts", "/proc/thread-self/mounts"}, path) || path == fmt.Sprintf("/proc/%d/mounts", tgid(tid))
}

// pathAt returns the absolute path that a thread gives by a string and the descriptor of a
// directory. It returns "" if the call will fail, or refers to the descriptor itself.
func pathAt(tid int, dir, addr uint64) string {
	path, err := readPath(tid, addr)
	if err != nil || path == "" || filepath.IsAbs(path) {
		return path
	}
	link := fmt.Sprintf("/proc/%d/cwd", tid)
	if int32(dir) != unix.AT_FDCWD {
		link = fmt.Sprintf("/proc/%d/fd/%d", tid, int32(dir))
	}
	at, err := os.Readlink(link)
	if err != nil {
		return ""
	}
	return at + "/" + path
}

// evenStream lets a thread, which is stopped by seccomp at the entry of a stat of a
// descriptor, make the call. For a pipe, a FIFO or the file of standard output or error,
// in whose place tasks have another file, it clears the inode and the times in the struct
// stat at an address in the process.
func (w *Watch) evenStream(tid int, stat uint64) error {
	p := &Proc{Pid: tid}
	if _, err := p.toSyscallStop(tid); err != nil {
		return err
	}
	for _, sig := range p.later {
		if err := unix.Tgkill(tgid(tid), tid, sig); err != nil {
			return gone(err)
		}
	}
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(tid, &r); err != nil {
		return gone(err)
	}
	var st unix.Stat_t
	b := unsafe.Slice((*byte)(unsafe.Pointer(&st)), unsafe.Sizeof(st))
	if r.Rax != 0 {
		return nil
	}
	if w.FakeHost != nil {
		if err := w.FakeHost.restat(tid, unix.SYS_FSTAT, [6]uint64{1: stat}); err != nil {
			return err
		}
	}
	if p.Read(stat, b) != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO && !w.output[[2]uint64{st.Dev, st.Ino}] {
		return nil
	}
	if w.Streams {
		kind, block := st.Mode&unix.S_IFMT, st.Blksize
		rand.Read(b) // never fails
		for i := range b {
			b[i] |= 2 // neither 0 nor 1, which are frequent
		}
		st.Mode, st.Blksize = st.Mode&0o777|kind, block
		if st.Size, st.Blocks = st.Size&math.MaxInt64, st.Blocks&math.MaxInt64; kind == unix.S_IFIFO {
			st.Size, st.Blocks = 0, 0
		}
	} else {
		st.Ino, st.Atim, st.Mtim, st.Ctim = 1, unix.Timespec{}, unix.Timespec{}, unix.Timespec{}
	}
	return p.Write(stat, b)
}

// writes reports whether flags of open(2) are for more than reading.
func writes(flags uint64) bool {
	return flags&unix.O_ACCMODE != unix.O_RDONLY || flags&(unix.O_CREAT|unix.O_TRUNC) != 0
}

// readPath reads a string that ends with a zero byte.
func readPath(tid int, addr uint64) (string, error) {
	var path []byte
	for len(path) < unix.PathMax {
		b := make([]byte, 256-addr%256) // never across a page
		if err := (&Proc{Pid: tid}).Read(addr, b); err != nil {
			return "", err
		}
		if i := bytes.IndexByte(b, 0); i >= 0 {
			return string(append(path, b[:i]...)), nil
		}
		path = append(path, b...)
		addr += uint64(len(b))
	}
	return "", unix.ENAMETOOLONG
}

// Hold holds a watched process. at is a thread that is stopped at a Look, or 0: it
// makes its call when it is released.
func (w *Watch) Hold(pid, at int) (*Proc, error) {
	p := &Proc{Pid: pid, rest: map[int]unix.PtraceRegs{}, again: map[int]uint64{}}
	if w.Clock != nil {
		p.emulate = w.Clock.cycles
	}
	if at != 0 {
		if err := p.skipCall(at); err != nil {
			return nil, err
		}
	}
	if t := w.turns[pid]; t != nil {
		if err := t.hold(p, at); err != nil {
			return nil, err
		}
		w.forget(pid)
	}
	if err := p.holdAll(p.interrupt); err != nil || w.Clock == nil {
		return p, err
	}
	return p, w.Clock.remove(p)
}

// skipCall sets the registers of a thread that seccomp stopped at the entry of a call, so
// that the thread makes the call when it is released.
func (p *Proc) skipCall(tid int) error {
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(tid, &r); err != nil {
		return gone(err)
	}
	skipped := r
	skipped.Orig_rax = ^uint64(0)
	if err := unix.PtraceSetRegs(tid, &skipped); err != nil {
		return gone(err)
	}
	if _, err := p.toSyscallStop(tid); err != nil {
		return err
	}
	r.Rax, r.Rip, r.Orig_rax = r.Orig_rax, r.Rip-2, ^uint64(0)
	p.rest[tid] = r
	p.Threads = append(p.Threads, tid)
	return nil
}

// programAt returns the bytes of a filter for an address: struct sock_fprog, and after it
// the instructions.
func programAt(mem uint64, filter []unix.SockFilter) []byte {
	b := make([]byte, 16, 16+8*len(filter))
	b[0], b[1] = byte(len(filter)), byte(len(filter)>>8)
	for i := range 8 {
		b[8+i] = byte((mem + 16) >> (8 * i))
	}
	for _, f := range filter {
		b = append(b, byte(f.Code), byte(f.Code>>8), f.Jt, f.Jf, byte(f.K), byte(f.K>>8), byte(f.K>>16), byte(f.K>>24))
	}
	return b
}

// Process returns the id of the process that a thread belongs to.
func Process(tid int) int { return tgid(tid) }
