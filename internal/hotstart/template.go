package hotstart

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/hotstart/frozen"
	"premix/internal/hotstart/tracer"
	"premix/internal/kit/proc"
)

// How a tool is stopped at its input.
//
// Its inputs are placeholders. For "open" they are regular files, and the tool is
// held at the open at which it has loaded its data (see looks.go). For "read" each
// placeholder is a FIFO to which the supervisor writes nothing: the open succeeds, and the
// read sleeps. For "line" the supervisor reads the tool's output, and the FIFOs stop the
// tool at its input until the supervisor has seen the line.
//
// Then the supervisor holds all threads, and replaces the FIFOs by regular files under the
// same descriptors. It changes the tool's registers so that each task executes the present
// system call of the tool again, with its own input.

const (
	// maxPrefix is how much a tool may have written to a streamed stdout before
	// its input: it must fit into a pipe (pipe(7), pipe-max-size).
	maxPrefix = 1 << 20
	// pollReady is the time between two checks for the reader of a FIFO. A check
	// takes microseconds.
	pollReady = 200 * time.Microsecond
)

// load executes the tool and holds it as a template when it is ready.
func (s *supervisor) load() error {
	begin := time.Now()
	s.worn = true // no two templates have one parent
	if s.container != nil {
		// Process ids of both preparations differ, and no other small number is taken
		// for one.
		if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(s.cfg.LastPid)), 0); err != nil {
			return fmt.Errorf("choose a process id: %w", err)
		}
	}
	release, ready, err := s.arm()
	defer release()
	if err != nil {
		return err
	}
	pid, err := s.exec()
	if err != nil {
		return err
	}
	s.task = pid
	s.loading.Store(int32(pid))
	if s.gone.Load() {
		signalTask(pid, unix.SIGKILL)
	}
	err = s.untilReady(pid, ready)
	s.loading.Store(0)
	if err != nil {
		return err
	}
	release()
	if err := s.drain(); err != nil {
		return err
	}
	if s.cfg.Ready != ReadyOpen {
		if err := s.exchangeFIFOs(); err != nil {
			return err
		}
	}
	s.task = 0
	s.left = s.counters()
	return s.sendHeld(pid, begin)
}

// untilReady lets the tool run until the open of its input at which it must be stopped, or
// until ready returns true, and holds its processes.
func (s *supervisor) untilReady(pid int, ready func(int) (bool, error)) error {
	options := unix.WALL
	if ready != nil {
		options |= unix.WNOHANG
	}
	var came time.Time // at its input; its other threads come to rest
	for {
		tid, st, err := s.watch.Wait(options)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return fmt.Errorf("wait for the tool: %w", err)
		case tid == 0:
			ok, err := ready(pid)
			if err != nil {
				return err
			}
			if !ok {
				came = time.Time{}
			} else if came.IsZero() {
				came = time.Now()
			}
			if ok && (s.watch.Settled() || time.Since(came) > restWithin) {
				return s.holdAt(pid, 0, 0)
			}
			time.Sleep(pollReady)
			continue
		case tid == pid && !st.Stopped():
			s.task = 0
			return &toolFinished{s.howFinished(st)}
		}
		l, err := s.watch.Handle(tid, st)
		if err != nil && !errors.Is(err, tracer.ErrGone) {
			return err
		}
		if l == nil {
			continue
		}
		if s.cfg.Early && s.changes(l) {
			return errors.New("the tool changes state that another process could see")
		}
		if process, open := s.watch.note(l); s.cfg.Ready == ReadyOpen && open > 0 && open >= s.cfg.Open {
			return s.holdAt(pid, process, tid)
		}
		if err := s.watch.Continue(tid); err != nil {
			return err
		}
	}
}

// changes reports whether a call makes, writes or changes a file outside the tool's
// directory, or makes a socket or other state of the kernel.
func (s *supervisor) changes(l *tracer.Access) bool {
	switch {
	case l.Op == tracer.AccessSocket:
		return true
	case l.Op == tracer.AccessState:
		return true
	case l.Op == tracer.AccessChange && l.Target != "" && s.outside(l.Target):
		return true
	case l.Op != tracer.AccessWrite && l.Op != tracer.AccessChange || !s.outside(l.Path):
		return false
	}
	return !slices.Contains([]string{"/dev/null", "/dev/zero", "/dev/full", "/dev/tty"}, l.Path) && !below(l.Path, "/proc")
}

// outside reports whether other processes see a file that the tool names.
func (s *supervisor) outside(path string) bool {
	return s.container == nil && !below(filepath.Clean(path), s.workDir())
}

