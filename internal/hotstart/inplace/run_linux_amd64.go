package inplace

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"premix/internal/hotstart"
	"premix/internal/hotstart/frozen"
	"premix/internal/hotstart/tracer"
	"premix/internal/kit/proc"
)

// start is one start from a snapshot.
type start struct {
	snap      *Snapshot
	noise     []frozen.Patch // written to its memory, of a trial
	argv, env []string
	dir       string
	words     []string
	values    map[string]string // of late variables
	files     []*os.File        // by descriptor
	inherited []int
	filter    []unix.SockFilter
	here      func(fileName) string // the path of a file
	attr      syscall.SysProcAttr

	p      *tracer.Proc
	guard  *tracer.Guard
	pages  *os.File      // where the tool executes its head first
	single bool          // the tool reads single pages of it
	read   func()        // reads the page file ahead; nil: it is in memory
	made   []string      // files that were made
	pipes  []frozen.File // inputs that are pipes: see openPipes
	acts   []frozen.Action
	texts  []string // late words as the plan counts them
}

// late returns the late words as the plan counts them.
func (s *start) late() ([]string, error) {
	all := append(slices.Clone(s.words), commandLines(s.argv)...)
	for i, k := range s.snap.plan.Stats {
		path := s.here(fileName{Word: k})
		if reason := s.snap.plan.Bounds[i].Refuses(path); reason != "" && kindAt(path) != "pipe" {
			return nil, errors.New(reason)
		}
		b, err := statBytes(path)
		if err != nil {
			return nil, err
		}
		if n := blockSize(b); len(s.snap.plan.Block) > 0 && n != s.snap.plan.Block[i] {
			return nil, fmt.Errorf("the file system of %s has blocks of %d bytes, and the preparation's has %d", path, n, s.snap.plan.Block[i])
		}
		all = append(all, statWords(b)...)
	}
	for _, fd := range s.snap.plan.Streams {
		words, err := streamWords(s.files[fd])
		if err != nil {
			return nil, err
		}
		all = append(all, words...)
	}
	var exact []string
	for _, name := range s.snap.plan.exactWords() {
		exact = append(exact, s.values[name])
	}
	all = append(append(all, exact...), wideWords(s.words, exact, s.dir)...)
	return append(all, string(tracer.OwnCPUs()), s.dir), nil
}

// begin executes the program of the snapshot, and turns it into the frozen process, which
// is held. After an error the caller must kill p if it is not nil.
func (s *start) begin() (p *tracer.Proc, err error) {
	im, err := s.image()
	if err != nil {
		return nil, err
	}
	pages, err := os.Open(s.snap.PagePath())
	if err != nil {
		return nil, err
	}
	ahead := false
	defer func() {
		if !ahead {
			pages.Close()
		}
	}()
	if s.guard, err = tracer.NewGuard(pages); err != nil {
		return nil, err
	}
	single, read, err := hotstart.ReadAhead(pages)
	if err != nil {
		return nil, err
	}
	files := append(slices.Clone(s.files), pages)
	p, own, err := tracer.Spawn(im.Exe, s.argv, &os.ProcAttr{Dir: s.dir, Env: s.env, Files: files, Sys: &s.attr})
	if err != nil {
		return nil, err
	}
	s.p = p
	if err := s.make(); err != nil {
		return p, err
	}
	opt := frozen.Options{Dir: s.dir, Random: single, Personality: &own, Filter: s.filter, Inherited: s.inherited, Pages: len(files) - 1}
	if err := im.Start(p, opt); err != nil {
		return p, err
	}
	if err := frozen.Apply(p.Pid, s.noise); err != nil {
		return p, err
	}
	if err := s.places().Write(p); err != nil {
		return p, err
	}
	if err := setVariables(p, s.snap.plan.Variables, s.values); err != nil {
		return p, err
	}
	if read != nil {
		ahead, s.read = true, read
	}
	return p, nil
}

// part returns the part of a late word that belongs to a span.
func part(late []string, s span) string { return late[s.Word][s.From : s.From+s.Length] }

