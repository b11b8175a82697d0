package scheduling

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"time"

	"premix/internal/kit/exit"
	"premix/internal/replay/simulate"
	"premix/internal/replay/trace"
)

// External is a policy in a separate process, which reads and writes JSON, one value a
// line, on its standard input and output. docs/replay.md describes the protocol.
type External struct {
	config Config
	c      *simulate.Cluster
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    chan reply
	stop   chan struct{} // closed when no goroutine reads out any more
	stderr tail
	name   string

	queued []int32
	gone   []int32
	jobs   map[int64]int32 // queued and running jobs, by number
}

// Protocol is the version of the protocol.
const Protocol = 1

// longestReply is the length of the longest line of a policy.
const longestReply = 64 << 20

// ExternalError is returned for an external policy that failed.
type ExternalError struct {
	Command string
	Reason  string
	Stderr  string
	Err     error
}

func (e *ExternalError) Error() string {
	text := fmt.Sprintf("policy %s: %s", e.Command, e.Reason)
	if e.Stderr != "" {
		text += "; it printed: " + e.Stderr
	}
	return text
}

// ExitCode implements exit.Coded.
func (*ExternalError) ExitCode() exit.Code { return exit.Failed }
func (e *ExternalError) Unwrap() error     { return e.Err }

// Hint names the documentation.
func (e *ExternalError) Hint() string { return "premix help replay has the protocol and an example" }

type reply struct {
	line []byte
	err  error
}

type beginMessage struct {
	Type     string        `json:"type"` // begin
	Protocol int           `json:"protocol"`
	Jobs     int           `json:"jobs"`
	Pools    []poolMessage `json:"pools"`
}

type poolMessage struct {
	Name  string `json:"name"`
	Cores int64  `json:"cores"`
	Free  int64  `json:"free"`
}

type scheduleMessage struct {
	Type     string        `json:"type"` // schedule
	Now      int64         `json:"now"`
	Queued   []jobMessage  `json:"queued"`
	Finished []int64       `json:"ended"`
	Pools    []poolMessage `json:"pools"`
}

type jobMessage struct {
	Job       int64  `json:"job"`
	Submit    int64  `json:"submit"`
	Cores     int32  `json:"cores"`
	Nodes     int32  `json:"nodes,omitempty"`
	Memory    int32  `json:"memory,omitempty"`
	Estimate  int64  `json:"estimate"`
	User      string `json:"user"`
	Account   string `json:"account"`
	Partition string `json:"partition"`
	QOS       string `json:"qos,omitempty"`
	Pool      string `json:"pool"`
	Held      bool   `json:"held,omitempty"`
}

type answer struct {
	Name  string  `json:"name"`
	Start []int64 `json:"start"`
	Wake  int64   `json:"wake"`
}

func (e *External) Name() string {
	if e.name != "" {
		return e.name
	}
	return e.config.Name
}
func (e *External) LooksAhead() bool { return false }
func (e *External) Changed()         {}

func (e *External) Begin(c *simulate.Cluster) error {
	e.c, e.jobs = c, make(map[int64]int32)
	e.cmd = exec.Command(e.config.Exec[0], e.config.Exec[1:]...)
	e.cmd.WaitDelay = time.Second
	e.cmd.Stderr = &e.stderr
	var err error
	if e.in, err = e.cmd.StdinPipe(); err != nil {
		return e.failed("cannot be started: "+err.Error(), err)
	}
	stdout, err := e.cmd.StdoutPipe()
	if err != nil {
		return e.failed("cannot be started: "+err.Error(), err)
	}
	if err := e.cmd.Start(); err != nil {
		e.cmd = nil
		return e.failed("cannot be started: "+err.Error(), err)
	}
	e.out, e.stop = make(chan reply), make(chan struct{})
	go read(stdout, e.out, e.stop)
	m := beginMessage{Type: "begin", Protocol: Protocol, Jobs: c.Trace.Len(), Pools: e.pools()}
	var a answer
	return e.ask(m, &a)
}

// read sends lines until there are no more, or stop is closed.
func read(r io.Reader, out chan<- reply, stop <-chan struct{}) {
	b := bufio.NewScanner(r)
	b.Buffer(nil, longestReply)
	for b.Scan() {
		select {
		case out <- reply{line: bytes.Clone(b.Bytes())}:
		case <-stop:
			return
		}
	}
	err := b.Err()
	if err == nil {
		err = io.EOF
	}
	select {
	case out <- reply{err: err}:
	case <-stop:
	}
}