// toolFinished is the error for a tool that ended before it opened its input.
type toolFinished struct{ how string }

func (e *toolFinished) Error() string {
	return fmt.Sprintf("the tool ended (%s) before it reached its input", e.how)
}

// arm lays the placeholders out. ready is asked again and again; release closes
// FIFOs and may be called twice.
func (s *supervisor) arm() (release func(), ready func(pid int) (bool, error), err error) {
	dir := s.workDir()
	var files []*os.File
	release = func() {
		for _, f := range files {
			f.Close()
		}
		files = nil
	}
	if s.cfg.Stream {
		// Kept open for reading, so that the tool can open and write.
		path := filepath.Join(dir, StdoutName)
		if s.stdout, err = unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err != nil {
			return release, nil, &os.PathError{Op: "open", Path: path, Err: err}
		}
	}
	switch s.cfg.Ready {
	case ReadyOpen:
		if !s.cfg.Stream {
			return release, nil, nil
		}
		return release, s.drainStep(func(int) (bool, error) { return false, nil }), nil
	case ReadyRead, ReadyLine:
		for _, name := range s.cfg.Inputs {
			path := filepath.Join(dir, name)
			if err := os.Remove(path); err != nil {
				return release, nil, err
			}
			if err := unix.Mkfifo(path, 0o600); err != nil {
				return release, nil, fmt.Errorf("make FIFO %s: %w", path, err)
			}
			if err := s.give(path); err != nil {
				return release, nil, err
			}
			f, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0)
			if err != nil {
				return release, nil, err
			}
			files = append(files, f)
		}
		if s.cfg.Ready == ReadyLine {
			return release, s.drainStep(s.notWithoutLine(s.printedLine())), nil
		}
		return release, s.drainStep(s.readsFIFO), nil
	}
	return release, nil, fmt.Errorf("unknown ready %q", s.cfg.Ready)
}

// drainStep empties a streamed stdout before each look, so that the tool never
// blocks on it.
func (s *supervisor) drainStep(look func(int) (bool, error)) func(int) (bool, error) {
	return func(pid int) (bool, error) {
		if err := s.drain(); err != nil {
			return false, err
		}
		return look(pid)
	}
}

func (s *supervisor) drain() error {
	if s.stdout < 0 {
		return nil
	}
	buf := make([]byte, 64<<10)
	for {
		n, err := unix.Read(s.stdout, buf)
		if n <= 0 {
			if err == nil || err == unix.EAGAIN {
				return nil
			}
			return fmt.Errorf("read the tool's stdout: %w", err)
		}
		if s.prefix = append(s.prefix, buf[:n]...); len(s.prefix) > maxPrefix {
			return fmt.Errorf("the tool wrote more than %d bytes to stdout before it reached its input", maxPrefix)
		}
	}
}

// readsFIFO reports whether a thread of the tool sleeps in a read of an input.
func (s *supervisor) readsFIFO(pid int) (bool, error) {
	pids, err := tree(pid)
	if err != nil {
		return false, nil // it is ending; SIGCHLD follows
	}
	for _, p := range pids {
		calls, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", p))
		for _, path := range calls {
			b, err := os.ReadFile(path)
			if err != nil {
				continue
			}
			var nr, fd uint64
			if n, _ := fmt.Sscanf(string(b), "%d 0x%x", &nr, &fd); n < 2 {
				continue // "running", or "-1" outside of a call
			}
			if nr != unix.SYS_READ && nr != unix.SYS_READV {
				continue
			}
			if target, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", p, fd)); err == nil && s.isInput(target) {
				return true, nil
			}
		}
	}
	return false, nil
}

func (s *supervisor) isInput(path string) bool {
	for _, name := range s.cfg.Inputs {
		if path == filepath.Join(s.workDir(), name) {
			return true
		}
	}
	return false
}

// printedLine matches each line of stdout and stderr once, when it is whole.
func (s *supervisor) printedLine() func(int) (bool, error) {
	re := s.cfg.line()
	seen := map[string]int{} // bytes of each output that were matched
	match := func(name string, b []byte) bool {
		for {
			i := bytes.IndexByte(b[seen[name]:], '\n')
			if i < 0 {
				return false
			}
			line := b[seen[name] : seen[name]+i]
			seen[name] += i + 1
			if re.Match(line) {
				return true
			}
		}
	}
	return func(int) (bool, error) {
		names := []string{StderrName}
		if s.cfg.Stream {
			if match(StdoutName, s.prefix) {
				return true, nil
			}
		} else {
			names = append(names, StdoutName)
		}
		for _, name := range names {
			b, err := os.ReadFile(filepath.Join(s.workDir(), name))
			if err != nil {
				return false, err
			}
			if match(name, b) {
				return true, nil
			}
		}
		return false, nil
	}
}

