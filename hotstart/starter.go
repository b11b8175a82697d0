package hotstart

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"premix/hotstart/criu"
	"premix/image/bundle"
)

// Options steers a Starter.
type Options struct {
	Store string                           // directory of snapshots; empty: DefaultStore()
	Start Kind                             // Auto, or the only kind that will do
	Tasks int                              // how many tasks are going to be started, where known
	Keep  bool                             // the point is the snapshot itself, for runs to come: with Auto, Hot goes before Fork
	Log   func(format string, args ...any) // notices for people, one line each; nil: none
}

// Unavailable says that a kind of start cannot be had.
type Unavailable struct {
	Kind   Kind
	Reason string
	Hint   string // the way out, for people; may be empty
}

func (e *Unavailable) Error() string {
	return fmt.Sprintf("a %s start is not possible: %s", e.Kind, e.Reason)
}

// Starter starts the tasks of one Spec.
type Starter struct {
	spec Spec
	opt  Options
	host host

	mu       sync.Mutex // guards what follows; held briefly, never over a start
	kind     Kind
	reason   string
	template *stageHandle // for Fork
	snapshot *Snapshot    // for Hot and Copy; locked against removal
	scratch  string
}

// host is what this machine and user allow.
type host struct {
	namespaces bool   // may make PID and mount namespaces
	criu       string // path of a CRIU that works; empty if there is none
	noCriu     string // why not
	hint       string
}

// New returns a Starter whose tasks start cold until Prepare found better.
func New(spec Spec, opt Options) (*Starter, error) {
	if len(spec.Argv) == 0 {
		return nil, errors.New("the command is empty")
	}
	if spec.Image == nil {
		if _, err := lookPath(spec.Argv[0], spec.Env); err != nil {
			return nil, err
		}
	} else if err := spec.Image.Find(spec.Argv[0], spec.Env); err != nil {
		return nil, err
	}
	if opt.Store == "" {
		dir, err := DefaultStore()
		if err != nil {
			return nil, err
		}
		opt.Store = dir
	}
	// Stages use it from other working directories.
	store, err := filepath.Abs(opt.Store)
	if err != nil {
		return nil, err
	}
	opt.Store = store
	if opt.Start == "" {
		opt.Start = Auto
	}
	if opt.Log == nil {
		opt.Log = func(string, ...any) {}
	}
	if spec.Ready.Kind == "" {
		spec.Ready.Kind = ReadyOpen
	}
	return &Starter{spec: spec, opt: opt, host: probeHost(), kind: Cold, reason: "not prepared"}, nil
}

// CheckStore is an error if snapshots cannot be kept in a directory, which is made if it
// is missing.
func CheckStore(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := unix.Access(dir, unix.R_OK|unix.W_OK|unix.X_OK); err != nil {
		return &os.PathError{Op: "write to", Path: dir, Err: err}
	}
	return nil
}

// DefaultStore is $PREMIX_HOME/snapshots, or else premix/snapshots in the
// user's cache directory.
func DefaultStore() (string, error) {
	if home := os.Getenv("PREMIX_HOME"); home != "" {
		return filepath.Join(home, "snapshots"), nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a place for snapshots (set PREMIX_HOME): %w", err)
	}
	return filepath.Join(cache, "premix", "snapshots"), nil
}

// Decision tells how tasks will start, and why.
func (s *Starter) Decision() (Kind, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kind, s.reason
}

func (s *Starter) decide(kind Kind, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kind, s.reason = kind, fmt.Sprintf(format, args...)
}

// Close ends the template and gives the snapshot free.
func (s *Starter) Close() error {
	s.mu.Lock()
	template, snapshot := s.template, s.snapshot
	s.template, s.snapshot = nil, nil
	s.mu.Unlock()
	if template != nil {
		template.close()
	}
	if snapshot != nil {
		snapshot.unlock()
	}
	return nil
}

