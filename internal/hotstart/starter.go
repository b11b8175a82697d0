package hotstart

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/hotstart/placeholder"
	"premix/internal/hotstart/tracer"
	"premix/internal/kit/exit"
	"premix/internal/kit/mountinfo"
	"premix/internal/kit/owner"
)

// Options steers a Starter.
type Options struct {
	Store string // directory of snapshots; empty: DefaultStore()
	Start Kind   // Auto, or the only kind that will do
	Tasks int    // number of tasks that are going to be started, where known
	Slots int    // number of tasks that run at once; 0 is one
	Keep  bool   // the snapshot itself is the point, for runs to come
	// Measure has Prepare leave the choice open where Start is Auto and no snapshot is at hand:
	// see Starter.Trial.
	Measure bool
	Log     func(format string, args ...any) // notices for people, one line each; nil: none
}

// Unavailable is the error for a kind of start that is impossible.
type Unavailable struct {
	Kind     Kind
	Reason   string
	HintText string // the hint; may be empty
}

func (e *Unavailable) Error() string {
	return fmt.Sprintf("a %s start is not possible: %s", e.Kind, e.Reason)
}

// ExitCode implements exit.Coded.
func (*Unavailable) ExitCode() exit.Code { return exit.Unavailable }

// Hint returns the hint for the user.
func (e *Unavailable) Hint() string { return e.HintText }

// Starter starts the tasks of one Spec.
type Starter struct {
	spec Spec
	opt  Options
	host host

	supervisors supervisors // that wait for a task
	scratch     string
	trial       time.Duration

	mu       sync.Mutex // guards the fields below; held briefly, never over a start
	kind     Kind
	reason   string
	snapshot *Snapshot // for Hot; locked against removal
}

// host is the machine and the user, as far as starts depend on them.
type host struct {
	namespaces bool   // may make namespaces
	noHot      string // why hot starts are impossible; empty if they are possible
	hint       string
}

// New returns a Starter whose tasks start cold until Prepare found better.
func New(spec Spec, opt Options) (*Starter, error) {
	if len(spec.Argv) == 0 {
		return nil, errors.New("the command is empty")
	}
	if spec.Sample == "" && spec.Shape("") != "" {
		return nil, errSample
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
	// Supervisors use it from other working directories.
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
	return &Starter{spec: spec, opt: opt, host: hostOf(spec), kind: Cold, reason: "not prepared"}, nil
}

// CheckStore returns an error if snapshots cannot be kept in a directory. It makes the
// directory if it is missing.
func CheckStore(dir string) error {
	if err := owner.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	// A snapshot is a process that is going to run as this user.
	if err := owner.Private(dir); err != nil {
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
		return "", fmt.Errorf("no directory for snapshots (set PREMIX_HOME): %w", err)
	}
	return filepath.Join(cache, "premix", "snapshots"), nil
}

// Decision returns the kind of start that tasks will have, and the reason.
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

// Close unlocks the snapshot, and ends the idle supervisors.
func (s *Starter) Close() error {
	s.supervisors.close()
	s.mu.Lock()
	snapshot := s.snapshot
	s.snapshot = nil
	s.mu.Unlock()
	if snapshot != nil {
		snapshot.unlock()
	}
	return nil
}

// Process is a task that was started.
type Process struct {
	Kind     Kind
	Reason   string
	Snapshot string // id of the snapshot that it started from; "" if it started cold
	// Latency is the time from the call of Start until the tool opened its
	// first input (for ReadyLine: until it ran). Valid once Wait has returned.
	Latency time.Duration
	// Stdout is the reading end of a streamed stdout; the caller closes it.
	Stdout *os.File

	supervisor  *supervisorHandle
	supervisors *supervisors
	looks       []access // of a watched tool; valid once Wait has returned
	tracing     time.Duration
	watch       *inputWatch
	done        chan event
	started     time.Time
	ran         time.Time
}

// Wait waits for the end of the task. An error means that its fate is unknown:
// its supervisor died.
func (p *Process) Wait() (Exit, error) {
	e := <-p.done
	opened, ok := p.watch.stop()
	if !ok {
		opened = p.ran
	}
	p.Latency = opened.Sub(p.started)
	p.supervisor.close(p.supervisors)
	p.looks, p.tracing = e.Looks, e.Tracing
	if e.Kind != evExited {
		return Exit{Code: -1}, fmt.Errorf("the task was lost: %s", e.Error)
	}
	return e.Exit, nil
}

// Signal sends a signal to all processes of the task.
func (p *Process) Signal(sig syscall.Signal) error {
	return p.supervisor.send(request{Op: opSignal, Signal: sig})
}

// Start starts one task. With Auto, if a hot start fails, Start logs the reason and
// starts the task cold. With an explicit kind the failure is an *Unavailable, unless the
// snapshot is in quarantine. Start is safe for concurrent use.
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
	d := s.quarantined()
	if s.opt.Start != Auto && d == nil {
		return nil, &Unavailable{Kind: kind, Reason: err.Error(), HintText: "let premix fall back with --start auto"}
	}
	if err := emptyDir(t.Dir); err != nil {
		return nil, err
	}
	reason = fmt.Sprintf("the %s start failed: %v", kind, err)
	if d == nil {
		s.opt.Log("%s start failed, starting cold: %v", kind, err)
	} else {
		_, reason = s.Decision()
	}
	p, cerr := s.start(ctx, Cold, t)
	if cerr != nil {
		return nil, cerr
	}
	p.Kind, p.Reason = Cold, reason
	return p, nil
}

// InputError is an input that cannot be used, or on which the tool fails however
// it is started. Err names the file.
type InputError struct{ Err error }

func (e *InputError) Error() string { return e.Err.Error() }
func (e *InputError) Unwrap() error { return e.Err }

