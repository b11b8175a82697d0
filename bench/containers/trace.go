package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"premix/internal/testkit/workbench"
)

// trace is a file with the requests to the server in one repetition and their times. It
// shows which requests a start waits for one after the other. Its lines are traceLines.
// The methods of a nil trace do nothing.
type trace struct {
	origin *workbench.Origin
	begin  time.Time

	mu  sync.Mutex // a request may end while another line is written
	f   *os.File
	err error
}

// traceLine is a line of JSON: a request, or a mark. Times are seconds from the beginning
// of the measurement, when the daemons start.
type traceLine struct {
	From  float64 `json:"from"`
	To    float64 `json:"to"`
	Path  string  `json:"path,omitempty"`
	Bytes int64   `json:"bytes,omitempty"`
	Mark  string  `json:"mark,omitempty"`
}

// traced begins a trace if -traces is given. The name of the file has no number of the
// repetition, so that each repetition replaces the trace of the one before.
func (b *benchmark) traced(p *place, im image, w workload, c contender) *trace {
	if b.traces == "" {
		return nil
	}
	t := &trace{origin: p.origin, begin: time.Now()}
	if t.err = os.MkdirAll(b.traces, 0o755); t.err != nil {
		return t
	}
	name := fmt.Sprintf("%s-%s-%s-%s.jsonl", p.network, im.name, w.name, c.name)
	if t.f, t.err = os.Create(filepath.Join(b.traces, name)); t.err != nil {
		return t
	}
	p.origin.Watch(func(r workbench.Request) {
		t.write(traceLine{From: r.Begin.Sub(t.begin).Seconds(), To: r.End.Sub(t.begin).Seconds(), Path: r.Path, Bytes: r.Bytes})
	})
	return t
}

func (t *trace) write(line traceLine) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err == nil {
		t.err = json.NewEncoder(t.f).Encode(line)
	}
}

// mark records an event with its time.
func (t *trace) mark(name string) {
	if t == nil {
		return
	}
	now := time.Since(t.begin).Seconds()
	t.write(traceLine{From: now, To: now, Mark: name})
}

func (t *trace) close() error {
	if t == nil {
		return nil
	}
	t.origin.Watch(nil)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.f == nil {
		return t.err
	}
	err := errors.Join(t.err, t.f.Close())
	t.err = os.ErrClosed // for requests that end after this
	return err
}
