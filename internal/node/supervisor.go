package node

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/lazyfs"
)

// The first arguments of the command lines of a node's processes. The second is the
// node's directory, for readers of the process list.
const (
	SupervisorArg = "__node"
	AdoptArg      = "__node-adopt" // a supervisor that a worker starts after the death of its own
	WorkerArg     = "__node-worker"
	ReaderArg     = "__node-reader" // see reader
)

const (
	// self is the binary of this process, even if its file has been replaced.
	self = "/proc/self/exe"

	linkFD   = 3 // of a worker, and of a supervisor that is adopted by one
	statusFD = 3 // of a supervisor that a client starts: see startSupervisor

	deathsWithin = 10 * time.Second
)

// supervisor keeps the state that must outlive a worker.
type supervisor struct {
	config   *Config
	exe      string // binary of the next worker: a path, or self
	before   string // binary of the last worker that became ready
	listener *os.File
	lock     *os.File
	log      *slog.Logger
	ready    func(error) // called once: with nil when the node is ready, or with the error

	mu   sync.Mutex
	kept map[string]kept
	// The current worker; both change under mu.
	link *link
	pid  int

	served bool   // the current worker has become ready
	failed *Error // why it could not serve, if it said so

	ending bool        // the node should end; under mu
	deaths []time.Time // of workers that were not asked to end
}

// kept is a descriptor with the state that fuse.Resume needs.
type kept struct {
	fd    *os.File
	state []byte
}

// supervise runs until the node has ended. The first worker is the adopted one, or one
// that it starts.
func (s *supervisor) supervise(adopted *link) error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM)
	signal.Ignore(unix.SIGHUP) // the node does not depend on the terminal in which it was started
	defer signal.Stop(signals)
	go func() {
		for range signals {
			s.end()
		}
	}()
	for {
		var child *exec.Cmd
		if adopted != nil {
			s.mu.Lock()
			s.link = adopted
			s.mu.Unlock()
		} else {
			var err error
			if child, err = s.start(); err != nil {
				return fmt.Errorf("start a worker: %w", err)
			}
		}
		next := s.serve()
		s.link.Close()
		switch {
		case child != nil:
			// It has closed the link, and must end.
			if next == nextAgain {
				_ = child.Process.Kill() // it may already be dead
			}
			_ = child.Wait() // its exit status does not matter
		case next == nextAgain && s.pid > 0:
			_ = unix.Kill(s.pid, unix.SIGKILL)
		}
		adopted = nil
		if s.config == nil || s.listener == nil || s.lock == nil {
			return errors.New("the worker died before it had handed everything over")
		}
		switch next {
		case nextStop:
			return nil
		case nextRestart:
			s.log.Info("the worker is replaced", "binary", s.exe)
			continue
		}
		s.mu.Lock()
		ending := s.ending
		s.mu.Unlock()
		if s.before != "" && s.exe != s.before {
			s.log.Error("the worker of another binary does not come up: back to the one before", "binary", s.exe)
			s.exe = s.before
		}
		now := time.Now()
		s.deaths = append(s.deaths, now)
		s.deaths = slices.DeleteFunc(s.deaths, func(t time.Time) bool { return now.Sub(t) > deathsWithin })
		if len(s.deaths) >= s.config.MaxDeaths {
			err := fmt.Errorf("the worker died %d times within %v: giving up, mounts give EIO from now on", len(s.deaths), deathsWithin)
			return err
		}
		if s.failed != nil && s.before == "" {
			return s.failed // the first worker: there is nothing to preserve
		}
		if ending {
			return errors.New("the worker died while the node was ending")
		}
		s.log.Warn("the worker died, another one goes on", "pid", s.pid, "deaths", len(s.deaths))
		if !s.served {
			// The fault may pass: wait a little.
			time.Sleep(time.Duration(len(s.deaths)) * 100 * time.Millisecond)
		}
	}
}

// start starts a worker and passes all state to it.
func (s *supervisor) start() (*exec.Cmd, error) {
	l, theirs, err := newLink()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	cmd := exec.Command(s.exe)
	cmd.Args = []string{"premix", WorkerArg, s.config.Dir}
	cmd.Dir = "/"
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = []*os.File{theirs}
	// Ctrl-C in the terminal of a node in the foreground is for the supervisor only.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		l.Close()
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.link, s.pid = l, cmd.Process.Pid
	// If the worker dies now, serve notices.
	_ = handOver(l, s.config, s.listener, s.lock, s.kept)
	_ = l.send(message{Op: opGo, Deaths: len(s.deaths)})
	return cmd, nil
}

// handOver sends all state that the other end needs to take over.
func handOver(l *link, c *Config, listener, lock *os.File, all map[string]kept) error {
	err := errors.Join(
		l.send(message{Op: opConfig, Config: c}),
		l.send(message{Op: opListener, fd: listener}),
		l.send(message{Op: opLock, fd: lock}))
	for key, k := range all {
		err = errors.Join(err, l.send(message{Op: opKept, Key: key, State: k.state, fd: k.fd}))
	}
	return err
}

