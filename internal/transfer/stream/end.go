package stream

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/owner"
	"premix/internal/transfer"
)

// Serve is the far end: it answers the near end, at in and out, until in ends. address is
// the address of this machine on which it accepts streams; empty: all. Port 0 chooses any
// port. asked is the text that the near end has substituted for [RequestMark]; if it is empty,
// the near end sends the request through in. records is as in [Server].
func Serve(ctx context.Context, in io.Reader, out io.Writer, address string, port int, asked, records string) error {
	ctl := newControl(in, out)
	h := hello{Version: Version}
	d, err := openDoor(address, port)
	if err == nil {
		defer d.listener.Close()
		h = d.hello
	}
	// Without a door only the control connection is used.
	if err := ctl.sendJSON(kindHello, &h); err != nil {
		return err
	}
	var q request
	heard := make(chan error, 1)
	go func() {
		var err error
		q, err = ctl.asked(asked)
		heard <- err
	}()
	select {
	case err := <-heard:
		if err != nil {
			return err
		}
	case <-time.After(helloTime):
		return &PeerError{Err: silentError{helloTime}}
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	at := place{path: string(q.Path)}
	var done func() error
	if q.Whole && !q.Send {
		c, err := stageFor(ctx, at, records, &q)
		if err != nil {
			_ = ctl.sendJSON(kindError, toWire(err)) // the other end may be gone
			return err
		}
		defer c.close() // a later call continues with a part
		at, done = c.place, c.commit
	}
	return answer(ctx, ctl, &q, at, done, func(join func(*stream)) {
		if d != nil {
			go d.wait(q.Congestion, join)
		}
	})
}

// answer makes a copy at the far end, until the copy or the control connection ends. setup
// makes streams join. done, which may be nil, is called when all data has been received.
func answer(ctx context.Context, ctl *control, q *request, at place, done func() error, setup func(join func(*stream))) error {
	x := newSession(ctx, ctl, transfer.SilenceOf(q.Silence))
	x.keep = q.Keep
	defer x.cancel(nil)
	if q.Version != Version {
		close(x.told)
		return x.settle(fmt.Errorf("premix at the peer has version %d of the form of streams, here it is %d", Version, q.Version))
	}
	streams := func(do func(*stream) error) {
		setup(func(s *stream) { x.join(s, do) })
	}
	finished := make(chan error, 1)
	go func() {
		if q.Send {
			more := func(n int) error {
				return ctl.send(kindGrow, binary.LittleEndian.AppendUint32(nil, uint32(n)))
			}
			_, err := x.send(at, q.Start, nil, q.Streams > 0, streams, more)
			finished <- err
			return
		}
		var have []string
		for _, h := range q.Have {
			have = append(have, string(h))
		}
		how, err := wanted(at, have)
		if err == nil {
			err = ctl.sendJSON(kindStart, how)
		}
		if err != nil {
			close(x.told)
			finished <- x.settle(err)
			return
		}
		_, err = x.receive(at, have, how, hooks{done: done}, streams, func(int) error { return errForm })
		finished <- err
	}()
	select {
	case err := <-finished:
		return err
	case <-x.ctx.Done():
	}
	// A goroutine may be blocked writing to a connection that is not read.
	select {
	case err := <-finished:
		return err
	case <-time.After(2 * lastWords):
		return context.Cause(x.ctx)
	}
}

// RequestMark, in a word of a command that starts the far end, is replaced by the request, as a
// text of letters, digits, - and _ for premix transfer serve --asked. The reason is that
// ssh sends its input only a round trip after the command. The request contains no secret.
const RequestMark = "@asked@"

// askedMost bounds the length of that text: a word of a command may have 128 KiB, see
// execve(2).
const askedMost = 64 << 10

// askedLater replaces a longer text, which is sent as a frame.
const askedLater = "-"

// asked returns the request, from the word of the command or from a frame.
func (c *control) asked(word string) (q request, err error) {
	var text []byte
	if word != "" && word != askedLater {
		text, err = base64.RawURLEncoding.DecodeString(word)
	} else {
		var kind byte
		buf := make([]byte, 0, 4<<10)
		if kind, text, err = readFrame(c.in, &buf); err != nil {
			return q, &PeerError{Err: err}
		}
		if kind != kindRequest {
			return q, errForm
		}
	}
	if err != nil || json.Unmarshal(text, &q) != nil {
		return q, errForm
	}
	return q, nil
}

// ask puts a request into a command; told reports whether the command has a place for it.
func ask(command []string, q *request) (words []string, told bool, err error) {
	text, err := json.Marshal(q)
	if err != nil {
		return nil, false, err
	}
	word := base64.RawURLEncoding.EncodeToString(text)
	if len(word) > askedMost {
		word = askedLater
	}
	for _, w := range command {
		told = told || word != askedLater && strings.Contains(w, RequestMark)
		words = append(words, strings.ReplaceAll(w, RequestMark, word))
	}
	return words, told, nil
}

// Copy is a copy, as seen from the near end.
type Copy struct {
	Command []string // starts the far end; see [RequestMark]
	// Server is the address of a standing server, which is used in place of Command, and
	// Key gives access to it. Remote is relative to the directory that it serves.
	Server string
	Key    *Key
	// Whole makes the far end write a put to a private directory beside Remote, which must
	// not exist, and rename it when it is complete.
	Whole   bool
	Keep    Keep
	Send    bool // from here to there
	Local   string
	Remote  string   // absolute, or relative to the working directory of the command
	Have    []string // paths at the receiver (files, directories, stores) that may contain some of the data
	Host    string   // of the far end; empty: the address that it sends
	Streams int      // 0: chosen automatically
	// Congestion is the congestion control to use if the system permits it; empty: the
	// default.
	Congestion string
	// Begin is called at a near receiver before any data is written, with the size of the
	// file, or 0 for a tree. If it returns an error, the copy ends. It may be nil.
	Begin func(size int64) error
}

// Result describes a completed copy.
type Result struct {
	Files   int   `json:"files"`
	Bytes   int64 `json:"bytes"`   // of the files
	Sent    int64 `json:"sent"`    // of these, sent by the last attempt
	Skipped int   `json:"skipped"` // neither files, directories nor links
	// Lost lists the files that could not be read and are missing in the copy; More is the
	// number of failures not in the list.
	Lost    []Failure `json:"lost"`
	More    int       `json:"more_lost"`
	Streams int       `json:"streams"` // 0: only the control connection
	Tries   int       `json:"tries"`
}

// String describes the copy in words.
func (d *Result) String() string {
	way := "through the control connection"
	if d.Streams > 0 {
		way = fmt.Sprintf("in %d streams", d.Streams)
	}
	if n := len(d.Lost) + d.More; n > 0 {
		way += fmt.Sprintf("; %d could not be read and are left out", n)
	}
	if d.Skipped > 0 {
		way += fmt.Sprintf("; %d entries that are not files, directories or links are left out", d.Skipped)
	}
	return fmt.Sprintf("sent %s of %s %s", transfer.Short(d.Sent), transfer.DataName(d.Bytes, d.Files), way)
}

// helloTime is the time limit for the far end to begin. ssh limits the time of its
// connection, but not the time until the command runs.
const helloTime = time.Minute

// tries is the number of times that a copy is resumed after its connection broke.
const tries = 5

// Run makes the copy. If the connection breaks after data has arrived, Run resumes it.
func (j *Copy) Run(ctx context.Context) (*Result, error) {
	for try := 1; ; try++ {
		d, moved, err := j.run(ctx)
		var gone *PeerError
		if err == nil {
			d.Tries = try
			return d, nil
		}
		if !moved || !errors.As(err, &gone) || try == tries || ctx.Err() != nil {
			return nil, err
		}
	}
}

// run makes one attempt; moved reports whether streams were set up.
func (j *Copy) run(ctx context.Context) (_ *Result, moved bool, err error) {
	q := request{Version: Version, Send: !j.Send, Path: []byte(j.Remote), Congestion: j.Congestion, Streams: j.Streams, Silence: transfer.Silence(), Whole: j.Whole && j.Send, Keep: j.Keep}
	if j.Send {
		for _, h := range j.Have {
			q.Have = append(q.Have, []byte(h))
		}
	} else if q.Start, err = wanted(place{path: j.Local}, j.Have); err != nil {
		return nil, false, err
	}
	if j.Server != "" {
		return j.visit(ctx, &q)
	}
	words, told, err := ask(j.Command, &q)
	if err != nil {
		return nil, false, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	life, kill := context.WithCancel(context.WithoutCancel(ctx))
	alone := context.AfterFunc(ctx, kill)
	cmd := exec.CommandContext(life, words[0], words[1:]...)
	cmd.Env = owner.Environ()
	// A Ctrl-C at the terminal must not kill the command, which could then not report
	// errors; the end of ctx kills it.
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = lastWords
	stderr := &lastLines{}
	cmd.Stderr = stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, false, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, false, err
	}
	if err := cmd.Start(); err != nil {
		return nil, false, &PeerError{Err: err}
	}
	ctl := newControl(out, in)
	late := time.AfterFunc(helloTime, kill)
	defer late.Stop()
	defer func() {
		// The far end ends when its input ends, and ssh ends with it.
		in.Close()
		var gone *PeerError
		if err == nil {
			// The copy is complete: do not wait for the round trips of its end.
			alone()
			go reap(cmd, kill)
			return
		}
		if !errors.As(err, &gone) {
			kill()
		}
		reap(cmd, kill)
		if gone != nil && gone.Stderr == "" {
			gone.Met, gone.Stderr, gone.Status = moved, stderr.String(), cmd.ProcessState.ExitCode() // its message is better than its status
		}
	}()
	if !told {
		if err := ctl.sendJSON(kindRequest, &q); err != nil {
			return nil, false, err
		}
	}
	var h hello
	buf := make([]byte, 0, 4<<10)
	kind, payload, err := readFrame(ctl.in, &buf)
	if err != nil || kind != kindHello || json.Unmarshal(payload, &h) != nil {
		return nil, false, &PeerError{Err: errors.Join(errForm, err)}
	}
	late.Stop()
	if h.Version != Version {
		return nil, false, fmt.Errorf("premix at the peer has version %d of the form of streams, here it is %d", h.Version, Version)
	}
	d, err := j.copy(ctx, ctl, &q, &h, kill)
	return d, true, err
}

// copy makes the copy at the near end, after the hello of the far end. breakOff makes
// writes to the control connection fail.
func (j *Copy) copy(ctx context.Context, ctl *control, q *request, h *hello, breakOff func()) (_ *Result, err error) {
	x := newSession(ctx, ctl, transfer.Silence())
	x.keep = j.Keep
	defer x.cancel(nil)
	returned := make(chan struct{})
	defer close(returned)
	go func() {
		select {
		case <-x.ctx.Done():
		case <-returned:
			return
		}
		// A goroutine may be blocked writing to a connection that is not read, and the copy
		// waits for it.
		select {
		case <-time.After(lastWords):
			breakOff()
		case <-returned:
		}
	}()
	p := &pool{x: x, plan: j, hello: h, none: make(chan struct{})}
	var t *totals
	if j.Send {
		t, err = x.send(place{path: j.Local}, nil, p.none, j.Streams > 0, p.setup, p.more)
	} else {
		t, err = x.receive(place{path: j.Local}, j.Have, q.Start, hooks{begin: j.Begin}, p.setup, p.more)
	}
	if err != nil {
		return nil, err
	}
	return &Result{Files: t.Files, Bytes: t.Bytes, Sent: t.Sent, Skipped: t.Skipped, Lost: t.lost.list, More: t.lost.more, Streams: p.count()}, nil
}

// reap waits for a command that should end, and kills it if it does not.
func reap(cmd *exec.Cmd, kill func()) {
	late := time.AfterFunc(lastWords, kill)
	_ = cmd.Wait()
	late.Stop()
	kill()
}

// pool creates streams at the near end.
type pool struct {
	x     *session
	plan  *Copy
	hello *hello
	do    func(*stream) error
	none  chan struct{} // closed when it is certain that there will be no stream

	mu     sync.Mutex
	joined int
}

func (p *pool) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.joined
}

