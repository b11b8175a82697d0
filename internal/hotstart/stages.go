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
)

// A stage serves one task or template after another, since starting a stage takes longer
// than starting a tool hot. Between two tasks a stage has no children and no mounts of
// its own, and is in premix's cgroup, so that each task begins as in a new stage.
// There are two exceptions: a stage that makes a container ends with it, since it is
// PID 1 of the container's namespace, and a stage in which something failed ends too.

// stages are the stages of a Starter that wait for a task.
type stages struct {
	mu     sync.Mutex // guards the fields below
	idle   []*stageProcess
	closed bool
}

// take returns a stage that waits, or nil.
func (s *stages) take() *stageProcess {
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

// warm starts stages that have read the image of a snapshot, for the first n tasks.
func (s *stages) warm(n int, image string) {
	for range n {
		go func() {
			p, err := spawnStage(nil)
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

// put keeps an idle stage for the next task. It ends the stage if stages is closed.
func (s *stages) put(p *stageProcess) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		p.finish()
		return
	}
	s.idle = append(s.idle, p)
}

// close ends the stages that wait.
func (s *stages) close() {
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

// stageProcess is a stage, as premix has it.
type stageProcess struct {
	cmd  *exec.Cmd
	link *link
	room *bundle.Bundle // of its container; nil without a container
	done chan struct{}  // closed when it has ended

	mu   sync.Mutex // guards the fields below
	turn int
	now  *stageHandle // nil: it waits for a task
	dead bool
}

// stageHandle is one task or template of a stage.
type stageHandle struct {
	*stageProcess
	dir   string // of its task or template
	turn  int
	held  templateInfo
	looks []look // of the template's tool

	ready chan event    // first event of the role
	over  chan struct{} // closed when the stage waits for its next task, or has ended

	next    int                // guarded, like the fields below, by stageProcess.mu
	replies map[int]chan event // outcome of a request
	exit    chan event         // gets the end of the task
	ended   *event             // the end of the task, or of the stage, if it came before deliver
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

// openStage gives a task to a stage. If the stage makes a container, it gets a new bundle.
func (s *Starter) openStage(cfg stageConfig) (*stageHandle, error) {
	if cfg.Namespaces {
		if err := os.MkdirAll(FixedDir, 0o755); err != nil {
			return nil, err
		}
	}
	if cfg.Container == nil {
		if p := s.stages.take(); p != nil {
			if h, err := p.begin(cfg); err == nil {
				return h, nil
			}
			p.end() // it was killed; nothing of the task has begun
		}
		p, err := spawnStage(nil)
		if err != nil {
			return nil, err
		}
		return p.begin(cfg)
	}
	room, err := cfg.Container.furnish(s.spec)
	if err != nil {
		return nil, err
	}
	p, err := spawnStage(room)
	if err != nil {
		return nil, errors.Join(err, room.Close())
	}
	return p.begin(cfg)
}

// spawnStage starts a stage, which waits for a task. With a bundle it makes a
// container for one task.
func spawnStage(room *bundle.Bundle) (*stageProcess, error) {
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
	if room != nil {
		// With PID 1 the kernel ends the whole namespace. Without one the stage has
		// to outlive premix for as long as it takes to end its processes.
		cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWNS | unix.CLONE_NEWPID
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	started := make(chan error)
	spawner() <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		ours.Close()
		return nil, fmt.Errorf("start a supervisor: %w", err)
	}
	p := &stageProcess{room: room, cmd: cmd, link: newLink(ours), done: make(chan struct{})}
	go p.listen()
	return p, nil
}

// stageEnv returns the environment of stages, not of tools. One thread suffices.
func stageEnv() []string {
	env := []string{"GOMAXPROCS=1", "GOGC=400"}
	for _, key := range []string{"PATH", "GOCOVERDIR"} {
		if v, ok := os.LookupEnv(key); ok {
			env = append(env, key+"="+v)
		}
	}
	return env
}

// begin gives a task to a stage that waits for one.
func (p *stageProcess) begin(cfg stageConfig) (*stageHandle, error) {
	h := &stageHandle{
		stageProcess: p, dir: cfg.Task.Dir, ready: make(chan event, 1), over: make(chan struct{}), replies: map[int]chan event{},
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

// listen hands events on until the stage ends, and then its end to all who wait.
func (p *stageProcess) listen() {
	for {
		var e event
		if err := p.link.receive(&e); err != nil {
			break
		}
		p.mu.Lock()
		switch h := p.now; {
		case h == nil: // nothing is expected of a stage that waits
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

// finish asks the stage to end, with the processes that it started.
func (p *stageProcess) finish() {
	if raw, err := p.link.f.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { unix.Shutdown(int(fd), unix.SHUT_WR) })
	}
}

// end ends the stage and the processes that it started, and waits for its end.
func (p *stageProcess) end() {
	p.finish()
	select {
	case <-p.done:
	case <-time.After(stageEndWithin): // without namespaces, processes that it started may stay
		p.cmd.Process.Kill()
		<-p.done
	}
}

// stageEndWithin is the time that a stage has to end the processes that it started.
const stageEndWithin = 20 * time.Second

// handle notes an event. The caller holds h.mu.
func (h *stageHandle) handle(e event) {
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

// lost sends the end of the stage to all waiting callers. The caller holds h.mu.
func (h *stageHandle) lost(gone event) {
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
func (h *stageHandle) end(e event) {
	if h.ended != nil {
		return
	}
	h.ended = &e
	if h.exit != nil {
		h.exit <- e
	}
}

// refusal is a *frozen.Refused that came from a stage.
type refusal struct{ text string }

func (e *refusal) Error() string { return e.text }

// endedEarly is a *toolEnded that came from a stage.
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
		h.held, h.looks = e.Template, e.Looks
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// deliver sends the end of the task to c, at once if it has come already.
func (h *stageHandle) deliver(c chan event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.exit = c
	if h.ended != nil {
		c <- *h.ended
	}
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

func (h *stageHandle) send(r request) error {
	r.Turn = h.turn
	return h.link.send(r)
}

// close ends the remaining processes of the task or template, and waits for their end.
// A stage whose task has ended then waits for the next task.
func (h *stageHandle) close(idle *stages) {
	h.mu.Lock()
	over := h.ended != nil && h.ended.Kind == evExited
	h.mu.Unlock()
	if over {
		select {
		case <-h.over:
			idle.put(h.stageProcess)
			return
		case <-time.After(stageEndWithin):
		}
	}
	h.stageProcess.end()
}
