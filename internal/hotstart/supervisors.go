package hotstart

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/image/bundle"
	"premix/internal/kit/proc"
)

// A supervisor serves one task or template after another, since starting a supervisor takes longer
// than starting a tool hot. Between two tasks a supervisor has no children and no mounts of
// its own, and is in premix's cgroup, so that each task begins as in a new supervisor.
// There are two exceptions: a supervisor that makes a container ends with it, since it is
// PID 1 of the container's namespace, and a supervisor in which something failed ends too.

// supervisors are the supervisors of a Starter that wait for a task.
type supervisors struct {
	mu     sync.Mutex // guards the fields below
	idle   []*supervisorProcess
	closed bool
}

// take returns a supervisor that waits, or nil.
func (s *supervisors) take() *supervisorProcess {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.idle) > 0 {
		last := len(s.idle) - 1
		p := s.idle[last]
		s.idle = s.idle[:last]
		select {
		case <-p.done: // it was killed
		default:
			return p
		}
	}
	return nil
}

// warm starts supervisors that have read the image of a snapshot, for the first n tasks.
func (s *supervisors) warm(n int, image string) {
	for range n {
		go func() {
			p, err := spawnSupervisor(nil)
			if err != nil {
				return // the task starts its own, and reports the error
			}
			if p.link.send(request{Op: opRead, Image: image}) != nil {
				p.end()
				return
			}
			s.put(p)
		}()
	}
}

// put keeps an idle supervisor for the next task. It ends the supervisor if supervisors is closed.
func (s *supervisors) put(p *supervisorProcess) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		p.finish()
		return
	}
	s.idle = append(s.idle, p)
}

// close ends the supervisors that wait.
func (s *supervisors) close() {
	s.mu.Lock()
	idle := s.idle
	s.idle, s.closed = nil, true
	s.mu.Unlock()
	for _, p := range idle {
		p.finish()
	}
	for _, p := range idle {
		p.end()
	}
}

// supervisorProcess is a supervisor, as premix has it.
type supervisorProcess struct {
	cmd  *exec.Cmd
	link *link
	room *bundle.Bundle // of its container; nil without a container
	done chan struct{}  // closed when it has ended

	mu   sync.Mutex // guards the fields below
	turn int
	now  *supervisorHandle // nil: it waits for a task
	dead bool
}

// supervisorHandle is one task or template of a supervisor.
type supervisorHandle struct {
	*supervisorProcess
	dir   string // of its task or template
	turn  int
	held  templateInfo
	looks []access // of the template's tool

	ready chan event    // first event of the role
	over  chan struct{} // closed when the supervisor waits for its next task, or has ended

	next     int                // guarded, like the fields below, by supervisorProcess.mu
	replies  map[int]chan event // outcome of a request
	exit     chan event         // gets the end of the task
	finished *event             // the end of the task, or of the supervisor, if it came before deliver
	dead     *event
}

// spawner makes child processes from one OS thread that lasts as long as
// premix: PDEATHSIG fires when the thread that made the child ends.
var spawner = sync.OnceValue(func() chan func() {
	calls := make(chan func())
	go func() {
		runtime.LockOSThread()
		for call := range calls {
			call()
		}
	}()
	return calls
})

// openSupervisor gives a task to a supervisor. If the supervisor makes a container, it gets a new bundle.
func (s *Starter) openSupervisor(cfg supervisorConfig) (*supervisorHandle, error) {
	if cfg.Namespaces && os.Geteuid() == 0 {
		if err := os.MkdirAll(FixedDir, 0o755); err != nil {
			return nil, err
		}
	}
	if cfg.Container == nil {
		if p := s.supervisors.take(); p != nil {
			if h, err := p.begin(cfg); err == nil {
				return h, nil
			}
			p.end() // it was killed; nothing of the task has begun
		}
		p, err := spawnSupervisor(nil)
		if err != nil {
			return nil, err
		}
		return p.begin(cfg)
	}
	room, err := cfg.Container.prepareContainer(s.spec)
	if err != nil {
		return nil, err
	}
	p, err := spawnSupervisor(room)
	if err != nil {
		return nil, errors.Join(err, room.Close())
	}
	return p.begin(cfg)
}

// spawnSupervisor starts a supervisor, which waits for a task. With a bundle it makes a
// container for one task.
func spawnSupervisor(room *bundle.Bundle) (*supervisorProcess, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socketpair: %w", err)
	}
	if err := unix.SetNonblock(pair[0], true); err != nil { // read through the poller, not by a thread a supervisor
		return nil, err
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "supervisor"), os.NewFile(uintptr(pair[1]), "premix")
	defer theirs.Close()
	cmd := exec.Command("/proc/self/exe", SupervisorArg)
	cmd.Args[0] = "premix"
	cmd.ExtraFiles = []*os.File{theirs} // descriptor 3, supervisorSocket
	cmd.Stderr = os.Stderr
	cmd.Env = supervisorEnv()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if room != nil {
		// With PID 1 the kernel ends the whole namespace. Without one the supervisor has
		// to outlive premix for as long as it takes to end its processes.
		cmd.SysProcAttr = bundle.Namespaces()
		cmd.SysProcAttr.Setpgid = true
	}
	started := make(chan error)
	spawner() <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		ours.Close()
		return nil, fmt.Errorf("start a supervisor: %w", err)
	}
	p := &supervisorProcess{room: room, cmd: cmd, link: newLink(ours), done: make(chan struct{})}
	go p.listen()
	// A task may stop its supervisor. One that is killed for that ends with its task.
	go proc.Watch(cmd.Process.Pid, p.done, func() { _ = cmd.Process.Signal(unix.SIGCONT) }, func() { _ = cmd.Process.Kill() }, func() {})
	return p, nil
}

