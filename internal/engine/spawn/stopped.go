package spawn

import (
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// A task can stop its spawner, as it can kill it: kill -STOP $PPID. The client resumes a stopped
// spawner, with the processes of its session that are stopped too. It kills a spawner that was
// stopped stopsMost times within stopsSpan; the tasks of the spawner are suspects then, as after
// any other death.
//
// The client looks at the state, instead of waiting for it by waitpid(2): that reports a stopped
// process only when all of its threads are stopped. A thread that waits in vfork for a child
// that was stopped as well never is.
const (
	stopCheck = 250 * time.Millisecond
	stopsMost = 3
	stopsSpan = time.Minute
)

// Stops returns how often other processes have stopped the spawner.
func (s *Spawner) Stops() int { return int(s.stops.Load()) }

// watch resumes the spawner each time that another process has stopped it, until it has ended.
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
				_ = s.cmd.Process.Kill() // it may have ended
				continue
			}
			for _, pid := range sessionMembers(s.PID()) {
				if isStopped(pid) {
					_ = unix.Kill(pid, unix.SIGCONT) // it may be gone already
				}
			}
			if s.setup.Resumed != nil {
				s.setup.Resumed()
			}
		}
	}
}

// isStopped reports whether a process has a thread that SIGSTOP has stopped, and its first
// thread does not run.
func isStopped(pid int) bool {
	switch state := stateOf(pid); state {
	case "T":
		return true
	case "D": // perhaps in vfork
	default:
		return false
	}
	for _, name := range namesIn("/proc/" + strconv.Itoa(pid) + "/task") {
		if tid, err := strconv.Atoi(name); err == nil && stateOf(tid) == "T" {
			return true
		}
	}
	return false
}

// stateOf returns the letter of the state of a process or thread (proc_pid_stat(5)); "" if it
// does not exist.
func stateOf(pid int) string {
	if f := stat(pid); len(f) > 0 {
		return f[0]
	}
	return ""
}
