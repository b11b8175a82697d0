package hotstart

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"premix/hotstart/tracer"
	"premix/image/bundle"
)

// How a tool is stopped at its input.
//
// Its inputs are placeholders. For "open" the stage holds a write lease on each
// (fcntl(2), F_SETLEASE): the tool's open sleeps in the kernel, and the stage
// is told by SIGIO. Nothing slows the tool down before, since nobody traces it,
// and stat(2) shows it a regular file. For "read" each placeholder is a FIFO
// whose other end the stage keeps silent: the open succeeds, the read sleeps.
// For "line" the stage reads along what the tool prints, and the FIFOs see to it
// that the tool does not get past its input before the line has been seen.
//
// Then every thread is held, the leases are given up, FIFOs are exchanged for
// regular files under the same descriptors, and the call in which the tool
// slept is set to be executed again: by each task, with its own input.

const (
	// maxPrefix is how much a tool may have written to a streamed stdout before
	// its input: it must fit into a pipe (pipe(7), pipe-max-size).
	maxPrefix = 1 << 20
	// pollReady is how often a FIFO's reader is looked for. A tool that waits
	// for its input is not in a hurry, and the look costs microseconds.
	pollReady = 2 * time.Millisecond
)

// load executes the tool and holds it as a template when it is ready.
func (s *stage) load(requests <-chan request) error {
	begin := time.Now()
	sigio := make(chan os.Signal, 1)
	signal.Notify(sigio, unix.SIGIO) // before any lease: the default is to die of it
	release, ready, err := s.arm()
	defer release()
	if err != nil {
		return err
	}
	pid, err := s.exec()
	if err != nil {
		return err
	}
	s.tasks[pid] = 0
	tick := time.NewTicker(pollReady)
	defer tick.Stop()
	for isReady := false; !isReady; {
		select {
		case _, ok := <-requests:
			if !ok {
				return errors.New("premix has gone")
			}
		case <-sigio:
			isReady = s.cfg.Ready == ReadyOpen
		case <-tick.C:
			if isReady, err = ready(pid); err != nil {
				return err
			}
		case <-s.chld:
			if st, ok := s.endedBeforeInput(pid); ok {
				return &toolEnded{st}
			}
		}
	}
	pids, err := tree(pid)
	if err != nil {
		return err
	}
	rest(pids[:len(pids)-1])
	if err := s.hold(pids); err != nil {
		return err
	}
	if s.cfg.Ready == ReadyOpen && !s.restsAtOpen() {
		return errors.New("something else than the tool opened its input's placeholder")
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
	delete(s.tasks, pid)
	return s.sendHeld(pid, begin)
}

// toolEnded says that a tool ended before it came to its input, and how.
type toolEnded struct{ how string }

func (e *toolEnded) Error() string {
	return fmt.Sprintf("the tool ended (%s) before it came to its input", e.how)
}

// restsAtOpen tells whether a thread of the template is about to open a file.
func (s *stage) restsAtOpen() bool {
	for _, p := range s.held {
		for _, tid := range p.Threads {
			switch nr, _, ok := p.Call(tid); {
			case !ok:
			case nr == unix.SYS_OPEN, nr == unix.SYS_OPENAT, nr == unix.SYS_OPENAT2:
				return true
			}
		}
	}
	return false
}

// endedBeforeInput reaps the tool if it has ended and says how.
func (s *stage) endedBeforeInput(pid int) (string, bool) {
	var st unix.WaitStatus
	if n, err := unix.Wait4(pid, &st, unix.WNOHANG, nil); err != nil || n != pid {
		return "", false
	}
	delete(s.tasks, pid)
	how := "exit status " + strconv.Itoa(st.ExitStatus())
	if st.Signaled() {
		how = st.Signal().String()
	}
	if words := lastWords(s.workDir()); words != "" {
		how += ": " + words
	}
	return how, true
}

// arm lays the placeholders out. ready is asked at every tick; release gives
// leases up and may be called twice.
func (s *stage) arm() (release func(), ready func(pid int) (bool, error), err error) {
	dir := s.workDir()
	never := func(int) (bool, error) { return false, nil }
	var files []*os.File
	var elsewhere []string
	release = func() {
		for _, f := range files {
			f.Close() // gives a lease up, or closes a FIFO
		}
		for _, path := range elsewhere {
			os.Remove(path)
		}
		files, elsewhere = nil, nil
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
		for _, name := range s.cfg.Inputs {
			path := filepath.Join(dir, name)
			f, err := lease(path)
			if err != nil && s.container != nil {
				release()
				return release, nil, err // what lies elsewhere is not seen in there
			}
			if err != nil {
				var moved string
				if f, moved, err = leaseElsewhere(path, leaseDirs); err != nil {
					release()
					return release, nil, err
				}
				elsewhere = append(elsewhere, moved)
			}
			files = append(files, f)
		}
		return release, s.drainStep(never), nil
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

// lease opens a file and takes a write lease on it.
func lease(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		f.Close()
		return nil, fmt.Errorf("take a lease on %s: %w", path, err)
	}
	return f, nil
}

// leaseDirs are on file systems that have leases, where the run's own (NFS,
// most that are served by FUSE) may not.
var leaseDirs = []string{"/dev/shm", "/tmp"}

// leaseElsewhere puts a symbolic link at a placeholder's path that leads to a
// copy of it in one of dirs, and takes the lease there.
func leaseElsewhere(path string, dirs []string) (f *os.File, moved string, err error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, "", err
	}
	for _, dir := range dirs {
		var tmp *os.File
		if tmp, err = os.CreateTemp(dir, "premix-input-"); err != nil {
			continue
		}
		moved = tmp.Name()
		_, err = tmp.Write(content)
		if err = errors.Join(err, tmp.Close()); err == nil {
			f, err = lease(moved)
		}
		if err == nil {
			err = os.Remove(path)
		}
		if err == nil {
			err = os.Symlink(moved, path)
		}
		if err == nil {
			return f, moved, nil
		}
		if f != nil {
			f.Close()
		}
		os.Remove(moved)
	}
	return nil, "", fmt.Errorf("no file system with leases for the input's placeholder: %w", err)
}

// drainStep empties a streamed stdout before each look, so that the tool never
// blocks on it.
func (s *stage) drainStep(look func(int) (bool, error)) func(int) (bool, error) {
	return func(pid int) (bool, error) {
		if err := s.drain(); err != nil {
			return false, err
		}
		return look(pid)
	}
}

func (s *stage) drain() error {
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
			return fmt.Errorf("the tool wrote more than %d bytes to stdout before it came to its input", maxPrefix)
		}
	}
}

