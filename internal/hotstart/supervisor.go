package hotstart

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/hotstart/frozen"
	"premix/internal/hotstart/tracer"
	"premix/internal/image/bundle"
	"premix/internal/kit/mountinfo"
)

// supervisorMain is the state of a supervisor process from one turn to the next. Everything
// runs on its main goroutine, which is locked to its thread: ptrace, PDEATHSIG and
// mount namespaces are bound to the thread that used them.
type supervisorMain struct {
	link     *link
	requests chan request // closed when premix has ended
	gone     atomic.Bool  // premix has ended
	loading  atomic.Int32 // process id of the template's tool, before it is held
	chld     chan os.Signal
	root     *mountRoot // of the supervisor; nil: it has never left its mount namespace
	images   imageCache
}

// supervisor is one turn of a supervisor process: one task or one template.
type supervisor struct {
	*supervisorMain
	turn     int
	cfg      supervisorConfig
	worn     bool // the supervisor cannot have another turn
	task     int  // process id of the task's tool; 0: none runs
	template *tracer.Proc
	held     []*tracer.Proc // the template and its other processes
	base     frozen.Base    // of the template
	prepared frozen.Preparation
	left     []counter     // files of the template
	guard    *tracer.Guard // of the mappings of a page file; nil if no file is mapped
	watch    *watcher      // of a tool's looks at files; nil: nothing is watched
	pager    *pager        // reads the page file; nil: it is not needed
	prefix   []byte        // the template's output on stdout, where it is a stream
	stdout   int           // descriptor that drains the template's streamed stdout, or -1
	before   time.Duration // CPU time of the supervisor when its turn began

	container *bundle.Container // nil: the tool runs directly on the machine
}

// SupervisorMain is main for a supervisor and returns its exit status.
func SupervisorMain() int {
	runtime.LockOSThread()
	m := &supervisorMain{
		link:     newLink(os.NewFile(supervisorSocket, "supervisor")),
		requests: make(chan request),
		chld:     make(chan os.Signal, 1),
	}
	// The tool must not inherit descriptors that premix itself inherited, such as
	// a terminal or a pipe of make: they could not be restored.
	if err := unix.CloseRange(supervisorSocket, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return 2
	}
	signal.Notify(m.chld, unix.SIGCHLD)
	// Ctrl-C in a terminal reaches the whole foreground group; premix decides.
	// Caught, not ignored: the tool would inherit that.
	signal.Notify(make(chan os.Signal, 1), unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGPIPE)
	go m.receive()
	for r := range m.requests {
		if r.Op == opRead {
			_, _ = m.images.read(r.Image) // a turn that needs it reports the error
		}
		if r.Op != opBegin {
			continue // it came too late
		}
		s := &supervisor{supervisorMain: m, turn: r.Turn, cfg: *r.Config, stdout: -1}
		err := s.run()
		s.removeCounters()
		if err != nil {
			var finished *toolFinished
			s.link.send(event{Kind: evFailed, Error: err.Error(), Ended: errors.As(err, &finished)})
			s.killAll()
			return 1
		}
		if !s.reusable() {
			return 0
		}
		if m.link.send(event{Kind: evIdle}) != nil {
			return 0
		}
	}
	return 0
}

// receive hands requests on until premix ends.
func (m *supervisorMain) receive() {
	defer close(m.requests)
	for {
		var r request
		if m.link.receive(&r) != nil {
			m.gone.Store(true)
			if pid := int(m.loading.Load()); pid != 0 {
				signalTask(pid, unix.SIGKILL)
			}
			time.AfterFunc(endWithin, endAll)
			return
		}
		m.requests <- r
	}
}

// ownTime returns the CPU time of this process.
func ownTime() time.Duration {
	var ru unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &ru) != nil {
		return 0
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

// run serves one turn.
func (s *supervisor) run() error {
	s.before = ownTime()
	if s.cfg.Namespaces {
		if err := s.enterNamespaces(); err != nil {
			return err
		}
	}
	if s.cfg.Container == nil {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("become a subreaper: %w", err)
		}
	} else if err := s.makeContainer(); err != nil {
		return err
	}
	var err error
	switch s.cfg.Role {
	case roleCold:
		err = s.cold()
	case roleHot:
		err = s.hot()
	case roleLoad:
		err = s.load()
	default:
		err = fmt.Errorf("unknown role %q", s.cfg.Role)
	}
	if err != nil {
		return err
	}
	for {
		select {
		case r, ok := <-s.requests:
			if !ok {
				s.killAll()
				s.worn = true
				return nil
			}
			if r.Turn == s.turn {
				s.serve(r)
			}
		case <-s.chld:
		}
		s.reap()
		if s.cfg.Role != roleLoad && s.task == 0 {
			s.killAll()
			return nil
		}
	}
}