// supervisorEnv returns the environment of supervisors, not of tools. One thread suffices.
func supervisorEnv() []string {
	env := []string{"GOMAXPROCS=1", "GOGC=400"}
	for _, key := range []string{"PATH", "GOCOVERDIR"} {
		if v, ok := os.LookupEnv(key); ok {
			env = append(env, key+"="+v)
		}
	}
	return env
}

// begin gives a task to a supervisor that waits for one.
func (p *supervisorProcess) begin(cfg supervisorConfig) (*supervisorHandle, error) {
	h := &supervisorHandle{
		supervisorProcess: p, dir: cfg.Task.Dir, ready: make(chan event, 1), over: make(chan struct{}), replies: map[int]chan event{},
	}
	p.mu.Lock()
	dead := p.dead
	if !dead {
		p.turn++
		p.now, h.turn = h, p.turn
	}
	p.mu.Unlock()
	if dead {
		return nil, errors.New("the supervisor has ended")
	}
	if err := h.send(request{Op: opBegin, Config: &cfg}); err != nil {
		p.cmd.Process.Kill()
		<-p.done
		return nil, fmt.Errorf("configure a supervisor: %w", err)
	}
	return h, nil
}

// listen hands events on until the supervisor ends, and then its end to all who wait.
func (p *supervisorProcess) listen() {
	for {
		var e event
		if err := p.link.receive(&e); err != nil {
			break
		}
		p.mu.Lock()
		switch h := p.now; {
		case h == nil: // nothing is expected of a supervisor that waits
		case e.Kind == evIdle:
			p.now = nil
			close(h.over)
		default:
			h.handle(e)
		}
		p.mu.Unlock()
	}
	p.link.f.Close()
	err := p.cmd.Wait()
	if p.room != nil {
		// A bundle that cannot be removed now is removed by the next premix.
		_ = p.room.Close()
	}
	p.mu.Lock()
	p.dead = true
	h := p.now
	p.now = nil
	if h != nil {
		h.lost(event{Kind: evFailed, Error: fmt.Sprintf("its supervisor ended (%v)", err)})
	}
	p.mu.Unlock()
	close(p.done)
	if h != nil {
		close(h.over)
	}
}

// finish asks the supervisor to end, with the processes that it started.
func (p *supervisorProcess) finish() {
	if raw, err := p.link.f.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { unix.Shutdown(int(fd), unix.SHUT_WR) })
	}
}

// end ends the supervisor and the processes that it started, and waits for its end.
func (p *supervisorProcess) end() {
	p.finish()
	select {
	case <-p.done:
	case <-time.After(supervisorEndWithin): // without namespaces, processes that it started may stay
		p.cmd.Process.Kill()
		<-p.done
	}
}

// supervisorEndWithin is the time that a supervisor has to end the processes that it started.
const supervisorEndWithin = 20 * time.Second

// handle notes an event. The caller holds h.mu.
func (h *supervisorHandle) handle(e event) {
	switch {
	case e.Kind == evExited:
		h.end(e)
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
}

// lost sends the end of the supervisor to all waiting callers. The caller holds h.mu.
func (h *supervisorHandle) lost(gone event) {
	h.dead = &gone
	for id, c := range h.replies {
		c <- gone
		delete(h.replies, id)
	}
	h.end(gone)
	select {
	case h.ready <- gone:
	default:
	}
}

// end keeps the first end of the task and delivers it. The caller holds h.mu.
func (h *supervisorHandle) end(e event) {
	if h.finished != nil {
		return
	}
	h.finished = &e
	if h.exit != nil {
		h.exit <- e
	}
}

// refusal is a *frozen.Refused that came from a supervisor.
type refusal struct{ text string }

func (e *refusal) Error() string { return e.text }

// endedEarly is a *toolFinished that came from a supervisor.
type endedEarly struct{ text string }

func (e *endedEarly) Error() string { return e.text }

// await waits for the first event of the supervisor's role, which must be kind.
func (h *supervisorHandle) await(ctx context.Context, kind eventKind) error {
	select {
	case e := <-h.ready:
		if e.Ended {
			return &endedEarly{e.Error}
		}
		if e.Kind != kind {
			return errors.New(e.Error)
		}
		h.held, h.looks = e.Template, e.Looks
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// deliver sends the end of the task to c, at once if it has come already.
func (h *supervisorHandle) deliver(c chan event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.exit = c
	if h.finished != nil {
		c <- *h.finished
	}
}

// ask sends a request and waits for its outcome.
func (h *supervisorHandle) ask(ctx context.Context, r request) (event, error) {
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
	if err := h.send(r); err != nil {
		return event{}, fmt.Errorf("the supervisor does not answer: %w", err)
	}
	select {
	case e := <-reply:
		e.ID = r.ID
		switch {
		case e.Refused:
			return e, &refusal{e.Error}
		case e.Kind == evFailed:
			return e, errors.New(e.Error)
		}
		return e, nil
	case <-ctx.Done():
		return event{ID: r.ID}, ctx.Err()
	}
}

func (h *supervisorHandle) send(r request) error {
	r.Turn = h.turn
	return h.link.send(r)
}

// close ends the remaining processes of the task or template, and waits for their end.
// A supervisor whose task has ended then waits for the next task.
func (h *supervisorHandle) close(idle *supervisors) {
	h.mu.Lock()
	over := h.finished != nil && h.finished.Kind == evExited
	h.mu.Unlock()
	if over {
		select {
		case <-h.over:
			idle.put(h.supervisorProcess)
			return
		case <-time.After(supervisorEndWithin):
		}
	}
	h.supervisorProcess.end()
}