// patience is how long a tool may sleep at its input without having printed
// the line that is waited for: it never will.
const patience = time.Second

// settleAfterLine is the time that a tool has, after it printed its line, to reach its
// input.
const settleAfterLine = 200 * time.Millisecond

// notWithoutLine fails if the tool has reached its input and no line matched.
func (s *supervisor) notWithoutLine(printed func(int) (bool, error)) func(int) (bool, error) {
	var since, seen time.Time
	return func(pid int) (bool, error) {
		if !seen.IsZero() {
			// At the read of its input it is at the same point each time.
			reads, err := s.readsFIFO(pid)
			return reads || time.Since(seen) > settleAfterLine, err
		}
		ok, err := printed(pid)
		if err != nil {
			return false, err
		}
		if ok {
			seen = time.Now()
			return false, nil
		}
		reads, err := s.readsFIFO(pid)
		switch {
		case err != nil || !reads:
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
		case time.Since(since) > patience:
			return false, fmt.Errorf("the tool reached its input, and no line of its output had matched %q", s.cfg.Line)
		}
		return false, err
	}
}

// tree lists pid and all processes that descend from it, parents first. Those
// that have ended are left out.
func tree(pid int) ([]int, error) {
	all := []int{pid}
	for i := 0; i < len(all); i++ {
		lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", all[i]))
		if err != nil {
			return nil, err
		}
		var children []int
		for _, path := range lists {
			b, err := os.ReadFile(path)
			if err != nil {
				continue // the thread has ended
			}
			for _, word := range strings.Fields(string(b)) {
				if child, err := strconv.Atoi(word); err == nil && proc.State(child) != 'Z' {
					children = append(children, child)
				}
			}
		}
		sort.Ints(children)
		all = append(all, children...)
	}
	return all, nil
}

// restWithin is the time within which the processes of a waiting tool must be asleep.
const restWithin = 5 * time.Second

// rest waits until the processes sleep, or until restWithin has passed. A process that
// starts another process may begin to wait for it only some time later.
func rest(pids []int) {
	for started := time.Now(); time.Since(started) < restWithin; time.Sleep(time.Millisecond) {
		if !slices.ContainsFunc(pids, runs) {
			return
		}
	}
}

// runs reports whether a process is running or waits for a processor.
func runs(pid int) bool { return proc.State(pid) == 'R' }

// exchangeFIFOs puts an empty regular file at the place of each input's FIFO
// and under each descriptor that leads to it.
func (s *supervisor) exchangeFIFOs() error {
	for _, name := range s.cfg.Inputs {
		path := filepath.Join(s.workDir(), name)
		if err := os.Remove(path); err != nil {
			return err
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			return err
		}
		if err := s.give(path); err != nil {
			return err
		}
	}
	for _, p := range s.held {
		fds, err := descriptors(p.Pid)
		if err != nil {
			return err
		}
		for _, d := range fds {
			path := strings.TrimSuffix(d.target, " (deleted)")
			if d.mode&unix.S_IFMT != unix.S_IFIFO || !s.isInput(path) {
				continue
			}
			d.target, d.pos = path, 0
			in := newInjector(p)
			in.reopen(d, path)
			if err := in.done(); err != nil {
				return err
			}
		}
	}
	return nil
}

// counter is a file with counters of a template that is a Java virtual machine, which
// removes the file when it ends by itself.
type counter struct {
	path  string
	inode uint64
}

// counters returns the counter files that the template has mapped. It returns nil in a
// container, where the files end with the container.
func (s *supervisor) counters() []counter {
	if s.container != nil {
		return nil
	}
	var all []counter
	for _, p := range s.held {
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", p.Pid))
		if err != nil {
			continue // it has been killed
		}
		for line := range strings.Lines(string(maps)) {
			f := strings.SplitN(strings.TrimRight(line, "\n"), " ", 6) // address, permissions, offset, device, inode, path
			if len(f) < 6 {
				continue
			}
			path := strings.TrimLeft(f[5], " ")
			inode, err := strconv.ParseUint(f[4], 10, 64)
			if err == nil && filepath.IsAbs(path) && frozen.PerfData(path) {
				all = append(all, counter{path, inode})
			}
		}
	}
	return all
}

