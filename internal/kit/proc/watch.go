package proc

import (
	"slices"
	"time"
)

// A task can stop its parent, as it can kill it: kill -STOP $PPID. Two looks have to find the
// parent stopped: a batch system that suspends and resumes a group of processes, one after
// another, may have resumed this process first.
//
// Watch looks at the state, instead of waiting for it by waitpid(2): that reports a stopped
// process only when all of its threads are stopped. A thread that waits in vfork for a child
// that was stopped as well never is.
const (
	watchEvery = 250 * time.Millisecond
	stopsMost  = 3
	stopsSpan  = time.Minute
)

// Watch looks at a child process until ended is closed, after the process was waited for. It
// calls resume when another process has stopped the child, but kill when the child was stopped
// the third time within a minute, and dead as long as the child has ended and was not
// waited for.
func Watch(pid int, ended <-chan struct{}, resume, kill, dead func()) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	before := false
	var times []time.Time
	for {
		select {
		case <-ended:
			return
		case now := <-tick.C:
			if State(pid) == 'Z' {
				dead()
				continue
			}
			found := Stopped(pid)
			if !found || !before {
				before = found
				continue
			}
			before = false
			times = append(slices.DeleteFunc(times, func(t time.Time) bool { return now.Sub(t) > stopsSpan }), now)
			if len(times) < stopsMost {
				resume()
			} else {
				kill()
			}
		}
	}
}

// Stopped reports whether a process has a thread that SIGSTOP has stopped, and its first
// thread does not run.
func Stopped(pid int) bool {
	switch State(pid) {
	case 'T':
		return true
	case 'D': // perhaps in vfork
		return slices.ContainsFunc(Threads(pid), func(tid int) bool { return State(tid) == 'T' })
	}
	return false
}
