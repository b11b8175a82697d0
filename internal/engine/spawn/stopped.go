package spawn

import (
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/proc"
)

// A task can stop its spawner, as it can kill it: kill -STOP $PPID. The client resumes a stopped
// spawner, with the processes of its session that are stopped too. It kills a spawner that was
// stopped stopsMost times within stopsSpan; the tasks of the spawner are suspects then, as after
// any other death.
//
// The client looks at the state, instead of waiting for it by waitpid(2): that reports a stopped
// process only when all of its threads are stopped. A thread that waits in vfork for a child
// that was stopped as well never is. Such a child also keeps the socket open when the
// spawner is killed. So the client kills the session of a spawner that has ended.
const (
	stopCheck = 250 * time.Millisecond
	stopsMost = 3
	stopsSpan = time.Minute
)

// Stops returns how often other processes have stopped the spawner.
func (s *Spawner) Stops() int { return int(s.stops.Load()) }

// Kill kills the spawner. Results returns then, and Close is still to be called.
func (s *Spawner) Kill() {
	_ = s.cmd.Process.Kill() // it may have ended
}

// watch resumes the spawner each time that another process has stopped it, until it has been
// waited for.
// Two looks have to find it stopped: a batch system that suspends and resumes all processes
// of a job, one after another, may have resumed the client first.
func (s *Spawner) watch() {
	tick := time.NewTicker(stopCheck)
	defer tick.Stop()
	before := false
	var times []time.Time
	for {
		select {
		case <-s.ended:
			return
		case now := <-tick.C:
			if proc.State(s.PID()) == 'Z' {
				s.toSession(unix.SIGKILL, func(int) bool { return true })
				continue
			}
			found := isStopped(s.PID())
			if !found || !before {
				before = found
				continue
			}
			before = false
			s.stops.Add(1)
			times = append(slices.DeleteFunc(times, func(t time.Time) bool { return now.Sub(t) > stopsSpan }), now)
			if len(times) >= stopsMost {
				s.stuck.Store(true)
				s.Kill()
				continue
			}
			s.toSession(unix.SIGCONT, isStopped)
			if s.setup.Resumed != nil {
				s.setup.Resumed()
			}
		}
	}
}

// toSession sends a signal to the processes of the session that f selects.
func (s *Spawner) toSession(sig syscall.Signal, f func(pid int) bool) {
	for _, pid := range sessionMembers(s.PID()) {
		if f(pid) {
			_ = unix.Kill(pid, sig) // it may be gone already
		}
	}
}

// isStopped reports whether a process has a thread that SIGSTOP has stopped, and its first
// thread does not run.
func isStopped(pid int) bool {
	switch proc.State(pid) {
	case 'T':
		return true
	case 'D': // perhaps in vfork
		return slices.ContainsFunc(proc.Threads(pid), func(tid int) bool { return proc.State(tid) == 'T' })
	}
	return false
}
