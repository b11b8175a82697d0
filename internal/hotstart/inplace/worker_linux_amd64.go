package inplace

import (
	"fmt"
	"os"
	"runtime"

	"premix/internal/hotstart/tracer"
	"premix/internal/kit/spare"
)

// How preparations run beside each other.
//
// Two preparations do not depend on each other. If the machine has two processors and memory for
// both, they load their data at the same time. Only the thread that traces a process can work on it,
// so each of them has a thread.

// A worker is a thread that traces the processes of a trial.
type worker struct{ calls chan func() }

func newWorker() *worker {
	w := &worker{make(chan func())}
	go func() {
		runtime.LockOSThread() // the thread ends with its processes
		for f := range w.calls {
			f()
		}
	}()
	return w
}

// do calls f in the thread, and returns its error. If w is nil, it calls f in the thread of the
// caller.
func (w *worker) do(f func() error) (err error) {
	if w == nil {
		return f()
	}
	done := make(chan struct{})
	w.calls <- func() { defer close(done); err = f() }
	<-done
	return err
}

// end ends the thread.
func (w *worker) end() {
	if w != nil {
		close(w.calls)
	}
}

// atOnce returns the number of preparations that may load their data at the same time, if each
// needs some memory, in bytes.
func atOnce(memory int64) int {
	const several = 4 // two processes, and what the page file needs until it is on the disk
	processors := 0
	for _, b := range tracer.OwnCPUs() {
		for ; b != 0; b &= b - 1 {
			processors++
		}
	}
	available, _, err := spare.Memory()
	if room, limited := spare.Cgroup(); limited {
		available = min(available, room)
	}
	if err != nil || processors < 2 || memory > available/several {
		return 1
	}
	return 2
}

// resident returns the memory that a process has in use, in bytes, or 0 if it does not exist.
func resident(pid int) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	var size, pages int64
	if _, err := fmt.Sscan(string(text), &size, &pages); err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}