// Process is a task that was started.
type Process struct {
	Kind   Kind
	Reason string
	// Latency is the time from the call of Start until the tool opened its
	// first input (for ReadyLine: until it ran). Valid once Wait has returned.
	Latency time.Duration
	// Stdout is the reading end of a streamed stdout; the caller closes it.
	Stdout *os.File

	stage *stageHandle
	room  *bundle.Bundle // of a fork's container
	id    int
	own   bool // the stage serves this task only
	watch *inputWatch
	done  chan event
	begun time.Time
	ran   time.Time
}

// Wait waits for the end of the task. An error means that its fate is unknown:
// its stage died.
func (p *Process) Wait() (Exit, error) {
	e := <-p.done
	opened, ok := p.watch.stop()
	if !ok {
		opened = p.ran
	}
	p.Latency = opened.Sub(p.begun)
	if p.own {
		p.stage.close()
	}
	if p.room != nil {
		// What cannot be taken away is so by the next premix.
		_ = p.room.Close()
	}
	if e.Kind != evExited {
		return Exit{Code: -1}, fmt.Errorf("the task was lost: %s", e.Error)
	}
	return e.Exit, nil
}

// Signal sends a signal to all processes of the task.
func (p *Process) Signal(sig syscall.Signal) error {
	return p.stage.send(request{Op: opSignal, ID: p.id, Signal: sig})
}

// Start starts one task. With Auto, what goes wrong with another kind of start
// leads to a cold one with the reason told; with an explicit kind it is an
// error of type *Unavailable. It is safe for concurrent use.
func (s *Starter) Start(ctx context.Context, t Task) (*Process, error) {
	s.mu.Lock()
	kind, reason := s.kind, s.reason
	s.mu.Unlock()
	p, err := s.start(ctx, kind, t)
	if err == nil {
		p.Kind, p.Reason = kind, reason
		return p, nil
	}
	var missing *InputError
	if kind == Cold || errors.As(err, &missing) || ctx.Err() != nil {
		return nil, err
	}
	if s.opt.Start != Auto {
		return nil, &Unavailable{Kind: kind, Reason: err.Error(), Hint: "let premix fall back with --start auto"}
	}
	if err := emptyDir(t.Dir); err != nil {
		return nil, err
	}
	s.opt.Log("%s start failed, starting cold: %v", kind, err)
	p, cerr := s.start(ctx, Cold, t)
	if cerr != nil {
		return nil, cerr
	}
	p.Kind, p.Reason = Cold, fmt.Sprintf("the %s start failed: %v", kind, err)
	return p, nil
}

// InputError is an input that cannot be used, or on which the tool fails however
// it is started. Err names the file.
type InputError struct{ Err error }

func (e *InputError) Error() string { return e.Err.Error() }
func (e *InputError) Unwrap() error { return e.Err }

