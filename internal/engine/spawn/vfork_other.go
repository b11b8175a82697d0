//go:build !(linux && amd64)

package spawn

import "syscall"

// starter starts children with the means of package syscall.
type starter struct {
	joins bool // as all children do
}

func newStarter(syscall.Rlimit, bool) (*starter, error) { return &starter{}, nil }

func (s *starter) start(c *child) (pid int, at step, errno syscall.Errno) { return forkExec(c) }

func (s *starter) await(pid int, _ bool, status *syscall.WaitStatus, usage *syscall.Rusage) {
	for {
		if _, err := syscall.Wait4(pid, status, 0, usage); err != syscall.EINTR {
			return
		}
	}
}

func wakeable() bool { return false }
