package spawn

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"
)

// Arg is the first argument of a spawner.
const Arg = "spawner"

// Kinds of frames.
const (
	frameSetup   = 's' // client: the first, Setup as JSON
	frameTask    = 't' // client: start a task
	frameSignal  = 'k' // client: signal a task, or all
	frameDrop    = 'd' // client: return the tasks that have not begun
	frameTimeout = 'l' // client: a task has another timeout
	frameResults = 'r' // spawner: results
	frameError   = 'e' // spawner: why it cannot work
)

// maxFrame is the longest frame that is believed in.
const maxFrame = 64 << 20

// Setup is the configuration of a spawner.
type Setup struct {
	Slots      int
	First      int          // number of the first slot, in results
	StatusFile string       // path of the status file; it is made
	Logs       []string     // two files a slot: standard output, standard error
	Cells      []TaskCgroup // one a slot; empty: without cgroups
	Resumed    func()       `json:"-"` // for the client: it has resumed the spawner, which another process had stopped; nil: none
}

// Task is the description of a process. It has Argv or Shell, or both: with both, the
// shell runs Shell if Argv cannot be executed, which is the same as if the
// shell had found this out itself.
type Task struct {
	ID      uint64
	Argv    []string // looked up with the PATH of the task; no shell
	Shell   string   // command for /bin/sh -c
	Env     []string // KEY=VALUE, instead of the spawner's environment
	Dir     string   // absolute; "": the spawner's
	Stdin   string   // file for standard input; "" for an empty one
	Stdout  string   // the task's own file for standard output; "" for the log
	Stderr  string   // the task's own file for standard error; "" for the log
	Timeout time.Duration
	Grace   time.Duration // between SIGTERM at the timeout and SIGKILL
	Join    []string      // cgroups, as directories
	Events  string        // file that counts the kills at the memory limit of one of them; "" for none
	CPUs    []int         // to run on; empty: the spawner's
	Nodes   []int         // NUMA nodes to take memory from; none: any
}

// Result is how a task ended.
type Result struct {
	ID       uint64
	Slot     int
	Started  time.Time
	Finished time.Time
	Status   syscall.WaitStatus
	Errno    syscall.Errno // why it was not started, 0 if it was
	At       string        // the step that failed, if Errno is not 0
	Dropped  bool          // it was given back: nothing was started
	TimedOut bool
	Signaled bool // the client had it signalled
	Lost     bool // the client was gone, so the task was killed, if it had not ended
	User     time.Duration
	System   time.Duration
	MaxRSS   int64    // bytes; 0 if it was less than the spawner's own
	Read     int64    // bytes from storage
	Written  int64    // bytes to storage
	OOMKills int      // processes that the kernel killed at the limit
	Refused  bool     // the kernel refused it a process or thread, at a limit of how many there are
	Full     bool     // the disk of the status file was full when it ended
	Out, Err LogRange // its output in the logs
}

// LogRange is a part of a log.
type LogRange struct{ Offset, Length int64 }

// Bits of a task's frame and of a result's.
const (
	bitDropped  = 1
	bitTimedOut = 2
	bitSignaled = 4
	bitLost     = 8
	bitRefused  = 16
	bitFull     = 32
)

func putString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func putStrings(b []byte, list []string) []byte {
	b = binary.AppendUvarint(b, uint64(len(list)))
	for _, s := range list {
		b = putString(b, s)
	}
	return b
}

func putInts(b []byte, list []int) []byte {
	b = binary.AppendUvarint(b, uint64(len(list)))
	for _, v := range list {
		b = binary.AppendUvarint(b, uint64(v))
	}
	return b
}

// reader takes a frame apart. After a mistake it gives zeros, and bad is set.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) uint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) string() string {
	n := r.uint()
	if n > uint64(len(r.b)) {
		r.bad, r.b = true, nil
		return ""
	}
	s := string(r.b[:n])
	r.b = r.b[n:]
	return s
}

func (r *reader) strings() []string {
	n := r.uint()
	if n > uint64(len(r.b)) {
		r.bad, r.b = true, nil
		return nil
	}
	var list []string
	for range n {
		list = append(list, r.string())
	}
	return list
}

func (r *reader) ints() []int {
	n := r.uint()
	if n > uint64(len(r.b)) {
		r.bad, r.b = true, nil
		return nil
	}
	var list []int
	for range n {
		list = append(list, int(r.uint()))
	}
	return list
}

var errFrame = errors.New("a frame is damaged")

