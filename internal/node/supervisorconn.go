package node

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/mountinfo"
)

// supervisorConn is the worker's side of the link. It outlives the supervisor: it
// starts another one, without a visible effect on its users. It is a [lazyfs.Kernel].
type supervisorConn struct {
	config   *Config
	listener *os.File
	lock     *os.File
	log      *slog.Logger
	onEnd    func() // the supervisor was asked to end the node

	mu       sync.Mutex
	link     *link
	kept     map[string]kept // the worker's own duplicates; their owners close them
	calls    map[uint64]chan error
	lastCall uint64
	pid      int // of the supervisor
	ready    bool
	closing  bool
	losses   []time.Time // deaths of supervisors
}

// errLost means that the supervisor died before it answered.
var errLost = errors.New("the supervisor died")

// inheritance is the state that a worker receives on the link when it begins.
type inheritance struct {
	supervisorConn *supervisorConn
	kept           map[string]kept // the descriptors of earlier workers
	deaths         int
}

// inherit receives all state from the supervisor. If the supervisor dies before it has
// sent all, the worker ends: the unsent state is lost anyway.
func inherit(l *link) (*inheritance, error) {
	t := &supervisorConn{link: l, pid: os.Getppid(), kept: map[string]kept{}, calls: map[uint64]chan error{}}
	in := &inheritance{t, map[string]kept{}, 0}
	for {
		m, err := l.receive()
		if err != nil {
			return nil, fmt.Errorf("the supervisor has not handed everything over: %w", err)
		}
		switch m.Op {
		case opConfig:
			t.config = m.Config
		case opListener:
			t.listener = m.fd
		case opLock:
			t.lock = m.fd
		case opKept:
			in.kept[m.Key] = kept{m.fd, m.State}
		case opGo:
			if t.config == nil || t.listener == nil || t.lock == nil {
				return nil, errors.New("the supervisor has not handed everything over")
			}
			in.deaths = m.Deaths
			return in, nil
		}
	}
}

// run handles the supervisor's messages, and never returns.
func (t *supervisorConn) run() {
	for {
		t.mu.Lock()
		l := t.link
		t.mu.Unlock()
		m, err := l.receive()
		if err == nil {
			switch m.Op {
			case opResult:
				t.result(m)
			case opEnd:
				go t.onEnd()
			}
			continue
		}
		l.Close()
		if err := t.renew(); err != nil {
			t.log.Error("no supervisor any more: this worker ends, mounts give EIO from now on", "error", err)
			os.Exit(1)
		}
	}
}

// result delivers the answer of a call to the goroutine that waits for it.
func (t *supervisorConn) result(m message) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c, ok := t.calls[m.ID]; ok {
		delete(t.calls, m.ID)
		if m.Errno != 0 {
			c <- m.Errno
		}
		close(c)
	}
}

// renew starts another supervisor after the death of the old one.
func (t *supervisorConn) renew() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closing {
		select {} // the process is about to end, and needs no supervisor
	}
	now := time.Now()
	t.losses = append(t.losses, now)
	t.losses = slices.DeleteFunc(t.losses, func(l time.Time) bool { return now.Sub(l) > deathsWithin })
	if len(t.losses) >= t.config.MaxDeaths {
		return fmt.Errorf("the supervisor died %d times within %v", len(t.losses), deathsWithin)
	}
	l, theirs, err := newLink()
	if err != nil {
		return err
	}
	defer theirs.Close()
	cmd := exec.Command(self)
	cmd.Args = []string{"premix", AdoptArg, t.config.Dir}
	cmd.Dir = "/"
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		l.Close()
		return err
	}
	go func() {
		_ = cmd.Wait() // the link shows its end
	}()
	t.link, t.pid = l, cmd.Process.Pid
	// If this one dies too, run notices.
	_ = l.send(message{Op: opPID, PID: os.Getpid()})
	_ = handOver(l, t.config, t.listener, t.lock, t.kept)
	if t.ready {
		_ = l.send(message{Op: opReady})
	}
	for id, c := range t.calls {
		c <- errLost
		close(c)
		delete(t.calls, id)
	}
	t.log.Warn("the supervisor died, another one goes on", "supervisor", cmd.Process.Pid)
	return nil
}

// supervisor returns the supervisor's process id.
func (t *supervisorConn) supervisor() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pid
}

// keep makes the supervisor keep a descriptor. The caller still owns it, and must drop
// the key before closing it.
func (t *supervisorConn) keep(key string, f *os.File, state []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept[key] = kept{f, state}
	_ = t.link.send(message{Op: opKeep, Key: key, State: state, fd: f}) // if it is lost, renew sends it again
}

// hold records a descriptor that the supervisor already keeps.
func (t *supervisorConn) hold(key string, f *os.File, state []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept[key] = kept{f, state}
}

// drop makes the supervisor close a descriptor.
func (t *supervisorConn) drop(key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.kept, key)
	_ = t.link.send(message{Op: opDrop, Key: key})
}

// say sends a message that has no answer.
func (t *supervisorConn) say(m message) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch m.Op {
	case opReady:
		t.ready = true
	case opStop, opRestart:
		t.closing = true
	}
	_ = t.link.send(m) // if it is lost, renew repeats it if necessary
}

// Mount is mount(2), made by the supervisor.
func (t *supervisorConn) Mount(source, target, fstype string, flags uintptr, data string) error {
	return t.call(call{Source: source, Target: target, Type: fstype, Flags: flags, Data: data})
}

// Unmount is umount2(2), made by the supervisor.
func (t *supervisorConn) Unmount(target string, flags int) error {
	return t.call(call{Unmount: true, Target: target, Flags: uintptr(flags)})
}

func (t *supervisorConn) call(c call) error {
	for {
		answer := make(chan error, 1)
		t.mu.Lock()
		t.lastCall++
		t.calls[t.lastCall] = answer
		_ = t.link.send(message{Op: opCall, ID: t.lastCall, Call: &c}) // if it is lost, renew ends the call with errLost
		t.mu.Unlock()
		err := <-answer
		if !errors.Is(err, errLost) {
			if err != nil {
				name := "mount"
				if c.Unmount {
					name = "umount"
				}
				return os.NewSyscallError(name, err)
			}
			return nil
		}
		// The dead supervisor may have made the call. Only premix mounts on this
		// target.
		list, err := mountinfo.Read()
		if err != nil {
			return err
		}
		there := mountinfo.Top(list, c.Target) != nil
		if there != c.Unmount && c.Flags&unix.MS_REMOUNT == 0 {
			return nil
		}
	}
}