// reusable leaves the namespaces of the turn, and reports whether the supervisor can have
// another turn.
func (s *supervisor) reusable() bool {
	if s.pager != nil {
		s.pager.stop()
	}
	return s.cfg.Container == nil && !s.worn && s.leaveNamespaces() == nil
}

// endWithin is the time that a supervisor has to end by itself after premix has ended. Its
// main thread may sleep in the kernel: in the open of a FIFO without a reader, or in the
// wait for a tool that sleeps there.
const endWithin = 2 * time.Second

// endAll kills all processes that descend from the supervisor, and ends it.
func endAll() {
	for range 10 { // again, for processes that were forked in between
		pids, err := tree(os.Getpid())
		if err != nil || len(pids) < 2 {
			break
		}
		for _, pid := range pids[1:] {
			unix.Kill(pid, unix.SIGKILL)
		}
		time.Sleep(10 * time.Millisecond)
	}
	os.Exit(1)
}

func (s *supervisor) serve(r request) {
	var err error
	switch r.Op {
	case opCompare:
		var c *frozen.Comparison
		if c, err = s.compare(r); err == nil {
			err = s.link.send(event{Kind: evCompared, ID: r.ID, Comparison: c, Prefix: s.prefix})
		}
	case opFreeze:
		if err = s.freeze(r.Dir); err == nil {
			err = s.link.send(event{Kind: evFrozen, ID: r.ID})
		}
	case opSignal:
		if s.task != 0 {
			signalTask(s.task, r.Signal)
		}
		return
	default:
		err = fmt.Errorf("unknown request %q", r.Op)
	}
	if err != nil {
		var refused *frozen.Refused
		s.link.send(event{Kind: evFailed, ID: r.ID, Error: err.Error(), Refused: errors.As(err, &refused)})
	}
}

// signalTask signals the whole session that a task is: every tool is made a
// session and group leader before its first instruction.
func signalTask(pid int, sig syscall.Signal) {
	if unix.Kill(-pid, sig) != nil {
		unix.Kill(pid, sig)
	}
}

