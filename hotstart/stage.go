package hotstart

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"premix/hotstart/criu"
	"premix/hotstart/tracer"
	"premix/image/bundle"
)

// firstPid is about where the process ids of tools begin in their own
// namespace: beyond those of the stage and of CRIU, which otherwise would take
// the ids that a restored process needs back.
const firstPid = 1000

// stage is the state of a stage process. Everything runs on its main
// goroutine, which is locked to its thread: ptrace and PDEATHSIG are bound to
// the thread that used them.
type stage struct {
	link     *link
	cfg      stageConfig
	tasks    map[int]int // process id -> id of the task
	template *tracer.Proc
	held     []*tracer.Proc // the template and its other processes
	guard    *tracer.Guard  // of what maps a page file; nil: nothing does
	chld     chan os.Signal
	prefix   []byte // what the template wrote to stdout, where it is a stream
	stdout   int    // descriptor that drains the template's streamed stdout; -1 if there is none

	container *bundle.Container // nil: the tool sees the machine as it is
	rights    criu.Capabilities // of the tool; what is forked gets them back
}

// StageMain is main for a stage and returns its exit status.
func StageMain() int {
	runtime.LockOSThread()
	s := &stage{
		link:   newLink(os.NewFile(stageSocket, "stage")),
		tasks:  map[int]int{},
		chld:   make(chan os.Signal, 1),
		stdout: -1,
	}
	// Whatever premix itself was started with (a job control pipe of make, a
	// terminal) is none of the tool's business, and could not be restored.
	if err := unix.CloseRange(stageSocket, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return 2
	}
	if err := s.link.receive(&s.cfg); err != nil {
		return 2
	}
	signal.Notify(s.chld, unix.SIGCHLD)
	// Ctrl-C in a terminal reaches the whole foreground group; premix decides.
	// Caught, not ignored: the tool would inherit that.
	signal.Notify(make(chan os.Signal, 1), unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGPIPE)
	if err := s.run(); err != nil {
		var ended *toolEnded
		s.link.send(event{Kind: evFailed, Error: err.Error(), Ended: errors.As(err, &ended)})
		s.killAll()
		return 1
	}
	return 0
}

func (s *stage) run() error {
	if s.cfg.Namespaces {
		if err := s.enterNamespaces(); err != nil {
			return err
		}
	} else if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become a subreaper: %w", err)
	}
	requests := make(chan request)
	go func() {
		defer close(requests)
		for {
			var r request
			if s.link.receive(&r) != nil {
				return // premix has gone
			}
			requests <- r
		}
	}()
	var err error
	if s.cfg.Container != nil {
		if err := s.makeContainer(); err != nil {
			return err
		}
	}
	switch s.cfg.Role {
	case roleCold:
		err = s.cold()
	case roleRestore:
		err = s.restore()
	case roleLoad:
		err = s.load(requests)
	case roleTemplate:
		err = s.restoreTemplate()
	default:
		err = fmt.Errorf("unknown role %q", s.cfg.Role)
	}
	if err != nil {
		return err
	}
	single := s.cfg.Role == roleCold || s.cfg.Role == roleRestore
	for {
		select {
		case r, ok := <-requests:
			if !ok {
				s.killAll()
				return nil
			}
			s.serve(r)
		case <-s.chld:
		}
		s.reap()
		if single && len(s.tasks) == 0 {
			s.killAll()
			return nil
		}
	}
}

func (s *stage) serve(r request) {
	var err error
	switch r.Op {
	case opFork:
		err = s.fork(r)
	case opDump:
		err = s.dump(r.Dir)
		if err == nil {
			s.link.send(event{Kind: evDumped, ID: r.ID})
		}
	case opSignal:
		for pid, id := range s.tasks {
			if id == r.ID {
				signalTask(pid, r.Signal)
			}
		}
		return
	default:
		err = fmt.Errorf("unknown request %q", r.Op)
	}
	if err != nil {
		s.link.send(event{Kind: evFailed, ID: r.ID, Error: err.Error()})
	}
}