func (s *Starter) start(ctx context.Context, kind Kind, t Task) (*Process, error) {
	begun := time.Now()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	dir, err := filepath.EvalSymlinks(t.Dir)
	if err != nil {
		return nil, err
	}
	t.Dir = dir
	if t.Inputs, err = s.layOut(t, s.host.namespaces); err != nil {
		return nil, err
	}
	p := &Process{begun: begun, done: make(chan event, 1)}
	if s.spec.Stream {
		fd, err := unix.Open(filepath.Join(dir, StdoutName), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		p.Stdout = os.NewFile(uintptr(fd), StdoutName)
	}
	p.watch = watchInputs(s.spec, t)
	if err := s.launch(ctx, p, kind, t); err != nil {
		p.watch.stop()
		if p.Stdout != nil {
			p.Stdout.Close()
		}
		return nil, err
	}
	p.ran = time.Now()
	return p, nil
}

// launch brings the tool to life by one kind of start.
func (s *Starter) launch(ctx context.Context, p *Process, kind Kind, t Task) error {
	hide := filepath.Dir(t.Dir)
	if kind == Fork {
		s.mu.Lock()
		template := s.template
		s.mu.Unlock()
		if template == nil {
			return errors.New("the template has gone")
		}
		p.stage = template
		c := s.config(t).Container
		if c != nil {
			s.mu.Lock()
			if s.snapshot != nil {
				c.Upper = filepath.Join(s.snapshot.Dir, upperName)
			}
			s.mu.Unlock()
			var err error
			if p.room, err = c.furnish(s.spec); err != nil {
				return err
			}
		}
		var err error
		if p.id, err = template.fork(ctx, t, hide, c, p.done); err != nil && p.room != nil {
			err = errors.Join(err, p.room.Close())
		}
		return err
	}
	cfg := s.config(t)
	cfg.Hide = hide
	switch kind {
	case Cold:
		cfg.Role = roleCold
	case Hot, Copy:
		s.mu.Lock()
		snap := s.snapshot
		s.mu.Unlock()
		if snap == nil {
			return errors.New("the snapshot has gone")
		}
		cfg.Role = roleRestore
		if err := snap.outfit(kind, &cfg, t); err != nil {
			return err
		}
	default:
		return fmt.Errorf("unknown kind of start %q", kind)
	}
	st, err := s.openStage(cfg)
	if err != nil {
		return err
	}
	p.stage, p.own = st, true
	err = st.await(ctx, evStarted)
	if err != nil {
		st.close()
		return err
	}
	st.deliver(0, p.done)
	return nil
}

// config is the part of a stage's configuration that follows from the Spec.
func (s *Starter) config(t Task) stageConfig {
	c := stageConfig{
		Namespaces: s.host.namespaces,
		Argv:       s.spec.Argv, Env: s.spec.Env, Inputs: s.spec.Inputs,
		Ready: s.spec.Ready.Kind, Stream: s.spec.Stream, Task: t, Criu: s.host.criu,
	}
	if s.spec.Ready.Line != nil {
		c.Line = s.spec.Ready.Line.String()
	}
	if s.spec.Image != nil {
		c.Container = &containerConfig{Request: s.spec.request()}
	}
	return c
}

// layOut makes what a task finds in its directory before it starts, and
// returns the inputs that remain to be bind-mounted.
func (s *Starter) layOut(t Task, bind bool) (map[string]string, error) {
	if err := s.makeStreams(t.Dir); err != nil {
		return nil, err
	}
	left := map[string]string{}
	for _, name := range s.spec.Inputs {
		real := t.Inputs[name]
		f, err := os.Open(real)
		if err != nil {
			return nil, &InputError{err}
		}
		path := filepath.Join(t.Dir, name)
		plain := s.isPlain(name)
		compressed, err := isGzip(f)
		switch {
		case err != nil:
			err = &InputError{fmt.Errorf("%s: %w", real, err)}
		case plain && compressed:
			err = decompress(f, path)
		case bind:
			left[name] = real
			err = os.WriteFile(path, nil, 0o600)
		default:
			err = os.Symlink(real, path)
		}
		f.Close()
		if err != nil {
			return nil, err
		}
	}
	return left, s.spec.give(t.Dir)
}

func (s *Starter) isPlain(name string) bool {
	for _, n := range s.spec.Plain {
		if n == name {
			return true
		}
	}
	return false
}

func (s *Starter) makeStreams(dir string) error {
	stdout := filepath.Join(dir, StdoutName)
	if s.spec.Stream {
		if err := unix.Mkfifo(stdout, 0o600); err != nil {
			return &os.PathError{Op: "mkfifo", Path: stdout, Err: err}
		}
	} else if err := os.WriteFile(stdout, nil, 0o666); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, StderrName), nil, 0o666); err != nil {
		return err
	}
	for _, name := range s.spec.Dirs {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o777); err != nil {
			return err
		}
	}
	return nil
}