// killAll ends all processes that descend from the supervisor. As PID 1 of a namespace
// its own end does that. Elsewhere it is a subreaper, so that also processes
// whose parents have ended are found below it.
func (s *supervisor) killAll() {
	if s.cfg.Container != nil {
		return
	}
	for {
		pids, err := tree(os.Getpid())
		if err != nil || len(pids) < 2 {
			return
		}
		for _, pid := range pids[1:] {
			unix.Kill(pid, unix.SIGKILL)
		}
		for {
			var st unix.WaitStatus
			if pid, err := unix.Wait4(-1, &st, unix.WALL|unix.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
		time.Sleep(time.Millisecond) // for processes that have not ended yet
	}
}

// workDir returns the task's directory as the tool sees it.
func (s *supervisor) workDir() string {
	if s.cfg.Namespaces {
		return FixedDir
	}
	return s.cfg.Task.Dir
}

// mountRoot is the mount namespace in which a supervisor begins, and its root directory
// there, which in a chroot is not the namespace's.
type mountRoot struct{ namespace, root int }

// newMountRoot opens the present one of the calling thread.
func newMountRoot() (*mountRoot, error) {
	var r mountRoot
	for path, dst := range map[string]*int{"/proc/thread-self/ns/mnt": &r.namespace, "/": &r.root} {
		var err error
		if *dst, err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		}
	}
	return &r, nil
}

// enter brings the calling thread back there.
func (r *mountRoot) enter() error {
	if err := unix.Setns(r.namespace, unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("return to the mount namespace: %w", err)
	}
	if err := unix.Fchdir(r.root); err != nil {
		return fmt.Errorf("return to the root directory: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("return to the root directory: %w", err)
	}
	return nil
}

// unshareMounts moves the supervisor's thread, and the processes that it will start, to a new
// mount namespace with a copy of the present mounts.
func (s *supervisor) unshareMounts() error {
	if s.root == nil {
		root, err := newMountRoot()
		if err != nil {
			return err
		}
		s.root = root
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil { // and CLONE_FS, which it implies
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	return nil
}

// leaveNamespaces leaves the mount namespace of a turn, which ends the turn's mounts.
func (s *supervisor) leaveNamespaces() error {
	if !s.cfg.Namespaces {
		return nil
	}
	return s.root.enter()
}

// enterNamespaces arranges the mounts of a turn. With a container the supervisor was
// cloned into its own namespaces.
func (s *supervisor) enterNamespaces() error {
	if s.cfg.Container == nil {
		if err := s.unshareMounts(); err != nil {
			return err
		}
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if s.cfg.Container != nil { // and so in a PID namespace of its own
		if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
			return fmt.Errorf("mount /proc: %w", err)
		}
		if _, err := os.Lstat(FixedDir); err != nil {
			scratch := filepath.Join(s.cfg.Container.Bundle, "run")
			if err := errors.Join(os.Mkdir(scratch, 0o700), showFixedDir(scratch)); err != nil {
				return fmt.Errorf("make %s: %w", FixedDir, err)
			}
		}
	}
	if err := unix.Mount(s.cfg.Task.Dir, FixedDir, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s at %s: %w", s.cfg.Task.Dir, FixedDir, err)
	}
	for _, name := range s.cfg.Inputs {
		if real := s.cfg.Task.Inputs[name]; real != "" {
			if err := unix.Mount(real, filepath.Join(FixedDir, name), "", unix.MS_BIND, ""); err != nil {
				return &os.PathError{Op: "bind input", Path: real, Err: err}
			}
		}
	}
	if s.cfg.Hide != "" {
		if err := unix.Mount("none", s.cfg.Hide, "tmpfs", unix.MS_RDONLY, hideOptions); err != nil {
			return fmt.Errorf("cover %s: %w", s.cfg.Hide, err)
		}
	}
	return os.Chdir(FixedDir)
}

const hideOptions = "size=4k,mode=0555"

// exec starts the tool in its directory, in the task's cgroups. A template's tool
// is looked at before its first instruction.
func (s *supervisor) exec() (int, error) {
	if s.container != nil {
		return s.execInContainer()
	}
	path, err := s.cfg.Exe, error(nil)
	if path == "" {
		if path, err = lookPath(s.cfg.Argv[0], s.cfg.Env); err != nil {
			return 0, err
		}
	}
	files, err := openStreams(os.DevNull, s.workDir())
	defer closeAll(files)
	if err != nil {
		return 0, err
	}
	leave, err := joinCgroups(s.cfg.Task.Cgroups)
	if err != nil {
		return 0, err
	}
	defer s.leaves(leave)
	attr := &os.ProcAttr{
		Dir: s.workDir(), Env: s.cfg.Env, Files: files,
		Sys: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
	}
	if s.cfg.Role == roleLoad || s.cfg.Watch {
		var p *tracer.Proc
		if s.cfg.Role == roleLoad {
			p, _, err = tracer.Spawn(path, s.cfg.Argv, attr)
		} else {
			p, err = tracer.SpawnPlain(path, s.cfg.Argv, attr) // the proof shows what depends on addresses
		}
		if err != nil {
			return 0, err
		}
		return p.Pid, s.begin(p)
	}
	p, err := os.StartProcess(path, s.cfg.Argv, attr)
	if err != nil {
		return 0, err
	}
	return p.Pid, nil
}

// openStreams opens a tool's standard input, output and error. Files that were
// opened are returned with an error too.
func openStreams(null, dir string) (files []*os.File, err error) {
	for _, f := range []struct {
		path  string
		flags int
	}{
		{null, os.O_RDONLY},
		{filepath.Join(dir, StdoutName), os.O_WRONLY},
		{filepath.Join(dir, StderrName), os.O_WRONLY | os.O_APPEND},
	} {
		file, err := os.OpenFile(f.path, f.flags, 0)
		if err != nil {
			return files, err
		}
		files = append(files, file)
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// begin lets a tool that is held at its first instruction run under watch.
func (s *supervisor) begin(p *tracer.Proc) error {
	err := s.watched(p)
	if err == nil {
		s.base, err = frozen.ReadBase(p.Pid)
	}
	if err == nil {
		err = s.watch.Start(p)
	}
	if err != nil {
		p.Kill()
	}
	return err
}

func (s *supervisor) cold() error {
	pid, err := s.exec()
	if err != nil {
		return err
	}
	s.releaseContainer()
	s.task = pid
	return s.link.send(event{Kind: evStarted, Pid: pid})
}

// hot starts the tool from a snapshot.
func (s *supervisor) hot() error {
	im, err := s.images.read(s.cfg.Image)
	if err != nil {
		return err
	}
	if late := s.cfg.Late; late != nil {
		if im, err = im.With(late); err != nil {
			return err
		}
	}
	if im.Clock && im.Boot != frozen.BootID() {
		return &frozen.Refused{What: "a thread waits for a time of the monotonic clock, and the machine was booted since"}
	}
	pages, err := os.Open(s.cfg.PageFile)
	if err != nil {
		return err
	}
	p, own, err := s.spawn(im, pages)
	if err != nil {
		return err
	}
	s.releaseContainer()
	s.task = p.Pid
	guard, err := tracer.NewGuard(pages)
	if err != nil {
		return err
	}
	pager, cold, err := newPager(pages)
	if err != nil {
		return err
	}
	opt := frozen.Options{Dir: s.workDir(), Random: cold && pager.single(), Personality: own, Filter: tracer.GuardFilter(), Device: s.device(im.Exe)}
	if err := im.Start(p, opt); err != nil {
		return err
	}
	// It has mapped the files whose state is compared now, and has not executed anything.
	if err := stillSame(s.cfg.Mapped); err != nil {
		return err
	}
	if s.cfg.Noise != "" {
		if err := applyNoise(s.cfg.Noise, p.Pid); err != nil {
			return err
		}
	}
	if late := s.cfg.Late; late != nil {
		if err := late.Write(p); err != nil {
			return err
		}
	}
	s.guard = guard
	if err := s.guard.Release(p); err != nil {
		return err
	}
	if cold {
		s.pager = pager
		go pager.run() // closes pages
	} else {
		pages.Close()
	}
	return s.link.send(event{Kind: evStarted, Pid: p.Pid})
}

// imageCache keeps the last image that a supervisor has read.
type imageCache struct {
	stamp Stamp
	image *frozen.Image
}

// read reads an image, unless it is the one of the last time, which its file shows.
func (c *imageCache) read(path string) (*frozen.Image, error) {
	stamp, err := statStamp(path)
	if err != nil {
		return nil, err
	}
	if c.image == nil || stamp != c.stamp {
		im, err := frozen.ReadFile(path)
		if err != nil {
			return nil, err
		}
		c.stamp, c.image = stamp, im
	}
	return c.image, nil
}

// spawn executes the program of a frozen process in the task's cgroups, and holds
// it at its first instruction. It returns the personality that the process must be
// given, or nil if the personality stays.
func (s *supervisor) spawn(im *frozen.Image, pages *os.File) (*tracer.Proc, *uint64, error) {
	if s.container != nil {
		p, err := s.spawnInContainer(im, pages)
		return p, nil, err
	}
	leave, err := joinCgroups(s.cfg.Task.Cgroups)
	if err != nil {
		return nil, nil, err
	}
	defer s.leaves(leave)
	p, own, err := im.Spawn(s.workDir(), pages, &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL})
	return p, &own, err
}

// reap collects every child that has ended, and reports the task's tool.
func (s *supervisor) reap() {
	for {
		var st unix.WaitStatus
		var ru unix.Rusage
		pid, err := unix.Wait4(-1, &st, unix.WALL|unix.WNOHANG, &ru)
		if err == unix.EINTR {
			continue
		}
		if err != nil || pid == 0 {
			return
		}
		if s.watch != nil {
			if l, err := s.watch.Handle(pid, st); err != nil && !errors.Is(err, tracer.ErrGone) {
				unix.Kill(pid, unix.SIGKILL)
			} else if l != nil {
				s.watch.note(l)
				if s.watch.Continue(pid) != nil {
					unix.Kill(pid, unix.SIGKILL)
				}
			}
		}
		if s.guard != nil {
			if err := s.guard.Handle(pid, st); err != nil && !errors.Is(err, tracer.ErrGone) {
				// Unguarded it could compute with wrong bytes: better none.
				unix.Kill(pid, unix.SIGKILL)
			}
		}
		if st.Stopped() || pid != s.task {
			continue
		}
		exit := Exit{
			Code:   st.ExitStatus(),
			User:   time.Duration(ru.Utime.Nano()),
			System: time.Duration(ru.Stime.Nano()),
			MaxRSS: ru.Maxrss * 1024, // getrusage(2): kilobytes
			// The kernel derives these from the same counters as proc_pid_io(5),
			// in units of 512 bytes.
			ReadBytes:  ru.Inblock * 512,
			WriteBytes: ru.Oublock * 512,
		}
		if st.Signaled() {
			exit.Code, exit.Signal = -1, st.Signal()
		}
		s.task = 0
		// Processes that the tool left in the background must not outlive the task.
		unix.Kill(-pid, unix.SIGKILL)
		e := event{Kind: evExited, Pid: pid, Exit: exit}
		if s.watch != nil {
			e.Looks, e.Tracing = s.watch.looks, ownTime()-s.before
		}
		s.link.send(e)
	}
}

// joinCgroups moves the supervisor's main thread into the task's cgroups, so that its next
// child process starts there. It returns the function that moves the thread back.
func joinCgroups(dirs []string) (leave func() error, err error) {
	if len(dirs) == 0 {
		return func() error { return nil }, nil
	}
	home, err := ownCgroups(dirs)
	if err != nil {
		return nil, err
	}
	leave = func() error {
		var errs []error
		for _, dir := range home {
			errs = append(errs, moveTo(dir))
		}
		return errors.Join(errs...)
	}
	for _, dir := range dirs {
		if err := moveTo(dir); err != nil {
			return nil, errors.Join(err, leave())
		}
	}
	return leave, nil
}

// leaves brings the supervisor back out of a task's cgroups. A supervisor that cannot leave
// them has no other task.
func (s *supervisor) leaves(leave func() error) {
	if leave() != nil {
		s.worn = true
	}
}

// moveTo moves the calling thread, and the processes that it will start, to a cgroup.
// Version 1 has a file for single threads, and a thread that moves itself does not wait.
// To move a whole process the kernel first stops all forks, which takes an RCU grace
// period of about 10 ms (cgroup_threadgroup_rwsem).
func moveTo(dir string) error {
	name := threadFile(dir)
	if name == "" {
		name = processFile
	}
	if err := os.WriteFile(filepath.Join(dir, name), []byte("0"), 0); err != nil {
		return fmt.Errorf("join cgroup: %w", err)
	}
	return nil
}

const processFile = "cgroup.procs"

// threadFile returns the path of the cgroup's file that accepts single threads of any
// process. Version 2 does not have this file, and threadFile returns "".
func threadFile(dir string) string {
	const name = "tasks"
	if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
		return ""
	}
	return name
}

// ownCgroups finds the caller's present cgroup in the hierarchy of each of
// dirs: the mount point that dir lies under, and the path in /proc/self/cgroup
// of the same hierarchy.
func ownCgroups(dirs []string) ([]string, error) {
	mounts, err := mountinfo.Read()
	if err != nil {
		return nil, err
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	paths := map[string]string{} // controllers of a hierarchy -> path
	for _, line := range strings.Split(strings.TrimSpace(string(own)), "\n") {
		if f := strings.SplitN(line, ":", 3); len(f) == 3 {
			for _, controller := range strings.Split(f[1], ",") {
				paths[controller] = f[2]
			}
		}
	}
	var home []string
	for _, dir := range dirs {
		found := false
		for _, m := range mounts {
			if !strings.HasPrefix(dir+"/", m.Path+"/") {
				continue
			}
			switch m.Type {
			case "cgroup2":
				home, found = append(home, filepath.Join(m.Path, paths[""])), true
			case "cgroup":
				for _, controller := range m.Options {
					if path, ok := paths[controller]; ok && !found {
						home, found = append(home, filepath.Join(m.Path, path)), true
					}
				}
			}
			if found {
				break
			}
		}
		if !found {
			return nil, fmt.Errorf("%s is not in a mounted cgroup hierarchy", dir)
		}
	}
	return home, nil
}

// lookPath finds a program by the PATH that the tool itself is going to have.
func lookPath(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return filepath.Abs(name)
	}
	for _, kv := range env {
		path, ok := strings.CutPrefix(kv, "PATH=")
		if !ok {
			continue
		}
		for _, dir := range filepath.SplitList(path) {
			p := filepath.Join(dir, name)
			if st, err := os.Stat(p); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
				return p, nil
			}
		}
	}
	return "", &os.PathError{Op: "find program", Path: name, Err: errors.New("not on PATH")}
}
