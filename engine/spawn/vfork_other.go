//go:build !(linux && amd64)

package spawn

import "syscall"

// starter starts children with the means of package syscall.
type starter struct{}

func newStarter(syscall.Rlimit) (*starter, error) { return &starter{}, nil }

func (s *starter) start(c *child) (pid int, at step, errno syscall.Errno) { return forkExec(c) }

func (s *starter) short(*child) {}
