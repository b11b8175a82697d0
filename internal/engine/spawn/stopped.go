package spawn

import (
	"syscall"

	"golang.org/x/sys/unix"

	"premix/internal/kit/proc"
)

// Stops returns how often other processes have stopped the spawner.
func (s *Spawner) Stops() int { return int(s.stops.Load()) }

// Kill kills the spawner. Results returns then, and Close is still to be called.
func (s *Spawner) Kill() {
	_ = s.cmd.Process.Kill() // it may have ended
}

// watch resumes the spawner, with the processes of its session that are stopped too, each time
// that another process has stopped it. It kills a spawner that is stopped again and again, whose
// tasks are suspects then, as after any other death.
//
// When the spawner has ended, watch kills its session: a child that was stopped before it
// executed its program would keep the socket open.
func (s *Spawner) watch() {
	proc.Watch(s.PID(), s.ended, func() {
		s.stops.Add(1)
		s.toSession(unix.SIGCONT, proc.Stopped)
		if s.setup.Resumed != nil {
			s.setup.Resumed()
		}
	}, func() {
		s.stops.Add(1)
		s.stuck.Store(true)
		s.Kill()
	}, func() {
		s.toSession(unix.SIGKILL, func(int) bool { return true })
	})
}

// toSession sends a signal to the processes of the session that f selects.
func (s *Spawner) toSession(sig syscall.Signal, f func(pid int) bool) {
	for _, pid := range sessionMembers(s.PID()) {
		if f(pid) {
			_ = unix.Kill(pid, sig) // it may be gone already
		}
	}
}