// signalTask signals the whole session that a task is: every tool is made a
// session and group leader before its first instruction.
func signalTask(pid int, sig syscall.Signal) {
	if unix.Kill(-pid, sig) != nil {
		unix.Kill(pid, sig)
	}
}

// killAll ends what the stage has started and all that descends from it. As PID 1
// of a namespace its own end does that. Elsewhere it is a subreaper, so that
// also processes whose parents have ended are found below it.
func (s *stage) killAll() {
	if s.cfg.Namespaces {
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
		time.Sleep(time.Millisecond) // for those that have yet to die
	}
}

// workDir is the task's directory as the tool sees it.
func (s *stage) workDir() string {
	if s.cfg.Namespaces {
		return FixedDir
	}
	return s.cfg.Task.Dir
}

// enterNamespaces arranges the mounts of a stage that was cloned into its own
// PID and mount namespaces.
func (s *stage) enterNamespaces() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
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
	if s.cfg.Images != "" {
		// For CRIU's log: it disappears with the namespace.
		if err := unix.Mount("none", logDir, "tmpfs", 0, "size=4m,mode=0700"); err != nil {
			return fmt.Errorf("mount %s: %w", logDir, err)
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

// exec starts the tool in its directory, in the task's cgroups.
func (s *stage) exec() (int, error) {
	if s.cfg.Namespaces {
		if err := s.passFirstPid(); err != nil {
			return 0, err
		}
	}
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
	defer leave()
	p, err := os.StartProcess(path, s.cfg.Argv, &os.ProcAttr{
		Dir: s.workDir(), Env: s.cfg.Env, Files: files,
		Sys: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		return 0, err
	}
	return p.Pid, nil
}

// passFirstPid makes firstPid the next process id of the namespace.
func (s *stage) passFirstPid() error {
	if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(firstPid-1)), 0); err != nil {
		return fmt.Errorf("choose the tool's process id: %w", err)
	}
	return nil
}

// openStreams opens what a tool gets as its standard input, output and error. What
// was opened is returned with an error too.
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

func (s *stage) cold() error {
	pid, err := s.exec()
	if err != nil {
		return err
	}
	s.releaseContainer()
	s.tasks[pid] = 0
	return s.link.send(event{Kind: evStarted, Pid: pid})
}

func (s *stage) restore() error {
	leave, err := joinCgroups(s.cfg.Task.Cgroups)
	if err != nil {
		return err
	}
	// Stopped, whatever comes next: CRIU fails if what it restored ends before
	// it has let go of every thread.
	pid, err := s.criu().Restore(s.cfg.Images, logDir)
	leave()
	if err != nil {
		return err
	}
	s.releaseContainer()
	s.tasks[pid] = 0
	if s.cfg.PageFile == "" {
		pids, err := tree(pid)
		if err != nil {
			return err
		}
		for _, p := range pids {
			if err := unix.Kill(p, unix.SIGCONT); err != nil {
				return fmt.Errorf("continue process %d: %w", p, err)
			}
		}
		return s.link.send(event{Kind: evStarted, Pid: pid})
	}
	if err := s.holdRestored(pid); err != nil {
		return err
	}
	for _, p := range s.held {
		if err := s.guard.Release(p, true); err != nil {
			return err
		}
	}
	s.held, s.template = nil, nil
	return s.link.send(event{Kind: evStarted, Pid: pid})
}

func (s *stage) restoreTemplate() error {
	begin := time.Now()
	if s.cfg.Stream {
		var err error
		if s.prefix, err = os.ReadFile(filepath.Join(s.cfg.Images, prefixName)); err != nil {
			return err
		}
	}
	images := s.cfg.Images
	if s.container != nil {
		var err error
		if images, err = s.movable(); err != nil {
			return err
		}
	}
	pid, err := s.criu().Restore(images, logDir)
	if err != nil {
		return err
	}
	s.releaseContainer()
	if err := s.holdRestored(pid); err != nil {
		return err
	}
	return s.sendHeld(pid, begin)
}

// holdRestored holds a tree that was restored stopped and puts it under guard.
func (s *stage) holdRestored(pid int) error {
	pids, err := tree(pid)
	if err != nil {
		return err
	}
	if err := s.hold(pids); err != nil {
		return err
	}
	mapped := s.cfg.PageFile
	if s.container != nil {
		mapped = pagesPath
	}
	s.guard = tracer.NewGuard(mapped)
	for _, p := range s.held {
		if err := s.guard.Install(p); err != nil {
			return err
		}
	}
	return readRandomly(s.cfg.PageFile, mapped, s.held)
}

// reap collects every child that has ended and reports those that were tasks.
func (s *stage) reap() {
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
		if s.guard != nil {
			if err := s.guard.Handle(pid, st); err != nil && !errors.Is(err, tracer.ErrGone) {
				// Unguarded it could compute with wrong bytes: better none.
				unix.Kill(pid, unix.SIGKILL)
			}
		}
		id, isTask := s.tasks[pid]
		if st.Stopped() || !isTask {
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
		delete(s.tasks, pid)
		// What the tool left in the background must not outlive the task.
		unix.Kill(-pid, unix.SIGKILL)
		s.link.send(event{Kind: evExited, ID: id, Pid: pid, Exit: exit})
	}
}

// joinCgroups moves the stage's main thread into the task's cgroups, so that what
// it starts next begins there, and returns what brings it back.
func joinCgroups(dirs []string) (leave func(), err error) {
	if len(dirs) == 0 {
		return func() {}, nil
	}
	home, err := ownCgroups(dirs)
	if err != nil {
		return nil, err
	}
	leave = func() {
		for _, dir := range home {
			moveTo(dir)
		}
	}
	for _, dir := range dirs {
		if err := moveTo(dir); err != nil {
			leave()
			return nil, err
		}
	}
	return leave, nil
}

// moveTo puts the calling thread and what it starts into a cgroup. Version 1 has
// a file for threads, and a thread that moves itself there need not wait: to move
// a whole process the kernel first stops all forking, which takes it an RCU grace
// period of some 10 ms (cgroup_threadgroup_rwsem).
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

// threadFile is the file of a cgroup that takes single threads of any process,
// or "" if there is none, as in version 2.
func threadFile(dir string) string {
	const name = "tasks"
	if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
		return ""
	}
	return name
}