func (t *Task) put(b []byte) []byte {
	b = binary.AppendUvarint(b, t.ID)
	b = putStrings(b, t.Argv)
	b = putString(b, t.Shell)
	b = putStrings(b, t.Env)
	b = putString(b, t.Dir)
	b = putString(b, t.Stdout)
	b = putString(b, t.Stderr)
	b = binary.AppendUvarint(b, uint64(t.Timeout))
	b = binary.AppendUvarint(b, uint64(t.Grace))
	b = putStrings(b, t.Join)
	b = putString(b, t.Events)
	b = putInts(b, t.CPUs)
	b = putInts(b, t.Nodes)
	return putString(b, t.Stdin)
}

func (t *Task) get(r *reader) error {
	*t = Task{ID: r.uint(), Argv: r.strings(), Shell: r.string(), Env: r.strings(), Dir: r.string(),
		Stdout: r.string(), Stderr: r.string(), Timeout: time.Duration(r.uint()), Grace: time.Duration(r.uint()),
		Join: r.strings(), Events: r.string(), CPUs: r.ints(), Nodes: r.ints(), Stdin: r.string()}
	if r.bad {
		return errFrame
	}
	return nil
}

func (s *Result) put(b []byte) []byte {
	var bits uint64
	if s.Dropped {
		bits |= bitDropped
	}
	if s.TimedOut {
		bits |= bitTimedOut
	}
	if s.Signaled {
		bits |= bitSignaled
	}
	if s.Lost {
		bits |= bitLost
	}
	if s.Refused {
		bits |= bitRefused
	}
	if s.Full {
		bits |= bitFull
	}
	b = binary.AppendUvarint(b, s.ID)
	b = binary.AppendUvarint(b, bits)
	b = binary.AppendUvarint(b, uint64(s.Slot))
	b = binary.AppendUvarint(b, uint64(s.Started.UnixNano()))
	b = binary.AppendUvarint(b, uint64(s.Finished.Sub(s.Started)))
	b = binary.AppendUvarint(b, uint64(s.Status))
	b = binary.AppendUvarint(b, uint64(s.Errno))
	b = putString(b, s.At)
	b = binary.AppendUvarint(b, uint64(s.OOMKills))
	for _, v := range []int64{int64(s.User), int64(s.System), s.MaxRSS, s.Read, s.Written, s.Out.Offset, s.Out.Length, s.Err.Offset, s.Err.Length} {
		b = binary.AppendUvarint(b, uint64(v))
	}
	return b
}

func (s *Result) get(r *reader) error {
	s.ID = r.uint()
	bits := r.uint()
	s.Dropped, s.TimedOut, s.Signaled, s.Lost = bits&bitDropped != 0, bits&bitTimedOut != 0, bits&bitSignaled != 0, bits&bitLost != 0
	s.Refused, s.Full = bits&bitRefused != 0, bits&bitFull != 0
	s.Slot = int(r.uint())
	s.Started = time.Unix(0, int64(r.uint())).UTC()
	s.Finished = s.Started.Add(time.Duration(r.uint()))
	s.Status, s.Errno, s.At = syscall.WaitStatus(r.uint()), syscall.Errno(r.uint()), r.string()
	s.OOMKills = int(r.uint())
	for _, v := range []*int64{(*int64)(&s.User), (*int64)(&s.System), &s.MaxRSS, &s.Read, &s.Written, &s.Out.Offset, &s.Out.Length, &s.Err.Offset, &s.Err.Length} {
		*v = int64(r.uint())
	}
	if r.bad {
		return errFrame
	}
	return nil
}

// readFrame reads a frame into buf, which it may replace.
func readFrame(in io.Reader, buf []byte) (frame []byte, err error) {
	var head [4]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return buf, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n == 0 || n > maxFrame {
		return buf, fmt.Errorf("a frame of %d bytes: %w", n, errFrame)
	}
	if uint32(cap(buf)) < n {
		buf = make([]byte, n)
	}
	buf = buf[:n]
	if _, err := io.ReadFull(in, buf); err != nil {
		return buf, io.ErrUnexpectedEOF
	}
	return buf, nil
}

// beginFrame makes room for the length of a frame in b, which ends before it.
func beginFrame(b []byte, kind byte) []byte { return append(b, 0, 0, 0, 0, kind) }

// endFrame writes the length of the frame that begins at.
func endFrame(b []byte, at int) []byte {
	binary.LittleEndian.PutUint32(b[at:], uint32(len(b)-at-4))
	return b
}
