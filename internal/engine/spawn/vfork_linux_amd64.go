package spawn

import (
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// call is one system call of a child. The assembly knows its layout.
type call struct {
	number uintptr
	args   [6]uintptr
	mode   uintptr
}

// What becomes of the result of a call.
const (
	must  = 0 // an error ends the child
	may   = 1 // an error is noted, and the next call is made; after ENOEXEC it is that at args[5]
	equal = 2 // anything but args[5] ends the child
)

// lastCall ends a list of calls.
const lastCall = ^uintptr(0)

// failure is written by a child: its progress, and why it could not execute a program.
// The assembly knows its layout.
type failure struct {
	errno int64   // negative: of the call that ended the child
	tried int64   // negative: of a program that was tried, ENOENT aside
	at    uintptr // the call that was made last
	final int64   // 1: the child has ended
}

// cloneArgs is struct clone_args of clone3(2), version 2.
type cloneArgs struct {
	flags      uint64
	_          [3]uint64 // pidfd, child_tid, parent_tid
	exitSignal uint64
	_          [5]uint64 // stack, stack_size, tls, set_tid, set_tid_size
	cgroup     uint64
}

//go:noescape
func vfork(args *cloneArgs, size uintptr, prog *call, failed *failure) int

// starter starts children from one thread. What the kernel reads by address is held
// by its fields until the child has executed: nothing of it lies on a stack that
// could move.
type starter struct {
	calls  []call
	what   []step // the step of each call, for errors
	text   []byte // strings, each with its 0
	argv   []uintptr
	envv   []uintptr
	failed failure
	clone  cloneArgs
	mask   uint64         // the signals that a child blocks
	limit  syscall.Rlimit // of open files, for children
	self   uintptr        // process id
	wakes  bool           // result of wakeable
	zero   [2]byte        // "0", for cgroup.procs
	shell  shellStrings   // of the program that interprets commands
	slow   bool           // clone3 is not there
	joins  bool           // children cannot be born in a cgroup, and join it
	starts []int          // where strings begin in text: arguments, then environment
	paths  []int          // where paths to try begin in text
}

type shellStrings struct{ path, name, option []byte }

// newStarter makes a starter for the calling thread, which the caller has locked.
// It blocks signals in the thread: signals to this process are for other threads. Two
// are not blocked, the scheduler's signal and SIGCHLD: the kernel drops an ignored signal only
// where it is not blocked, and would otherwise wake another thread for each child that ends. A
// child has no handlers, so none runs in the memory that it shares.
func newStarter(limit syscall.Rlimit, wakes bool) (*starter, error) {
	s := &starter{limit: limit, wakes: wakes, self: uintptr(unix.Getpid()), zero: [2]byte{'0', 0}}
	s.shell = shellStrings{[]byte(shellPath + "\x00"), []byte("sh\x00"), []byte("-c\x00")}
	all := ^uint64(0) &^ (1<<(preempt-1) | 1<<(unix.SIGCHLD-1))
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&all)), uintptr(unsafe.Pointer(&s.mask)), 8, 0, 0)
	if errno != 0 {
		return nil, errno
	}
	return s, nil
}

func (s *starter) add(what step, mode, number uintptr, args ...uintptr) {
	c := call{number: number, mode: mode}
	copy(c.args[:], args)
	s.calls = append(s.calls, c)
	s.what = append(s.what, what)
}

// put adds a string to text and returns where it begins. Take addresses only when
// text has its final place.
func (s *starter) put(parts ...string) int {
	at := len(s.text)
	for _, p := range parts {
		s.text = append(s.text, p...)
	}
	s.text = append(s.text, 0)
	return at
}

func address(b []byte, at int) uintptr { return uintptr(unsafe.Pointer(&b[at])) }