func emptyDir(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// stageHandle is premix's side of a stage.
type stageHandle struct {
	dir  string // of its task or template
	cmd  *exec.Cmd
	link *link
	held templateInfo
	room *bundle.Bundle // of its container; nil: there is none

	ready chan event // first event of the role
	done  chan struct{}

	mu      sync.Mutex // guards the maps and the counter
	next    int
	replies map[int]chan event // outcome of a request
	exits   map[int]chan event // end of a task
	early   map[int]event      // ends that came before deliver
	dead    *event
}

// spawner makes child processes from one OS thread that lasts as long as
// premix: PDEATHSIG fires when the thread that made the child ends.
var spawner = sync.OnceValue(func() chan func() {
	jobs := make(chan func())
	go func() {
		runtime.LockOSThread()
		for job := range jobs {
			job()
		}
	}()
	return jobs
})

// openStage starts a stage, with a bundle of its own where it is to make a
// container.
func (s *Starter) openStage(cfg stageConfig) (*stageHandle, error) {
	if cfg.Container == nil {
		return openStage(cfg, nil)
	}
	room, err := cfg.Container.furnish(s.spec)
	if err != nil {
		return nil, err
	}
	h, err := openStage(cfg, room)
	if err != nil {
		return nil, errors.Join(err, room.Close())
	}
	return h, nil
}

func openStage(cfg stageConfig, room *bundle.Bundle) (*stageHandle, error) {
	if cfg.Namespaces {
		for _, dir := range []string{FixedDir, logDir} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return nil, err
			}
		}
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socketpair: %w", err)
	}
	if err := unix.SetNonblock(pair[0], true); err != nil { // read through the poller, not by a thread a stage
		return nil, err
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "stage"), os.NewFile(uintptr(pair[1]), "premix")
	defer theirs.Close()
	cmd := exec.Command("/proc/self/exe", StageArg)
	cmd.Args[0] = "premix"
	cmd.ExtraFiles = []*os.File{theirs} // descriptor 3, stageSocket
	cmd.Stderr = os.Stderr
	cmd.Env = stageEnv()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if cfg.Namespaces {
		// With PID 1 the kernel ends the whole namespace. Without one the stage has
		// to outlive premix, by the moment that it takes to end what it started.
		cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWPID | unix.CLONE_NEWNS
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	started := make(chan error)
	spawner() <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		ours.Close()
		return nil, fmt.Errorf("start a stage: %w", err)
	}
	h := &stageHandle{
		dir: cfg.Task.Dir, room: room, cmd: cmd, link: newLink(ours), ready: make(chan event, 1), done: make(chan struct{}),
		replies: map[int]chan event{}, exits: map[int]chan event{}, early: map[int]event{},
	}
	if err := h.link.send(cfg); err != nil {
		cmd.Process.Kill()
		cmd.Wait()
		ours.Close()
		return nil, fmt.Errorf("configure a stage: %w", err)
	}
	go h.listen()
	return h, nil
}

// stageEnv is the environment of stages, not of tools. One thread suffices.
func stageEnv() []string {
	env := []string{"GOMAXPROCS=1", "GOGC=400"}
	for _, key := range []string{"PATH", "GOCOVERDIR"} {
		if v, ok := os.LookupEnv(key); ok {
			env = append(env, key+"="+v)
		}
	}
	return env
}