// make makes the files that the tool had made. None of them exists.
func (s *start) make() error {
	now, err := frozen.Now()
	if err != nil {
		return err
	}
	for _, m := range s.snap.plan.Made {
		path := s.here(m.Name)
		if m.Mode.IsDir() {
			if err := os.Mkdir(path, m.Mode.Perm()); err != nil {
				return err
			}
			s.made = append(s.made, path)
			continue
		}
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, m.Mode.Perm())
		if err != nil {
			return err
		}
		s.made = append(s.made, path)
		content, err := m.Content.Now(s.texts, s.snap.plan.Stopped, now)
		if err == nil {
			_, err = f.Write(content)
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// undo removes the files that make has made.
func (s *start) undo() {
	for _, path := range slices.Backward(s.made) {
		_ = os.Remove(path) // a directory that is not empty has files of another process
	}
}

// finish writes the bytes that the tool had written to its streams before the stop. After
// that the tool may be released.
func (s *start) finish(write func(fd int, b []byte) error) error {
	now, err := frozen.Now()
	if err != nil {
		return err
	}
	for fd, t := range s.snap.plan.Written {
		if len(t.Bytes) == 0 {
			continue
		}
		b, err := t.Now(s.texts, s.snap.plan.Stopped, now)
		if err != nil {
			return err
		}
		if err := write(fd, b); err != nil {
			return err
		}
	}
	return nil
}

// Run starts a call from a snapshot that Find or Prepare returned for it, and waits for
// its end. It must be called from the main goroutine. Signals that arrive are handed to
// the tool. An error that is not an *Interrupted comes before the first effect: the
// caller executes the command plain.
func Run(snap *Snapshot, c Call) (hotstart.Exit, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	lost := hotstart.Exit{Code: -1}
	state := c.inherited()
	s := &start{snap: snap, argv: c.Argv, env: c.Env, dir: c.Dir, words: c.words(), values: map[string]string{},
		files: inherited(&c, state.Extra), inherited: append([]int{0, 1, 2}, state.Extra...), filter: tracer.GuardFilter()}
	s.here = func(n fileName) string { return n.in(c.Dir, s.words) }
	s.attr.Pdeathsig = syscall.SIGKILL
	for _, v := range snap.plan.Variables {
		s.values[v.Name], _ = lookup(c.Env, v.Name)
	}
	for _, name := range snap.plan.exactWords() {
		s.values[name], _ = lookup(c.Env, name)
	}
	if broken(c.Stdout) {
		return lost, errors.New("no process reads its standard output")
	}
	signals := newSignals(state.Ignored)
	defer signals.end()
	if snap.plan.Heads {
		return s.runHead(state, &c, signals)
	}
	p, err := s.begin()
	if err != nil {
		s.abandon(p)
		return lost, err
	}
	effect := len(s.pipes) > 0
	deadly := func() syscall.Signal { return signals.deadly(s.acts) }
	if err := s.openPipes(deadly); err != nil {
		p.Kill()
		exit := reap(p.Pid)
		if sig := deadly(); sig != 0 {
			exit.Signal = sig
			return exit, nil
		}
		return exit, &Interrupted{err}
	}
	err = s.finish(func(fd int, b []byte) error {
		n, err := writeAll(s.files[fd], b)
		effect = effect || n > 0
		return err
	})
	if err != nil {
		if !effect {
			s.abandon(p)
			return lost, err
		}
		p.Kill()
		return reap(p.Pid), &Interrupted{err}
	}
	if err := s.guard.Release(p); err != nil {
		p.Kill()
		return reap(p.Pid), &Interrupted{err}
	}
	if s.read != nil {
		go s.read()
	}
	signals.to(p.Pid)
	return wait(p.Pid, signals, s.guard)
}

// abandon ends a start that has had no effect.
func (s *start) abandon(p *tracer.Proc) {
	if p != nil {
		p.Kill()
		reap(p.Pid)
	}
	s.undo()
}

// reap waits for the end of a process that was killed.
func reap(pid int) hotstart.Exit {
	for {
		var st unix.WaitStatus
		tid, err := unix.Wait4(-1, &st, unix.WALL|waitOwn, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil || tid == pid && !st.Stopped() {
			return hotstart.Exit{Code: -1, Signal: unix.SIGKILL}
		}
	}
}

// wait waits for the end of the tool, and of the processes that it has left, as long as
// they need their tracer, which deals with their stops.
func wait(pid int, signals *signals, stops interface {
	Handle(tid int, st unix.WaitStatus) error
}) (hotstart.Exit, error) {
	exit := hotstart.Exit{Code: -1}
	var failed error
	for {
		var st unix.WaitStatus
		var ru unix.Rusage
		tid, err := unix.Wait4(-1, &st, unix.WALL|waitOwn, &ru)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.ECHILD:
			return exit, failed
		case err != nil:
			return exit, &Interrupted{err}
		}
		const syscall = 0x80 // PTRACE_O_TRACESYSGOOD
		if st.Stopped() && int(st)>>16 == 0 && st.StopSignal()&syscall == 0 {
			signals.seen(tid, st.StopSignal())
		}
		if err := stops.Handle(tid, st); err != nil && !errors.Is(err, tracer.ErrGone) {
			// Unguarded it could compute with wrong bytes.
			unix.Kill(tracer.Process(tid), unix.SIGKILL)
			failed = &Interrupted{err}
		}
		if tid != pid || st.Stopped() {
			continue
		}
		exit = hotstart.Exit{Code: st.ExitStatus(), User: time.Duration(ru.Utime.Nano()), System: time.Duration(ru.Stime.Nano()),
			MaxRSS: ru.Maxrss * 1024, ReadBytes: ru.Inblock * 512, WriteBytes: ru.Oublock * 512}
		if st.Signaled() {
			exit.Code, exit.Signal = -1, st.Signal()
		}
		signals.to(0)
	}
}

// broken reports whether a stream is a pipe that has lost its reader.
func broken(f *os.File) bool {
	fds := []unix.PollFd{{Fd: int32(f.Fd())}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0 && fds[0].Revents&unix.POLLERR != 0
}

// writeAll writes b, also to a descriptor that does not block.
func writeAll(f *os.File, b []byte) (int, error) {
	fd := int(f.Fd())
	done := 0
	for done < len(b) {
		n, err := unix.Write(fd, b[done:])
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, -1)
		case err != nil:
			return done, os.NewSyscallError("write", err)
		default:
			done += n
		}
	}
	return done, nil
}

// signals forwards signals to the tool. If a terminal, or kill(2) with a process group,
// sends a signal to both processes, the tool gets it once.
type signals struct {
	c    chan os.Signal
	done chan struct{}

	mu   sync.Mutex                   // guards what follows
	pid  int                          // of the tool; 0 before it exists
	own  map[syscall.Signal]time.Time // when the tool got a signal that was not forwarded
	late []syscall.Signal             // that came before the tool existed
}

// handed are the forwarded signals. SIGTSTP, SIGTTIN and SIGTTOU are not among them: they
// stop this process, and their sender also sends them to the tool.
var handed = []os.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM,
	unix.SIGWINCH, unix.SIGCONT, unix.SIGXCPU, unix.SIGPIPE}