const (
	// shortTrip is the round-trip time below which few streams are enough.
	shortTrip = 2 * time.Millisecond
	// fewStreams is the number of streams on a short link.
	fewStreams = 4
)

// setup begins to create streams: first fewStreams, all at once, and more as soon as one of
// them has measured a long round trip.
func (p *pool) setup(do func(*stream) error) {
	p.do = do
	n, met := p.plan.Streams, func(time.Duration) {}
	if n == 0 {
		var far sync.Once
		n, met = fewStreams, func(rtt time.Duration) {
			if rtt >= shortTrip {
				far.Do(func() { _ = p.more(fewStreams) })
			}
		}
	}
	go func() {
		var added sync.WaitGroup
		var some atomic.Bool
		for range min(n, maxStreams) {
			added.Go(func() {
				if p.add(met) == nil {
					some.Store(true)
				}
			})
		}
		if added.Wait(); !some.Load() {
			close(p.none)
			_ = p.x.ctl.send(kindNone) // the reader of the control connection notices if it broke
		}
	}()
}

// more creates further streams. It ignores failures to create one.
func (p *pool) more(n int) error {
	for range min(n, maxStreams-p.count()) {
		go func() { _ = p.add(func(time.Duration) {}) }()
	}
	return nil
}

// add creates a stream, and calls met with the round-trip time as soon as it is measured.
func (p *pool) add(met func(rtt time.Duration)) error {
	host := p.plan.Host
	if host == "" {
		host = p.hello.Address
	}
	if host == "" || p.hello.Port == 0 {
		return errors.New("the far end has opened no port")
	}
	s, err := dial(p.x.ctx, net.JoinHostPort(strings.Trim(host, "[]"), strconv.Itoa(p.hello.Port)), p.hello, p.plan.Congestion, met)
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.joined++
	p.mu.Unlock()
	p.x.join(s, p.do)
	return nil
}

// lastLines keeps the end of a command's messages.
type lastLines struct {
	mu sync.Mutex
	b  []byte
}

func (l *lastLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b = append(l.b, p...)
	if len(l.b) > 8<<10 {
		l.b = append(l.b[:0], l.b[len(l.b)-4<<10:]...)
	}
	return len(p), nil
}

// String returns the last line that is not a hint.
func (l *lastLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := ""
	for line := range strings.Lines(string(l.b)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "hint: ") {
			last = strings.TrimPrefix(line, "error: ")
		}
	}
	return strings.ToValidUTF8(last, "?")
}