// start starts a child. The error is an errno, and at is the step that failed.
func (s *starter) start(c *child) (pid int, at step, errno syscall.Errno) {
	if s.slow {
		return forkExec(c)
	}
	if s.joins {
		c.join()
	}
	s.calls, s.what, s.text = s.calls[:0], s.what[:0], s.text[:0]
	s.starts, s.paths = s.starts[:0], s.paths[:0]
	for _, a := range c.argv {
		s.starts = append(s.starts, s.put(a))
	}
	for _, e := range c.more {
		s.starts = append(s.starts, s.put(e))
	}
	dir := 0
	if c.dir != "" {
		dir = s.put(c.dir)
	}
	script := 0
	if c.shell != "" {
		script = s.put(c.shell)
	}
	for _, p := range c.paths {
		s.paths = append(s.paths, s.put(p...))
	}
	// text has its place now.
	s.argv = s.argv[:0]
	for i := range c.argv {
		s.argv = append(s.argv, address(s.text, s.starts[i]))
	}
	s.argv = append(s.argv, 0)
	if c.shell != "" {
		s.argv = append(s.argv, address(s.shell.name, 0), address(s.shell.option, 0), address(s.text, script), 0)
	}
	s.envv = append(s.envv[:0], c.env.pointers...)
	for i := range c.more {
		s.envv = append(s.envv, address(s.text, s.starts[len(c.argv)+i]))
	}
	s.envv = append(s.envv, 0)
	env := uintptr(unsafe.Pointer(&s.envv[0]))

	s.add(stepPrepare, must, unix.SYS_SETPGID)
	s.add(stepPrepare, must, unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL))
	// The parent may have been killed before the line above.
	s.add(stepPrepare, equal, unix.SYS_GETPPID, 0, 0, 0, 0, 0, s.self)
	for _, fd := range c.joins {
		s.add(stepCgroup, must, unix.SYS_WRITE, uintptr(fd), address(s.zero[:], 0), 1)
	}
	if c.dir != "" {
		s.add(stepDirectory, must, unix.SYS_CHDIR, address(s.text, dir))
	}
	if c.stdin != 0 {
		s.add(stepPrepare, must, unix.SYS_DUP2, uintptr(c.stdin), 0)
	}
	s.add(stepPrepare, must, unix.SYS_DUP2, uintptr(c.stdout), 1)
	s.add(stepPrepare, must, unix.SYS_DUP2, uintptr(c.stderr), 2)
	s.add(stepPrepare, must, unix.SYS_PRLIMIT64, 0, unix.RLIMIT_NOFILE, uintptr(unsafe.Pointer(&s.limit)), 0)
	s.add(stepPrepare, must, unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&s.mask)), 0, 8)
	tries := len(s.calls)
	if len(c.argv) > 0 {
		for _, p := range s.paths {
			s.add(stepExecute, may, unix.SYS_EXECVE, address(s.text, p), uintptr(unsafe.Pointer(&s.argv[0])), env)
		}
	}
	last := len(s.calls) // the shell, or the end
	if c.shell != "" {
		s.add(stepExecute, may, unix.SYS_EXECVE, address(s.shell.path, 0), uintptr(unsafe.Pointer(&s.argv[len(c.argv)+1])), env)
	}
	s.calls = append(s.calls, call{number: lastCall})
	s.what = append(s.what, stepExecute)
	for i := tries; i < len(s.calls)-1; i++ {
		s.calls[i].args[5] = uintptr(unsafe.Pointer(&s.calls[max(last, i+1)]))
	}
	s.failed = failure{}
	s.clone = cloneArgs{flags: unix.CLONE_VM | unix.CLONE_VFORK | unix.CLONE_CLEAR_SIGHAND, exitSignal: uint64(unix.SIGCHLD)}
	if c.into > 0 {
		s.clone.flags |= unix.CLONE_INTO_CGROUP
		s.clone.cgroup = uint64(c.into)
	}
	pid = vfork(&s.clone, unsafe.Sizeof(s.clone), &s.calls[0], &s.failed)
	runtime.KeepAlive(s)
	runtime.KeepAlive(c)
	if pid < 0 {
		errno = syscall.Errno(-pid)
		if c.into > 0 && errno != unix.EAGAIN {
			s.joins = true // a kernel before 5.7
			return s.start(c)
		}
		if errno == unix.ENOSYS || errno == unix.EPERM || errno == unix.EINVAL {
			// A kernel before 5.5, or a sandbox that does not know clone3.
			s.slow = true
			return forkExec(c)
		}
		return 0, stepPrepare, errno
	}
	made := int((s.failed.at - uintptr(unsafe.Pointer(&s.calls[0]))) / unsafe.Sizeof(call{}))
	if s.failed.final == 0 {
		if c.found = made - tries; made >= last {
			c.found = -1
		}
		return pid, 0, 0
	}
	var ws syscall.WaitStatus
	for {
		if _, err := syscall.Wait4(pid, &ws, 0, nil); err != syscall.EINTR {
			break
		}
	}
	at = s.what[made]
	switch {
	case s.failed.errno != 0:
		errno = syscall.Errno(-s.failed.errno)
	case s.failed.tried != 0:
		errno = syscall.Errno(-s.failed.tried)
	default:
		errno = unix.ENOENT
	}
	return 0, at, errno
}

// await waits for the end of a child. If a thread is in a system call, the scheduler of Go
// may give its processor away, and checks this every 20 microseconds: while
// tasks are so short that these checks do not become rarer, they cost a tenth of the time of
// the tasks themselves. So the scheduler does not hear of the first milliseconds of a child
// that is expected to be short. If it needs the processor, for a garbage collection, its
// signal ends the call.
func (s *starter) await(pid int, short bool, status *syscall.WaitStatus, usage *syscall.Rusage) {
	if short && s.wakes && !s.slow {
		for started := time.Now(); time.Since(started) < shortWait; {
			_, _, errno := unix.RawSyscall6(unix.SYS_WAIT4, uintptr(pid), uintptr(unsafe.Pointer(status)), 0, uintptr(unsafe.Pointer(usage)), 0, 0)
			if errno != unix.EINTR {
				return
			}
		}
	}
	for {
		if _, err := syscall.Wait4(pid, status, 0, usage); err != syscall.EINTR {
			return
		}
	}
}

// wakeable changes the signal with which the scheduler of Go asks a thread for its processor,
// so that it interrupts the thread's system call: as the scheduler sets it up, the kernel
// would restart the call. It reports whether the scheduler uses the signal.
func wakeable() bool {
	var act [4]uint64 // struct sigaction of the kernel: handler, flags, restorer, mask
	if _, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, preempt, 0, uintptr(unsafe.Pointer(&act)), 8, 0, 0); errno != 0 || act[0] <= 1 {
		return false // the default, or ignored
	}
	act[1] &^= restart
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, preempt, uintptr(unsafe.Pointer(&act)), 0, 8, 0, 0)
	return errno == 0 && !strings.Contains(os.Getenv("GODEBUG"), "asyncpreemptoff=1")
}

// What wakeable is about.
const (
	preempt = uintptr(unix.SIGURG)
	restart = 0x10000000 // SA_RESTART
)