func (s *Starter) start(ctx context.Context, kind Kind, t Task) (*Process, error) {
	started := time.Now()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	dir, err := filepath.EvalSymlinks(t.Dir)
	if err != nil {
		return nil, err
	}
	t.Dir = dir
	if kind == Hot {
		if err := s.sameKinds(t); err != nil {
			return nil, err
		}
	}
	if t.Inputs, err = s.layOut(t, s.host.namespaces); err != nil {
		return nil, err
	}
	if kind == Hot {
		if err := s.withinBounds(t); err != nil {
			return nil, err
		}
	}
	p := &Process{started: started, supervisors: &s.supervisors, done: make(chan event, 1)}
	if s.spec.Stream {
		fd, err := unix.Open(filepath.Join(dir, StdoutName), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		p.Stdout = os.NewFile(uintptr(fd), StdoutName)
	}
	p.watch = watchInputs(s.spec, t)
	if err := s.begin(ctx, p, kind, t); err != nil {
		p.watch.stop()
		if p.Stdout != nil {
			p.Stdout.Close()
		}
		return nil, err
	}
	p.ran = time.Now()
	return p, nil
}

// begin brings the tool to life by one kind of start.
func (s *Starter) begin(ctx context.Context, p *Process, kind Kind, t Task) error {
	cfg := s.config(t)
	cfg.Hide = filepath.Dir(t.Dir)
	switch kind {
	case Cold:
		cfg.Role, cfg.Watch = roleCold, t.watch
	case Hot:
		s.mu.Lock()
		snap := s.snapshot
		s.mu.Unlock()
		if snap == nil {
			return errors.New("the snapshot was removed")
		}
		cfg.Role, p.Snapshot = roleHot, snap.ID
		if err := snap.outfit(&cfg, s.spec, t); err != nil {
			return err
		}
	default:
		return fmt.Errorf("unknown kind of start %q", kind)
	}
	st, err := s.openSupervisor(cfg)
	if err != nil {
		return err
	}
	p.supervisor = st
	if err := st.await(ctx, evStarted); err != nil {
		st.close(&s.supervisors)
		return err
	}
	st.deliver(p.done)
	return nil
}

// otherKind says that the input of a task differs from the placeholder that a tool has
// read, in a property that two placeholders could not differ in.
type otherKind struct{ input, kind, seen string }

func (e *otherKind) Error() string {
	return fmt.Sprintf("the tool looked into its input %s before the stop; the probe's was %s, and this one is %s", e.input, e.seen, e.kind)
}

// sameKinds compares the kinds of a task's inputs with the kinds of the inputs that the
// tool has opened before the stop.
func (s *Starter) sameKinds(t Task) error {
	s.mu.Lock()
	snap := s.snapshot
	s.mu.Unlock()
	if snap == nil {
		return nil
	}
	for _, name := range s.spec.Inputs {
		seen, looked := snap.Kinds[name]
		if !looked {
			continue
		}
		kind, err := placeholder.Kind(t.Inputs[name], s.isPlain(name))
		if err != nil {
			return &InputError{err}
		}
		if kind != seen {
			return &otherKind{name, kind, seen}
		}
	}
	return nil
}

// withinBounds compares the sizes and times of a task's inputs with the inputs of the
// two preparations, if the tool has asked for them before the stop.
func (s *Starter) withinBounds(t Task) error {
	s.mu.Lock()
	snap := s.snapshot
	s.mu.Unlock()
	if snap == nil {
		return nil
	}
	for _, name := range s.spec.Inputs {
		b, ok := snap.Bounds[name]
		if !ok {
			continue
		}
		path := t.Inputs[name]
		if path == "" { // laid out as a link or a copy
			path = filepath.Join(t.Dir, name)
		}
		if reason := b.Refuses(path); reason != "" {
			return errors.New(reason)
		}
	}
	return nil
}

// config returns the part of a supervisor's configuration that follows from the Spec.
func (s *Starter) config(t Task) supervisorConfig {
	c := supervisorConfig{
		Namespaces: s.host.namespaces,
		Argv:       Command(s.spec.Argv, t.Sample), Env: s.spec.Env, Inputs: s.spec.Inputs,
		Ready: s.spec.Ready.Kind, Stream: s.spec.Stream, Task: t,
	}
	if s.spec.Ready.Line != nil {
		c.Line = s.spec.Ready.Line.String()
	}
	if s.spec.Image != nil {
		c.Container = &containerConfig{Request: s.spec.request()}
		c.Container.Request.Command = c.Argv
	}
	return c
}

// layOut makes the files that a task needs in its directory before it starts. It
// returns the inputs that must still be bind-mounted.
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

// probeHost checks which kinds of start are possible on this machine for this user.
func probeHost() host {
	var h host
	h.namespaces = os.Geteuid() == 0 && hasCapability(unix.CAP_SYS_ADMIN) && rootIsMount()
	if err := tracer.Supported(); err != nil {
		h.noHot = err.Error()
	} else if hint, err := canTrace(); err != nil {
		h.noHot, h.hint = err.Error(), hint
	}
	return h
}

// hostOf is probeHost for the tasks of a Spec. Those of an image have namespaces also where the
// user is not root.
func hostOf(spec Spec) host {
	h := probeHost()
	h.namespaces = h.namespaces || spec.Image != nil && os.Geteuid() != 0
	return h
}

// rootIsMount reports whether the root directory is a mount point: in a plain
// chroot it may not be, and then mounts cannot be made private.
func rootIsMount() bool {
	list, _ := mountinfo.Read()
	return mountinfo.Top(list, "/") != nil
}

func hasCapability(c int) bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if unix.Capget(&hdr, &data[0]) != nil {
		return false
	}
	return data[c/32].Effective&(1<<(c%32)) != 0
}