func (e *External) Queued(job int32) {
	e.queued = append(e.queued, job)
	e.jobs[e.c.Trace.Number[job]] = job
}

func (e *External) Given(int32) {}

func (e *External) Gone(job int32, _ bool) {
	if !e.c.Given(job) { // it does not know the others
		e.gone = append(e.gone, job)
	}
}

func (e *External) pools() []poolMessage {
	var list []poolMessage
	for i, r := range e.c.Rooms {
		list = append(list, poolMessage{Name: e.c.Machine.Pools[i].Name, Cores: r.Total(), Free: r.Free(e.c.Now())})
	}
	return list
}

func (e *External) Schedule() error {
	c, t := e.c, e.c.Trace
	m := scheduleMessage{Type: "schedule", Now: int64(c.Now()), Queued: []jobMessage{}, Finished: []int64{}, Pools: e.pools()}
	for _, j := range e.gone {
		m.Finished = append(m.Finished, t.Number[j])
	}
	for _, j := range e.queued {
		i := int(j)
		q := jobMessage{Job: t.Number[i], Submit: int64(c.Eligible(j)), Cores: t.Cores[i], Nodes: t.NodesOf(i), Memory: t.MemoryOf(i), Estimate: int64(c.Estimate(j)),
			User: t.Users.Names[t.User[i]], Account: t.Accounts.Names[t.Account[i]], Partition: c.Partition(j).Name, Pool: c.Machine.Pools[c.Pool(j)].Name, Held: c.Held(j)}
		if len(t.QOSs.Names) > 0 {
			q.QOS = t.QOSs.Names[t.QOSOf(i)]
		}
		m.Queued = append(m.Queued, q)
	}
	e.gone, e.queued = e.gone[:0], e.queued[:0]
	var a answer
	if err := e.ask(m, &a); err != nil {
		return err
	}
	for _, number := range a.Start {
		j, ok := e.jobs[number]
		if !ok {
			return e.failed(fmt.Sprintf("wants to start job %d, which was never queued", number), nil)
		}
		if err := c.Start(j); err != nil {
			return err
		}
	}
	c.Wake(trace.Time(a.Wake))
	return nil
}

// ask sends a message and waits for its answer.
func (e *External) ask(message any, to *answer) error {
	line, err := json.Marshal(message)
	if err != nil {
		return e.failed(err.Error(), err)
	}
	sent := make(chan error, 1)
	go func() {
		_, err := e.in.Write(append(line, '\n'))
		sent <- err
	}()
	timer := time.NewTimer(time.Duration(e.config.Timeout) * time.Millisecond)
	defer timer.Stop()
	for {
		select {
		case r := <-e.out:
			if r.err == io.EOF {
				return e.failed("ended before the replay did", r.err)
			}
			if r.err != nil {
				return e.failed(r.err.Error(), r.err)
			}
			if err := json.Unmarshal(r.line, to); err != nil {
				return e.failed(fmt.Sprintf("answered %.60q, which is not what is expected: %v", r.line, err), err)
			}
			if to.Name != "" {
				e.name = to.Name
			}
			return nil
		case err := <-sent:
			if err != nil {
				return e.failed("ended before the replay did", err)
			}
			sent = nil
		case <-timer.C:
			return e.failed(fmt.Sprintf("did not answer for %v", trace.Time(e.config.Timeout)), nil)
		}
	}
}

func (e *External) failed(reason string, err error) error {
	if e.cmd != nil {
		e.end()
	}
	return &ExternalError{Command: strings.Join(e.config.Exec, " "), Reason: reason, Stderr: e.stderr.last(), Err: err}
}

// Close ends the process.
func (e *External) Close() error {
	if e.cmd == nil {
		return nil
	}
	return e.end()
}

// patience is the time that a policy may take to end after its input has ended.
const patience = 2 * time.Second

func (e *External) end() error {
	cmd := e.cmd
	e.cmd = nil
	close(e.stop)
	e.in.Close()
	kill := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer kill.Stop()
	err := cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil // its exit status does not matter
	}
	return err
}

// tail keeps the end of a process's output.
type tail struct {
	mu sync.Mutex
	b  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if len(t.b) > 4096 {
		t.b = append(t.b[:0], t.b[len(t.b)-4096:]...)
	}
	return len(p), nil
}

// last returns the last line.
func (t *tail) last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := strings.TrimSpace(string(t.b))
	return text[strings.LastIndexByte(text, '\n')+1:]
}