// removeCounters removes the counter files of a template that was killed.
func (s *supervisor) removeCounters() {
	for _, c := range s.left {
		var st unix.Stat_t
		if unix.Lstat(c.path, &st) == nil && st.Ino == c.inode {
			_ = os.Remove(c.path) // the next virtual machine of this user tries again
		}
	}
}

func (s *supervisor) sendHeld(pid int, begin time.Time) error {
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", s.template.Pid)); err == nil {
		s.prepared.Device = s.device(exe)
	}
	info := templateInfo{Loaded: time.Since(begin), Processes: len(s.held), Prepared: s.prepared, Threads: s.watch.Threads}
	if len(s.held) > 1 {
		info.Behind = s.behindWrapper()
	}
	return s.link.send(event{Kind: evHeld, Pid: pid, Template: info, Looks: s.watch.looks})
}

// behindWrapper finds the tool behind a wrapper: the last process in a chain of processes
// in which each other process only waits for its one child.
func (s *supervisor) behindWrapper() *program {
	for i, p := range s.held[:len(s.held)-1] {
		nr, _, ok := p.Call(p.Threads[0])
		if !ok || len(p.Threads) > 1 || nr != unix.SYS_WAIT4 && nr != unix.SYS_WAITID || !isChild(s.held[i+1].Pid, p.Pid) {
			return nil
		}
	}
	dir := fmt.Sprintf("/proc/%d/", s.held[len(s.held)-1].Pid)
	exe, err := os.Readlink(dir + "exe")
	if err != nil {
		return nil
	}
	if cwd, err := os.Readlink(dir + "cwd"); err != nil || cwd != s.workDir() {
		return nil
	}
	argv, err := proc.Strings(dir + "cmdline")
	if err != nil || len(argv) == 0 {
		return nil
	}
	if s.container != nil && filepath.Base(argv[0]) != filepath.Base(exe) {
		return nil // runc executes what argv names
	}
	env, err := proc.Strings(dir + "environ")
	if err != nil {
		return nil
	}
	return &program{Exe: exe, Argv: argv, Env: env}
}

func isChild(pid, parent int) bool {
	pids, err := tree(parent)
	return err == nil && len(pids) > 1 && pids[1] == pid
}

// source describes the template for package frozen.
func (s *supervisor) source() (frozen.Source, error) {
	if s.template == nil {
		return frozen.Source{}, errors.New("there is no template")
	}
	if n := len(s.held); n > 1 {
		return frozen.Source{}, &frozen.Refused{What: fmt.Sprintf("it consists of %d processes at its input", n)}
	}
	return frozen.Source{Proc: s.template, Base: s.base, Dir: s.workDir(), Private: s.container != nil}, s.checkShared()
}

// endTemplate kills the template.
func (s *supervisor) endTemplate() {
	if s.template != nil {
		s.template.Kill()
		s.held, s.template = nil, nil
	}
}

// compare compares the template with the template that a request names, and ends it.
func (s *supervisor) compare(r request) (*frozen.Comparison, error) {
	defer s.endTemplate()
	src, err := s.source()
	if err != nil {
		return nil, err
	}
	im, err := frozen.ReadFile(filepath.Join(r.Dir, imageName))
	if err != nil {
		return nil, err
	}
	pages, err := os.Open(filepath.Join(r.Dir, pageName))
	if err != nil {
		return nil, err
	}
	defer pages.Close()
	src.Like = &frozen.Like{Image: im, Pages: pages}
	own, err := frozen.Freeze(src, nil)
	if err != nil {
		return nil, err
	}
	memory, err := frozen.OpenMemory(src.Pid, own)
	if err != nil {
		return nil, err
	}
	defer memory.Close()
	s.prepared.Device = s.device(own.Exe)
	facts := frozen.Facts{A: r.First, B: s.prepared, Words: r.Words, Late: r.Late}
	if facts.Words == nil && facts.Late == nil {
		facts.Rewrites = true
		return frozen.Compare(im, own, pages, memory, facts)
	}
	own.Argv = im.Argv // the bytes in memory are compared
	if facts.Late == nil {
		return frozen.Compare(im, own, pages, memory, facts)
	}
	facts.Late.Offsets = frozen.ConfirmedOffsets(own, facts.Late.Offsets, facts.Late.Words)
	c, err := frozen.Compare(im, own, pages, memory, facts)
	if err == nil {
		c.Offsets = facts.Late.Offsets
	}
	return c, err
}