// attach puts a held child of one thread into cgroups: by its own hand where
// that is the faster way.
func attach(child *tracer.Proc, dirs []string) error {
	if len(dirs) == 0 {
		return nil
	}
	in := newInjector(child)
	for _, dir := range dirs {
		if name := threadFile(dir); name != "" {
			in.write(filepath.Join(dir, name), "0")
		} else if in.err == nil {
			in.err = os.WriteFile(filepath.Join(dir, processFile), []byte(strconv.Itoa(child.Pid)), 0)
		}
	}
	if err := in.done(); err != nil {
		return fmt.Errorf("join cgroup: %w", err)
	}
	return nil
}

// ownCgroups finds the caller's present cgroup in the hierarchy of each of
// dirs: the mount point that dir lies under, and the path in /proc/self/cgroup
// of the same hierarchy.
func ownCgroups(dirs []string) ([]string, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
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
		for _, line := range strings.Split(string(mounts), "\n") {
			f := strings.Fields(line)
			sep := -1
			for i, w := range f {
				if w == "-" {
					sep = i
				}
			}
			if sep < 0 || len(f) < sep+4 || !strings.HasPrefix(dir+"/", f[4]+"/") {
				continue
			}
			switch f[sep+1] {
			case "cgroup2":
				home, found = append(home, filepath.Join(f[4], paths[""])), true
			case "cgroup":
				for _, controller := range strings.Split(f[sep+3], ",") {
					if path, ok := paths[controller]; ok && !found {
						home, found = append(home, filepath.Join(f[4], path)), true
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