// listen hands events on until the stage ends; then whoever still waits learns
// that it has.
func (h *stageHandle) listen() {
	for {
		var e event
		if err := h.link.receive(&e); err != nil {
			break
		}
		h.mu.Lock()
		switch {
		case e.Kind == evExited:
			if c := h.exits[e.ID]; c != nil {
				c <- e
				delete(h.exits, e.ID)
			} else {
				h.early[e.ID] = e
			}
		case e.ID == 0:
			select {
			case h.ready <- e:
			default: // a failure after the role had begun: the end follows
			}
		default:
			if c := h.replies[e.ID]; c != nil {
				c <- e
				delete(h.replies, e.ID)
			}
		}
		h.mu.Unlock()
	}
	h.link.f.Close()
	err := h.cmd.Wait()
	if h.room != nil {
		// What cannot be taken away now, the next premix will.
		_ = h.room.Close()
	}
	gone := event{Kind: evFailed, Error: fmt.Sprintf("its stage ended (%v)", err)}
	h.mu.Lock()
	h.dead = &gone
	for id, c := range h.replies {
		c <- gone
		delete(h.replies, id)
	}
	for id, c := range h.exits {
		c <- gone
		delete(h.exits, id)
	}
	h.mu.Unlock()
	select {
	case h.ready <- gone:
	default:
	}
	close(h.done)
}

// endedEarly is toolEnded as a stage has told it.
type endedEarly struct{ text string }

func (e *endedEarly) Error() string { return e.text }

// await waits for the first event of the stage's role, which must be kind.
func (h *stageHandle) await(ctx context.Context, kind eventKind) error {
	select {
	case e := <-h.ready:
		if e.Ended {
			return &endedEarly{e.Error}
		}
		if e.Kind != kind {
			return errors.New(e.Error)
		}
		h.held = e.Template
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// deliver sends the end of task id to c, at once if it has come already.
func (h *stageHandle) deliver(id int, c chan event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e, ok := h.early[id]; ok {
		delete(h.early, id)
		c <- e
		return
	}
	if h.dead != nil {
		c <- *h.dead
		return
	}
	h.exits[id] = c
}

// ask sends a request and waits for its outcome.
func (h *stageHandle) ask(ctx context.Context, r request) (event, error) {
	reply := make(chan event, 1)
	h.mu.Lock()
	if h.dead != nil {
		h.mu.Unlock()
		return event{}, errors.New(h.dead.Error)
	}
	h.next++
	r.ID = h.next
	h.replies[r.ID] = reply
	h.mu.Unlock()
	if err := h.link.send(r); err != nil {
		return event{}, fmt.Errorf("the stage does not answer: %w", err)
	}
	select {
	case e := <-reply:
		e.ID = r.ID
		if e.Kind == evFailed {
			return e, errors.New(e.Error)
		}
		return e, nil
	case <-ctx.Done():
		return event{ID: r.ID}, ctx.Err()
	}
}

func (h *stageHandle) fork(ctx context.Context, t Task, hide string, c *containerConfig, done chan event) (int, error) {
	e, err := h.ask(ctx, request{Op: opFork, Task: t, Hide: hide, Container: c})
	if err != nil {
		return 0, err
	}
	h.deliver(e.ID, done)
	return e.ID, nil
}

func (h *stageHandle) send(r request) error { return h.link.send(r) }

// close ends the stage and what it started, and waits for its end.
func (h *stageHandle) close() {
	if raw, err := h.link.f.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { unix.Shutdown(int(fd), unix.SHUT_WR) })
	}
	select {
	case <-h.done:
	case <-time.After(20 * time.Second): // what a stage without namespaces leaves nobody ends
		h.cmd.Process.Kill()
		<-h.done
	}
}

// probeHost finds out what this machine and user allow.
func probeHost() host {
	var h host
	h.namespaces = os.Geteuid() == 0 && hasCapability(unix.CAP_SYS_ADMIN)
	path, err := criu.Find()
	switch {
	case err != nil:
		h.noCriu, h.hint = err.Error(), "install CRIU, or run `make setup` in premix's source; `premix doctor` tells more"
	case !h.namespaces:
		h.noCriu = "it needs root (CAP_SYS_ADMIN) to make namespaces and to restore"
		h.hint = "run premix as root or through sudo; `premix doctor` shows the rule"
	default:
		h.criu = path
	}
	return h
}

func hasCapability(c int) bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if unix.Capget(&hdr, &data[0]) != nil {
		return false
	}
	return data[c/32].Effective&(1<<(c%32)) != 0
}