// device returns the device of a file in the container, whose root is its own mount. It
// returns 0 without a container.
func (s *supervisor) device(path string) uint64 {
	var st unix.Stat_t
	if s.container == nil || unix.Stat(s.container.Path(path), &st) != nil {
		return 0
	}
	return st.Dev
}

// freeze writes the template to dir. The template ends.
func (s *supervisor) freeze(dir string) error {
	defer s.endTemplate()
	src, err := s.source()
	if err != nil {
		return err
	}
	pages, err := os.OpenFile(filepath.Join(dir, pageName), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer pages.Close()
	src.Ends = true
	im, err := frozen.Freeze(src, pages)
	if err != nil {
		return err
	}
	if err := im.WriteFile(filepath.Join(dir, imageName)); err != nil {
		return err
	}
	if s.container != nil {
		upper := filepath.Join(dir, upperName)
		if err := os.Mkdir(upper, 0o700); err != nil {
			return err
		}
		if err := copyUpper(s.container.Upper, upper); err != nil {
			return fmt.Errorf("keep the tool's files in its root: %w", err)
		}
	}
	if s.cfg.Stream {
		return os.WriteFile(filepath.Join(dir, prefixName), s.prefix, 0o600)
	}
	return nil
}

// descriptor is one open file of a process (proc_pid_fdinfo(5)).
type descriptor struct {
	fd     int
	target string // of /proc/PID/fd/N
	mode   uint32 // type and permissions, stat(2)
	flags  int    // of open(2); O_CLOEXEC included
	pos    int64
}

func descriptors(pid int) ([]descriptor, error) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var all []descriptor
	for _, e := range entries {
		d := descriptor{}
		if d.fd, err = strconv.Atoi(e.Name()); err != nil {
			continue
		}
		if d.target, err = os.Readlink(filepath.Join(dir, e.Name())); err != nil {
			return nil, err
		}
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(dir, e.Name()), &st); err != nil {
			return nil, err
		}
		d.mode = st.Mode
		info, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", pid, d.fd))
		if err != nil {
			return nil, err
		}
		for _, line := range strings.Split(string(info), "\n") {
			key, value, _ := strings.Cut(line, ":")
			value = strings.TrimSpace(value)
			switch key {
			case "pos":
				d.pos, _ = strconv.ParseInt(value, 10, 64)
			case "flags":
				flags, _ := strconv.ParseInt(value, 8, 64)
				d.flags = int(flags)
			}
		}
		all = append(all, d)
	}
	return all, nil
}

// injector runs a list of system calls in a held process. The first failure stops the
// list, and done returns it.
type injector struct {
	p    *tracer.Proc
	mem  uint64 // scratch memory for strings
	used int
	err  error
}

const scratchSize = 256 << 10

func newInjector(p *tracer.Proc) *injector {
	in := &injector{p: p}
	in.mem, in.err = p.Alloc(scratchSize)
	return in
}

// str puts a string into the process and returns its address there.
func (in *injector) str(v string) uint64 {
	b := append([]byte(v), 0)
	if in.err != nil {
		return 0
	}
	if in.used+len(b) > scratchSize {
		in.err = errors.New("paths of the task are too long")
		return 0
	}
	addr := in.mem + uint64(in.used)
	in.err = in.p.Write(addr, b)
	in.used += len(b)
	return addr
}

func (in *injector) call(what string, nr uint64, args ...uint64) uint64 {
	if in.err != nil {
		return 0
	}
	v, err := in.p.Syscall(nr, args...)
	if err != nil {
		in.err = fmt.Errorf("%s in the task's process: %w", what, err)
	}
	return v
}

// reopen makes descriptor d lead to path, with the same flags and offset.
func (in *injector) reopen(d descriptor, path string) {
	const once = unix.O_CREAT | unix.O_EXCL | unix.O_TRUNC
	flags := uint64(d.flags &^ once)
	cwd := int64(unix.AT_FDCWD)
	fd := in.call("reopen "+path, unix.SYS_OPENAT, uint64(cwd), in.str(path), flags, 0)
	if in.err == nil && d.mode&unix.S_IFMT == unix.S_IFREG && d.pos > 0 {
		in.call("seek "+path, unix.SYS_LSEEK, fd, uint64(d.pos), io.SeekStart)
	}
	in.call("dup3", unix.SYS_DUP3, fd, uint64(d.fd), uint64(d.flags&unix.O_CLOEXEC))
	in.call("close", unix.SYS_CLOSE, fd)
}

func (in *injector) done() error {
	if in.mem != 0 {
		if err := in.p.Free(in.mem, scratchSize); err != nil && in.err == nil {
			in.err = err
		}
	}
	return in.err
}
