package spawn

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Spawner is a client's hold on its spawner. Its methods are safe for concurrent
// use.
type Spawner struct {
	setup Setup
	cmd   *exec.Cmd
	conn  *os.File
	end   sync.Once
	ended chan struct{} // closed when cmd has been waited for
	stops atomic.Int64  // how often another process has stopped it
	stuck atomic.Bool   // it was killed for that

	mu  sync.Mutex // guards writing
	buf []byte
}

// Start starts a spawner: binary is a premix.
func Start(binary string, setup Setup) (*Spawner, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "socket")
	defer theirs.Close()
	if err := unix.SetNonblock(fds[0], true); err != nil {
		unix.Close(fds[0])
		return nil, err
	}
	s := &Spawner{setup: setup, conn: os.NewFile(uintptr(fds[0]), "socket"), ended: make(chan struct{})}
	s.cmd = exec.Command(binary, Arg)
	s.cmd.Stderr = os.Stderr
	s.cmd.ExtraFiles = []*os.File{theirs}
	if err := s.cmd.Start(); err != nil {
		s.conn.Close()
		return nil, fmt.Errorf("start the spawner: %w", err)
	}
	go s.watch()
	text, err := json.Marshal(setup)
	if err == nil {
		err = s.write(append(beginFrame(nil, frameSetup), text...))
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// PID returns the process id of the spawner.
func (s *Spawner) PID() int { return s.cmd.Process.Pid }

// write sends a frame whose length is not in it yet.
func (s *Spawner) write(frame []byte) error {
	_, err := s.conn.Write(endFrame(frame, 0))
	return err
}

// Start hands tasks over. They are started in this order, as slots become free.
func (s *Spawner) Start(tasks []Task) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.buf = beginFrame(s.buf[:0], frameTask)
	for i := range tasks {
		s.buf = tasks[i].put(s.buf)
	}
	return s.write(s.buf)
}

// Signal sends a signal to the processes of a task. If id is 0 it is sent to all, and
// to whatever is started from then on: it is for the end of the work.
func (s *Spawner) Signal(id uint64, sig syscall.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.write(binary.AppendUvarint(binary.AppendUvarint(beginFrame(nil, frameSignal), id), uint64(sig)))
}

// Drop has a task given back that has not begun, or all of them if id is 0. Each
// comes with a result.
func (s *Spawner) Drop(id uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.write(binary.AppendUvarint(beginFrame(nil, frameDrop), id))
}

// SetTimeout gives a task that has not ended another timeout, which counts from its start; 0: none.
// A task that has run for longer is ended at once. A timeout that has passed stays.
func (s *Spawner) SetTimeout(id uint64, timeout time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.write(binary.AppendUvarint(binary.AppendUvarint(beginFrame(nil, frameTimeout), id), uint64(timeout)))
}

// Error is the reason that a spawner gave before it ended.
type Error struct{ Text string }

func (e *Error) Error() string { return "the spawner cannot work: " + e.Text }

// ErrStopped reports that other processes stopped the spawner again each time that it was
// resumed, so that the client has killed it.
var ErrStopped = errors.New("the spawner was stopped again and again")

// Results calls f with each batch of results until the spawner has ended, and
// returns why: nil after Close, io.ErrUnexpectedEOF if the spawner died, ErrStopped, or an
// *Error if it gave up. The batch is valid until f returns.
func (s *Spawner) Results(f func([]Result)) error {
	in := bufio.NewReaderSize(s.conn, 64<<10)
	var frame []byte
	var batch []Result
	var err error
	for {
		if frame, err = readFrame(in, frame); err != nil {
			if errors.Is(err, os.ErrClosed) {
				return nil
			}
			if s.stuck.Load() {
				return ErrStopped
			}
			return io.ErrUnexpectedEOF
		}
		switch frame[0] {
		case frameError:
			return &Error{string(frame[1:])}
		case frameResults:
		default:
			return errFrame
		}
		batch = batch[:0]
		for r := (&reader{b: frame[1:]}); len(r.b) > 0; {
			var res Result
			if err := res.get(r); err != nil {
				return err
			}
			batch = append(batch, res)
		}
		f(batch)
	}
}

// Close ends the spawner and all tasks that it still runs, and waits for them.
func (s *Spawner) Close() error {
	err := s.conn.Close()
	// If it is stopped, it does not see that. watch resumes it again if necessary.
	_ = s.cmd.Process.Signal(unix.SIGCONT)
	// How it ended is of no interest.
	_ = s.cmd.Wait()
	s.end.Do(func() { close(s.ended) })
	b, berr := ReadStatusFile(s.setup.StatusFile)
	if berr == nil && b.Session == s.cmd.Process.Pid {
		berr = b.Sweep()
	}
	return errors.Join(err, berr)
}