// readsFIFO tells whether a thread of the tool sleeps in a read of an input.
func (s *stage) readsFIFO(pid int) (bool, error) {
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

func (s *stage) isInput(path string) bool {
	for _, name := range s.cfg.Inputs {
		if path == filepath.Join(s.workDir(), name) {
			return true
		}
	}
	return false
}

// printedLine matches each line of stdout and stderr once, when it is whole.
func (s *stage) printedLine() func(int) (bool, error) {
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

// notWithoutLine fails where the tool came to its input and no line matched.
func (s *stage) notWithoutLine(printed func(int) (bool, error)) func(int) (bool, error) {
	var since time.Time
	return func(pid int) (bool, error) {
		if ok, err := printed(pid); ok || err != nil {
			return ok, err
		}
		reads, err := s.readsFIFO(pid)
		switch {
		case err != nil || !reads:
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
		case time.Since(since) > patience:
			return false, fmt.Errorf("the tool came to its input and no line of its output had matched %q", s.cfg.Line)
		}
		return false, err
	}
}

// tree lists pid and all processes that descend from it, parents first.
func tree(pid int) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	children := map[int][]int{}
	for _, e := range entries {
		p, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		// proc_pid_stat(5): the name in parentheses may hold anything.
		f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		if len(f) < 2 || f[0] == "Z" {
			continue
		}
		if parent, err := strconv.Atoi(f[1]); err == nil {
			children[parent] = append(children[parent], p)
		}
	}
	all := []int{pid}
	for i := 0; i < len(all); i++ {
		sort.Ints(children[all[i]])
		all = append(all, children[all[i]]...)
	}
	return all, nil
}

// restWithin is how long a process may take to come to rest, a small part of the
// time that the kernel gives a lease.
const restWithin = 5 * time.Second

// rest waits until processes sleep, or have no time left for it. One that begins
// another and waits for it may come to wait only when that one has come far.
func rest(pids []int) {
	for begun := time.Now(); time.Since(begun) < restWithin; time.Sleep(time.Millisecond) {
		if !slices.ContainsFunc(pids, runs) {
			return
		}
	}
}

// runs tells whether a process is running, or would like to.
func runs(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	// The name in parentheses may hold anything.
	return err == nil && bytes.HasPrefix(b[bytes.LastIndexByte(b, ')')+1:], []byte(" R"))
}

func (s *stage) hold(pids []int) error {
	for _, pid := range pids {
		p, err := tracer.Hold(pid)
		if err != nil {
			return fmt.Errorf("hold process %d: %w", pid, err)
		}
		s.held = append(s.held, p)
	}
	s.template = s.held[0]
	return nil
}

// exchangeFIFOs puts an empty regular file at the place of each input's FIFO
// and under each descriptor that leads to it.
func (s *stage) exchangeFIFOs() error {
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

func (s *stage) sendHeld(pid int, begin time.Time) error {
	info := templateInfo{Loaded: time.Since(begin)}
	info.NoFork = s.whyNoFork()
	if len(s.held) > 1 {
		info.Behind = s.behindWrapper()
	}
	var err error
	if info.Files, err = s.mappedFiles(); err != nil {
		return err
	}
	return s.link.send(event{Kind: evHeld, Pid: pid, Template: info})
}

// behindWrapper looks for the tool proper: the last of a chain of processes all
// others of which do nothing but wait for their one child.
func (s *stage) behindWrapper() *program {
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
	argv, err := readStrings(dir + "cmdline")
	if err != nil || len(argv) == 0 {
		return nil
	}
	if s.container != nil && filepath.Base(argv[0]) != filepath.Base(exe) {
		return nil // runc executes what argv names
	}
	env, err := readStrings(dir + "environ")
	if err != nil {
		return nil
	}
	return &program{Exe: exe, Argv: argv, Env: env}
}

func isChild(pid, parent int) bool {
	pids, err := tree(parent)
	return err == nil && len(pids) > 1 && pids[1] == pid
}

// readStrings reads a list of strings that each end with a zero byte.
func readStrings(path string) ([]string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00"), nil
}

// whyNoFork says what of the template a fork could not reproduce exactly.
func (s *stage) whyNoFork() string {
	if len(s.held) > 1 {
		return fmt.Sprintf("it consists of %d processes at its input", len(s.held))
	}
	if n := len(s.template.Threads); n > 1 {
		return fmt.Sprintf("%d threads run at its input, and fork copies only one", n)
	}
	pid := s.template.Pid
	fds, err := descriptors(pid)
	if err != nil {
		return err.Error()
	}
	for _, d := range fds {
		if why := s.whyNoReopen(d); why != "" {
			return why
		}
	}
	maps, err := readMaps(pid)
	if err != nil {
		return err.Error()
	}
	for _, m := range maps {
		if m.shared && m.write && m.path != "/dev/zero (deleted)" || m.shared && strings.HasPrefix(m.path, "/SYSV") {
			return "it shares writable memory with other processes (" + m.path + ")"
		}
	}
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/timers", pid)); err == nil && len(b) > 0 {
		return "it has armed a timer"
	}
	return ""
}

func (s *stage) whyNoReopen(d descriptor) string {
	name := fmt.Sprintf("descriptor %d (%s)", d.fd, d.target)
	inside := s.inside(d.target)
	switch d.mode & unix.S_IFMT {
	case unix.S_IFCHR, unix.S_IFDIR:
		return ""
	case unix.S_IFIFO:
		if inside && filepath.Base(d.target) == StdoutName {
			return ""
		}
		return "it holds a pipe open: " + name
	case unix.S_IFREG:
		if inside || d.flags&unix.O_ACCMODE == unix.O_RDONLY {
			return ""
		}
		return "it writes to a file outside of its directory: " + name
	}
	return "it holds open what a fork would share: " + name
}

// inside tells whether a path lies in the template's directory.
func (s *stage) inside(path string) bool {
	return strings.HasPrefix(path, s.workDir()+"/") && !strings.HasSuffix(path, " (deleted)")
}

// fork starts a task from the template.
func (s *stage) fork(r request) error {
	if s.template == nil {
		return errors.New("there is no template")
	}
	if err := copyDir(s.workDir(), r.Task.Dir, s.cfg.Inputs); err != nil {
		return fmt.Errorf("copy the template's directory: %w", err)
	}
	if len(s.prefix) > 0 {
		if err := writePrefix(filepath.Join(r.Task.Dir, StdoutName), s.prefix); err != nil {
			return err
		}
	}
	fds, err := descriptors(s.template.Pid)
	if err != nil {
		return err
	}
	var room *bundle.Container
	if r.Container != nil {
		if room, err = r.Container.makeFor(r.Task, s.cfg.Inputs); err != nil {
			return err
		}
		defer room.Release()
	}
	child, err := s.template.Fork()
	if err != nil {
		return err
	}
	if room != nil {
		err = s.move(child, room, r, fds)
	} else if err = attach(child, r.Task.Cgroups); err == nil {
		// Only now: with other mounts its cgroups are not found any more.
		err = s.dress(child, r, fds)
	}
	if err != nil {
		child.Kill()
		return err
	}
	s.tasks[child.Pid] = r.ID
	release := child.Release
	if s.guard != nil {
		release = func() error { return s.guard.Release(child, false) }
	}
	if err := release(); err != nil {
		child.Kill()
		return err
	}
	return s.link.send(event{Kind: evStarted, ID: r.ID, Pid: child.Pid})
}

// dress gives a forked child, still held, what differs from task to task: its
// session, directory, mounts and descriptors.
func (s *stage) dress(child *tracer.Proc, r request, fds []descriptor) error {
	in := newInjector(child)
	in.call("setsid", unix.SYS_SETSID)
	in.call("prctl", unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uint64(unix.SIGKILL))
	if s.cfg.Namespaces {
		in.call("unshare", unix.SYS_UNSHARE, unix.CLONE_NEWNS)
		in.call("bind directory", unix.SYS_MOUNT, in.str(r.Task.Dir), in.str(FixedDir), 0, unix.MS_BIND, 0)
		for _, name := range s.cfg.Inputs {
			if real := r.Task.Inputs[name]; real != "" {
				in.call("bind "+real, unix.SYS_MOUNT, in.str(real), in.str(filepath.Join(FixedDir, name)), 0, unix.MS_BIND, 0)
			}
		}
		if r.Hide != "" {
			in.call("cover", unix.SYS_MOUNT, in.str("none"), in.str(r.Hide), in.str("tmpfs"), unix.MS_RDONLY, in.str(hideOptions))
		}
		in.call("chdir", unix.SYS_CHDIR, in.str(FixedDir))
	} else {
		in.call("chdir", unix.SYS_CHDIR, in.str(r.Task.Dir))
	}
	s.reopenAll(in, fds)
	return in.done()
}

// reopenAll gives a child descriptors of its own, in its present directory.
func (s *stage) reopenAll(in *injector, fds []descriptor) {
	for _, d := range fds {
		switch kind := d.mode & unix.S_IFMT; {
		case s.inside(d.target):
			in.reopen(d, strings.TrimPrefix(d.target, s.workDir()+"/"))
		case d.target == s.workDir():
			in.reopen(d, ".")
		case kind == unix.S_IFREG || kind == unix.S_IFDIR:
			// The same file, but an offset of its own.
			in.reopen(d, fmt.Sprintf("/proc/self/fd/%d", d.fd))
		}
	}
}

// dump writes the template's images into dir. The template ends.
func (s *stage) dump(dir string) error {
	if s.template == nil {
		return errors.New("there is no template")
	}
	pid := s.template.Pid
	for _, p := range s.held {
		if err := p.ReleaseStopped(); err != nil {
			return err
		}
	}
	s.held, s.template = nil, nil
	err := s.checkShared()
	if err == nil {
		err = s.criu().Dump(pid, dir)
	}
	if err != nil {
		signalTask(pid, unix.SIGKILL)
		return err
	}
	if s.container != nil {
		upper := filepath.Join(dir, upperName)
		if err := os.Mkdir(upper, 0o700); err != nil {
			return err
		}
		if err := copyUpper(s.container.Upper, upper); err != nil {
			return fmt.Errorf("keep what the tool has written in its root: %w", err)
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

// injector runs a list of system calls in a held process. The first failure
// stops the list and is what done returns.
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
func (in *injector) str(v string) uint64 { return in.bytes(append([]byte(v), 0)) }

// bytes is str for anything.
func (in *injector) bytes(b []byte) uint64 {
	if in.err != nil {
		return 0
	}
	if in.used+len(b) > scratchSize {
		in.err = errors.New("paths of the task are too long")
		return 0
	}
	addr := in.mem + uint64(in.used)
	in.err = in.p.Write(addr, b)
	in.used += (len(b) + 7) &^ 7 // structures are aligned
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

// write puts a text into an existing file.
func (in *injector) write(path, text string) {
	cwd := int64(unix.AT_FDCWD)
	fd := in.call("open "+path, unix.SYS_OPENAT, uint64(cwd), in.str(path), unix.O_WRONLY|unix.O_CLOEXEC, 0)
	in.call("write "+path, unix.SYS_WRITE, fd, in.str(text), uint64(len(text)))
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