type next int

const (
	nextAgain   next = iota // the worker died
	nextRestart             // the worker ended to be replaced
	nextStop                // the worker ended with the node
)

// serve handles the worker's messages until the worker is gone.
func (s *supervisor) serve() next {
	how := nextAgain
	s.served, s.failed = false, nil
	for {
		m, err := s.link.receive()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				s.log.Error("the link failed", "error", err)
			}
			return how
		}
		switch m.Op {
		case opPID:
			s.mu.Lock()
			s.pid = m.PID
			s.mu.Unlock()
		case opKeep, opKept:
			s.keep(m.Key, kept{m.fd, m.State})
		case opDrop:
			s.keep(m.Key, kept{})
		case opConfig:
			s.config = m.Config
		case opListener:
			s.listener = m.fd
		case opLock:
			s.lock = m.fd
		case opReady:
			s.before, s.served = s.exe, true
			if s.ready != nil {
				s.ready(nil)
				s.ready = nil
			}
		case opFailed:
			s.failed = m.Err
		case opCall:
			// The answer must not go to the successor of this worker.
			go answer(s.link, m)
		case opRestart:
			how = nextRestart
			if m.Exe != "" {
				s.exe = m.Exe
			}
		case opStop:
			how = nextStop
		}
	}
}

// keep keeps a descriptor under a key, replacing an earlier one.
func (s *supervisor) keep(key string, k kept) {
	s.mu.Lock()
	old := s.kept[key]
	delete(s.kept, key)
	if k.fd != nil {
		s.kept[key] = k
	}
	s.mu.Unlock()
	if old.fd != nil {
		old.fd.Close()
	}
}

// answer makes a system call for the worker.
func answer(l *link, m message) {
	var err error
	if m.Call.Unmount {
		err = lazyfs.Direct{}.Unmount(m.Call.Target, int(m.Call.Flags))
	} else {
		err = lazyfs.Direct{}.Mount(m.Call.Source, m.Call.Target, m.Call.Type, m.Call.Flags, m.Call.Data)
	}
	var errno unix.Errno
	if err != nil && !errors.As(err, &errno) {
		errno = unix.EIO
	}
	// If the worker is gone, its successor reads the table of mounts.
	_ = l.send(message{Op: opResult, ID: m.ID, Errno: errno})
}

// end asks the worker to end the node.
func (s *supervisor) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ending = true
	if s.link != nil {
		_ = s.link.send(message{Op: opEnd}) // if the worker is gone, serve notices
	}
}

// Foreground runs a node in this process until a signal, a client, or an error ends it.
func Foreground(c Config, log io.Writer) error {
	s, err := newSupervisor(&c, log)
	if err != nil {
		return err
	}
	return s.supervise(nil)
}

// newSupervisor takes the lock of the node's directory.
func newSupervisor(c *Config, log io.Writer) (*supervisor, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	lock, err := takeLock(c.Dir)
	if err != nil {
		return nil, err
	}
	listener, err := listen(c.Dir)
	if err != nil {
		lock.Close()
		return nil, err
	}
	return &supervisor{config: c, exe: self, listener: listener, lock: lock, log: newLog(log, "supervisor"), kept: map[string]kept{}}, nil
}

// listen makes the control socket. The caller holds the lock, and so may remove the
// socket of a dead node.
func listen(dir string) (*os.File, error) {
	path := socketPath(dir)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var l *net.UnixListener
	err := short(dir, func(dir string) (err error) {
		l, err = net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: socketPath(dir)})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("control socket %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false)
	defer l.Close()
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, err
	}
	return l.File()
}

// IsProcess reports whether arg, the first argument of a command line, marks one of a
// node's own processes.
func IsProcess(arg string) bool {
	return arg == SupervisorArg || arg == AdoptArg || arg == WorkerArg || arg == ReaderArg
}

// Main is the main function of a node's own processes: the binary, executed with one of
// the arguments above. It returns the exit status.
func Main(arg, version string) int {
	var err error
	switch arg {
	case SupervisorArg:
		err = background()
	case AdoptArg:
		err = adopt()
	case WorkerArg:
		err = runWorker(version)
	case ReaderArg:
		err = readAheadUntil(os.Stdin)
	}
	if err != nil {
		newLog(os.Stderr, "node").Error(err.Error())
		return 1
	}
	return 0
}

// adopt is the main function of a supervisor that a worker has started after the death
// of its own.
func adopt() error {
	l, err := openLink(os.NewFile(linkFD, "link"))
	if err != nil {
		return err
	}
	s := &supervisor{exe: self, log: newLog(os.Stderr, "supervisor"), kept: map[string]kept{}}
	return s.supervise(l)
}