// together is the time within which all processes of a group get a signal to the group.
// recent is the time for which signals remembers that the tool got a signal.
const (
	together = 30 * time.Millisecond
	recent   = time.Second
)

// newSignals begins to forward the signals that the caller does not ignore.
func newSignals(ignored []syscall.Signal) *signals {
	s := &signals{c: make(chan os.Signal, 64), done: make(chan struct{}), own: map[syscall.Signal]time.Time{}}
	for _, sig := range handed {
		if slices.Contains(ignored, sig.(syscall.Signal)) {
			signal.Ignore(sig)
		} else {
			signal.Notify(s.c, sig)
		}
	}
	go func() {
		defer close(s.done)
		for sig := range s.c {
			s.hand(sig.(syscall.Signal), time.Now())
		}
	}()
	return s
}

// hand hands a signal on that came at some time, unless the tool has got it too.
func (s *signals) hand(sig syscall.Signal, came time.Time) {
	s.mu.Lock()
	if s.pid == 0 {
		s.late = append(s.late, sig)
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	time.Sleep(together)
	// A signal that the tool has got, and its tracer has not seen yet, stops it.
	for until := time.Now().Add(2 * time.Second); s.stopped() && time.Now().Before(until); {
		time.Sleep(time.Millisecond)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.own[sig]
	delete(s.own, sig)
	if s.pid == 0 || ok && at.After(came.Add(-recent)) || pending(s.pid, sig) {
		return
	}
	_ = unix.Kill(s.pid, sig) // it may have ended
}

// stopped reports whether a thread of the tool is in a ptrace-stop.
func (s *signals) stopped() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(proc.Threads(s.pid), func(tid int) bool { return proc.State(tid) == 't' })
}

// pending reports whether a signal to a process has not been delivered yet.
func pending(pid int, sig syscall.Signal) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(b), "ShdPnd:")
	line, _, _ := strings.Cut(rest, "\n")
	mask, err := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	return err == nil && mask&(1<<(sig-1)) != 0
}

// deadly returns a signal that has come before the tool existed, and that ends a tool with these
// actions, or 0.
func (s *signals) deadly(actions []frozen.Action) syscall.Signal {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sig := range s.late {
		switch sig {
		case unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM:
			if !slices.ContainsFunc(actions, func(a frozen.Action) bool { return a.Signal == int(sig) }) {
				return sig
			}
		}
	}
	return 0
}

// to sets the process to which signals are forwarded.
func (s *signals) to(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pid = pid
	for _, sig := range s.late {
		if pid != 0 {
			_ = unix.Kill(pid, sig)
		}
	}
	s.late = nil
}

// seen records that a thread of the tool is stopped before the delivery of a signal.
func (s *signals) seen(tid int, sig syscall.Signal) {
	var info struct { // siginfo_t
		signo, errno, code int32
		_                  int32
		pid                int32
		_                  [108]byte
	}
	_, _, e := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GETSIGINFO, uintptr(tid), 0, uintptr(unsafe.Pointer(&info)), 0, 0)
	const fromUser = 0 // SI_USER
	if e != 0 || info.code == fromUser && int(info.pid) == os.Getpid() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.own[sig] = time.Now()
}

func (s *signals) end() {
	signal.Stop(s.c)
	close(s.c)
	<-s.done
}

// End ends this process as the tool ended: with its exit status, or by its signal.
func End(e hotstart.Exit) {
	if e.Signal != 0 {
		// The tool has left a core, if one was wanted.
		_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
		var action [32]byte // SIG_DFL
		unix.Syscall6(unix.SYS_RT_SIGACTION, uintptr(e.Signal), uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0)
		_ = unix.Kill(os.Getpid(), e.Signal)
		time.Sleep(time.Second)
		os.Exit(128 + int(e.Signal))
	}
	os.Exit(e.Code)
}
