package hotstart

import (
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// inputWatch learns when a task's tool opens its first input, by inotify(7):
// nothing of it can be felt by the tool, and all kinds of start are measured
// alike.
type inputWatch struct {
	f     *os.File
	first chan time.Time
}

// watchInputs watches the files that the task's inputs lead to. It is best
// effort: without it a latency is the time until the tool ran.
func watchInputs(spec Spec, t Task) *inputWatch {
	if spec.Ready.Kind == ReadyLine || len(spec.Inputs) == 0 {
		return nil
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil
	}
	mask := uint32(unix.IN_OPEN)
	if spec.Ready.Kind == ReadyRead {
		mask = unix.IN_ACCESS
	}
	for _, name := range spec.Inputs {
		path := filepath.Join(t.Dir, name)
		if real := t.Inputs[name]; real != "" {
			path = real // it is going to be mounted there
		}
		if _, err := unix.InotifyAddWatch(fd, path, mask|unix.IN_ONESHOT); err != nil {
			unix.Close(fd)
			return nil
		}
	}
	w := &inputWatch{f: os.NewFile(uintptr(fd), "inotify"), first: make(chan time.Time, 1)}
	go func() {
		buf := make([]byte, 4096)
		if n, err := w.f.Read(buf); err == nil && n > 0 {
			w.first <- time.Now()
		}
		close(w.first)
	}()
	return w
}

// stop ends the watch and returns when the first event came, if one did.
func (w *inputWatch) stop() (time.Time, bool) {
	if w == nil {
		return time.Time{}, false
	}
	w.f.Close()
	t, ok := <-w.first
	return t, ok
}
