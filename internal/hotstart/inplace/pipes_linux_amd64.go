package inplace

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"premix/internal/hotstart/frozen"
)

// How inputs that are pipes are served: /dev/fd/63 of <(command), or a FIFO (fifo(7)).
//
// A tool that comes to its pipe after its data opens it itself, in every start. A tool that
// opens it earlier, and reads it later, has its descriptor in the snapshot. The open waits for a
// writer. A start must not close the pipe again, since the writer would then end by SIGPIPE, so
// it opens pipes last, when nothing else can fail.

// openPipes opens the pipes that the tool had opened, and waits until each has a writer, or
// until deadly, if it is not nil, returns a signal.
func (s *start) openPipes(deadly func() syscall.Signal) error {
	if len(s.pipes) == 0 {
		return nil
	}
	if err := s.guard.Attach(s.p); err != nil {
		return err
	}
	mem, err := s.p.Alloc(unix.PathMax)
	if err != nil {
		return err
	}
	for _, f := range s.pipes {
		if err := s.openPipe(mem, f); err != nil {
			return fmt.Errorf("open %s: %w", f.Path, err)
		}
	}
	if err := s.p.Free(mem, unix.PathMax); err != nil {
		return err
	}
	for _, f := range s.pipes {
		if err := s.awaitWriter(f, deadly); err != nil {
			return fmt.Errorf("wait for a writer of %s: %w", f.Path, err)
		}
		if _, err := s.p.Syscall(unix.SYS_FCNTL, uint64(f.FD), unix.F_SETFL, uint64(f.Flags)); err != nil {
			return err
		}
	}
	return nil
}

// openPipe opens a pipe in the tool, without waiting. mem is memory for its path.
func (s *start) openPipe(mem uint64, f frozen.File) error {
	if len(f.Path) >= unix.PathMax {
		return unix.ENAMETOOLONG
	}
	if err := s.p.Write(mem, append([]byte(f.Path), 0)); err != nil {
		return err
	}
	const cwd = uint64(0xffffffff & unix.AT_FDCWD)
	fd, err := s.p.Syscall(unix.SYS_OPENAT, cwd, mem, uint64(f.Flags|unix.O_NONBLOCK|unix.O_CLOEXEC))
	if err != nil {
		return err
	}
	if _, err := s.p.Syscall(unix.SYS_DUP3, fd, uint64(f.FD), uint64(f.Flags&unix.O_CLOEXEC)); err != nil {
		return err
	}
	_, err = s.p.Syscall(unix.SYS_CLOSE, fd)
	return err
}

// errSignal is the error of a wait that a signal has ended.
var errSignal = errors.New("a signal came")

// awaitWriter waits until a pipe has, or had, a writer.
func (s *start) awaitWriter(f frozen.File, deadly func() syscall.Signal) error {
	in, err := os.OpenFile(fmt.Sprintf("/proc/%d/fd/%d", s.p.Pid, f.FD), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer in.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	defer w.Close()
	for {
		// A pipe without bytes and without a writer has 0 bytes to copy.
		n, err := unix.Tee(int(in.Fd()), int(w.Fd()), 1, unix.SPLICE_F_NONBLOCK)
		switch {
		case n > 0, err == unix.EAGAIN:
			return nil
		case err == unix.EINTR:
		case err != nil:
			return os.NewSyscallError("tee", err)
		}
		fds := []unix.PollFd{{Fd: int32(in.Fd()), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, 1); err != nil && err != unix.EINTR {
			return os.NewSyscallError("poll", err)
		}
		if fds[0].Revents&unix.POLLHUP != 0 {
			return nil // it has come and gone
		}
		if deadly != nil && deadly() != 0 {
			return errSignal
		}
	}
}
